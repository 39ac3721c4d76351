"""Batch jobs on a real Spark: all rows of a job become visible at once or not at all, whatever fails and is tried again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.servers.bookies import Bookies
from tests.spark.logs import ask, ledgers_of, listed_ids, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

pytestmark = pytest.mark.needs_spark

ROWS = 900
PARTITIONS = 3


@pytest.fixture(autouse=True)
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Several batches for each task."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def numbers(spark: SparkSession, rows: int = ROWS, partitions: int = PARTITIONS) -> DataFrame:
    """A column of bytes: 0, 1, 2, ..."""
    return spark.range(0, rows, 1, partitions).selectExpr("cast(cast(id as string) as binary) as value")


def expected(rows: int = ROWS) -> list[bytes]:
    """In the order of partitions, and in each in the order of its rows."""
    return [str(number).encode() for number in range(rows)]


def writing(frame: DataFrame, bookies: Bookies, log: str, **options: str) -> DataFrameWriter:
    writer = frame.write.format("replog").mode("append").option("metastore", bookies.metastore).option("log", log)
    writer = writer.option("mergeBytes", "0")  # so that tasks have ledgers, which may be left
    for name, value in options.items():
        writer = writer.option(name, value)
    return writer


def faulty(spark: SparkSession, fault: str, bookies: Bookies, log: str, **options: str) -> DataFrameWriter:
    from tests.spark.faulty import FaultySource

    spark.dataSource.register(FaultySource)
    return writing(numbers(spark), bookies, log, fault=fault, **options).format("replog-faulty")


def failing(write: DataFrameWriter) -> str:
    """What the user is told."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    with pytest.raises((PySparkException, Py4JJavaError)) as caught:
        write.save()
    return str(caught.value)


def check_nothing_is_left(bookies: Bookies, log: str) -> None:
    """All ledgers that were made for the log are in it."""
    assert sorted(ledgers_of(bookies.metastore, log)) == sorted(listed_ids(bookies.metastore, log))


def test_rows_are_in_the_log_in_the_order_of_partitions(
    spark: SparkSession, spark_bookies: Bookies, spark_log: str
) -> None:
    """Two jobs, and one without rows, which changes nothing; a ledger for each partition that has rows."""
    writing(numbers(spark), spark_bookies, spark_log).save()
    writing(numbers(spark, 5, 8), spark_bookies, spark_log).save()
    writing(numbers(spark, 0), spark_bookies, spark_log).save()
    assert rows_of(spark_bookies.metastore, spark_log) == expected() + expected(5)
    listed = listed_ids(spark_bookies.metastore, spark_log)
    assert len(listed) == PARTITIONS + 5
    made = ledgers_of(spark_bookies.metastore, spark_log)
    assert set(made) == set(listed)
    assert len({made[each].custom["job"] for each in listed}) == 2


def test_small_outputs_of_tasks_become_one_ledger(spark: SparkSession, spark_bookies: Bookies, spark_log: str) -> None:
    writing(numbers(spark), spark_bookies, spark_log, mergeBytes=str(256 << 10)).save()
    assert rows_of(spark_bookies.metastore, spark_log) == expected()
    assert len(ledgers_of(spark_bookies.metastore, spark_log)) == 1


def test_failed_attempt_leaves_nothing(spark: SparkSession, spark_bookies: Bookies, spark_log: str) -> None:
    """It had closed its ledger, and its rows are there once: those of the attempt that Spark took."""
    from tests.spark.faulty import FIRST_ATTEMPT_FAILS

    faulty(spark, FIRST_ATTEMPT_FAILS, spark_bookies, spark_log).save()
    assert rows_of(spark_bookies.metastore, spark_log) == expected()
    check_nothing_is_left(spark_bookies, spark_log)


def test_a_killed_worker_leaves_nothing(spark: SparkSession, spark_bookies: Bookies, spark_log: str) -> None:
    """Its ledger was open, with some rows in it."""
    from tests.spark.faulty import FIRST_ATTEMPT_KILLED

    faulty(spark, FIRST_ATTEMPT_KILLED, spark_bookies, spark_log).save()
    assert rows_of(spark_bookies.metastore, spark_log) == expected()
    check_nothing_is_left(spark_bookies, spark_log)


def test_failing_job_leaves_no_row_and_no_ledger(spark: SparkSession, spark_bookies: Bookies, spark_log: str) -> None:
    """The other partitions were complete. What had been in the log before stays."""
    from tests.spark.faulty import EVERY_ATTEMPT_FAILS

    writing(numbers(spark, 3, 1), spark_bookies, spark_log).save()
    assert "InjectedError" in failing(faulty(spark, EVERY_ATTEMPT_FAILS, spark_bookies, spark_log))
    assert rows_of(spark_bookies.metastore, spark_log) == expected(3)
    check_nothing_is_left(spark_bookies, spark_log)


