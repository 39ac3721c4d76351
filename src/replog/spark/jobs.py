"""Jobs of `foreachPartition`: all their rows become visible in one log at once, in whichever actions they are written.

Rules:
- Each attempt of Spark at a partition writes a ledger of its own, and then registers it as a part of the job, by (writer,
  partition): a create of a key that only the first attempt wins. The others delete what they wrote, and succeed.
- The driver adds the ledgers of all parts with one change of the log's record, at the end of the block, in the order of the
  writers and of the partitions. An error in the block gives the job up.
- A writer serves one action of Spark, whose tasks are of one stage. A second one is refused: its partitions would be taken for
  attempts at those of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import attrs
from pyspark import TaskContext

import replog
from replog.errors import ConfigError, JobAbandonedError, ReplogError
from replog.records.jobs import JobPart
from replog.records.paths import job_part_key_path
from replog.spark.committing import Job, abort_job, check_log, commit_job, is_committed
from replog.spark.envelopes import RowEncoder
from replog.spark.options import SparkOptions
from replog.spark.partitions import chunks_of
from replog.spark.values import BINARY_VALUES
from replog.spark.writing import Attempt, forget_ledger, told_what_is_needed, write_ledger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Encode = Callable[[Any], bytes | None]
KeyOf = Callable[[Any], bytes | None]
HeadersOf = Callable[[Any], Mapping[str, bytes] | None]


def job(
    spark: SparkSession,
    metastore: str,
    log: str,
    *,
    txn_id: str | None = None,
    txn_version: int = 0,
    password_file: str | None = None,
    config_file: str | None = None,
    quorum: str = "3,3,2",
) -> SparkJob:
    """A job that writes to one log from `foreachPartition`; a context manager:

        with replog.spark.job(spark, metastore=URL, log="orders", txn_id="nightly-17") as job:
            df.foreachPartition(job.writer(encode))

    All rows become visible when the block ends, at once; none if it ends on an error. A job that is run again with the same
    `txn_id`, and a `txn_version` that is not higher, changes nothing. In `foreachBatch` the version is the batch's number.
    The other options are those of the format `replog`. Raises `ConfigError` with all invalid arguments at once."""
    options = SparkOptions(
        metastore=metastore,
        log=log,
        txn_id=txn_id,
        txn_version=txn_version,
        password_file=password_file,
        config_file=config_file,
        quorum=quorum,
    )
    return SparkJob(spark, options)


class SparkJob:
    """One run of a job: made by `job`, and entered once. `is_new` and `rows` are known when its block has ended."""

    def __init__(self, spark: SparkSession, options: SparkOptions) -> None:
        self.is_new = False  # False even if its transaction was committed before: then nothing was changed
        self.rows = 0  # that became visible
        self._spark = spark
        self._options = options
        self._name = str(uuid4())
        self._writers = 0
        self._is_open = False
        self._is_committed = False  # before it began, by an earlier run

    def __enter__(self) -> Self:
        """Looks at the log. Blocks. Raises `ConfigError`, `SchemaMismatchError`, `TransactionTableFullError`, and what
        `replog.connect` raises."""
        if self._is_open or self._writers:
            raise ConfigError("this job was entered before: make another one with replog.spark.job")
        self._options.run(self._begin)
        self._is_open = True
        return self

    async def _begin(self, client: replog.Client) -> None:
        await check_log(client, self._options, BINARY_VALUES)
        self._is_committed = await is_committed(client, self._options)
        if not self._is_committed:
            await client._opened.ledgers.jobs.begin(self._options.log, self._name)

    def writer(
        self, encode: Encode | None = None, *, key: KeyOf | None = None, headers: HeadersOf | None = None
    ) -> TaskWriter:
        """A function for one `df.foreachPartition` or `rdd.foreachPartition`; a second action with it raises.

        Each row is an entry: what `encode` makes of it, with the key and the headers that those functions make of it, as
        `append(data, key=, headers=)` takes them. Without any function, rows must be bytes, or have one column of bytes, or
        columns `value`, `key` and `headers`, as in the data source. The rows of several writers become visible in the order in
        which the writers were made. Raises `ConfigError` outside the block."""
        if not self._is_open:
            raise ConfigError("a job's writer is made in the block of the job: with replog.spark.job(...) as job:")
        for name, function in (("encode", encode), ("key", key), ("headers", headers)):
            if function is not None and not callable(function):
                raise ConfigError(f"{name}={function!r} must be a function of a row")
        self._writers += 1
        encoder = RowEncoder(encode, key, headers)
        return TaskWriter(self._options, self._name, self._writers - 1, encoder, self._is_committed)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Makes all rows visible; on an error, gives the job up and deletes what it wrote. Blocks.

        Raises `ReplogError`: then all rows are visible or none, and running the job again is safe with a `txn_id`."""
        self._is_open = False
        if error is not None:
            self._give_up(error)
        # Else its tasks wrote nothing, so nothing may be committed now, even if an operator retires the transaction meanwhile.
        elif not self._is_committed:
            try:
                self._options.run(self._commit)
            except (ConfigError, JobAbandonedError) as problem:
                self._give_up(problem)
                raise

    async def _commit(self, client: replog.Client) -> None:
        options = self._options
        parts = await parts_of(client, options.log, self._name)
        self._check_whole(parts)
        transaction = options.transaction()
        ledger_ids = tuple(each.ledger_id for each in parts if each.ledger_id is not None)
        committed = Job(self._name, ledger_ids, transaction, counts_empty=transaction is not None)
        self.is_new = await commit_job(client, options, BINARY_VALUES, committed)
        self.rows = sum(each.rows for each in parts) if self.is_new else 0

    def _check_whole(self, parts: list[JobPart]) -> None:
        """Raises `ConfigError` if a writer served two actions, or if Spark knows of more tasks than have ended."""
        for number in range(self._writers):
            of_writer = [each for each in parts if each.writer == number]
            actions = {each.action for each in of_writer}
            if len(actions) > 1:
                raise _second_action(number, *sorted(actions)[:2])
            expected = None if not actions else _tasks_of(self._spark, actions.pop())
            if expected is not None and len(of_writer) < expected:
                raise ConfigError(
                    f"{len(of_writer)} of {expected} partitions of the job's writer {number} were written: the action failed, "
                    "and the block went on. Let its error leave the block; nothing was committed"
                )

    def _give_up(self, error: BaseException) -> None:
        try:
            self._options.run(lambda client: abort_job(client, self._options, self._name))
        except ReplogError as problem:
            error.add_note(f"what the job wrote was not deleted, and waits for a sweep: {problem}")


