"""Streaming queries into a log: each batch is there exactly once, though the query dies between any two steps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.servers.bookies import Bookies
from tests.spark.logs import ask, ledgers_of, listed_ids, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.needs_spark


def put(directory: Path, number: int) -> None:
    """One more file, which becomes one batch of the stream."""
    directory.mkdir(exist_ok=True)
    (directory / f"{number}.txt").write_text("".join(f"{number}-{row}\n" for row in range(3)))


def rows(*numbers: int) -> list[bytes]:
    return [f"{number}-{row}".encode() for number in numbers for row in range(3)]


class Query:
    """A query that reads files, one for each batch, and ends when it has read all that are there."""

    def __init__(self, spark: SparkSession, bookies: Bookies, log: str, tmp_path: Path) -> None:
        from tests.spark.faulty import FaultySource

        spark.dataSource.register(FaultySource)
        self.files = tmp_path / "files"
        self.checkpoint = tmp_path / "checkpoint"
        self._once = tmp_path / "once"
        self._spark = spark
        self._bookies = bookies
        self._log = log

    def run(self, fault: str = "") -> None:
        """Raises what the query ended with."""
        lines = self._spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.files))
        values = lines.selectExpr("cast(value as binary) as value")
        writer = values.writeStream.format("replog-faulty" if fault else "replog").trigger(availableNow=True)
        writer = writer.option("metastore", self._bookies.metastore).option("log", self._log)
        if fault:
            writer = writer.option("fault", fault).option("once", str(self._once))
        query = writer.option("checkpointLocation", str(self.checkpoint)).start()
        try:
            query.awaitTermination(120)
        finally:
            query.stop()

    def forget_last_batch(self) -> None:
        """As if the driver had died between the sink's commit and Spark's own note of it."""
        commits = sorted((each for each in (self.checkpoint / "commits").iterdir() if each.name.isdigit()), key=_number)
        commits[-1].unlink()
        (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)


def _number(path: Path) -> int:
    return int(path.name)


def test_a_batch_is_there_once_though_the_query_dies(
    spark: SparkSession, spark_bookies: Bookies, spark_log: str, tmp_path: Path
) -> None:
    """Between the sink's commit and the commit log; then with a commit whose answer is lost, after which Spark aborts."""
    from pyspark.errors import StreamingQueryException

    from tests.spark.faulty import ANSWER_LOST

    query = Query(spark, spark_bookies, spark_log, tmp_path)
    put(query.files, 1)
    query.run()
    assert rows_of(spark_bookies.metastore, spark_log) == rows(1)

    query.forget_last_batch()
    put(query.files, 2)
    with pytest.raises(StreamingQueryException, match="InjectedError: answer lost"):
        query.run(ANSWER_LOST)  # does the first batch again, and the second one
    assert rows_of(spark_bookies.metastore, spark_log) == rows(1, 2)

    put(query.files, 3)
    query.run()  # does the second one again
    assert rows_of(spark_bookies.metastore, spark_log) == rows(1, 2, 3)
    listed = listed_ids(spark_bookies.metastore, spark_log)
    assert sorted(ledgers_of(spark_bookies.metastore, spark_log)) == sorted(listed)
    metadata = ask(spark_bookies.metastore, lambda client: client.log_metadata(spark_log))
    assert [transaction.number for transaction in metadata.transactions] == [2]  # one for each query


def test_a_batch_whose_commit_failed_is_written_by_the_next_try(
    spark: SparkSession, spark_bookies: Bookies, spark_log: str, tmp_path: Path
) -> None:
    """What the abort gave up is that try's alone."""
    from pyspark.errors import StreamingQueryException

    from tests.spark.faulty import COMMIT_FAILS

    query = Query(spark, spark_bookies, spark_log, tmp_path)
    put(query.files, 1)
    put(query.files, 2)
    with pytest.raises(StreamingQueryException, match="InjectedError: commit fails"):
        query.run(COMMIT_FAILS)
    assert rows_of(spark_bookies.metastore, spark_log) == rows(1)
    query.run()
    assert rows_of(spark_bookies.metastore, spark_log) == rows(1, 2)
    listed = listed_ids(spark_bookies.metastore, spark_log)
    assert sorted(ledgers_of(spark_bookies.metastore, spark_log)) == sorted(listed)
