"""Reading logs with Spark: the driver plans the ranges, and tasks read exactly these.

Rules:
- A plan names ledgers and entries, all of them confirmed then (D1). A task that is retried reads the same entries again.
- Rows are stored batches, handed on as Arrow (`replog.spark.columns`). About two megabytes of entries are fetched at a time.
- Times are by the clocks of the log's writers. Rows are compared one stored batch at a time, ledgers by when they were
  created and when their last entry was sent, with a minute to spare for a clock that was set back.
- Tasks of one worker share a client. Reading fences nothing, and leaves nothing behind.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import attrs
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import replog
from replog.client.entries import Batches, EntryBatch
from replog.errors import EntryNotFoundError, LedgerNotFoundError, LogNotFoundError, PositionError, TrimmedError
from replog.protocol.model import Position
from replog.runtime.collector import no_collections
from replog.runtime.loggers import logger
from replog.spark.clients import WorkerClient
from replog.spark.columns import Columns, check_schema, places_of, schema_of_rows
from replog.spark.extents import CLOSING_S, Extent, Survey, each_at_once, partitioned
from replog.spark.narrowing import Narrowing
from replog.spark.read_options import ReadOptions
from replog.spark.selection import check_values, heads_of, values_of
from replog.spark.sizes import Measured
from replog.spark.values import ValueFormat, ValueSchema

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.datasource import Filter

_RECORD_BATCH_BYTES = 2 << 20
_LEDGERS_AT_ONCE = 16  # that a task reads: with a record batch of each it holds 32 MiB at most
_CLOCK_SET_BACK_NS = 60_000_000_000
_TRIMMED_MEANWHILE_MAX = 3
_PUSHING_MODULE = "pyspark.sql.worker.data_source_pushdown_filters"
_Fetched = Iterator[tuple[Extent, list[EntryBatch]]]  # lists that are worth a record batch, each of one extent
_log = logger("replog.spark")


class LogPartition(InputPartition):
    """The entries that one task reads: consecutive ones, maybe of several segments and logs."""

    def __init__(self, extents: tuple[Extent, ...]) -> None:
        super().__init__(None)
        self.extents = extents

    def __repr__(self) -> str:
        return (
            f"LogPartition({', '.join(f'{each.log} {each.segment}:{each.first}-{each.last}' for each in self.extents)})"
        )


# -- schemas ------------------------------------------------------------------------------------------------------


def schema_of(options: ReadOptions) -> StructType:
    """The columns of a query that names none. Raises `SchemaMismatchError` if a log holds other values than the option says;
    `LogNotFoundError`, `MetastoreError`."""
    return schema_of_rows(_values_of_logs(options), options.selection.is_many)


def _values_of_logs(options: ReadOptions) -> ValueSchema | None:
    """How the logs' entries are decoded; None if they are passed on as they are, which needs no look at a log."""
    if options.values == ValueFormat.BINARY:
        return None
    return values_of(options.call(lambda client: heads_of(client, options.selection)), options.values)


# -- reading ------------------------------------------------------------------------------------------------------


