"""The entries of a log that may be read now, by segment; found on the driver.

Rules:
- Only confirmed entries are planned (D1): all of a closed ledger, and of an open one those that bookies call confirmed.
- Nothing behind an open ledger is planned: more may come before it (L6).
- Facts about closed ledgers come from the log's record where it has them. Bookies, and ledgers' own records, are asked
  for the others.
- A place where to read on is that of the next entry. Behind a closed ledger it is the beginning of the next segment,
  even if that does not exist yet: so a segment that was read to its end may be trimmed, and no reader misses anything.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

import attrs
import trio

import replog
from replog.errors import (
    EntryNotFoundError,
    LedgerNotFoundError,
    MetastoreUnavailableError,
    PositionError,
    ReplogError,
    TrimmedError,
)
from replog.protocol.closed_contents import Contents
from replog.protocol.model import LedgerMetadata, LedgerState, LogMetadata, Position, Segment
from replog.runtime.loggers import logger
from replog.spark.sizes import Measured, Ruler

_log = logger("replog.spark")
Item = TypeVar("Item")
Value = TypeVar("Value")

_NS_PER_MS = 1_000_000
CLOSING_S = 5.0  # how long a ledger that isn't the last may still be open, before a plan ends there
_CLOSING_POLL_S = 0.1
_LOOKED_AT_FIRST = 32  # segments; then twice as many each time
_LOOKED_AT_TOGETHER_MAX = 4096
_ASKED_AT_ONCE = 16
_TRIMMED_MEANWHILE_MAX = 10
_PARTITION_BYTES_MIN = 4 << 20  # smaller extents share a task: starting one costs more than reading them
_LEDGER_BYTES = 8 << 10  # to open a ledger costs a task as much as to read so many bytes


@attrs.frozen
class Extent:
    """The entries of a segment from `first` to `last`, both included; none if `last` is before `first`. All are confirmed.

    `is_closed`: there will never be more behind `last`. Its entries were sent at `begun_at_ms` or later, by the clock of its
    writer; 0 if that is unknown. `log` is the name of its log."""

    segment: int
    ledger_id: int
    first: int
    last: int
    is_closed: bool
    begun_at_ms: int = 0
    log: str = ""

    @property
    def count(self) -> int:
        """How many entries there are."""
        return max(0, self.last - self.first + 1)

    @property
    def after(self) -> Position:
        """Where to read on."""
        return Position(self.segment + 1, 0) if self.is_closed else Position(self.segment, self.last + 1)

    def before(self, stop: Position) -> Extent:
        """The part before the position, which is not before its first entry."""
        if self.segment < stop.segment or self.last < stop.entry:
            return self
        return attrs.evolve(self, last=stop.entry - 1, is_closed=False)


# A segment; the last entry of its ledger, or None if that may be open; and when that was begun, or 0. Plans have many of these.
_Found = tuple[Segment, int | None, int]


class Survey:
    """Looks at one log with one client. Remembers what its record says of closed ledgers."""

    def __init__(
        self, client: replog.Client, name: str, password: bytes, closing_s: float = 0.0, skips_trimmed: bool = False
    ) -> None:
        self._client = client
        self._name = name
        self._password = password
        self._closing_s = closing_s
        self._skips_trimmed = skips_trimmed
        self._contents: dict[int, Contents] = {}  # by segment

    async def head(self) -> LogMetadata:
        """The log's record. Raises `LogNotFoundError`, `MetastoreError`."""
        return await self._client.log_metadata(self._name)

    async def extents(self, start: Position, head: LogMetadata) -> AsyncGenerator[Extent]:
        """All entries from this position on that may be read, segment by segment. Empty extents are included: the last one
        says where to read on. Raises `TrimmedError`, `PositionError`, `LogNotFoundError`, `MetastoreError`."""
        start = self._checked(head, start)
        async with aclosing(self._found(start.segment, head.next_segment_number)) as chunks:
            async for chunk in chunks:
                for segment, last, begun_at_ms in chunk:
                    first = start.entry if segment.number == start.segment else 0
                    if last is not None:
                        yield self._extent(segment, first, last, True, begun_at_ms)
                        continue
                    record, last = await self._confirmed(segment, segment.number == head.next_segment_number - 1)
                    is_closed = record.state is LedgerState.CLOSED
                    yield self._extent(segment, first, last, is_closed, record.created_at_ms)
                    if not is_closed:
                        # Behind an open ledger nothing is planned (L6): entries may still come before the present ones.
                        return

    def beginning(self, head: LogMetadata, start: Position) -> Position:
        """Where reading from this position on begins. If it was trimmed away, and the options skip that, it is where
        the log begins now, and a warning reports the loss. Raises as `extents`."""
        if self._skips_trimmed and head.resume(start) is None:
            what = "log %r: what lay from %s to %s was trimmed away unread, and is skipped"
            _log.warning(what, self._name, start, head.begins_at)
            return head.begins_at
        return self._checked(head, start)

    def _checked(self, head: LogMetadata, start: Position) -> Position:
        """Where reading from this position on begins. Raises `TrimmedError` if something there was trimmed, `PositionError` if it
        never existed."""
        resumed = head.resume(start)
        if resumed is None:
            raise self._trimmed(head, start)
        if resumed > Position(head.next_segment_number, 0):
            problem = (
                f"{start} is not a position of log {self._name!r}: its last segment is {head.next_segment_number - 1}"
            )
            raise PositionError(problem)
        return resumed

    def _trimmed(self, head: LogMetadata, start: Position) -> TrimmedError:
        problem = (
            f"{start} was trimmed away before it was read; the log begins at {head.begins_at}. What lay between is lost to this "
            'reader: say .option("on_trimmed", "skip") to go on there without it, and trim only what was read'
        )
        return TrimmedError(self._name, problem, head.begins_at)

    async def _found(self, first: int, end: int) -> AsyncGenerator[list[_Found]]:
        """These segments, many at a time. All are there, or `TrimmedError` is raised."""
        together = _LOOKED_AT_FIRST
        while first < end:
            upper = min(first + together, end)
            yield await self._looked_up(first, upper)
            # A stream with a limit looks at few of them, a plan of a long log at all.
            first, together = upper, min(2 * together, _LOOKED_AT_TOGETHER_MAX)

    async def _looked_up(self, first: int, end: int) -> list[_Found]:
        segments = await self._client.log_segments(self._name, first=first, end=end)
        if [segment.number for segment in segments] != list(range(first, end)):
            await self.explain_missing(first)
            raise MetastoreUnavailableError(
                f"log {self._name!r}: its record names segment {end - 1}, and an older one was read: retry"
            )
        try:
            asked = iter(await each_at_once([each for each in segments if each.contents is None], self._ask))
        except LedgerNotFoundError:
            await self.explain_missing(first)
            raise
        found: list[_Found] = []
        for segment in segments:
            contents = segment.contents
            if contents is None:
                found.append(next(asked))
            else:
                self._contents[segment.number] = contents
                # When a job's ledger was created is not in the log's record: its first entry was sent after that.
                found.append((segment, contents.entries - 1, contents.first_sent_ms or 0))
        return found

    async def _ask(self, segment: Segment) -> _Found:
        """Reads the record of the ledger, since the log's record does not describe its content yet."""
        record = await self._client.ledger_metadata(segment.ledger_id)
        if record.contents is not None:
            self._contents[segment.number] = record.contents
        return segment, record.last_entry_id, record.created_at_ms

    async def explain_missing(self, segment_number: int, entry_id: int = 0) -> None:
        """Raises `TrimmedError` if this segment is gone because the log was trimmed."""
        head = await self.head()
        if segment_number < head.first_segment_number:
            raise self._trimmed(head, Position(segment_number, entry_id))

    def _extent(self, segment: Segment, first: int, last: int, is_closed: bool, begun_at_ms: int) -> Extent:
        if is_closed and first > last + 1:
            problem = f"{segment.number}:{first} is not a position of log {self._name!r}: that segment ends at {last}"
            raise PositionError(problem)
        # Bookies of an open ledger may report less than before. A plan never goes back.
        last = max(last, first - 1)
        return Extent(segment.number, segment.ledger_id, first, last, is_closed, begun_at_ms, self._name)

    async def _confirmed(self, segment: Segment, is_last: bool) -> tuple[LedgerMetadata, int]:
        """The record of a ledger that was open, and its last entry that may be read. One that isn't the last is about
        to be closed by the writer that rolled, unless that writer is dead."""
        try:
            async with self._client.open_ledger(segment.ledger_id, password=self._password) as reader:
                if not is_last:
                    with trio.move_on_after(self._closing_s):
                        while not reader.is_closed:
                            await reader.refresh(_CLOSING_POLL_S)
                return reader.metadata, reader.last_add_confirmed
        except LedgerNotFoundError:
            await self.explain_missing(segment.number)
            raise

    async def end(self) -> Position:
        """Where to read on after all that may be read now. Segments before the first that may be open have their end in
        their records (L8)."""
        for _ in range(_TRIMMED_MEANWHILE_MAX):
            head = await self.head()
            last = max(head.first_segment_number, head.next_segment_number - 1)
            end = Position(min(head.first_open_number, last), 0)
            try:
                async for extent in self.extents(end, head):
                    end = extent.after
            except TrimmedError:
                # They were dropped since: others are the last now.
                continue
            return end
        raise MetastoreUnavailableError(
            f"log {self._name!r}: it is trimmed faster than its end can be looked up: retry"
        )

    async def between(self, start: Position, end: Position) -> list[Extent]:
        """The entries between two places that an earlier survey reached, perhaps with another client: all of them are
        confirmed, and all ledgers except the last one are closed. Raises as `extents`."""
        head = await self.head()
        start = self.beginning(head, start)
        if start >= end:
            return []
        extents = []
        # An end at the first entry of a segment takes nothing of that segment, which may not be there yet.
        async with aclosing(self._found(start.segment, end.segment + (end.entry > 0))) as chunks:
            found = [each async for chunk in chunks for each in chunk]
        for segment, closed_at, begun_at_ms in found:
            number = segment.number
            first = start.entry if number == start.segment else 0
            last = end.entry - 1 if number == end.segment else closed_at
            if last is None:
                problem = f"log {self._name!r}: segment {number} was closed, and an older record was read: retry"
                raise MetastoreUnavailableError(problem)
            extents.append(Extent(number, segment.ledger_id, first, last, True, begun_at_ms, self._name))
        return [extent for extent in extents if extent.count]

    # -- sizes ------------------------------------------------------------------------------------------------------

    async def measured(self, extents: Sequence[Extent]) -> list[tuple[Extent, Measured]]:
        """Each extent with its size. None may be empty. Costs nothing for a whole ledger whose size was found, else a few reads
        (`replog.spark.sizes`). Raises as reading does."""
        said = list(map(self._said_of, extents))
        asked = [extent for extent, measured in zip(extents, said, strict=True) if measured is None]
        read = iter(await each_at_once(asked, self.measure))
        return [
            (extent, next(read) if measured is None else measured)
            for extent, measured in zip(extents, said, strict=True)
        ]

    def _said_of(self, extent: Extent) -> Measured | None:
        contents = self._contents.get(extent.segment)
        if contents is None or contents.size_bytes is None or contents.last_sent_ms is None:
            return None
        is_whole = extent.first == 0 and extent.count == contents.entries
        return Measured(contents.size_bytes, contents.last_sent_ms * _NS_PER_MS) if is_whole else None

    async def measure(self, extent: Extent) -> Measured:
        """The size of an extent that is not empty. Costs as `measured` does."""
        if said := self._said_of(extent):
            return said
        async with self.ruler(extent) as ruler:
            return await ruler.through(extent.last)

    @asynccontextmanager
    async def ruler(self, extent: Extent) -> AsyncIterator[Ruler]:
        """Measures parts of an extent, from its first entry on. A context, which raises as reading does."""
        try:
            async with self._client.open_ledger(extent.ledger_id, password=self._password) as reader:
                record = reader.metadata
                if record.chunks:
                    record = await self._client.ledger_metadata(extent.ledger_id)
                yield Ruler(reader, record, extent.first)
        except (LedgerNotFoundError, EntryNotFoundError):
            await self.explain_missing(extent.segment, extent.first)
            raise


