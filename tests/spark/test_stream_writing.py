"""Streaming queries into a log: each batch is there exactly once, though the query dies between any two steps."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from replog import api
from replog.spark.options import SparkOptions
from replog.spark.stream_writing import BatchWriter
from replog.spark.writing import WrittenPartition
from tests.servers.bookies import Bookies
from tests.spark.logs import ask, ledgers_of, listed_ids, rows_of
from tests.spark.queries import ENDING_S, Query, put, restarted, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.needs_spark


def test_a_batch_is_there_once_though_the_query_dies(
    spark: SparkSession, spark_bookies: Bookies, spark_log: str, tmp_path: Path
) -> None:
    """The log has it, and Spark is told otherwise: it aborts, and does the batch again when the query is begun again."""
    from pyspark.errors import StreamingQueryException

    from tests.spark.faulty import ANSWER_LOST

    query = Query(spark, spark_bookies.metastore, spark_log, tmp_path)
    for number in (1, 2, 3):
        put(query.files, number)
    with pytest.raises(StreamingQueryException, match="InjectedError: answer lost"):
        query.run(ANSWER_LOST)
    assert rows_of(spark_bookies.metastore, spark_log) == rows(1, 2)
    assert query.committed_batches() == [0]

    query.run()
    assert rows_of(spark_bookies.metastore, spark_log) == rows(1, 2, 3)
    listed = listed_ids(spark_bookies.metastore, spark_log)
    assert sorted(ledgers_of(spark_bookies.metastore, spark_log)) == sorted(listed)
    metadata = ask(spark_bookies.metastore, lambda client: client.log_metadata(spark_log))
    assert [transaction.number for transaction in metadata.transactions] == [2]  # one for each query


def test_batch_with_a_failed_commit_is_written_by_the_next_try(
    spark: SparkSession, spark_bookies: Bookies, spark_log: str, tmp_path: Path
) -> None:
    """What the abort gave up is that try's alone."""
    from pyspark.errors import StreamingQueryException

    from tests.spark.faulty import COMMIT_FAILS

    query = Query(spark, spark_bookies.metastore, spark_log, tmp_path)
    put(query.files, 1)
    put(query.files, 2)
    with pytest.raises(StreamingQueryException, match="InjectedError: commit fails"):
        query.run(COMMIT_FAILS)
    assert rows_of(spark_bookies.metastore, spark_log) == rows(1)
    query.run()
    assert rows_of(spark_bookies.metastore, spark_log) == rows(1, 2)
    listed = listed_ids(spark_bookies.metastore, spark_log)
    assert sorted(ledgers_of(spark_bookies.metastore, spark_log)) == sorted(listed)


def test_one_client_commits_batch_after_batch(
    spark_bookies: Bookies, spark_log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To connect is most of what the commit of a small batch would take; Spark keeps its process for the next one."""
    connected = []

    def connect(*arguments: Any, **options: Any) -> Any:
        connected.append(arguments)
        return api.connect(*arguments, **options)

    monkeypatch.setattr("replog.spark.clients.api", SimpleNamespace(connect=connect))
    options = SparkOptions(metastore=spark_bookies.metastore, log=spark_log)
    schema = StructType([StructField("value", BinaryType())])
    for batch_id in range(3):
        row = f"{batch_id}".encode()
        sent = WrittenPartition(f"query/{batch_id}/run", 0, None, 1, "query", (row,))
        writer = BatchWriter(options, schema)  # for each batch Spark makes one
        writer.commit([sent], batch_id)
        writer.abort([sent], batch_id)  # as after a lost answer
    assert rows_of(spark_bookies.metastore, spark_log) == [b"0", b"1", b"2"]
    assert len(connected) == 1


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.long(is_sampled=False)
def test_a_killed_driver_is_followed_by_another_one(
    spark: SparkSession, spark_bookies: Bookies, spark_log: str, tmp_path: Path
) -> None:
    """SIGKILL to its Java and its Python, when the log has the batch's rows and the checkpoint has no word of it. The query goes
    on from its checkpoint in another driver."""
    for number in (1, 2, 3):
        put(tmp_path / "files", number)
    command = [sys.executable, "-m", "tests.spark.queries", spark_bookies.metastore, spark_log, str(tmp_path)]
    with (tmp_path / "driver.log").open("wb") as log:
        killed = subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, timeout=240, check=False)
    assert killed.returncode == -signal.SIGKILL, (tmp_path / "driver.log").read_text()
    query = Query(spark, spark_bookies.metastore, spark_log, tmp_path)
    assert rows_of(spark_bookies.metastore, spark_log) == rows(1, 2)
    assert query.committed_batches() == [0]
    query.run()
    assert rows_of(spark_bookies.metastore, spark_log) == rows(1, 2, 3)
    assert query.committed_batches() == [0, 1, 2]


@pytest.mark.long(is_sampled=False)
def test_unsupported_modes_are_refused(
    spark: SparkSession, spark_bookies: Bookies, spark_log: str, tmp_path: Path
) -> None:
    """Update by Spark, complete by the format; what they are for is written from foreachBatch, each batch once."""
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import DataFrame

    options = {"metastore": spark_bookies.metastore, "log": spark_log, "values": "json"}
    put(tmp_path / "files", 1)
    counts = spark.readStream.text(str(tmp_path / "files")).groupBy("value").count()

    def run(mode: str, write: Callable[[DataStreamWriter], DataStreamWriter]) -> None:
        writer = counts.writeStream.outputMode(mode).trigger(availableNow=True)
        query = write(writer.option("checkpointLocation", str(tmp_path / mode))).start()
        assert query.awaitTermination(ENDING_S)

    refused = {"update": "replog does not support Update mode", "complete": r'write \.outputMode\("append"\)'}
    for mode, told in refused.items():
        with pytest.raises(StreamingQueryException, match=told):
            restarted(lambda mode=mode: run(mode, lambda writer: writer.format("replog").options(**options)))  # type: ignore[misc]
    assert rows_of(spark_bookies.metastore, spark_log) == []

    def write(batch: DataFrame, batch_id: int) -> None:
        for _ in range(2):  # as after a failure
            batch.orderBy("value").write.format("replog").mode("append").options(
                **options, txnId="counts", txnVersion=batch_id
            ).save()

    restarted(lambda: run("update", lambda writer: writer.foreachBatch(write)))
    assert rows_of(spark_bookies.metastore, spark_log) == [b'{"value":"1-%d","count":1}' % row for row in range(3)]
