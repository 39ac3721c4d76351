"""What tasks and commits of Spark do to a log, without Spark: zombies, leaders, commits side by side, answers that get lost."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pyarrow as arrow
import pytest
import trio
import trio.testing
from pyspark.sql.types import BinaryType, StructField, StructType

import replog
from replog import api
from replog.errors import MetastoreError, MetastoreUnavailableError, SchemaMismatchError
from replog.spark import committing
from replog.spark.committing import Job, abort_job, append_job, commit_job, streamed_transaction
from replog.spark.options import SparkOptions
from replog.spark.values import FORMAT_KEY, SCHEMA_KEY, ValueFormat, ValueSchema
from replog.spark.writing import Attempt, WrittenPartition, outputs_of, write_partition
from replog.testing import Fault, FaultyMetastore
from tests.kit import ONE, Cluster, cluster, read_log
from tests.lanes.seeds import some
from tests.servers.bookies import Bookies
from tests.spark.logs import ask, ledgers_of, listed_ids, rows_of

pytestmark = pytest.mark.needs_spark

BINARY = ValueSchema.of_rows(ValueFormat.BINARY, StructType([StructField("value", BinaryType())]))


def options_for(bookies: Bookies, log: str) -> SparkOptions:
    return SparkOptions(metastore=bookies.metastore, log=log)


def batches(*payloads: list[bytes]) -> Iterator[arrow.RecordBatch]:
    for each in payloads:
        yield arrow.RecordBatch.from_arrays([arrow.array(each, arrow.binary())], names=["value"])


def written(options: SparkOptions, job: str, partition: int, *payloads: list[bytes]) -> WrittenPartition:
    """What an attempt at a partition leaves."""
    return write_partition(options, BINARY, Attempt(options.log, job, partition, 7), batches(*payloads))


def commit(options: SparkOptions, job: str, *parts: WrittenPartition) -> bool:
    ids = tuple(part.ledger_id for part in parts if part.ledger_id is not None)
    return commit_all(options, Job(job, ids, None))


def commit_all(options: SparkOptions, job: Job) -> bool:
    return options.run(lambda client: commit_job(client, options, BINARY, job))


def test_an_attempt_reports_its_rows_and_marks_its_ledger(spark_bookies: Bookies, spark_log: str) -> None:
    options = options_for(spark_bookies, spark_log)
    part = written(options, "job", 3, [b"a", b""], [], [b"b"])
    assert (part.partition, part.rows) == (3, 3)
    found = ledgers_of(spark_bookies.metastore, spark_log)
    assert list(found) == [part.ledger_id]
    (metadata,) = found.values()
    assert metadata.last_entry_id == 2  # and closed
    assert metadata.custom == {"log": spark_log, "job": "job", "partition": "3", "attempt": "7"}
    assert rows_of(spark_bookies.metastore, spark_log) == []  # nobody sees it
    assert written(options, "job", 4, []).ledger_id is None
    assert len(ledgers_of(spark_bookies.metastore, spark_log)) == 1


def test_attempt_deletes_its_ledger_when_its_rows_fail(spark_bookies: Bookies, spark_log: str) -> None:
    """What it raises is what failed, alone."""
    options = options_for(spark_bookies, spark_log)

    def failing() -> Iterator[arrow.RecordBatch]:
        yield from batches([b"a"], [b"b"])
        raise ZeroDivisionError("of the user's")

    with pytest.raises(ZeroDivisionError, match="of the user's"):
        write_partition(options, BINARY, Attempt(spark_log, "job", 0, 1), failing())
    assert ledgers_of(spark_bookies.metastore, spark_log) == {}


def test_executor_reports_an_unreachable_metastore(
    spark_bookies: Bookies, spark_log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And on which host; with a partition without rows it has nothing to reach."""
    monkeypatch.setenv("REPLOG_CLIENT_METASTORE_TIMEOUT_S", "0.1")
    options = SparkOptions(metastore=f"{spark_bookies.metastore}-absent", log=spark_log)
    assert written(options, "job", 0).ledger_id is None
    with pytest.raises(MetastoreError) as caught:
        written(options, "job", 5, [b"row"])
    told = " ".join(caught.value.__notes__)
    assert "partition 5" in told
    assert "each executor must reach the metastore" in told
    assert socket.gethostname() in told


