"""Writing by `foreachPartition`, on a real Spark: tasks that fail, are killed or deposed, and what the logs have then."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import replog
import replog.blocking
from replog.protocol.model import LedgerState
from replog.spark import foreach_partition_writer
from replog.spark.clients import worker_client
from replog.spark.envelopes import bytes_of
from replog.spark.partitions import PartitionWriter, _check_turn, _PartitionAttempt, chunks_of
from tests.servers.bookies import Bookies

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUORUM = "3,2,2"


@pytest.fixture
def client(spark_bookies: Bookies) -> Iterator[replog.blocking.Client]:
    with replog.blocking.connect(spark_bookies.metastore) as client:
        yield client


def written(client: replog.blocking.Client, log: str, password: bytes = b"") -> list[bytes]:
    with client.read_log(log, password=password) as reader:
        return [record.data for record in reader]


def check_at_least_once(entries: list[bytes], rows: list[bytes]) -> int:
    """All rows, in order, at the end; before them what earlier attempts had got to. Returns how many that are."""
    earlier = len(entries) - len(rows)
    assert entries[earlier:] == rows
    assert entries[:earlier] == rows[:earlier]
    return earlier


def rows_of(partition: int, count: int = 3000) -> list[bytes]:
    return [f"{partition}/{number}".encode() for number in range(count)]


def partitioned(spark: SparkSession, partitions: int) -> Any:
    numbers = spark.sparkContext.parallelize(range(partitions), partitions)
    return numbers.flatMap(lambda partition: rows_of(partition))


def attempt_number() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context.attemptNumber()


def disturbed(disturb: Callable[[], None], at: bytes, attempts: int = 1) -> Callable[[bytes], bytes]:
    """What a task's function is that meets a disturbance at one row, in its first attempts."""

    def to_bytes(row: bytes) -> bytes:
        if row == at and attempt_number() < attempts:
            disturb()
        return row

    return to_bytes


@pytest.mark.needs_spark
def test_each_partition_of_an_rdd_goes_to_a_log_of_its_own(
    spark: SparkSession, spark_bookies: Bookies, spark_log: str, client: replog.blocking.Client
) -> None:
    writer = foreach_partition_writer(spark_bookies.metastore, f"{spark_log}-{{partition}}", quorum=QUORUM)
    rdd = partitioned(spark, 3)
    rdd.foreachPartition(writer)
    rdd.filter(lambda row: row.startswith(b"1/")).foreachPartition(writer)
    assert [written(client, f"{spark_log}-{number}") for number in range(3)] == [
        rows_of(0),
        rows_of(1) * 2,
        rows_of(2),
    ]
    segments = client.log_segments(f"{spark_log}-0")
    assert len(segments) == 1, "a partition without rows took its log over"
    metadata = client.ledger_metadata(segments[0].ledger_id)
    assert metadata.quorum == replog.Quorum(3, 2, 2)
    assert metadata.state is LedgerState.CLOSED
    assert {**metadata.custom, "writer": "", "attempt": ""} == {
        "log": f"{spark_log}-0",
        "partition": "0",
        "writer": "",
        "attempt": "",
    }


@pytest.mark.needs_spark
def test_rows_of_a_dataframe_are_bytes_or_made_so(
    spark: SparkSession, spark_bookies: Bookies, spark_log: str, client: replog.blocking.Client, tmp_path: Path
) -> None:
    frame = spark.range(0, 10, 1, 1)
    binary = foreach_partition_writer(spark_bookies.metastore, f"{spark_log}-binary-{{partition}}")
    frame.selectExpr("cast(cast(id as string) as binary) as value").foreachPartition(binary)
    assert written(client, f"{spark_log}-binary-0") == [str(number).encode() for number in range(10)]
    as_json = foreach_partition_writer(
        spark_bookies.metastore,
        f"{spark_log}-json-{{partition}}",
        to_bytes=lambda row: json.dumps(row.asDict()).encode(),
        password_file=str(tmp_path / "password"),
    )
    (tmp_path / "password").write_text("of the file\n")
    frame.selectExpr("id", "id * 2 as twice").foreachPartition(as_json)
    assert written(client, f"{spark_log}-json-0", b"of the file")[3] == b'{"id": 3, "twice": 6}'


