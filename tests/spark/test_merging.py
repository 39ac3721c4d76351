"""Small outputs of tasks, which the driver writes: bounded, all or none, given up for good though tasks have no ledgers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as arrow
import pytest
import trio
import trio.testing
from pyspark.sql.types import BinaryType, StructField, StructType

import replog
from replog.client.job_records import RegisteredJob
from replog.errors import ConfigError, JobAbandonedError, LogNotFoundError, UnauthorizedError
from replog.records.paths import job_key_path
from replog.spark.committing import Job, append_job
from replog.spark.options import SparkOptions
from replog.spark.values import BINARY_VALUES, ValueEncoder
from replog.spark.writing import Attempt, JobWriter, WrittenPartition, _Rows, outputs_of, small_bytes, write_partition
from replog.testing import Fault, FaultyMetastore
from tests.kit import ONE, cluster, read_log

ROWS = StructType([StructField("value", BinaryType())])
OPTIONS = SparkOptions(metastore="zookeeper:of-the-test", log="log")


def batches(*payloads: list[bytes]) -> Iterator[arrow.RecordBatch]:
    for each in payloads:
        yield arrow.RecordBatch.from_arrays([arrow.array(each, arrow.binary())], names=["value"])


def merged(*rows: bytes, transaction: tuple[str, int] | None = None) -> Job:
    """A job whose tasks have sent these rows."""
    parts = [WrittenPartition("job", number, None, 1, payloads=(row,)) for number, row in enumerate(rows)]
    return Job("job", (), transaction, outputs=outputs_of(parts), is_begun=True)


def test_all_tasks_together_send_a_bounded_amount() -> None:
    """However many there are. The first ones may send all that the option says."""
    wanted_bytes = 256 << 10
    assert SparkOptions(metastore="zookeeper:x", log="log").merge_bytes == wanted_bytes
    assert {small_bytes(wanted_bytes, partition) for partition in range(256)} == {wanted_bytes}
    allowed = [small_bytes(wanted_bytes, partition) for partition in range(100_000)]
    assert allowed == sorted(allowed, reverse=True)
    assert 300 < allowed[5000] < wanted_bytes
    assert 1.9 < sum(allowed) / (256 * wanted_bytes) <= 2
    assert small_bytes(0, 0) == 0


def test_many_empty_entries_are_not_small() -> None:
    """They have no bytes, and each takes memory of the driver all the same."""
    rows = _Rows(ValueEncoder(BINARY_VALUES, "log"), batches([b""] * 600, [b""] * 600))
    assert rows.all_within(48 * 1000) is None
    assert [list(rows.next_payloads() or ()) for _ in range(2)] == [[b""] * 600] * 2
    assert rows.next_payloads() is None
    few = _Rows(ValueEncoder(BINARY_VALUES, "log"), batches([b""] * 1000))
    assert few.all_within(48 * 1000) == (b"",) * 1000


def test_error_during_a_small_output_writes_nothing() -> None:
    """It needs no metastore for that: there is none here."""

    def failing() -> Iterator[arrow.RecordBatch]:
        yield from batches([b"a"], [b"b"])
        raise ZeroDivisionError("of the user's")

    attempt = Attempt("log", "job", 0, 1)
    with pytest.raises(ZeroDivisionError, match="of the user's"):
        write_partition(OPTIONS, BINARY_VALUES, attempt, failing(), OPTIONS.merge_bytes)
    sent = write_partition(OPTIONS, BINARY_VALUES, attempt, batches([b"a"], [b"b", b"c"]), OPTIONS.merge_bytes)
    assert (sent.ledger_id, sent.rows, sent.payloads) == (None, 3, (b"a", b"b", b"c"))


def test_an_error_shows_no_rows() -> None:
    """Spark has lost a task, and the others' messages are named."""
    sent = WrittenPartition("job", 0, None, 1, payloads=(b"hush",))
    with pytest.raises(ConfigError, match="not the messages of one job's partitions") as caught:
        JobWriter(OPTIONS, ROWS).commit([sent, None])
    assert "hush" not in str(caught.value)
    assert "hush" not in repr(Job("job", (), None, outputs=outputs_of([sent])))