def test_commit_sweeps_ledgers_of_a_writing_zombie(spark_bookies: Bookies, spark_log: str) -> None:
    """Speculation: the slower attempt has a ledger, and writes to it when all is over. It fails, and leaves nothing."""
    options = options_for(spark_bookies, spark_log)
    has_ledger, is_committed = threading.Event(), threading.Event()

    def slow() -> Iterator[arrow.RecordBatch]:
        yield from batches([b"a"], [b"a"])
        has_ledger.set()  # asked for the third one, so the first one is on its way to a ledger
        assert is_committed.wait(60)
        yield from batches([b"a"])

    def be_a_zombie() -> None:
        with pytest.raises(replog.ReplogError):
            write_partition(options, BINARY, Attempt(spark_log, "job", 0, 8), slow())

    async def both() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, be_a_zombie)
            part = await trio.to_thread.run_sync(written, options, "job", 0, [b"row"])
            running = await trio.to_thread.run_sync(written, options, "another", 0, [b"c"])
            await trio.to_thread.run_sync(has_ledger.wait, 60)
            await trio.to_thread.run_sync(commit, options, "job", part)
            is_committed.set()
        kept.extend(each.ledger_id for each in (part, running) if each.ledger_id is not None)

    kept: list[int] = []
    trio.run(both)
    assert sorted(ledgers_of(spark_bookies.metastore, spark_log)) == sorted(kept)  # the other job may still commit
    assert rows_of(spark_bookies.metastore, spark_log) == [b"row"]


