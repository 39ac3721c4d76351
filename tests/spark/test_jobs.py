"""Jobs of foreachPartition: parts that only the first attempt registers, one commit; and all of it on a real Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing
from pyspark import TaskContext
from pyspark.errors import PySparkAttributeError

import replog
import replog.blocking
import replog.spark
from replog.client.endings import copy_for_raise
from replog.errors import ConfigError, FencedError, JobAbandonedError, LedgerNotFoundError
from replog.records.paths import job_key_path
from replog.spark.committing import Job, append_job
from replog.spark.envelopes import RowEncoder
from replog.spark.jobs import SparkJob, TaskEntries, TaskWriter, parts_of, write_part
from replog.spark.options import SparkOptions
from replog.spark.values import BINARY_VALUES
from replog.spark.writing import Attempt
from tests.kit import cluster, read_log
from tests.servers.bookies import Bookies

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIONS = SparkOptions(metastore="zookeeper:of-the-test", log="log")


async def part(
    client: replog.Client, partition: int, *rows: bytes, writer: int = 0, attempt: int = 1, action: str = "7"
) -> int | None:
    """An attempt at a partition; the ledger that counts."""
    tried = Attempt("log", "job", partition, attempt)
    written = await write_part(client, OPTIONS, tried, writer, action, TaskEntries(iter(rows)))
    return written.ledger_id


def session_that_knows(tasks: int | None) -> Any:
    """A session that has run a stage of so many tasks, or does not know it."""
    tracker = SimpleNamespace(getStageInfo=lambda _stage: None if tasks is None else SimpleNamespace(numTasks=tasks))
    return SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))


async def registered(client: replog.Client) -> list[str]:
    return await client._opened.ledgers.records.metastore.children(job_key_path("log", "job"))


# -- parts, without Spark ---------------------------------------------------------------------------------------------


async def test_only_the_first_finished_attempt_counts(autojump_clock: trio.testing.MockClock) -> None:
    """Speculation: two attempts write at once, and a third begins when the first has ended."""
    async with cluster() as world, world.client() as client:
        await client._opened.ledgers.jobs.begin("log", "job")
        ended: list[int | None] = []

        async def attempt(number: int) -> None:
            ended.append(await part(client, 0, b"a", b"b", attempt=number))

        async with trio.open_nursery() as nursery:
            for number in (1, 2):
                nursery.start_soon(attempt, number)
        assert ended[0] == ended[1]
        assert await part(client, 0, b"a", b"b", attempt=3) == ended[0]
        assert await client.ledgers() == [ended[0]], "the loser has deleted its own"
        (found,) = await parts_of(client, "log", "job")
        assert (found.ledger_id, found.rows, found.partition) == (ended[0], 2, 0)


async def test_parts_are_committed_by_writer_and_partition(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        await client._opened.ledgers.jobs.begin("log", "job")
        await part(client, 1, b"4", writer=1, action="8")
        await part(client, 10, b"3")
        await part(client, 2, b"2")
        await part(client, 0, b"1")
        await part(client, 3)
        parts = await parts_of(client, "log", "job")
        assert [(each.writer, each.partition, each.rows) for each in parts] == [
            (0, 0, 1),
            (0, 2, 1),
            (0, 3, 0),
            (0, 10, 1),
            (1, 1, 1),
        ]
        ledger_ids = tuple(each.ledger_id for each in parts if each.ledger_id is not None)
        assert await append_job(client, OPTIONS, BINARY_VALUES, Job("job", ledger_ids, ("txn:a", 0)))
        assert await read_log(client) == [b"1", b"2", b"3", b"4"]
        assert await client.jobs.sweep("log") == []
        assert await registered(client) == []


async def test_a_second_action_with_one_writer_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        await client._opened.ledgers.jobs.begin("log", "job")
        ledger_id = await part(client, 0, b"a")
        with pytest.raises(ConfigError, match=r"writer 0 serves one action.*stages 7 and 9"):
            await part(client, 0, b"b", action="9")
        await part(client, 1, b"c", action="9")
        job = SparkJob(SimpleNamespace(), OPTIONS)  # type: ignore[arg-type]
        job._writers = 1
        with pytest.raises(ConfigError, match="serves one action"):
            job._check_whole(await parts_of(client, "log", "job"))
        assert ledger_id in await client.ledgers()


async def test_job_with_a_failed_action_is_not_committed_in_part(autojump_clock: trio.testing.MockClock) -> None:
    """The block went on after the error. Spark knows how many tasks the stage had; or those of its last attempt, which has fewer
    if an executor was lost with what the others had written for it."""
    async with cluster() as world, world.client() as client:
        await client._opened.ledgers.jobs.begin("log", "job")
        await part(client, 0, b"a")
        await part(client, 1)
        for tasks, is_refused in ((3, True), (2, False), (1, False), (None, False)):
            session = session_that_knows(tasks)
            job = SparkJob(session, OPTIONS)
            job._writers = 1
            parts = await parts_of(client, "log", "job")
            if is_refused:
                with pytest.raises(ConfigError, match="2 of 3 partitions"):
                    job._check_whole(parts)
            else:
                job._check_whole(parts)


async def test_spark_connect_job_is_committed_with_its_present_parts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its sessions have no context that knows how many tasks a stage had; that the action ended well is known all the same."""

    class ConnectSession:
        def __getattr__(self, name: str) -> Any:
            raise PySparkAttributeError(errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": name})

    async with cluster() as world, world.client() as client:
        await client._opened.ledgers.jobs.begin("log", "job")
        await part(client, 0, b"a")
        job = SparkJob(ConnectSession(), OPTIONS)  # type: ignore[arg-type]
        job._writers = 1
        job._check_whole(await parts_of(client, "log", "job"))
        await part(client, 1, b"b", action="9")
        with pytest.raises(ConfigError, match="serves one action"):
            job._check_whole(await parts_of(client, "log", "job"))


async def test_an_aborted_job_leaves_nothing_and_never_commits(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        ledger_ids = [await part(client, number, b"no") for number in range(3)]
        assert await client.jobs.sweep("log", job="job") == ledger_ids
        with pytest.raises(LedgerNotFoundError):
            await append_job(client, OPTIONS, BINARY_VALUES, Job("job", (ledger_ids[0] or 0,), None))
        assert await client.ledgers() == []


async def test_job_abandoned_by_a_sweep_commits_no_part(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts of its first writer are forgotten when those of its second one are registered."""
    monkeypatch.setattr("replog.log.sweeping.PENDING_KEPT_S", 0.0)  # as if the first ones were older
    async with cluster() as world, world.client() as client:
        await client._opened.ledgers.jobs.begin("log", "job")
        await part(client, 0, b"a")
        await part(client, 1, b"b")
        await client.jobs.sweep("log", job="job")
        assert await registered(client) == ["ended"]
        await part(client, 0, b"c", writer=1, action="8")
        with pytest.raises(JobAbandonedError, match="a sweep gave it up while it ran"):
            await parts_of(client, "log", "job")


async def test_parts_without_rows_outlive_sweeps_of_others(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        await part(client, 0)
        assert await client.jobs.sweep("log") == []
        assert await registered(client) == ["part-0-0"]
        await client.jobs.sweep("log", grace_s=0)
        assert await registered(client) in ([], ["part-0-0"])  # of this very millisecond
        await client.jobs.sweep("log", job="job")
        assert await registered(client) == []


def test_writers_are_made_in_the_block_of_an_open_job() -> None:
    job = SparkJob(SimpleNamespace(), OPTIONS)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="in the block"):
        job.writer()
    job._is_open = True
    with pytest.raises(ConfigError, match="must be a function"):
        job.writer("json")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="key='id' must be a function"):
        job.writer(key="id")  # type: ignore[arg-type]
    assert [job.writer()._writer, job.writer()._writer] == [0, 1]
    with pytest.raises(ConfigError, match="give it to foreachPartition"):
        TaskWriter(OPTIONS, "job", 0, RowEncoder(), False)([])


def test_a_fenced_error_in_a_task_shows_how_one_log_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not hasattr(copy_for_raise(FencedError(1, "x")), "__notes__")
    monkeypatch.setattr(TaskContext, "_taskContext", object())
    (note,) = copy_for_raise(copy_for_raise(FencedError(1, "x"))).__notes__
    assert "df.foreachPartition(job.writer(encode))" in note


# -- on a real Spark --------------------------------------------------------------------------------------------------


def encode(row: Any) -> bytes:
    return json.dumps(row.asDict()).encode()


def numbers_of(bookies: Bookies, log: str) -> list[int]:
    with replog.blocking.connect(bookies.metastore) as client, client.read_log(log) as reader:
        return [json.loads(record.data)["id"] for record in reader]


@pytest.mark.needs_spark
def test_a_job_shows_all_rows_once_and_a_rerun_changes_nothing(
    spark: SparkSession, spark_bookies: Bookies, spark_log: str
) -> None:
    """Each task's first attempt writes all of its rows, and fails."""
    df = spark.range(0, 200, 1, 3)

    def failing_once(write: TaskWriter, partition: Iterable[Any]) -> None:
        context = TaskContext.get()
        assert context is not None

        def rows() -> Iterator[Any]:
            yield from partition
            if context.attemptNumber() == 0:
                raise OSError("on purpose")

        write(rows())

    for is_new in (True, False):
        with replog.spark.job(spark, metastore=spark_bookies.metastore, log=spark_log, txn_id="nightly-17") as job:
            writer = job.writer(encode)
            df.foreachPartition(partial(failing_once, writer))
            again = job.writer(encode)
            spark.range(200, 203, 1, 2).foreachPartition(again)
        assert (job.is_new, job.rows) == ((True, 203) if is_new else (False, 0))
        assert numbers_of(spark_bookies, spark_log) == [*range(203)]
    with (
        pytest.raises(OSError, match="in the block"),
        replog.spark.job(spark, metastore=spark_bookies.metastore, log=spark_log) as job,
    ):
        df.foreachPartition(job.writer(encode))
        raise OSError("in the block")
    with (
        pytest.raises(Exception, match="serves one action"),
        replog.spark.job(spark, metastore=spark_bookies.metastore, log=spark_log) as job,
    ):
        writer = job.writer(encode)
        df.foreachPartition(writer)
        df.foreachPartition(writer)
    assert numbers_of(spark_bookies, spark_log) == [*range(203)]
