"""The records of ledgers and logs in the metastore, and positions in logs.

These classes are immutable; a change makes a new one, and becomes true by a CAS on the record's version (M1).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import attrs

from replog.errors import PositionError
from replog.protocol.additions import STREAM_PREFIX as STREAM_PREFIX
from replog.protocol.additions import AppendRequest as AppendRequest
from replog.protocol.additions import Transaction as Transaction
from replog.protocol.batch import ENTRY_ID_MAX
from replog.protocol.closed_contents import Contents, Known
from replog.protocol.fragments import WRITER_TERM as WRITER_TERM
from replog.protocol.fragments import Fragment as Fragment
from replog.protocol.ledger_metadata import NO_ENTRY as NO_ENTRY
from replog.protocol.ledger_metadata import Durability as Durability
from replog.protocol.ledger_metadata import LedgerMetadata as LedgerMetadata
from replog.protocol.ledger_metadata import LedgerState as LedgerState

PAGE_SEGMENTS = 100  # of a new log; one that exists keeps what its record says
RECOVERED_AT_TAKEOVER = 2  # ledgers at the end of the list: a leader that rolls has two open ones (L1)
PAGE_SEGMENTS_MIN = 2  # so that the head always names the last two ledgers: a takeover recovers those (L1)
# Ids that a log's record remembers, of jobs and of streams each. None is ever forgotten: only an operator retires them
TRANSACTIONS_MAX = 1000
# Of every client that recovers a bounded ledger: concurrent recoveries don't fence each other (T2)
RECOVERY_TERM = WRITER_TERM + 1


@attrs.frozen
class Segment:
    """A ledger's place in a log. Numbers grow by one and are never reused (L3); ledger ids need not grow.

    `contents` is written by the first change of the log's record after the ledger was closed, by a client that knows it. With
    it, the ledger is closed; without it, the ledger's own record tells. `term` is the ledger's term of the last takeover that
    served (L9); of a bounded ledger it stays 1."""

    number: int
    ledger_id: int
    created_at_ms: int = 0
    # A segment stays the same one even if its contents are learned later: a page and a head may differ in that.
    contents: Contents | None = attrs.field(default=None, eq=False)
    term: int = WRITER_TERM

    @property
    def place(self) -> Segment:
        """The same without its contents: dropped segments need no plan."""
        return attrs.evolve(self, contents=None)


@attrs.frozen
class LogPage:
    """The segments of a log that are numbered from `number * page_segments` to before `(number + 1) * page_segments`.

    Never changed once the log's record counts on it. Segments that were trimmed before it was written may be missing; those that
    the log's record counts as its own never are.

    A *tentative* one was written before the record came to name its segments, by what makes a log of many ledgers at once. If the
    record never did, the page means nothing, and the page that the log needs in its place replaces it."""

    log_name: str
    number: int
    segments: tuple[Segment, ...]
    is_tentative: bool = False

    def with_contents(self, known: Known) -> LogPage:
        """The same with what is known of these closed ledgers."""
        return attrs.evolve(self, segments=_with_contents(self.segments, known))


@attrs.frozen
class PendingLedger:
    """A ledger that was or is being created to become this segment of a log (L7): written before the ledger is.

    Its creator adds it to the log only upon a version of the log's record that it read *before* it wrote this. So a
    machine that lists the pending ledgers, and then changes the log's record, may delete those that the log does not name:
    their creators lose their CAS."""

    log_name: str
    ledger_id: int
    segment_number: int
    created_at_ms: int = 0


@attrs.frozen
class LogCursor:
    """A cursor that a log's record names. `cursor_id` is unique permanently: the key below which the cursor's own record is.

    Until that record exists, the cursor begins at `begins_at`."""

    name: str
    cursor_id: str
    begins_at: Position


@attrs.frozen
class LogMetadata:
    """One log's record: its *head*. It names the last segments; pages name those before them. Immutable.

    `deletions` counts the logs of this name that were deleted before. `custom` are texts that its creators gave. `token` as in
    `LedgerMetadata`.

    The log's segments are all numbers from `first_segment_number` to before `next_segment_number`. One that is below the
    first in `segments` is in the page `page_of(number)`. The last two are always here, if there are two, and all from
    `first_open_number` on: the ledgers of the segments before that one are closed (L8). A log that
    was deleted has no segments, and keeps its numbers: the next one of that name goes on with them, so that no position
    ever means another record (L4). `transactions` are those that were committed, the last one last.

    The ledgers of all segments below `deleted_before_number` are deleted. Ledgers of the segments from there to before
    the first one may still exist, although these were trimmed or the log was deleted (L7): `dropped` are those that
    left this record, the others are in pages.

    `cursors` are here so that a change of them and a trim conflict: their names are unique, and they end with the log.

    `trimmed_to` is behind the last entry that was trimmed: from there to the first segment there are no entries, so
    that a reader that has come so far goes on at the first segment (L6). If no client knew the end of the trimmed part,
    it is the first segment.

    With `is_unbounded` new ledgers of the log are unbounded, and a takeover goes on with the last one, if that is (L9).

    `requests` are of committers that ask the log's leader to add their ledgers, the oldest first. They end with the leader.

    `begun_with_number` is the first segment that the log ever had, since it was created or begun again. If it begins
    behind that, its beginning was trimmed, here or before it was restored."""

    name: str
    segments: tuple[Segment, ...] = ()
    first_segment_number: int = 1
    next_segment_number: int = 1
    page_segments: int = PAGE_SEGMENTS
    token: str = ""
    created_at_ms: int = 0
    deleted_at_ms: int = 0
    deletions: int = 0
    custom: Mapping[str, str] = attrs.field(factory=dict)
    transactions: tuple[Transaction, ...] = ()
    deleted_before_number: int = 1
    dropped: tuple[Segment, ...] = ()
    first_open_number: int = 1
    cursors: tuple[LogCursor, ...] = ()
    is_unbounded: bool = False
    requests: tuple[AppendRequest, ...] = ()
    trimmed_to: Position = attrs.field(factory=lambda: Position(1, 0))
    begun_with_number: int = 1

    @property
    def is_deleted(self) -> bool:
        """True if the log was deleted; then only this record remains."""
        return self.deleted_at_ms != 0

    @property
    def segment_count(self) -> int:
        """How many segments the log has, in pages and here."""
        return self.next_segment_number - self.first_segment_number

    @property
    def first_listed_number(self) -> int:
        """The lowest segment number in the head; all below it are in pages."""
        return self.segments[0].number if self.segments else self.next_segment_number

    def to_recover(self) -> tuple[Segment, ...]:
        """The segments whose ledgers must be closed before the log is taken over or deleted: the last two (L1), and all
        from the first that may be open (L8)."""
        # The last two even if they are known to be closed: it costs two reads, and needs no trust in what others wrote.
        first = min(self.first_open_number, self.next_segment_number - RECOVERED_AT_TAKEOVER)
        return tuple(segment for segment in self.segments if segment.number >= first)

    def page_of(self, segment_number: int) -> int:
        """The page where this segment belongs once it has left the head."""
        return segment_number // self.page_segments

    def listed(self, segment_number: int) -> Segment | None:
        """The segment with this number, if the head names it."""
        place = segment_number - self.first_listed_number
        return self.segments[place] if 0 <= place < len(self.segments) else None

    def with_contents(self, known: Known) -> LogMetadata:
        """The same with what is known of these closed ledgers; what the record says completely stays."""
        return attrs.evolve(self, segments=_with_contents(self.segments, known))

    def open_from(self, segment_number: int) -> LogMetadata:
        """The same, where all ledgers of segments before this number are closed (L8)."""
        assert self.first_listed_number <= segment_number <= self.next_segment_number, "the head names what may be open"
        return attrs.evolve(self, first_open_number=segment_number)

    def with_ledger(self, ledger_id: int, created_at_ms: int) -> LogMetadata:
        """The same with this ledger as its last segment."""
        return self.with_ledgers([ledger_id], created_at_ms)

    def with_ledgers(self, ledger_ids: Sequence[int], created_at_ms: int) -> LogMetadata:
        """The same with these ledgers as its last segments, in this order. All are in the head until the next change."""
        first = self.next_segment_number
        assert first >= self.first_segment_number, "numbers are never used again (L3)"
        added = tuple(Segment(number, ledger_id, created_at_ms) for number, ledger_id in enumerate(ledger_ids, first))
        return attrs.evolve(self, segments=(*self.segments, *added), next_segment_number=first + len(added))

    def with_request(self, request: AppendRequest) -> LogMetadata:
        """The same where this request is the last one."""
        return attrs.evolve(self, requests=(*self.requests, request))

    def without_requests(self, tokens: Collection[str]) -> LogMetadata:
        """The same without the requests with these tokens."""
        return attrs.evolve(self, requests=tuple(each for each in self.requests if each.token not in tokens))

    def led_in(self, term: int) -> LogMetadata:
        """The same, whose last ledger is written in this term (L9)."""
        last = self.segments[-1]
        assert term > last.term, "each takeover of a ledger has a higher term (T2)"
        return attrs.evolve(self, segments=(*self.segments[:-1], attrs.evolve(last, term=term)))

    def has_committed(self, transaction: Transaction) -> bool:
        """True if this number, or a higher one, was committed under this name."""
        return any(
            each.transaction_id == transaction.transaction_id and each.number >= transaction.number
            for each in self.transactions
        )

    def table_of(self, transaction: Transaction) -> tuple[Transaction, ...]:
        """The transactions of the same kind: those of streams, or those of jobs; the oldest first."""
        return tuple(each for each in self.transactions if each.is_of_stream == transaction.is_of_stream)

    def has_room_for(self, transaction: Transaction) -> bool:
        """True if this id is known, or its table can take one more."""
        table = self.table_of(transaction)
        return len(table) < TRANSACTIONS_MAX or any(each.transaction_id == transaction.transaction_id for each in table)

    def with_transaction(self, transaction: Transaction) -> LogMetadata:
        """The same with this as the last transaction committed."""
        assert self.has_room_for(transaction), "no transaction is forgotten to make room for another"
        # The one that was used last is the last.
        others = [each for each in self.transactions if each.transaction_id != transaction.transaction_id]
        return attrs.evolve(self, transactions=(*others, transaction))

    def without_transactions(self, transaction_ids: Collection[str], before_ms: int) -> LogMetadata:
        """The same without these transactions, and without those that were committed before this time."""
        kept = tuple(
            each
            for each in self.transactions
            if each.transaction_id not in transaction_ids and each.committed_at_ms >= before_ms
        )
        return attrs.evolve(self, transactions=kept)

    def begun(self, now_ms: int, *, is_unbounded: bool) -> LogMetadata:
        """The log that begins where there was none, or where one was deleted: it keeps only the numbers of that one."""
        # The numbers stay, so that no position of the deleted log ever names a record of this one (L4).
        return attrs.evolve(
            self,
            created_at_ms=now_ms,
            deleted_at_ms=0,
            custom={},
            transactions=(),
            is_unbounded=is_unbounded,
            begun_with_number=self.first_segment_number,
        )

    @property
    def has_beginning(self) -> bool:
        """True if nothing was trimmed since the log was created or begun again."""
        return self.first_segment_number == self.begun_with_number

    def split(self, *, is_tentative: bool = False) -> tuple[tuple[LogPage, ...], LogMetadata]:
        """The pages that are complete and may leave the head, and the head without them: it keeps `page_segments` segments
        or more, and less than twice as many, unless older ones may be open.

        Only of a record that is true: a page is written before the CAS that leaves it out, and never changed. Its
        ledgers must be the log's after either outcome of that CAS; so nothing is added or trimmed before the split.
        Tentative pages are those of a record that is only proposed."""
        size = self.page_segments
        # What may be open stays in the head, where a takeover finds it (L8): pages name closed ledgers only.
        end = min(self.next_segment_number // size - 1, self.page_of(self.first_open_number))
        numbers = range(self.page_of(self.first_listed_number), end)
        pages = tuple(
            LogPage(self.name, number, segments, is_tentative)
            for number, segments in self._by_page()
            if number in numbers
        )
        # At least a page's worth stays in the head, and with it the last two, which a takeover recovers (L1).
        kept = tuple(each for each in self.segments if each.number // size not in numbers)
        moved = sum(len(page.segments) for page in pages)
        assert moved + len(kept) == len(self.segments), "each segment is in a page or in the head"
        return pages, attrs.evolve(self, segments=kept)

    def _by_page(self) -> list[tuple[int, tuple[Segment, ...]]]:
        """The segments in the head, by the pages where they belong."""
        groups = itertools.groupby(self.segments, key=lambda each: self.page_of(each.number))
        return [(number, tuple(group)) for number, group in groups]

    @property
    def begins_at(self) -> Position:
        """The beginning of the first segment."""
        return Position(self.first_segment_number, 0)

    def resume(self, begins_at: Position) -> Position | None:
        """Where reading from this position on begins: there, or where the log begins if nothing is missing in between. None if
        something there was trimmed."""
        assert self.trimmed_to <= (self.first_segment_number, 0), "what was trimmed ends where the log begins (L6)"
        if begins_at.segment >= self.first_segment_number:
            return begins_at
        # Behind the last entry only beginnings of segments are positions: these segments were empty.
        has_all = begins_at == self.trimmed_to or (begins_at > self.trimmed_to and not begins_at.entry)
        return self.begins_at if has_all else None

    def trimmed_before(self, segment_number: int, trimmed_to: Position | None = None) -> LogMetadata:
        """The same without the segments below this number, which end at `trimmed_to`; None if that is unknown. The last segment
        always stays."""
        first = max(self.first_segment_number, min(segment_number, self.next_segment_number - 1))
        kept = tuple(segment for segment in self.segments if segment.number >= first)
        assert kept[-1:] == self.segments[-1:], "the last segment always stays (L3)"
        dropped = (*self.dropped, *(each.place for each in self.segments if each.number < first))
        end = (trimmed_to or Position(first, 0)) if first > self.first_segment_number else self.trimmed_to
        assert self.trimmed_to <= end <= Position(first, 0), "what was trimmed ends where the log begins (L6)"
        return attrs.evolve(
            self,
            segments=kept,
            first_segment_number=first,
            dropped=dropped,
            first_open_number=max(first, self.first_open_number),
            trimmed_to=end,
        )

    def cleared_before(self, segment_number: int) -> LogMetadata:
        """The same once the ledgers of all trimmed segments below this number are deleted."""
        end = max(self.deleted_before_number, min(segment_number, self.first_segment_number))
        left = tuple(segment for segment in self.dropped if segment.number >= end)
        assert end <= self.first_segment_number, "only what was trimmed is deleted (L3)"
        return attrs.evolve(self, deleted_before_number=end, dropped=left)

    def deleted(self, now_ms: int) -> LogMetadata:
        """The record that stays once the log is deleted."""
        return attrs.evolve(
            self,
            segments=(),
            first_segment_number=self.next_segment_number,
            trimmed_to=Position(self.next_segment_number, 0),
            first_open_number=self.next_segment_number,
            dropped=(*self.dropped, *(each.place for each in self.segments)),
            deleted_at_ms=max(1, now_ms),
            deletions=self.deletions + 1,
            transactions=(),
            cursors=(),
            requests=(),
        )

    def _faults_of_beginning(self) -> list[str]:
        first, faults = self.first_segment_number, []
        if not (1, 0) <= self.trimmed_to <= (first, 0):  # tuples: each reading of a record comes here
            faults.append(f"trimmed_to is {self.trimmed_to}, not one of 1:0 to {first}:0")
        if not 1 <= self.begun_with_number <= first:
            faults.append(f"begun_with_number is {self.begun_with_number}, not one of 1 to {first}")
        return faults

    def faults(self) -> list[str]:
        """The reasons why the record is impossible, even though every field has its type."""
        first, end, size = self.first_segment_number, self.next_segment_number, self.page_segments
        if size < PAGE_SEGMENTS_MIN:
            return [f"page_segments is {size}, and must be at least {PAGE_SEGMENTS_MIN}"]
        numbers, listed = [segment.number for segment in self.segments], self.first_listed_number
        faults = []
        if not 1 <= first <= listed <= end or len(numbers) != end - listed or numbers != list(range(listed, end)):
            faults.append(f"segments: the numbers {_shown(numbers)} are not the last of {first} to {end - 1} (L3)")
        elif listed > first and listed % size:
            faults.append(f"segments: those before {listed} can't stand in pages of {size}")
        if self.is_deleted and (first != end or self.deletions < 1):
            faults.append(f"deleted_at_ms is {self.deleted_at_ms}, of a log with {end - first} segments")
        faults += self._faults_of_beginning()
        if not listed <= self.first_open_number <= end:
            faults.append(f"first_open_number is {self.first_open_number}, not one of {listed} to {end} (L8)")
        if not self.is_deleted and not numbers and first != end:
            faults.append(f"segments: there are none, of a log that has {first} to {end - 1}")
        left = [segment.number for segment in self.dropped]
        # With any numbers in a damaged record, the time to look at it is limited by the record's length.
        is_ascending = left == sorted(set(left))
        is_between = all(self.deleted_before_number <= number < first for number in left)
        if not (1 <= self.deleted_before_number <= first and is_ascending and is_between):
            faults.append(f"dropped: {_shown(left)} are not of {self.deleted_before_number} to {first - 1} (L7)")
        names = [each.transaction_id for each in self.transactions]
        if len(set(names)) < len(names):
            faults.append("transactions: one of them stands there twice")
        if len({each.name for each in self.cursors}) < len(self.cursors):
            faults.append("cursors: two of them have one name")
        if not all(each.is_possible for each in self.requests):
            faults.append("requests: one of them has no ledgers, or impossible ones")
        return faults


def _with_contents(segments: Sequence[Segment], known: Known) -> tuple[Segment, ...]:
    """The segments with what is known of their closed ledgers; what they say completely stays."""
    return tuple(
        attrs.evolve(each, contents=known[each.ledger_id])
        if each.ledger_id in known and (each.contents is None or not each.contents.is_complete)
        else each
        for each in segments
    )


def _shown(numbers: list[int]) -> str:
    return str(numbers) if len(numbers) < 10 else f"[{numbers[0]}, ... {numbers[-1]}] ({len(numbers)})"


_POSITION = re.compile(r"(\d{1,19}):(\d{1,19})", re.ASCII)


class Position(NamedTuple):
    """A place in a log: (segment number, entry id). Ordered, permanently stable, not dense (L4).

    Printed as "17:42"; `Position.parse` reads that back."""

    segment: int
    entry: int

    def __str__(self) -> str:
        return f"{self.segment}:{self.entry}"

    @classmethod
    def parse(cls, value: str | Position) -> Position:
        """Reads "17:42"; returns a position as it is. Raises `PositionError`."""
        if isinstance(value, cls):
            return value
        match = _POSITION.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None or int(match[1]) > ENTRY_ID_MAX or int(match[2]) > ENTRY_ID_MAX:
            raise PositionError(f"invalid position {value!r}: expected a Position or text like '17:42'")
        return cls(int(match[1]), int(match[2]))