def test_long_ended_job_is_swept_by_the_next_one(
    spark_bookies: Bookies, spark_log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose driver was killed. A job that is younger than the grace may still commit."""
    options = options_for(spark_bookies, spark_log)
    left = written(options, "killed", 0, [b"a"])
    commit(options, "second", written(options, "second", 0, [b"b"]))
    assert left.ledger_id in ledgers_of(spark_bookies.metastore, spark_log)
    monkeypatch.setattr(committing, "SWEEP_GRACE_S", 0.001)
    commit(options, "third", written(options, "third", 0, [b"c"]))
    assert sorted(ledgers_of(spark_bookies.metastore, spark_log)) == listed_ids(spark_bookies.metastore, spark_log)
    assert rows_of(spark_bookies.metastore, spark_log) == [b"b", b"c"]


def test_a_repetition_changes_nothing_and_leaves_nothing(spark_bookies: Bookies, spark_log: str) -> None:
    """The same batch of a query, written by another try: in the same place of the list, once."""
    options = options_for(spark_bookies, spark_log)

    def try_batch(run: str, batch_id: int) -> bool:
        part = written(options, run, 0, [f"{batch_id}".encode()])
        assert part.ledger_id is not None
        return commit_all(options, Job(run, (part.ledger_id,), streamed_transaction("query", batch_id)))

    assert [try_batch("a", 0), try_batch("b", 1), try_batch("c", 1), try_batch("d", 0)] == [True, True, False, False]
    assert rows_of(spark_bookies.metastore, spark_log) == [b"0", b"1"]
    assert sorted(ledgers_of(spark_bookies.metastore, spark_log)) == listed_ids(spark_bookies.metastore, spark_log)


def test_abandoned_job_never_becomes_visible(spark_bookies: Bookies, spark_log: str) -> None:
    """Neither with the ledgers that were there, nor with one that a zombie makes afterwards."""
    options = options_for(spark_bookies, spark_log)
    part = written(options, "job", 0, [b"a"])
    assert options.run(lambda client: abort_job(client, options, "job")) == [part.ledger_id]
    with pytest.raises(replog.ReplogError):
        commit(options, "job", part)
    assert rows_of(spark_bookies.metastore, spark_log) == []
    assert ledgers_of(spark_bookies.metastore, spark_log) == {}


def test_failing_sweep_fails_no_commit(spark_bookies: Bookies, spark_log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are there: Spark would run the job again, were it told otherwise."""
    options = options_for(spark_bookies, spark_log)

    async def fail(*_arguments: object, **_named: object) -> list[int]:
        raise MetastoreUnavailableError("away")

    part = written(options, "job", 0, [b"row"])
    monkeypatch.setattr(api.Jobs, "sweep", fail)
    with pytest.warns(RuntimeWarning, match=rf"log {spark_log}: .* was not swept.*away"):
        assert commit(options, "job", part)
    assert rows_of(spark_bookies.metastore, spark_log) == [b"row"]


def test_a_log_with_other_columns_takes_no_rows(spark_bookies: Bookies, spark_log: str) -> None:
    """Both jobs were planned when there was no log."""
    options = options_for(spark_bookies, spark_log)
    json_values = ValueSchema.of_rows(ValueFormat.JSON, StructType([StructField("value", BinaryType())]))
    part = written(options, "binary", 0, [b"row"])
    attempt = Attempt(spark_log, "json", 0, 1)
    other = write_partition(options, json_values, attempt, batches([b"row"]))
    assert other.ledger_id is not None
    job = Job("json", (other.ledger_id,), None)
    options.run(lambda client: commit_job(client, options, json_values, job))
    with pytest.raises(SchemaMismatchError, match="its values are json"):
        commit(options, "binary", part)
    assert listed_ids(spark_bookies.metastore, spark_log) == [other.ledger_id]


def test_a_live_leader_stays_when_a_job_commits(spark_bookies: Bookies, spark_log: str) -> None:
    """L10: what was confirmed to it is before the job's rows, and what it appends next is behind them."""
    options = options_for(spark_bookies, spark_log)
    part = written(options, "job", 0, [b"of the job"])

    async def lead(client: replog.Client) -> None:
        async with client.lead_log(spark_log) as log:
            await log.append(b"before")
            await trio.to_thread.run_sync(commit, options, "job", part)
            await log.append(b"behind")

    ask(spark_bookies.metastore, lead)
    assert rows_of(spark_bookies.metastore, spark_log) == [b"before", b"of the job", b"behind"]


def test_parallel_commits_of_jobs_are_both_visible(spark_bookies: Bookies, spark_log: str) -> None:
    """One behind the other, whichever came first; each of them in one piece."""
    options = options_for(spark_bookies, spark_log)
    jobs = {
        name: [written(options, name, part, [f"{name}{part}".encode()]) for part in range(3)] for name in ("a", "b")
    }
    begin = threading.Barrier(2)

    def run(name: str) -> None:
        begin.wait(30)
        commit(options, name, *jobs[name])

    async def both() -> None:
        async with trio.open_nursery() as nursery:
            for name in jobs:
                nursery.start_soon(trio.to_thread.run_sync, run, name)

    trio.run(both)
    rows = rows_of(spark_bookies.metastore, spark_log)
    assert sorted([rows[:3], rows[3:]]) == [[b"a0", b"a1", b"a2"], [b"b0", b"b1", b"b2"]]


# -- a metastore that fails -----------------------------------------------------------------------------------------


async def one_ledger(client: replog.Client, log: str = "log", job: str = "job") -> int:
    async with client.create_ledger(quorum=ONE, custom={"log": log, "job": job}) as writer:
        await writer.append(b"row")
    return writer.ledger_id


class Outage:
    """Changes of logs meet a fault until this time."""

    def __init__(self, made: Cluster, fault: Fault, duration_s: float) -> None:
        self.until_s = trio.current_time() + duration_s
        self.met = 0
        self._fault = fault
        self.metastore = FaultyMetastore(made.metastore.inner, self._choose)

    def _choose(self, operation: str, key: str) -> Fault | None:
        is_change = operation in ("put", "create") and key == "logs/log"
        if not is_change or trio.current_time() >= self.until_s:
            return None
        self.met += 1
        return self._fault


@pytest.mark.parametrize(
    ("fault", "transaction"),
    some(
        [
            *((fault, None) for fault in (Fault.ANSWER_LOST, Fault.UNAVAILABLE, Fault.ARRIVES_LATE)),
            *((fault, ("txn:nightly", 1)) for fault in Fault if fault is not Fault.CONFLICT),
            (Fault.REQUEST_LOST, None),  # the dearest
        ],
        few=7,
    ),
)
async def test_a_commit_goes_on_until_the_metastore_is_back(
    fault: Fault, transaction: tuple[str, int] | None, autojump_clock: trio.testing.MockClock
) -> None:
    """M1: for a minute no change of a log is answered well, whether it was made or not. Then the job is there, once."""
    options = SparkOptions(metastore="zookeeper:of-the-test", log="log")
    async with cluster(bookies=1) as made:
        outage = Outage(made, fault, 60.0)
        async with made.client(quorum=ONE, metastore=outage.metastore) as client:
            ledger_id = await one_ledger(client)
            assert await append_job(client, options, BINARY, Job("job", (ledger_id,), transaction)), "it was new"
            assert outage.met
            assert [each.ledger_id for each in await client.log_segments("log")] == [ledger_id]
            assert await read_log(client) == [b"row"]


async def test_after_a_failure_another_try_of_the_batch_is_not_new(autojump_clock: trio.testing.MockClock) -> None:
    """The transaction is in the log, with ledgers of somebody else."""
    options = SparkOptions(metastore="zookeeper:of-the-test", log="log")
    async with cluster(bookies=1) as made:
        outage = Outage(made, Fault.REQUEST_LOST, 30.0)
        async with (
            made.client(quorum=ONE, metastore=outage.metastore) as client,
            made.client(quorum=ONE) as other,
            trio.open_nursery() as nursery,
        ):
            ours, theirs = await one_ledger(client), await one_ledger(other, job="other")

            async def commit_first() -> None:
                await trio.sleep(5)
                assert await append_job(other, options, BINARY, Job("other", (theirs,), ("txn:nightly", 1)))

            nursery.start_soon(commit_first)
            assert not await append_job(client, options, BINARY, Job("job", (ours,), ("txn:nightly", 1)))
            assert outage.met
            assert [each.ledger_id for each in await client.log_segments("log")] == [theirs]


def test_small_outputs_are_one_ledger_between_large_ones(spark_bookies: Bookies, spark_log: str) -> None:
    """In the order of the partitions. A task with little output needs no bookie."""
    options = options_for(spark_bookies, spark_log)
    rows: dict[int, list[bytes]] = {0: [b"a"], 1: [b"b", b"c"], 2: [b"d" * 100], 3: [], 4: [b"e"]}
    parts = []
    for partition, payloads in rows.items():
        attempt = Attempt(spark_log, "job", partition, 7)
        parts.append(write_partition(options, BINARY, attempt, batches(payloads), 110))
    assert [each.ledger_id is None for each in parts] == [True, True, False, True, True]
    assert [each.rows for each in parts] == [1, 2, 1, 0, 1]
    job = Job("job", (), ("txn:merged", 1), outputs=outputs_of(parts))
    assert job.outputs == ((b"a", b"b", b"c"), parts[2].ledger_id, (b"e",))
    assert [commit_all(options, job) for _ in range(2)] == [True, False]
    assert rows_of(spark_bookies.metastore, spark_log) == [b"a", b"b", b"c", b"d" * 100, b"e"]
    assert len(ledgers_of(spark_bookies.metastore, spark_log)) == 3, "the repetition was swept"


async def test_commit_gives_up_in_the_end_and_states_the_outcome(autojump_clock: trio.testing.MockClock) -> None:
    options = SparkOptions(metastore="zookeeper:of-the-test", log="log")
    async with cluster(bookies=1) as made:
        outage = Outage(made, Fault.UNAVAILABLE, 1e6)
        async with made.client(quorum=ONE, metastore=outage.metastore) as client:
            ledger_id = await one_ledger(client)
            began_s = trio.current_time()
            with pytest.raises(MetastoreError) as caught:
                await append_job(client, options, BINARY, Job("job", (ledger_id,), None))
            assert trio.current_time() - began_s < 2 * committing.COMMIT_TIMEOUT_S
            assert "visible all or none" in " ".join(caught.value.__notes__).replace("\n", " ")


async def test_the_same_schema_may_be_spelled_by_another_spark() -> None:
    options = SparkOptions(metastore="zookeeper:of-the-test", log="log")
    values = ValueSchema.of_rows(ValueFormat.JSON, StructType([StructField("value", BinaryType())]))
    other_words = {FORMAT_KEY: "json", SCHEMA_KEY: values.schema_json.replace(":", ": ")}
    async with cluster(bookies=1) as made, made.client(quorum=ONE) as client:
        ledger_ids = [await one_ledger(client) for _ in range(2)]
        await client.jobs.append_ledgers("log", ledger_ids[:1], custom=other_words)
        await append_job(client, options, values, Job("job", (ledger_ids[1],), None))
        metadata = await client.log_metadata("log")
        assert [each.ledger_id for each in metadata.segments] == ledger_ids
        assert metadata.custom == other_words