class RowReader:
    """Reads partitions, in tasks. The base of both kinds of readers; can be pickled."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._values = _values_of_logs(options)
        self._narrowing = Narrowing(from_ns=options.begin.time_ns, to_ns=options.end.time_ns)
        check_schema(schema, self._values, options.shown)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        """The partition's rows. Raises `TrimmedError` if they were trimmed since they were planned, unless the options
        skip that; `EntryUnreadableError` (retry: yes, which Spark does)."""
        if not isinstance(partition, LogPartition):
            return  # Spark makes an empty one if there are none
        options = self._options
        columns = Columns(self._schema, self._values)
        with options.worker() as worker:
            for extent, batches in self._fetched(worker, partition.extents):
                for wanted in self._wanted(batches):
                    yield from columns.record_batches(extent.log, extent.segment, wanted)

    def _fetched(self, worker: WorkerClient, extents: Sequence[Extent]) -> _Fetched:
        """The entries of these extents; without those trimmed since they were planned, if the options skip that."""
        options = self._options
        while extents:
            fetched = _fetched_ahead if len(extents) > 1 else _fetched
            try:
                for extent, batches in fetched(worker, extents, options.password()):
                    yield extent, batches
                    extents = _behind(extents, extent, batches[-1].last_entry_id)
                return
            except TrimmedError as error:
                if not options.skips_trimmed or not isinstance(error.first_available, Position):
                    raise
                first = error.first_available.segment
                lost = [each for each in extents if each.log == error.log_name and each.segment < first]
                what = "%s; skipped: up to %d entries of %d segments"
                _log.warning(what, error, sum(each.count for each in lost), len({each.segment for each in lost}))
                extents = [each for each in extents if each not in lost]

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


def _behind(extents: Sequence[Extent], extent: Extent, entry_id: int) -> Sequence[Extent]:
    """The rest of these extents behind an entry of one of them. The ones before it are done."""
    place = next(place for place, each in enumerate(extents) if each.ledger_id == extent.ledger_id)
    if entry_id < extents[place].last:
        return [attrs.evolve(extents[place], first=entry_id + 1), *extents[place + 1 :]]
    return extents[place + 1 :]


def _fetched(worker: WorkerClient, extents: Sequence[Extent], password: bytes) -> _Fetched:
    """The entries of these extents, one ledger after the other."""
    for extent in extents:
        ledger_id = extent.ledger_id
        with (
            _explained(worker, [extent], password),
            worker.opened(partial(_opened, ledger_id, password)) as reader,
        ):
            batches = reader.batches_between(extent.first, extent.last)
            while found := worker.call(partial(_fetch, batches)):
                yield extent, found


def _opened(ledger_id: int, password: bytes, client: replog.Client) -> AbstractAsyncContextManager[replog.LedgerReader]:
    return client.open_ledger(ledger_id, password=password)


def _fetched_ahead(worker: WorkerClient, extents: Sequence[Extent], password: bytes) -> _Fetched:
    """The same of short extents: several ledgers are read at once, because to open one takes longer than to read it."""

    async def fetch(extents: Sequence[Extent], client: replog.Client) -> list[list[EntryBatch]]:
        async def fetch_one(extent: Extent) -> list[EntryBatch]:
            async with client.open_ledger(extent.ledger_id, password=password) as reader:
                return await _fetch(reader.batches_between(extent.first, extent.last), client)

        return await each_at_once(extents, fetch_one)

    for first in range(0, len(extents), _LEDGERS_AT_ONCE):
        together = extents[first : first + _LEDGERS_AT_ONCE]
        with _explained(worker, together, password):
            fetched = worker.call(partial(fetch, together))
        for extent, found in zip(together, fetched, strict=True):
            yield extent, found
            end = found[-1].last_entry_id
            if end < extent.last:
                # It is longer than its plan knew: the rest is not held as a whole.
                yield from _fetched(worker, [attrs.evolve(extent, first=end + 1)], password)


@contextmanager
def _explained(worker: WorkerClient, extents: Sequence[Extent], password: bytes) -> Iterator[None]:
    """Raises `TrimmedError` instead if one of the extents was trimmed. A trim deletes ledgers without waiting for queries that
    have planned them."""

    # A trim takes the oldest first.
    oldest = {each.log: each for each in reversed(extents)}

    async def explain(client: replog.Client) -> None:
        for name, extent in oldest.items():
            await Survey(client, name, password).explain_missing(extent.segment, extent.first)

    try:
        yield
    except (LedgerNotFoundError, EntryNotFoundError):
        worker.call(explain)
        raise


async def _fetch(batches: Batches[EntryBatch], _: replog.Client) -> list[EntryBatch]:
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
        # A plan of 100,000 segments keeps several objects of each, and would be searched for a third of its time.
        with no_collections():
            return self._options.call(self._plan)

    async def _plan(self, client: replog.Client) -> list[InputPartition]:
        names = filter(self._narrowing.wants_log, await self._options.selection.found(client))
        planned = await each_at_once(list(names), partial(self._plan_log, client))
        return partitions_of([pair for each in planned for pair in each], self._options)

    async def _plan_log(self, client: replog.Client, name: str) -> list[tuple[Extent, Measured]]:
        options = self._options
        survey = Survey(client, name, options.password(), CLOSING_S, options.skips_trimmed)
        for _ in range(_TRIMMED_MEANWHILE_MAX):
            try:
                return await self._planned(survey, name)
            except TrimmedError:
                # A position that the query names must be there. Without one it wants what there is, and plans again.
                if options.begin.of(name).position is not None and not options.skips_trimmed:
                    raise
            except LogNotFoundError:
                if name in options.selection.names:
                    raise
                return []  # it matched, and was deleted meanwhile
        return await self._planned(survey, name)  # the query wants the entries that are left, so a trim is not an error

    async def _planned(self, survey: Survey, name: str) -> list[tuple[Extent, Measured]]:
        extents = [extent for extent in await self._extents(survey, name) if self._may_be_wanted(extent)]
        return [pair for pair in await survey.measured(extents) if self.may_be_in_time(pair[1])]

    async def _extents(self, survey: Survey, name: str) -> list[Extent]:
        """The extents with entries between the beginning and the end of reading."""
        head = await survey.head()
        if self._options.selection.is_many:
            check_values(head, self._values, self._options.values)
        start = survey.beginning(head, self._options.begin.of(name).position or Position(head.first_segment_number, 0))
        stop = self._options.end.of(name).position
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
                first, last = self._narrowing.of_entries(extent.first, extent.last)
                if first <= last:
                    # A copy of each costs a plan of 100,000 segments a quarter of its time.
                    is_whole = (first, last) == (extent.first, extent.last)
                    found.append(extent if is_whole else attrs.evolve(extent, first=first, last=last))
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
        # Only Spark has filters, and only from 4.1 on.
        from replog.spark.filters import narrowing

        self._narrowing = self._narrowing.both(narrowing(filters, places_of(self._values)))
        return filters


def is_pushing_filters() -> bool:
    """True in a process that Spark has started to push filters: one does nothing else, and no other one takes such a reader."""
    started = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING_MODULE in (*sys.modules, getattr(started, "name", None))
