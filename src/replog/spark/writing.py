"""Writing to logs from Spark: the writer of a batch job, and the work of writers in each task.

Rules:
- Each attempt at a partition writes a ledger of its own, and closes it. No log names that ledger until the driver's
  commit does, which adds those of all partitions at once (`replog.spark.committing`): rows are visible all together, or
  none.
- An attempt that lost (it failed, was slower than another one, or Spark believed it dead) leaves a ledger that no log
  names. Its custom metadata names its job, so it is found and swept. An attempt that fails while it can still act
  deletes it itself.
- A writer is pickled: into the tasks, and for a batch job also into the process that commits. For a stream that process
  makes a writer of its own. So everything that a commit must know is in the messages.
- A task whose entries are small writes nothing: its message has them, and the driver writes one ledger for all such
  tasks next to each other. The entries that all tasks of a job send together are bounded, though no task knows how many
  there are (`small_bytes`).
- A *job* is one try at writing one thing, and no name is ever used twice: it can be given up permanently.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

import attrs
import trio
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import replog
from replog.errors import AddTimeoutError, ConfigError, MetastoreError, NotEnoughBookiesError, ReplogError
from replog.protocol.batch import PackedPayloads, size_of
from replog.runtime.nursery import open_service_nursery
from replog.spark.committing import Job, abort_job, begin_job, commit_job
from replog.spark.options import SparkOptions
from replog.spark.values import ValueEncoder, ValueFormat, ValueSchema

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_QUERY_ID = "sql.streaming.queryId"  # names of Spark's local properties: only there a task finds them
_BATCH_ID = "streaming.sql.batchId"
_FORGET_S = 5.0
_BATCHES_WAITING = 1  # encoded, behind the one that is being appended: bounds what a task holds
_MERGED_FULLY = 256  # tasks, the first ones of a job
_ENTRY_BYTES = 48  # that an entry takes in a driver's memory beside its value: there may be many empty ones


@attrs.frozen
class WrittenPartition(WriterCommitMessage):
    """An attempt's message to the commit. `ledger_id` is None if the partition has no rows, or so few that `payloads` has them:
    then nothing was written."""

    job: str
    partition: int
    ledger_id: int | None
    rows: int
    query_id: str = ""
    # Of few rows, instead of a ledger: the driver writes them. They are the user's, and belong in no error's text.
    payloads: tuple[bytes, ...] = attrs.field(default=(), repr=False)


@attrs.frozen
class Attempt:
    """One attempt of Spark at a partition, as the custom metadata of its ledger names it."""

    log: str
    job: str
    partition: int
    attempt: int
    query_id: str = ""
    batch_id: str = ""

    @classmethod
    def current(cls, log: str, run: str) -> Attempt:
        """Of the task that runs in this thread. `run` is the same for all its siblings, and for no other job's tasks."""
        context = TaskContext.get()
        if context is None:
            raise ConfigError("this must be called in a task of Spark")
        query_id, batch_id = (context.getLocalProperty(name) or "" for name in (_QUERY_ID, _BATCH_ID))
        job = f"{query_id}/{batch_id}/{run}" if query_id else run
        return cls(log, job, context.partitionId(), context.taskAttemptId(), query_id, batch_id)

    def custom(self) -> dict[str, str]:
        """As texts; `log` and `job` are what a sweep looks for."""
        of_query = {"query": self.query_id, "batch": self.batch_id} if self.query_id else {}
        of_task = {"partition": str(self.partition), "attempt": str(self.attempt)}
        return {"log": self.log, "job": self.job, **of_task, **of_query}