def test_row_of_another_type_is_refused_with_advice() -> None:
    from pyspark.sql import Row

    assert [bytes_of(row) for row in (b"a", bytearray(b"b"), Row(value=b"c"), Row(value=bytearray()))] == [
        b"a",
        b"b",
        b"c",
        b"",
    ]
    for row, said in ((Row(id=1, twice=2), "a row of id, twice"), (Row(text="a"), "a row of text"), ("a", "str")):
        with pytest.raises(replog.ConfigError, match=f"{said} is not: say how"):
            bytes_of(row)
    with pytest.raises(TypeError, match="an entry must be bytes, not str"):
        next(chunks_of(iter(["a"])))  # type: ignore[list-item]
    with pytest.raises(replog.errors.PayloadTooLargeError):
        next(chunks_of(iter([bytes(17 << 20)])))
    chunks = list(chunks_of(iter([b"x" * 100_000] * 7 + [b""] * 1001)))
    assert [len(chunk) for chunk in chunks] == [3, 3, 1000, 2]


@pytest.mark.needs_spark
def test_failing_task_resumes_behind_its_written_rows(
    spark: SparkSession, spark_bookies: Bookies, spark_log: str, client: replog.blocking.Client
) -> None:
    def fail() -> None:
        raise OSError("on purpose")

    to_bytes = disturbed(fail, at=b"1/2500", attempts=2)
    writer = foreach_partition_writer(spark_bookies.metastore, f"{spark_log}-{{partition}}", to_bytes=to_bytes)
    partitioned(spark, 2).foreachPartition(writer)
    assert check_at_least_once(written(client, f"{spark_log}-0"), rows_of(0)) == 0
    entries = written(client, f"{spark_log}-1")
    assert entries[-3000:] == rows_of(1)
    segments = client.log_segments(f"{spark_log}-1")
    attempts = [int(client.ledger_metadata(each.ledger_id).custom["attempt"]) for each in segments]
    assert len(segments) == 3
    assert attempts == sorted(attempts)


@pytest.mark.needs_spark
def test_the_partition_of_a_killed_worker_is_written_again(
    spark: SparkSession, spark_bookies: Bookies, spark_log: str, client: replog.blocking.Client
) -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    to_bytes = disturbed(die, at=b"0/2500")
    writer = foreach_partition_writer(spark_bookies.metastore, f"{spark_log}-{{partition}}", to_bytes=to_bytes)
    partitioned(spark, 1).foreachPartition(writer)
    check_at_least_once(written(client, f"{spark_log}-0"), rows_of(0))
    ledgers = [client.ledger_metadata(each.ledger_id) for each in client.log_segments(f"{spark_log}-0")]
    assert [each.state for each in ledgers] == [LedgerState.CLOSED] * 2


@pytest.mark.needs_spark
def test_zombie_is_fenced_by_the_next_writer_of_its_partition(
    spark: SparkSession, spark_bookies: Bookies, spark_log: str, client: replog.blocking.Client
) -> None:
    metastore, name = spark_bookies.metastore, f"{spark_log}-0"

    def take_over() -> None:
        """What another attempt does, while this one goes on."""
        with replog.blocking.connect(metastore) as other, other.write_log(name) as log:
            log.append(b"another attempt")

    to_bytes = disturbed(take_over, at=b"0/2000")
    writer = foreach_partition_writer(metastore, f"{spark_log}-{{partition}}", to_bytes=to_bytes)
    partitioned(spark, 1).foreachPartition(writer)
    entries = written(client, name)
    place = entries.index(b"another attempt")
    assert entries[:place] == rows_of(0)[:place], "what the zombie wrote stands before"
    assert entries[place + 1 :] == rows_of(0), "nothing of the zombie's stands behind"

    always = disturbed(take_over, at=b"0/2000", attempts=9)
    writer = foreach_partition_writer(metastore, f"{spark_log}-{{partition}}", to_bytes=always)
    with pytest.raises(Exception, match="FencedError") as caught:
        partitioned(spark, 1).foreachPartition(writer)
    assert "most likely by another attempt at partition 0" in str(caught.value)
    assert "on host" in str(caught.value)