@attrs.frozen
class TaskWriter:
    """A function for `foreachPartition`, made by `SparkJob.writer`. Can be pickled, as Spark does, if its encoder can."""

    _options: SparkOptions
    _job: str
    _writer: int
    _encoder: RowEncoder
    _is_committed: bool

    def __call__(self, rows: Iterable[Any]) -> None:
        """In a task: writes these rows to a ledger of this attempt, and registers it. Nothing is visible before the job's block
        ends. Raises `ReplogError`, and what `rows` and the encoder raise; then nothing of this attempt ever becomes visible."""
        context = TaskContext.get()
        if context is None:
            raise ConfigError("this function is for tasks of Spark: give it to foreachPartition")
        if self._is_committed:
            return
        attempt = Attempt(self._options.log, self._job, context.partitionId(), context.taskAttemptId())
        entries = TaskEntries(map(self._encoder, rows))
        action = str(context.stageId())
        with told_what_is_needed(attempt):
            self._options.call(lambda client: write_part(client, self._options, attempt, self._writer, action, entries))


class TaskEntries:
    """The entries of a partition, in portions; counts them."""

    def __init__(self, entries: Iterator[bytes]) -> None:
        self.count = 0
        self._chunks = chunks_of(entries)
        # Looked at in the task's own thread: a partition without rows makes no ledger.
        self._first = next(self._chunks, None)

    @property
    def is_empty(self) -> bool:
        """True if there are no rows."""
        return self._first is None

    def next_payloads(self) -> list[bytes] | None:
        """The next entries; None at the end. Blocks while Spark computes."""
        chunk, self._first = self._first or next(self._chunks, None), None
        self.count += len(chunk or ())
        return chunk


async def write_part(
    client: replog.Client, options: SparkOptions, attempt: Attempt, writer: int, action: str, entries: TaskEntries
) -> JobPart:
    """Writes one part of a job, unless another attempt has; returns what holds. Raises as `TaskWriter`."""
    jobs = client._opened.ledgers.jobs
    known = await jobs.part(job_part_key_path(options.log, attempt.job, writer, attempt.partition))
    if known is not None:
        return _of_same_action(known, action)
    ledger_id = None if entries.is_empty else await write_ledger(client, options, attempt, entries)
    mine = JobPart(options.log, attempt.job, writer, attempt.partition, ledger_id, entries.count, action)
    part = await jobs.claim(mine)
    if ledger_id is not None and part.ledger_id != ledger_id:
        await forget_ledger(client, ledger_id, None)
    return _of_same_action(part, action)


async def parts_of(client: replog.Client, log: str, name: str) -> list[JobPart]:
    """The parts of a job, by writer and partition. Raises `JobAbandonedError` if some may be forgotten, `MetastoreError`."""
    jobs = client._opened.ledgers.jobs
    parts = await jobs.parts(log, name)
    # Behind the listing: a sweep forgets first that the job has begun, and then its parts.
    if not await jobs.has_begun(log, name):
        problem = (
            "a sweep gave it up while it ran, and may have deleted what it wrote: run it again; nothing was committed"
        )
        raise JobAbandonedError(log, f"job {name}: {problem}", name, None)
    return parts


def _of_same_action(part: JobPart, action: str) -> JobPart:
    if part.action != action:
        raise _second_action(part.writer, part.action, action)
    return part


def _second_action(writer: int, one: str, other: str) -> ConfigError:
    return ConfigError(
        f"the job's writer {writer} serves one action, and was given to a second one (stages {one} and {other} of Spark): make a "
        "writer for each, with job.writer(). Nothing of the second one was written"
    )


def _tasks_of(spark: Any, action: str) -> int | None:
    """How many tasks a stage has, or its last attempt, which repeats only lost tasks; None if Spark does not know any
    more, or does not tell, like Spark Connect."""
    context = getattr(spark, "sparkContext", None)
    info = None if context is None else context.statusTracker().getStageInfo(int(action))
    return None if info is None else int(info.numTasks)