class JobWriter(DataSourceArrowWriter):
    """Writes one batch job: what `df.write...save()` asks for."""

    def __init__(self, options: SparkOptions, schema: StructType) -> None:
        self._options = options
        self._values = ValueSchema.of_rows(ValueFormat(options.values), schema)
        self._job = str(uuid4())

    def check(self) -> None:
        """On the driver, before there is any task. Raises `SchemaMismatchError`, and what `replog.connect` raises."""
        self._options.call(lambda client: begin_job(client, self._options, self._values, self._job))

    def write(self, iterator: Iterator[RecordBatch]) -> WrittenPartition:
        """In a task: writes a ledger. Raises `ReplogError`; then no ledger of this attempt ever becomes a log's."""
        attempt = Attempt.current(self._options.log, self._job)
        return write_partition(self._options, self._values, attempt, iterator, self._options.merge_bytes)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: makes all rows visible. Raises `ReplogError`; then all of them are or none is, and saving again is
        safe with a `txn_id`."""
        written = written_in_order(messages)
        transaction = self._options.transaction()
        outputs = outputs_of(written)
        is_begun = self._options.merge_bytes > 0
        job = Job(self._job, (), transaction, counts_empty=transaction is not None, outputs=outputs, is_begun=is_begun)
        self._options.call(lambda client: commit_job(client, self._options, self._values, job))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: gives the job up, unless its rows are visible after all, and deletes what it wrote."""
        self._options.call(lambda client: abort_job(client, self._options, self._job))


def written_in_order(messages: Sequence[WriterCommitMessage | None]) -> list[WrittenPartition]:
    """In the order of the partitions. Raises `ConfigError` if this can't be committed."""
    written = [each for each in messages if isinstance(each, WrittenPartition)]
    # Spark passes None for a task that it has lost: to commit the others would leave rows out.
    if len(written) != len(messages) or len({each.job for each in written}) > 1:
        raise ConfigError(f"{messages!r} are not the messages of one job's partitions: nothing was committed")
    return sorted(written, key=lambda each: each.partition)


def ledger_ids_of(written: Sequence[WrittenPartition]) -> tuple[int, ...]:
    """The ledgers that were written, in order."""
    return tuple(each.ledger_id for each in written if each.ledger_id is not None)


def outputs_of(written: Sequence[WrittenPartition]) -> tuple[int | tuple[bytes, ...], ...]:
    """The ledgers that were written, in order, and between them the entries of small partitions next to each other."""
    outputs: list[int | tuple[bytes, ...]] = []
    for is_small, together in itertools.groupby(
        (each for each in written if each.rows), lambda each: each.ledger_id is None
    ):
        if is_small:
            outputs.append(tuple(itertools.chain.from_iterable(each.payloads for each in together)))
        else:
            outputs += [each.ledger_id for each in together if each.ledger_id is not None]
    return tuple(outputs)


# -- in a task ----------------------------------------------------------------------------------------------------


def write_partition(
    options: SparkOptions,
    values: ValueSchema,
    attempt: Attempt,
    batches: Iterator[RecordBatch],
    merge_bytes: int = 0,
) -> WrittenPartition:
    """Writes these rows to a ledger of this attempt's, and closes it. A partition without rows makes no ledger, and needs no
    bookie; nor does one whose entries are small by `merge_bytes` (`small_bytes`), which the message has. Blocks.

    Raises `ReplogError`, or what `batches` raises; then the ledger is deleted, as far as that can be done in some seconds.
    Nothing of it becomes visible in any case."""
    # Empty batches come from filters: a partition of nothing else makes no ledger.
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return WrittenPartition(attempt.job, attempt.partition, None, 0, attempt.query_id)
    rows = _Rows(ValueEncoder(values, options.log), itertools.chain([first], filled))
    allowed_bytes = small_bytes(merge_bytes, attempt.partition)
    small = rows.all_within(allowed_bytes) if allowed_bytes else None
    if small is not None:
        return WrittenPartition(attempt.job, attempt.partition, None, rows.count, attempt.query_id, small)
    with told_what_is_needed(attempt):
        ledger_id = options.call(lambda client: write_ledger(client, options, attempt, rows))
    return WrittenPartition(attempt.job, attempt.partition, ledger_id, rows.count, attempt.query_id)


def small_bytes(merge_bytes: int, partition: int) -> int:
    """How many bytes this task may send to the driver: `merge_bytes`, and less behind the first 256 tasks, so that all tasks of a
    job, however many there are, send at most 512 times `merge_bytes`."""
    # The sum of 1/n² over all n > 256 is less than 1/256: those behind the first 256 send no more than these do.
    return merge_bytes * _MERGED_FULLY**2 // max(_MERGED_FULLY, partition + 1) ** 2


