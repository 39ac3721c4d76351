"""Writing by `mapInArrow`, on a real Spark: one commit shows all rows, once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as arrow
import pytest

import replog
import replog.blocking
from replog.errors import SchemaMismatchError
from replog.spark import abort_arrow, commit_arrow, write_arrow
from tests.servers.bookies import Bookies

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.needs_spark


@pytest.fixture
def client(spark_bookies: Bookies) -> Iterator[replog.blocking.Client]:
    with replog.blocking.connect(spark_bookies.metastore) as client:
        yield client


def written(client: replog.blocking.Client, log: str) -> list[bytes]:
    with client.read_log(log) as reader:
        return [record.data for record in reader]


def attempt_number() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context.attemptNumber()


def frame_of(spark: SparkSession, rows: int = 1000, partitions: int = 3) -> Any:
    return spark.range(0, rows, 1, partitions).selectExpr("id", "concat('row ', id) as text")


def test_all_rows_of_a_job_become_visible_at_once_and_in_order(
    spark: SparkSession, spark_bookies: Bookies, spark_log: str, client: replog.blocking.Client
) -> None:
    frame = frame_of(spark)
    job = write_arrow(frame.schema, spark_bookies.metastore, spark_log, values="json")
    mapped = frame.mapInArrow(job, job.schema)
    results = mapped.collect()
    assert spark_log not in client.logs()
    assert commit_arrow(job, results[::-1]) == 1000
    entries = written(client, spark_log)
    assert [json.loads(entry) for entry in entries] == [
        {"id": number, "text": f"row {number}"} for number in range(1000)
    ]
    assert commit_arrow(job, results) == 0, "the same again"
    assert commit_arrow(job, mapped.collect()) == 0, "other ledgers of the same job"
    assert written(client, spark_log) == entries
    other = spark.range(3)
    with pytest.raises(SchemaMismatchError, match=r"column 'text' \(string\) is missing"):
        write_arrow(other.schema, spark_bookies.metastore, spark_log, values="json")
    with pytest.raises(SchemaMismatchError, match="its values are json"):
        write_arrow(other.selectExpr("cast('' as binary) as value").schema, spark_bookies.metastore, spark_log)


def test_task_failing_on_its_way_leaves_nothing_visible(
    spark: SparkSession, spark_bookies: Bookies, spark_log: str, client: replog.blocking.Client
) -> None:
    frame = frame_of(spark, partitions=2)
    job = write_arrow(frame.schema, spark_bookies.metastore, spark_log, values="arrow", txn_id="of the day")

    def failing_once(batches: Iterable[Any]) -> Iterator[Any]:
        yield from job(batches)  # its ledger is closed by now
        if attempt_number() == 0:
            raise OSError("on purpose")

    results = frame.mapInArrow(failing_once, job.schema).collect()
    assert commit_arrow(job, results) == 1000
    payloads = written(client, spark_log)
    tables = [arrow.ipc.open_stream(payload).read_all() for payload in payloads]
    assert [number for table in tables for number in table.column("id").to_pylist()] == [*range(1000)]
    made = {each for each in client.ledgers() if client.ledger_metadata(each).custom.get("job") == results[0]["job"]}
    assert made == {row["ledger_id"] for row in results}, "the commit swept what failed attempts had left"

    again = write_arrow(frame.schema, spark_bookies.metastore, spark_log, values="arrow", txn_id="of the day")
    assert commit_arrow(again, frame.mapInArrow(again, again.schema).collect()) == 0
    assert written(client, spark_log) == payloads


def test_an_aborted_job_leaves_no_ledger_and_never_commits(
    spark: SparkSession, spark_bookies: Bookies, spark_log: str, client: replog.blocking.Client
) -> None:
    frame = frame_of(spark, partitions=2).selectExpr("cast(text as binary) as value")
    job, other = (write_arrow(frame.schema, spark_bookies.metastore, spark_log) for _ in range(2))
    results = frame.mapInArrow(job, job.schema).collect()
    with pytest.raises(replog.ConfigError, match="some are of job"):
        commit_arrow(other, results)
    with pytest.raises(replog.ConfigError, match="a partition is there twice"):
        commit_arrow(job, [*results, results[0]])
    assert sorted(abort_arrow(job)) == sorted(row["ledger_id"] for row in results)
    with pytest.raises(replog.ReplogError):
        commit_arrow(job, results)
    assert written(client, spark_log) == [] if spark_log in client.logs() else True