async def each_at_once(items: Sequence[Item], function: Callable[[Item], Awaitable[Value]]) -> list[Value]:
    """Calls the function for each item, several at once; returns the results in order. Raises the first error."""
    found: dict[int, Value] = {}
    errors: list[ReplogError] = []
    limiter = trio.CapacityLimiter(_ASKED_AT_ONCE)

    async def ask(place: int, item: Item) -> None:
        async with limiter:
            if errors:
                return
            try:
                found[place] = await function(item)
            except ReplogError as error:
                errors.append(error)

    async with trio.open_nursery() as nursery:
        for place, item in enumerate(items):
            nursery.start_soon(ask, place, item)
    if errors:
        raise errors[0]
    return [found[place] for place in range(len(items))]


def partitioned(
    extents: Sequence[Extent], sizes_bytes: Sequence[int], partition_bytes: int
) -> list[tuple[Extent, ...]]:
    """The same entries in the same order, in portions for one task each: long extents are cut, short ones put together.
    Portions of several extents have no more than 4 MiB, and 512 ledgers."""
    portions: list[list[Extent]] = []
    portion_bytes = 0
    least_bytes = min(_PARTITION_BYTES_MIN, partition_bytes)
    for extent, size_bytes in zip(extents, sizes_bytes, strict=True):
        # Rounded up, so that no piece is larger than asked for, if entries are alike.
        pieces = _cut(extent, -(-size_bytes // partition_bytes))
        size_bytes = max(size_bytes, _LEDGER_BYTES)
        # A task costs about a second before it reads anything: short ledgers share one.
        if portions and len(pieces) == 1 and portion_bytes + size_bytes <= least_bytes:
            portions[-1] += pieces
            portion_bytes += size_bytes
        else:
            portions += [[piece] for piece in pieces]
            portion_bytes = size_bytes // len(pieces)
    return [tuple(portion) for portion in portions]


def _cut(extent: Extent, wanted: int) -> list[Extent]:
    if wanted <= 1:
        return [extent]
    count = max(1, min(wanted, extent.count))
    ends = [extent.first + extent.count * number // count for number in range(count + 1)]
    return [attrs.evolve(extent, first=low, last=high - 1) for low, high in itertools.pairwise(ends)]
