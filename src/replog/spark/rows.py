"""Reading logs with Spark: what is read is planned on the driver, and tasks read exactly that.

Rules:
- A plan names ledgers and entries, all of them confirmed then (D1). A task that is retried reads the same entries again.
- Rows are stored batches, handed on as Arrow (`replog.spark.columns`): about two megabytes of entries at a time.
- Times are by the clocks of the log's writers. Rows are compared one stored batch at a time, ledgers by when they were
  created and when their last entry was sent, with a minute to spare for a clock that was set back.
- Tasks of one worker share a client. Reading fences nothing, and leaves nothing behind.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import attrs
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from replog import Client, LedgerReader
from replog.client.entries import Batches, EntryBatch
from replog.errors import EntryNotFoundError, LedgerNotFoundError, PositionError, SchemaMismatchError, TrimmedError
from replog.protocol.model import LogMetadata, Position
from replog.spark.clients import WorkerClient, worker_client
from replog.spark.columns import Columns, check_schema, schema_of_rows
from replog.spark.extents import CLOSING_S, Extent, Measured, Survey, each_at_once, partitioned
from replog.spark.filters import Narrowing, narrowing
from replog.spark.options import AUTO
from replog.spark.read_options import ReadOptions
from replog.spark.values import ValueFormat, ValueSchema

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_RECORD_BATCH_BYTES = 2 << 20
_LEDGERS_AT_ONCE = 16  # that a task reads: with a record batch of each it holds 32 MiB at most
_CLOCK_SET_BACK_NS = 60_000_000_000
_TRIMMED_MEANWHILE_MAX = 3
_Fetched = Iterator[tuple[int, list[EntryBatch]]]  # segments, and lists that are worth a record batch
_log = logging.getLogger("replog.spark")


class LogPartition(InputPartition):
    """What one task reads: consecutive entries, maybe of several segments."""

    def __init__(self, extents: tuple[Extent, ...]) -> None:
        super().__init__(None)
        self.extents = extents

    def __repr__(self) -> str:
        return f"LogPartition({', '.join(f'{each.segment}:{each.first}-{each.last}' for each in self.extents)})"


# -- schemas ------------------------------------------------------------------------------------------------------


def schema_of(options: ReadOptions) -> StructType:
    """The columns of a query that names none. Raises `SchemaMismatchError` if the log holds other values than
    the option says; `LogNotFoundError`, `MetastoreError`."""
    return schema_of_rows(_values_of_log(options))


def _values_of_log(options: ReadOptions) -> ValueSchema | None:
    """How the log's entries are decoded; None if they are passed on as they are, which needs no look at the log."""
    if options.values == ValueFormat.BINARY:
        return None

    async def look(client: Client) -> LogMetadata:
        return await client.log_metadata(options.log)

    held = ValueSchema.of_log(options.run(look))
    if options.values not in (AUTO, held.format):
        raise SchemaMismatchError(
            options.log,
            f"its values are {held.format}, and were to be read as {options.values}: leave the option out, or say "
            '.option("values", "binary") to read them as they are',
        )
    return None if held.format is ValueFormat.BINARY else held


# -- reading ------------------------------------------------------------------------------------------------------