@contextmanager
def told_what_is_needed(attempt: Attempt) -> Iterator[None]:
    """Notes on an error what an executor must reach."""
    try:
        yield
    except (MetastoreError, NotEnoughBookiesError, AddTimeoutError) as error:
        error.add_note(
            f"partition {attempt.partition} of a job of Spark's: each executor must reach the metastore by the URL that the "
            "option names, and the bookies where they announce themselves"
        )
        raise


class Entries(Protocol):
    """The entries of a partition; `count` are those that were given out."""

    count: int

    def next_payloads(self) -> Sequence[bytes] | None:
        """The next ones; None at the end. Blocks while Spark computes."""


class _Rows:
    """The rows of a partition as entries; counts them."""

    def __init__(self, encoder: ValueEncoder, batches: Iterator[RecordBatch]) -> None:
        self.count = 0
        self._encoder = encoder
        self._batches = batches
        self._ready: deque[Sequence[bytes]] = deque()  # encoded, and not given out

    def all_within(self, size_bytes: int) -> tuple[bytes, ...] | None:
        """All entries, if they take no more than these bytes of memory; else None, and they are given out as without this.
        Blocks."""
        ready: list[Sequence[bytes]] = []
        while (payloads := self.next_payloads()) is not None:
            ready.append(payloads)
            size_bytes -= size_of(payloads) + _ENTRY_BYTES * len(payloads)
            if size_bytes < 0:
                self._ready.extendleft(reversed(ready))
                return None
        return tuple(itertools.chain.from_iterable(ready))

    def next_payloads(self) -> Sequence[bytes] | None:
        """Blocks while Spark computes."""
        while not self._ready:
            batch = next(self._batches, None)
            if batch is None:
                return None
            self.count += batch.num_rows
            self._ready += self._encoder.parts(batch)
        return self._ready.popleft()


async def write_ledger(client: replog.Client, options: SparkOptions, attempt: Attempt, rows: Entries) -> int:
    """Writes a ledger of this attempt, and closes it; returns its id."""
    ledger_id: int | None = None
    try:
        async with client.create_ledger(password=options.password(), custom=attempt.custom()) as writer:
            ledger_id = writer.ledger_id
            await _append_all(writer, rows)
        return ledger_id
    # A cancellation and KeyboardInterrupt, too: Spark interrupts tasks that it no longer needs.
    except BaseException as error:
        if ledger_id is not None:
            await forget_ledger(client, ledger_id, error)
        raise


async def _append_all(writer: replog.LedgerWriter, rows: Entries) -> None:
    """Appends while the next rows are computed: in a thread, since they come from Spark by a socket that blocks."""
    sending, receiving = trio.open_memory_channel[Sequence[bytes]](_BATCHES_WAITING)
    appended = trio.Event()

    async def append() -> None:
        async with receiving:
            async for payloads in receiving:
                if isinstance(payloads, PackedPayloads):
                    await writer._entries.push_packed(payloads)  # leaving the writer confirms all of them
                else:
                    await writer.extend(payloads)
        appended.set()

    async with open_service_nursery() as nursery:
        nursery.start_soon(append)
        async with sending:
            # In another thread, one batch ahead: while these rows are appended, Spark computes the next ones.
            while (payloads := await trio.to_thread.run_sync(rows.next_payloads)) is not None:
                await sending.send(payloads)
        # Without this the nursery, which is cancelled at the end of its block, would cut off the last batch.
        await appended.wait()


async def forget_ledger(client: replog.Client, ledger_id: int, error: BaseException | None) -> None:
    """Deletes a ledger that no message will ever name."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + _FORGET_S):
        try:
            await client.delete_ledger(ledger_id)
        except ReplogError as problem:
            if error is None:
                # A sweep of the log deletes it: it is registered as the job's.
                return
            error.add_note(f"ledger {ledger_id}, which it wrote, was not deleted, and waits for a sweep: {problem}")