@pytest.mark.needs_spark
def test_the_tasks_of_a_worker_share_one_client(spark: SparkSession, spark_bookies: Bookies, spark_log: str) -> None:
    writer = foreach_partition_writer(spark_bookies.metastore, f"{spark_log}-{{partition}}")

    def write_and_look(rows: Iterable[bytes]) -> Iterable[tuple[int, list[str], int]]:
        from replog.spark import clients

        writer(rows)
        kept = [f"{id(each)}" for each in clients._kept.clients.values()]
        yield os.getpid(), kept, sum(each.name == "replog blocking" for each in threading.enumerate())

    tasks = [task for _ in range(2) for task in partitioned(spark, 4).mapPartitions(write_and_look).collect()]
    clients_of: dict[int, set[str]] = {}
    for process_id, kept, threads in tasks:
        assert (len(kept), threads) == (1, 1)
        clients_of.setdefault(process_id, set()).update(kept)
    assert len(tasks) == 8
    assert len(clients_of) < len(tasks), "no worker had a second task: Spark's reuse of workers is off"
    assert all(len(each) == 1 for each in clients_of.values()), clients_of


@pytest.mark.needs_spark
def test_a_fork_of_a_worker_has_a_client_of_its_own(
    spark: SparkSession, spark_bookies: Bookies, spark_log: str
) -> None:
    metastore = spark_bookies.metastore

    def fork(_: Iterable[int]) -> Iterable[tuple[int, list[str]]]:
        with worker_client(metastore) as client:
            client.blocking.logs()
            child = os.fork()
            if not child:
                try:
                    with worker_client(metastore) as own:
                        status = 0 if own is not client and own.blocking.logs() == client_logs() else 1
                finally:
                    os._exit(status)
            yield os.waitpid(child, 0)[1], client.blocking.logs()

    def client_logs() -> list[str]:
        with replog.blocking.connect(metastore) as fresh:
            return fresh.logs()

    [(status, _)] = spark.sparkContext.parallelize([0], 1).mapPartitions(fork).collect()
    assert status == 0


def test_impossible_arguments_raise_before_any_task(tmp_path: Path) -> None:
    metastore = f"lmdb:{tmp_path}"
    with pytest.raises(replog.ConfigError, match=r"put \{partition\} into the name"):
        foreach_partition_writer(metastore, "orders")
    with pytest.raises(replog.ConfigError) as caught:
        foreach_partition_writer("memory:", "", quorum="3")
    for said in ("memory", "it is empty", "3,3,2"):
        assert said in str(caught.value)
    with pytest.raises(replog.ConfigError, match="to_bytes"):
        foreach_partition_writer(metastore, "{partition}", to_bytes=b"")  # type: ignore[arg-type]
    writer = foreach_partition_writer(metastore, "{partition}")
    assert isinstance(writer, PartitionWriter)
    with pytest.raises(replog.ConfigError, match="give it to foreachPartition"):
        writer([b"a"])


async def test_a_late_attempt_leaves_the_log_to_its_successor(tmp_path: Path) -> None:
    async with replog.embed(tmp_path) as client:
        await _check_turn(client, "log", _PartitionAttempt("job", 3, 1))
        async with client.write_log(
            "log", options=replog.LogOptions(custom=_PartitionAttempt("job", 3, 7).custom())
        ) as log:
            await log.append(b"of attempt 7")
        with pytest.raises(replog.FencedError, match="attempt 7 at partition 3 has begun"):
            await _check_turn(client, "log", _PartitionAttempt("job", 3, 6))
        await _check_turn(client, "log", _PartitionAttempt("job", 3, 8))
        await _check_turn(client, "log", _PartitionAttempt("another job", 3, 6))
        async with client.write_log("log") as log:
            await log.append(b"of no job")
        await _check_turn(client, "log", _PartitionAttempt("job", 3, 6))
        await client.delete_log("log")
        await _check_turn(client, "log", _PartitionAttempt("job", 3, 6))