class RowReader:
    """Reads partitions, in tasks. The base of both kinds of readers; can be pickled."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._values = _values_of_log(options)
        self._narrowing = Narrowing(from_ns=options.begin.time_ns, to_ns=options.end.time_ns)
        check_schema(schema, self._values, options.log)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """The partition's rows. Raises `TrimmedError` if they were trimmed since they were planned, unless that is to be skipped;
        `EntryUnreadableError`
        (retry: yes, which Spark does)."""
        if not isinstance(partition, LogPartition):
            return  # Spark makes an empty one if there are none
        options = self._options
        columns = Columns(self._schema, self._values, options.log)
        with worker_client(options.metastore_url(), options=options.client_options()) as worker:
            for segment, batches in self._fetched(worker, partition.extents):
                for wanted in self._wanted(batches):
                    yield from columns.record_batches(segment, wanted)

    def _fetched(self, worker: WorkerClient, extents: Sequence[Extent]) -> _Fetched:
        """The entries of these extents; without those that were trimmed since they were planned, if that is to be skipped."""
        options = self._options
        while extents:
            fetched = _fetched_ahead if len(extents) > 1 else _fetched
            try:
                yield from fetched(worker, options.log, extents, options.password())
                return
            except TrimmedError as error:
                if not options.skips_trimmed or not isinstance(error.first_available, Position):
                    raise
                # Nothing of the extents that are left was given out: they are in the log's order.
                first = error.first_available.segment
                left = [each for each in extents if each.segment >= first]
                _log.warning("%s; skipped: up to %d entries of %d segments", error, *_counted(extents, first))
                extents = left

    def may_be_in_time(self, measured: Measured) -> bool:
        """True if anything in it may have been sent at a time that is wanted."""
        from_ns = self._narrowing.from_ns
        # A clock that was set back may have put later entries at earlier times: hence the minute.
        return from_ns is None or measured.last_sent_ns >= from_ns - _CLOCK_SET_BACK_NS

    def _wanted(self, batches: Sequence[EntryBatch]) -> Iterator[list[EntryBatch]]:
        """The batches sent at times that are wanted, in lists without a gap."""
        run: list[EntryBatch] = []
        for batch in batches:
            if self._narrowing.wants_time(batch.timestamp_ns):
                run.append(batch)
            elif run:
                yield run
                run = []
        if run:
            yield run


def _counted(extents: Sequence[Extent], first: int) -> tuple[int, int]:
    """How many entries and segments there are before this segment."""
    lost = [each for each in extents if each.segment < first]
    return sum(each.count for each in lost), len({each.segment for each in lost})


def _fetched(worker: WorkerClient, log_name: str, extents: Sequence[Extent], password: bytes) -> _Fetched:
    """The entries of these extents, one ledger after the other."""
    for extent in extents:
        ledger_id = extent.ledger_id
        with (
            _explained(worker, log_name, extent, password),
            worker.opened(partial(_opened, ledger_id, password)) as reader,
        ):
            batches = reader.batches_between(extent.first, extent.last)
            while found := worker.call(partial(_fetch, batches)):
                yield extent.segment, found


def _opened(ledger_id: int, password: bytes, client: Client) -> AbstractAsyncContextManager[LedgerReader]:
    return client.open_ledger(ledger_id, password=password)


def _fetched_ahead(worker: WorkerClient, log_name: str, extents: Sequence[Extent], password: bytes) -> _Fetched:
    """The same of short extents: several ledgers are read at once, because to open one takes longer than to read it."""

    async def fetch(extents: Sequence[Extent], client: Client) -> list[list[EntryBatch]]:
        async def fetch_one(extent: Extent) -> list[EntryBatch]:
            async with client.open_ledger(extent.ledger_id, password=password) as reader:
                return await _fetch(reader.batches_between(extent.first, extent.last), client)

        return await each_at_once(extents, fetch_one)

    for first in range(0, len(extents), _LEDGERS_AT_ONCE):
        together = extents[first : first + _LEDGERS_AT_ONCE]
        # A trim takes the oldest first.
        with _explained(worker, log_name, together[0], password):
            fetched = worker.call(partial(fetch, together))
        for extent, found in zip(together, fetched, strict=True):
            yield extent.segment, found
            end = found[-1].last_entry_id
            if end < extent.last:
                # It is longer than its plan knew: the rest is not held as a whole.
                yield from _fetched(worker, log_name, [attrs.evolve(extent, first=end + 1)], password)


@contextmanager
def _explained(worker: WorkerClient, log_name: str, extent: Extent, password: bytes) -> Iterator[None]:
    """Raises `TrimmedError` instead if the extent was trimmed. A trim deletes ledgers without waiting for queries that have
    planned them."""

    async def explain(client: Client) -> None:
        await Survey(client, log_name, password).explain_missing(extent.segment, extent.first)

    try:
        yield
    except (LedgerNotFoundError, EntryNotFoundError):
        worker.call(explain)
        raise


async def _fetch(batches: Batches[EntryBatch], _: Client) -> list[EntryBatch]:
    found: list[EntryBatch] = []
    size_bytes = 0
    async for batch in batches:
        found.append(batch)
        size_bytes += batch.size_bytes
        if size_bytes >= _RECORD_BATCH_BYTES:
            break
    return found


def partitions_of(extents: Sequence[tuple[Extent, Measured]], options: ReadOptions) -> list[InputPartition]:
    """Partitions for one task each, in the order of the log."""
    sizes_bytes = [measured.size_bytes for _, measured in extents]
    portions = partitioned([extent for extent, _ in extents], sizes_bytes, options.partition_bytes)
    return [LogPartition(portion) for portion in portions]


# -- one batch job ------------------------------------------------------------------------------------------------


class LogBatchReader(RowReader, DataSourceReader):
    """Reads what a log has when the query is planned. Each action plans again, and may find more."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        options.check_batch()
        super().__init__(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Raises `LogNotFoundError`, `TrimmedError` if the position `from` was trimmed and that is not to be skipped,
        `PositionError` if it never existed."""
        return self._options.run(self._plan)

    async def _plan(self, client: Client) -> list[InputPartition]:
        options = self._options
        survey = Survey(client, options.log, options.password(), CLOSING_S, options.skips_trimmed)
        for _ in range(_TRIMMED_MEANWHILE_MAX):
            try:
                return await self._planned(survey)
            except TrimmedError:
                # A position that the query names must be there. Without one it wants what there is, and plans again.
                if self._options.begin.position is not None and not options.skips_trimmed:
                    raise
        return await self._planned(survey)  # the query wants the entries that are left, so a trim is not an error

    async def _planned(self, survey: Survey) -> list[InputPartition]:
        extents = [extent for extent in await self._extents(survey) if self._may_be_wanted(extent)]
        wanted = [pair for pair in await survey.measured(extents) if self.may_be_in_time(pair[1])]
        return partitions_of(wanted, self._options)

    async def _extents(self, survey: Survey) -> list[Extent]:
        """Those with entries between where reading begins and ends."""
        head = await survey.head()
        start = survey.beginning(head, self._options.begin.position or Position(head.first_segment_number, 0))
        stop = self._options.end.position
        if stop is not None and stop > Position(head.next_segment_number, 0):
            last = head.next_segment_number - 1
            raise PositionError(f"to={stop} is not a position of log {head.name!r}: its last segment is {last}")
        found = []
        async with aclosing(survey.extents(start, head)) as extents:
            async for extent in extents:
                if stop is not None:
                    if extent.segment > stop.segment:
                        break
                    extent = extent.before(stop)
                if extent.count:
                    found.append(extent)
        return found

    def _may_be_wanted(self, extent: Extent) -> bool:
        """False if that is clear without reading: entries are sent after their ledger was created."""
        to_ns = self._narrowing.to_ns
        is_too_late = to_ns is not None and extent.begun_at_ms * 1_000_000 >= to_ns + _CLOCK_SET_BACK_NS
        return self._narrowing.wants_segment(extent.segment) and not is_too_late


class FilteringReader(LogBatchReader):
    """The same, with filters. Spark refuses such a reader where pushing filters is off, which it is by default."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keeps the filters that narrow the reading. Spark still applies all of them."""
        self._narrowing = self._narrowing.both(narrowing(filters))
        return filters