def test_failing_commit_leaves_no_row_and_no_ledger(
    spark: SparkSession, spark_bookies: Bookies, spark_log: str
) -> None:
    """The log does not even exist yet."""
    from tests.spark.faulty import COMMIT_FAILS

    assert "InjectedError" in failing(faulty(spark, COMMIT_FAILS, spark_bookies, spark_log))
    assert rows_of(spark_bookies.metastore, spark_log) == []
    assert ledgers_of(spark_bookies.metastore, spark_log) == {}


def test_abort_deletes_nothing_committed_after_all(spark: SparkSession, spark_bookies: Bookies, spark_log: str) -> None:
    """The commit's answer was lost, and Spark calls `abort` with all messages. Running the job again with its `txnId` changes
    nothing; a later version of it is new."""
    from tests.spark.faulty import ANSWER_LOST

    told = failing(faulty(spark, ANSWER_LOST, spark_bookies, spark_log, txnId="nightly", txnVersion="7"))
    assert "InjectedError" in told
    assert rows_of(spark_bookies.metastore, spark_log) == expected()

    writing(numbers(spark), spark_bookies, spark_log, txnId="nightly", txnVersion="7").save()
    writing(numbers(spark), spark_bookies, spark_log, txnId="nightly", txnVersion="6").save()
    assert rows_of(spark_bookies.metastore, spark_log) == expected()
    check_nothing_is_left(spark_bookies, spark_log)  # of what the reruns wrote

    writing(numbers(spark, 2, 1), spark_bookies, spark_log, txnId="nightly", txnVersion="8").save()
    assert rows_of(spark_bookies.metastore, spark_log) == expected() + expected(2)


def test_missing_options_are_named_to_the_user(spark: SparkSession) -> None:
    """All of it, when the query is planned."""
    told = failing(numbers(spark).write.format("replog").mode("append").option("tnxId", "1"))
    for part in ("metastore: it must be given", "log: it must be given", "no such option: tnxid"):
        assert part in told
    assert '"ErrorIfExists" mode. Please use either the "Append"' in failing(numbers(spark).write.format("replog"))


@pytest.mark.parametrize(
    ("wrong", "columns", "mode", "told"),
    [
        ({}, "value binary", "overwrite", r'write \.mode\("append"\)'),
        ({}, "value binary", "complete", r'write \.outputMode\("append"\)'),
        ({"txnId": "nightly"}, "value binary", "stream", "txn_id is for batch jobs"),
        (
            {},
            "id bigint, value binary",
            "append",
            "one column of type binary or string is needed.*id bigint, value binary",
        ),
        ({"values": "json"}, "id interval", "append", "column 'id' is of type interval"),
        ({"metastore": "lmdb:/proc/absent"}, "value binary", "append", "/proc/absent: cannot be opened"),
        ({"metastore": "nosuch:there"}, "value binary", "append", "nosuch"),
    ],
)
def test_impossible_options_raise_at_planning(
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    spark_bookies: Bookies,
    spark_log: str,
    wrong: dict[str, str],
    columns: str,
    mode: str,
    told: str,
) -> None:
    """Before any task: what Spark calls in its planner raises."""
    monkeypatch.setenv("REPLOG_CLIENT_METASTORE_TIMEOUT_S", "0.1")
    from pyspark.sql.types import StructType

    from replog.errors import ReplogError
    from replog.spark import ReplogDataSource

    schema = StructType.fromDDL(columns)
    assert isinstance(schema, StructType)
    source = ReplogDataSource({"metastore": spark_bookies.metastore, "log": spark_log, **wrong})
    with pytest.raises(ReplogError, match=told):
        if mode in ("complete", "stream"):
            source.streamWriter(schema, overwrite=mode == "complete")
        else:
            source.writer(schema, overwrite=mode == "overwrite")


def test_a_schema_is_kept_and_checked(spark: SparkSession, spark_bookies: Bookies, spark_log: str) -> None:
    """Of a log that is begun by it; whoever appends other columns is told before any task."""
    people = spark.range(2).selectExpr("id", "concat('n', id) as name")
    writing(people, spark_bookies, spark_log, values="json").save()
    assert rows_of(spark_bookies.metastore, spark_log) == [b'{"id":0,"name":"n0"}', b'{"id":1,"name":"n1"}']
    told = failing(writing(people.selectExpr("id"), spark_bookies, spark_log, values="json"))
    assert "'name' (string) is missing" in told
    metadata = ask(spark_bookies.metastore, lambda client: client.log_metadata(spark_log))
    assert metadata.custom["spark.values"] == "json"
