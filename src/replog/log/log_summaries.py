"""The content of a log, and the lag of its cursors: for people, metrics and alerts.

Rules:

- Nothing is guessed. A fact that neither the log's record nor a bookie has is None.
- An open ledger holds its known confirmed entries. Its writer may have confirmed more, which the next look shows.
- Closed segments cost no read of a ledger: the log's record describes them. One entry is read at the end of an open
  ledger, and one where a cursor begins in the middle of a ledger.
- With bounds, a log costs the metastore a constant number of reads and one for each cursor, however long it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

import attrs

from replog.client.entries import EntryBatch
from replog.client.ledgers import Ledgers
from replog.errors import LedgerNotFoundError, MetastoreError, NotEnoughBookiesError, PositionError, ReplogError
from replog.log.cursor_catalog import CursorCatalog
from replog.log.log_records import LogRecords
from replog.protocol.closed_contents import Contents
from replog.protocol.cursors import CursorRecord
from replog.protocol.fragment_copies import archived_part
from replog.protocol.model import LedgerMetadata, LedgerState, LogMetadata, Position, Segment
from replog.runtime.nursery import for_each

_PAGES_MAX = 16  # of one log, with bounds
_LOOKED_INTO_MAX = 4  # ledgers of one log, with bounds: its record may not say yet what the last ones hold
_AT_ONCE = 8


@attrs.frozen
class CursorLag:
    """The part of a log behind the last commit of a cursor, as far as it is known to be confirmed. None: unknown, never
    a guess.

    `size_bytes` counts the values. `age_s` is how long ago the first of these entries was sent, by its writer's clock; it is 0 if
    there is none."""

    entries: int | None = None
    size_bytes: int | None = None
    age_s: float | None = None


@attrs.frozen
class Appended:
    """The entries appended to a log between two looks. `size_bytes` counts the values; None: unknown."""

    entries: int
    size_bytes: int | None


@attrs.frozen
class LogSummary:
    """The known facts about a log at one moment. None: unknown, never a guess.

    `end` is the position after the last entry that is known to be confirmed. `size_bytes` counts the values; the times
    are by the writers' clocks, in ms since the epoch. `state` and `writer` are those of the last ledger: what
    `custom["writer"]` says; and `bookies` those that its next entry goes to, none once it is closed. `held` is the
    content of each segment that was looked at, by its number. `problem` says why bookies could not answer.

    `archived_bytes` are those of `size_bytes` that are in an archive: of the segments before the first one that is not."""

    metadata: LogMetadata
    cursors: tuple[CursorRecord, ...] = ()
    lags: Mapping[str, CursorLag] = attrs.field(factory=dict)
    state: LedgerState | None = None
    writer: str | None = None
    bookies: tuple[str, ...] | None = None
    end: Position | None = None
    entries: int | None = None
    size_bytes: int | None = None
    archived_bytes: int | None = None
    first_sent_ms: int | None = None
    last_sent_ms: int | None = None
    held: Mapping[int, Contents | None] = attrs.field(factory=dict, repr=False)
    problem: str | None = None

    @property
    def slowest_cursor(self) -> CursorRecord | None:
        """The cursor that keeps most of the log from being trimmed; None if there are no cursors."""
        return min(self.cursors, key=lambda each: each.begins_at, default=None)

    @property
    def droppable_segments(self) -> int | None:
        """How many segments no cursor needs any more, so that a trim may drop them; None if there are no cursors."""
        slowest = self.slowest_cursor
        return None if slowest is None else max(0, slowest.begins_at.segment - self.metadata.first_segment_number)

    def absent_bookies(self, announced: Set[str] | None) -> int | None:
        """How many bookies it is written to that are not announced, so that new entries lack copies; None: unknown."""
        return None if self.bookies is None or announced is None else len(set(self.bookies) - announced)

    def appended_since(self, before: LogSummary) -> Appended | None:
        """The entries appended since an earlier look; None if one of the two does not have the numbers, or that place
        was trimmed away."""
        if before.end is None or before.end.segment not in self.held:
            return None
        later = [each for number, each in self.held.items() if number >= before.end.segment]
        entries = _sum(None if each is None else each.entries for each in later)
        if entries is None or entries < before.end.entry:
            return None  # less than before: an open ledger of which fewer bookies answered
        then = before.held.get(before.end.segment)
        then_bytes = None if then is None else _size_bytes(then)
        now_bytes = _sum(None if each is None else _size_bytes(each) for each in later)
        size_bytes = None if now_bytes is None or then_bytes is None else now_bytes - then_bytes
        return Appended(entries - before.end.entry, size_bytes)


@attrs.frozen
class _Held:
    """The content of one segment. `ledger` is its record, if that was read, and `error` the failure of its bookies."""

    segment: Segment
    contents: Contents | None
    ledger: LedgerMetadata | None = None
    error: ReplogError | None = None


class LogSummaries:
    """Looks into the logs of one client, with one password."""

    def __init__(self, ledgers: Ledgers, logs: LogRecords, cursors: CursorCatalog, password: bytes) -> None:
        self._ledgers = ledgers
        self._logs = logs
        self._cursors = cursors
        self._password = password

    async def of(self, name: str, *, is_bounded: bool) -> LogSummary:
        """The summary of a log. Raises `LogNotFoundError`, `MetastoreError`."""
        head, _ = await self._logs.get(name)
        # Before the ends: what a cursor has committed is confirmed, and the ends that are read afterwards include it.
        cursors = await self._cursors.records_of(head)
        first = head.first_segment_number
        if is_bounded:
            first = max(first, (head.page_of(head.first_listed_number) - _PAGES_MAX) * head.page_segments)
        held = await self._holdings(head, first, _LOOKED_INTO_MAX if is_bounded else None)
        lags: dict[str, CursorLag] = {}

        async def measure(cursor: CursorRecord) -> None:
            lags[cursor.name] = await self._lag(head.resume(cursor.begins_at) or cursor.begins_at, held, first)

        await for_each(measure, cursors, _AT_ONCE)
        problem = next((str(each.error) for each in held if each.error is not None), None)
        summary = LogSummary(head, tuple(cursors), lags, problem=problem)
        summary = _with_totals(summary, held, is_whole=first == head.first_segment_number)
        if summary.size_bytes is None:
            return summary
        return attrs.evolve(summary, archived_bytes=await self._archived_bytes(held))

    async def lag_of(self, cursor: CursorRecord) -> CursorLag:
        """How far a cursor is behind. Raises `LogNotFoundError`, `MetastoreError`."""
        head, _ = await self._logs.get(cursor.log_name)
        first = max(cursor.begins_at.segment, head.first_segment_number)
        begins_at = head.resume(cursor.begins_at) or cursor.begins_at
        return await self._lag(begins_at, await self._holdings(head, first, None), first)

    async def check_position(self, name: str, position: Position) -> None:
        """Raises `PositionError` if the log is not known to have had an entry there; as a reader, if bookies can't say it."""
        head, _ = await self._logs.head(name)
        if head is None or head.is_deleted or position.segment < head.first_segment_number:
            return  # the commit finds out what became of the cursor
        held = await self._holdings(head, position.segment, None, position.segment + 1)
        if not held:
            last = head.next_segment_number - 1
            raise PositionError(
                f"{position} is not a position of log {name!r}: its last segment is {last}; nothing was committed"
            )
        contents = held[0].contents
        if contents is None:
            if held[0].error is not None:
                raise held[0].error
            return  # trimmed meanwhile
        if position.entry >= contents.entries:
            known = Position(position.segment, contents.entries - 1) if contents.entries else "nothing"
            raise PositionError(
                f"{position} is not a position of log {name!r}: of that segment {known} is the last that is known to be "
                "confirmed; nothing was committed"
            )

    # -- what segments hold ---------------------------------------------------------------------------------------------

    async def _holdings(
        self, head: LogMetadata, first: int, looked_into_max: int | None, end: int | None = None
    ) -> list[_Held]:
        """The content of the segments from this one on. The last one is looked into in any case."""
        end = head.next_segment_number if end is None else min(end, head.next_segment_number)
        if first >= head.first_listed_number:
            segments = [each for each in head.segments if first <= each.number < end]
        else:
            segments = await self._logs.segments(head.name, first, end)
        last = head.next_segment_number - 1
        unknown = [each.number for each in segments if each.contents is None or each.number == last]
        looked_into = set(unknown if looked_into_max is None else unknown[-looked_into_max:])
        held = {each.number: _Held(each, each.contents) for each in segments}

        async def look(number: int) -> None:
            held[number] = await self._looked_into(held[number].segment)

        await for_each(look, sorted(looked_into), _AT_ONCE)
        return list(held.values())

    async def _looked_into(self, segment: Segment) -> _Held:
        ledger: LedgerMetadata | None = None
        try:
            ledger, _ = await self._ledgers.records.get(segment.ledger_id)
            known = ledger.contents or segment.contents
            if known is not None and known.is_complete:
                return _Held(segment, known, ledger)
            scan = self._ledgers.scan(ledger, 0, self._password)
            if not await scan.refresh():
                said = f"ledger {ledger.ledger_id}: none of its bookies said how far it is confirmed"
                raise NotEnoughBookiesError(f"{said}; try again when they are back", 1, ())
            if scan.last_readable < 0:
                return _Held(segment, Contents(0, 0), ledger)
            contents = Contents(scan.last_readable + 1)
        except LedgerNotFoundError:
            return _Held(segment, None)  # trimmed meanwhile
        except MetastoreError:
            raise
        except ReplogError as error:
            # Even if no bookie answers, the record of a closed ledger says how many entries it has.
            last = None if ledger is None else ledger.last_entry_id
            return _Held(segment, None if last is None else Contents(last + 1), ledger, error)
        return await self._with_last_entry(segment, ledger, contents)

    async def _with_last_entry(self, segment: Segment, ledger: LedgerMetadata, contents: Contents) -> _Held:
        """With the bytes and the time of the last entry, which its batch says."""
        try:
            batch = await self._read(ledger, contents.entries - 1)
        except MetastoreError:
            raise
        except ReplogError as error:
            return _Held(segment, contents, ledger, error)
        # Rounded up: `Contents.may_be_sent_since` must not leave out an entry of the same millisecond.
        sent_ms = -(-batch.timestamp_ns // 1_000_000)
        size_bytes = None if _has_no_lengths(ledger) else batch.ledger_bytes
        return _Held(segment, attrs.evolve(contents, size_bytes=size_bytes, last_sent_ms=sent_ms), ledger)

    async def _read(self, ledger: LedgerMetadata, entry_id: int) -> EntryBatch:
        """The entries from this one on that are stored with it. Raises as `LedgerScan.take`."""
        scan = self._ledgers.scan(ledger, entry_id, self._password)
        scan.adopt(entry_id)
        scan.want_only(entry_id, entry_id)
        batch = await scan.take()
        assert batch is not None, "the entry is known to be confirmed"
        return batch

    async def _archived_bytes(self, held: Sequence[_Held]) -> int | None:
        """Archiving goes from the oldest segment on, and a recall comes back: so the first one that is not archived is found by
        halving. Most logs have none that is, which one look says."""
        filled = [each for each in held if each.contents is not None and each.contents.entries]
        first, end, middle = 0, len(filled), 0
        while first < end:
            try:
                ledger = filled[middle].ledger
                if ledger is None:
                    ledger, _ = await self._ledgers.records.get(filled[middle].segment.ledger_id)
            except LedgerNotFoundError:
                return None  # trimmed meanwhile
            is_archived = archived_part(ledger)
            if is_archived is None:
                return None  # nobody knows how many bytes the part has
            first, end = (middle + 1, end) if is_archived else (first, middle)
            middle = (first + end) // 2
        return _sum(None if each.contents is None else each.contents.size_bytes for each in filled[:first])

    # -- how far cursors are behind -------------------------------------------------------------------------------------

    async def _lag(self, begins_at: Position, held: Sequence[_Held], first: int) -> CursorLag:
        if begins_at.segment < first:
            return CursorLag()  # it was trimmed away there, or that is further back than was looked
        left = [each for each in held if each.segment.number >= begins_at.segment]
        entry = begins_at.entry if left and left[0].segment.number == begins_at.segment else 0
        # What the cursor has read to the end is not behind it, nor are empty segments after that.
        while left and left[0].contents is not None and left[0].contents.entries <= entry:
            left, entry = left[1:], 0
        if not left:
            return CursorLag(0, 0, 0.0)
        contents = [each.contents for each in left]
        if contents[0] is None:
            return CursorLag()
        before_bytes, sent_ms = await self._place(left[0], entry)
        entries = _sum(None if each is None else each.entries for each in contents)
        size_bytes = _sum(None if each is None else each.size_bytes for each in contents)
        # At least 0: the writer's clock may be ahead of this one.
        age_s = None if sent_ms is None else max(0.0, (self._ledgers.entropy.time_ms() - sent_ms) / 1000)
        return CursorLag(
            None if entries is None else entries - entry,
            None if size_bytes is None or before_bytes is None else size_bytes - before_bytes,
            age_s,
        )

    async def _place(self, held: _Held, entry: int) -> tuple[int | None, int | None]:
        """How many bytes a segment has before this entry, and when the entry was sent, in ms since the epoch."""
        assert held.contents is not None
        if entry == 0 and held.contents.first_sent_ms is not None:
            return 0, held.contents.first_sent_ms
        try:
            ledger = held.ledger
            if ledger is None:
                ledger, _ = await self._ledgers.records.get(held.segment.ledger_id)
            batch = await self._read(ledger, entry)
        except MetastoreError:
            raise
        except ReplogError:
            return (None if entry else 0), None  # shown as unknown
        before_bytes = None if _has_no_lengths(ledger) else batch.ledger_bytes - batch.payload_bytes
        return (before_bytes if entry else 0), batch.timestamp_ns // 1_000_000


def _with_totals(summary: LogSummary, held: Sequence[_Held], *, is_whole: bool) -> LogSummary:
    contents = [each.contents for each in held]
    last = held[-1] if held else None
    filled = [each for each in contents if each is None or each.entries]
    return attrs.evolve(
        summary,
        state=None if last is None or last.ledger is None else last.ledger.state,
        writer=None if last is None or last.ledger is None else last.ledger.custom.get("writer"),
        bookies=None if last is None or last.ledger is None else _written_to(last.ledger),
        end=None if last is None or last.contents is None else Position(last.segment.number, last.contents.entries),
        entries=_sum(None if each is None else each.entries for each in contents) if is_whole else None,
        size_bytes=_sum(None if each is None else each.size_bytes for each in contents) if is_whole else None,
        first_sent_ms=filled[0].first_sent_ms if is_whole and filled and filled[0] is not None else None,
        last_sent_ms=filled[-1].last_sent_ms if filled and filled[-1] is not None else None,
        held={each.segment.number: each.contents for each in held},
    )


def _written_to(ledger: LedgerMetadata) -> tuple[str, ...]:
    return () if ledger.state is LedgerState.CLOSED else ledger.last_fragment.ensemble


def _size_bytes(contents: Contents) -> int | None:
    return contents.size_bytes if contents.entries else 0


def _has_no_lengths(ledger: LedgerMetadata) -> bool:
    """True if no stored batch says how many bytes the ledger has up to it."""
    # With a stride, a batch counts bytes of entries behind it, too. In an unbounded ledger each writer counts its own (T2).
    is_of_one_writer = (
        ledger.fragments[0].term == ledger.last_fragment.term and not ledger.chunks and not ledger.trim_to
    )
    return ledger.quorum.ensemble > ledger.quorum.write or not is_of_one_writer


def _sum(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return None if None in known else sum(filter(None, known))