async def test_the_ledger_of_the_driver_has_the_password(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    options = SparkOptions(metastore="zookeeper:x", log="log", password_file=str(tmp_path / "password"))
    async with cluster(bookies=1) as made, made.client(quorum=ONE) as client:
        await client._opened.ledgers.jobs.begin("log", "job")
        assert await append_job(client, options, BINARY_VALUES, merged(b"a", b"b"))
        [ledger_id] = await client.ledgers()
        with pytest.raises(UnauthorizedError):
            await client.open_ledger(ledger_id).__aenter__()
        async with client.open_ledger(ledger_id, password=b"secret") as reader:
            assert reader.last_add_confirmed == 1


async def test_abandoned_job_is_not_merged() -> None:
    """Its tasks have made no ledger that could be marked. The commit, of a driver that was thought dead, comes afterwards."""
    async with cluster(bookies=1) as made, made.client(quorum=ONE) as client:
        await client._opened.ledgers.jobs.begin("log", "job")
        assert await client.jobs.sweep("log", job="job") == []
        with pytest.raises(JobAbandonedError, match="it has ended"):
            await append_job(client, OPTIONS, BINARY_VALUES, merged(b"row"))
        with pytest.raises(LogNotFoundError):
            await client.log_segments("log")
        assert len(await client.jobs.sweep("log", job="job")) == 1
        assert await client.ledgers() == []


async def test_a_job_is_given_up_while_it_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit has written its ledger, and has seen that the job is still there."""
    async with cluster(bookies=1) as made, made.client(quorum=ONE) as client, made.client(quorum=ONE) as other:
        jobs = client._opened.ledgers.jobs
        await jobs.begin("log", "job")
        look = jobs.has_begun

        async def look_in_time(log: str, job: str) -> bool:
            has_begun = await look(log, job)
            await other.jobs.sweep("log", job="job")
            return has_begun

        monkeypatch.setattr(jobs, "has_begun", look_in_time)
        with pytest.raises(replog.ReplogError):
            await append_job(client, OPTIONS, BINARY_VALUES, merged(b"row"))
        assert await client.ledgers() == []


async def test_a_job_is_committed_while_it_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who gives it up has listed its ledgers, and there were none: the commit must not write one now and succeed."""
    async with cluster(bookies=1) as made, made.client(quorum=ONE) as client, made.client(quorum=ONE) as other:
        await client._opened.ledgers.jobs.begin("log", "job")
        list_ledgers = other._opened.ledgers.jobs.job

        async def list_and_wait(key: str) -> RegisteredJob:
            found = await list_ledgers(key)
            with pytest.raises(JobAbandonedError):
                await append_job(client, OPTIONS, BINARY_VALUES, merged(b"row"))
            return found

        monkeypatch.setattr(other._opened.ledgers.jobs, "job", list_and_wait)
        assert await other.jobs.sweep("log", job="job") == []
        with pytest.raises(LogNotFoundError):
            await client.log_segments("log")


@pytest.mark.parametrize("transaction", [None, ("txn:nightly", 1)])
@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.REQUEST_LOST, Fault.UNAVAILABLE, Fault.ARRIVES_LATE])
async def test_rows_are_there_once_after_an_outage(
    fault: Fault, transaction: tuple[str, int] | None, autojump_clock: trio.testing.MockClock
) -> None:
    """No write to the metastore is answered well for a minute. What failed tries wrote is swept, and nothing else is left."""

    def choose(operation: str, _key: str) -> Fault | None:
        return fault if operation in ("put", "create") and began_s < trio.current_time() < began_s + 60 else None

    async with cluster(bookies=1) as made:
        began_s = float("inf")
        metastore = FaultyMetastore(made.metastore.inner, choose)
        async with made.client(quorum=ONE, metastore=metastore) as client:
            await client._opened.ledgers.jobs.begin("log", "job")
            began_s = trio.current_time()
            assert await append_job(client, OPTIONS, BINARY_VALUES, merged(b"a", b"b", transaction=transaction))
            assert await read_log(client) == [b"a", b"b"]
            await trio.sleep(600)
            await client.jobs.sweep("log")
            assert await client.ledgers() == [each.ledger_id for each in await client.log_segments("log")]
            assert await client._opened.ledgers.records.metastore.children(job_key_path("log", "job")) == []


def test_a_job_without_rows_leaves_nothing(tmp_path: Path) -> None:
    """Nor does it need a bookie."""
    options = SparkOptions(metastore=f"lmdb:{tmp_path / 'metastore'}?create=true", log="log")
    keys: list[list[str]] = []

    async def look(client: replog.Client) -> None:
        keys.append(await client._opened.ledgers.jobs.keys("log"))

    for end in ("commit", "abort"):
        writer = JobWriter(options, ROWS)
        writer.check()
        options.run(look)
        message = WrittenPartition(writer._job, 0, None, 0)
        if end == "commit":
            writer.commit([message])
        else:
            writer.abort([message])
        options.run(look)
    assert [len(each) for each in keys] == [1, 0, 1, 0]
