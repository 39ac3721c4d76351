"""The records of ledgers and logs in the metastore, and positions in logs.

These classes are immutable; a change makes a new one, and becomes true by a CAS on the record's version (M1).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import attrs

from replog.errors import PositionError
from replog.protocol.batch import ENTRY_ID_MAX
from replog.protocol.contents import Contents, Known
from replog.protocol.digest import DigestType
from replog.protocol.fragments import WRITER_TERM as WRITER_TERM
from replog.protocol.fragments import Fragment as Fragment
from replog.protocol.gaps import Gap, merged
from replog.protocol.quorum import Quorum

NO_ENTRY = -1  # the last entry of an empty ledger, and the last add confirmed before the first (R8)
PAGE_SEGMENTS = 100  # of a new log; one that exists keeps what its record says
RECOVERED_AT_TAKEOVER = 2  # ledgers at the end of the list: a leader that rolls has two open ones (L1)
PAGE_SEGMENTS_MIN = 2  # so that the head names the last two ledgers whatever leaves it: a takeover recovers those (L1)
# Ids that a log's record remembers, of jobs and of streams each. None is ever forgotten: only an operator retires them
TRANSACTIONS_MAX = 1000
STREAM_PREFIX = "query:"  # of the ids of streaming queries, which have a table of their own
# Of every client that recovers a bounded ledger: concurrent recoveries don't fence each other (T2)
RECOVERY_TERM = WRITER_TERM + 1


class LedgerState(enum.Enum):
    """OPEN: has a writer. IN_RECOVERY: somebody looks for its end. CLOSED: its last entry is permanently fixed."""

    OPEN = "open"
    IN_RECOVERY = "in recovery"
    CLOSED = "closed"


class Durability(enum.Enum):
    """With how many copies of each entry a close, roll or takeover ends: an ack quorum, or all, as bookies say (W8)."""

    ACK_QUORUM = "ack-quorum"
    WRITE_QUORUM = "write-quorum"


@attrs.frozen
class LedgerMetadata:
    """One ledger. `token` names the attempt that wrote this version, so that a lost answer can be resolved (M1). `gaps` are
    the entries that members of its ensembles are known to lack (W7). `contents` is what it holds, once it is closed.

    An unbounded ledger has a new term at each takeover (T2): `term` is the last one that a client claimed, and `owner` the nonce
    of that client's attempt; `open_term` is the last one that was opened for writing. Its fragments begin at `trim_to`, the first
    entry that was not trimmed. Of a bounded ledger these fields keep their defaults.

    `full_before` is known of a ledger with `Durability.WRITE_QUORUM` only: all entries below it were found at their full write
    quorum, so nobody asks for them again before a close, roll or takeover ends (W8)."""

    ledger_id: int
    quorum: Quorum
    digest_type: DigestType
    key_check: str
    fragments: tuple[Fragment, ...]
    state: LedgerState = LedgerState.OPEN
    term: int = WRITER_TERM
    last_entry_id: int | None = None
    token: str = ""
    created_at_ms: int = 0
    custom: Mapping[str, str] = attrs.field(factory=dict)
    gaps: tuple[Gap, ...] = ()
    is_unbounded: bool = False
    owner: str = ""
    open_term: int = WRITER_TERM
    trim_to: int = 0
    contents: Contents | None = None
    durability: Durability = Durability.ACK_QUORUM
    full_before: int = 0

    @property
    def last_fragment(self) -> Fragment:
        """The fragment that is written to."""
        return self.fragments[-1]

    def fragment_of(self, entry_id: int) -> Fragment:
        """The fragment that this entry belongs to."""
        for fragment in reversed(self.fragments):
            if fragment.first_entry_id <= entry_id:
                return fragment
        return self.fragments[0]

    def is_owned_by(self, claim: LedgerMetadata) -> bool:
        """True if the term of this record is the one that was claimed with `claim`, by the same attempt."""
        return self.term == claim.term and self.owner == claim.owner

    def end_of_stamp(self, stamp: int) -> int:
        """The last entry that can have this stamp: the one before the first fragment of a later term."""
        if stamp >= self.last_fragment.term:
            return ENTRY_ID_MAX
        return next(each.first_entry_id - 1 for each in self.fragments if each.term > stamp)

    def claimed(self, nonce: str) -> LedgerMetadata:
        """The same in recovery, under the next term (T2). All that recover a bounded ledger share that term, so it has no
        owner."""
        assert self.state is not LedgerState.CLOSED, "nobody claims a closed ledger"
        owner = nonce if self.is_unbounded else ""
        return attrs.evolve(self, state=LedgerState.IN_RECOVERY, term=self.term + 1, owner=owner)

    def trimmed(self, before: int) -> LedgerMetadata:
        """The same without the fragments that lie wholly before this entry. The last fragment always stays."""
        behind = [each for each in self.fragments if each.first_entry_id > before]
        fragments = self.fragments[-1 - len(behind) :]  # the one that holds the entry, and all behind it
        first = fragments[0].first_entry_id
        gaps = [gap for gap in self.gaps if gap.last_entry_id is None or gap.last_entry_id >= first]
        assert fragments[-1] == self.last_fragment, "the last fragment always stays"
        return attrs.evolve(self, fragments=fragments, trim_to=first).with_gaps(gaps)

    def with_fragment(self, fragment: Fragment) -> LedgerMetadata:
        """The same with this fragment at the end; it replaces one that starts at the same entry (C2)."""
        # Nothing is confirmed in a fragment that starts at the same entry: the new one takes its place (C2).
        kept = self.fragments[:-1] if self.last_fragment.first_entry_id == fragment.first_entry_id else self.fragments
        # Not an assert: a fragment out of order would hide entries from every reader, even with `python -O`.
        if kept and kept[-1].first_entry_id >= fragment.first_entry_id:
            raise AssertionError(f"ledger {self.ledger_id}: a fragment at {fragment.first_entry_id} behind {kept[-1]}")
        return attrs.evolve(self, fragments=(*kept, fragment))

    def full_to(self, before: int) -> LedgerMetadata:
        """The same, where all entries below this one are known to be at their full write quorum (W8)."""
        return attrs.evolve(self, full_before=max(before, self.full_before))

    def with_gaps(self, gaps: Iterable[Gap]) -> LedgerMetadata:
        """The same with these gaps instead of its own."""
        return attrs.evolve(self, gaps=merged(gaps, self.fragments))

    @property
    def ended_gaps(self) -> tuple[Gap, ...]:
        """The gaps that have ended."""
        return tuple(gap for gap in self.gaps if gap.last_entry_id is not None)

    def lacking(self, entry_id: int) -> frozenset[int]:
        """The indices whose bookies may lack this entry, though they should store it (W7)."""
        return frozenset(gap.index for gap in self.gaps if gap.holds(entry_id))

    def closed_at(self, last_entry_id: int, contents: Contents | None = None) -> LedgerMetadata:
        """The same, closed; a last fragment that would hold no entry is dropped, the first one never. Gaps end there. Without
        `contents` only their number is known."""
        # Readers take the last fragment for the one that holds the last entry.
        kept = [fragment for fragment in self.fragments[1:] if fragment.first_entry_id <= last_entry_id]
        fragments = (self.fragments[0], *kept)
        ended = [gap.until(last_entry_id) for gap in self.gaps if gap.first_entry_id <= last_entry_id]
        gaps = merged(ended, fragments)
        assert last_entry_id >= NO_ENTRY, "a ledger ends at an entry, or is empty (R8)"
        contents = contents or Contents.of(last_entry_id + 1, None, None, None)
        assert contents.entries == last_entry_id + 1, "entries are dense from 0 on (R8)"
        return attrs.evolve(
            self,
            fragments=fragments,
            gaps=gaps,
            state=LedgerState.CLOSED,
            last_entry_id=last_entry_id,
            # Lengths and times of an unbounded ledger begin anew with each writer: what one of them knows is not the whole.
            contents=None if self.is_unbounded else contents,
        )


@attrs.frozen
class Segment:
    """A ledger's place in a log. Numbers grow by one and are never reused (L3); ledger ids need not grow.

    `contents` is written by the first change of the log's record after the ledger was closed, by a client that knows it. With
    it, the ledger is closed; without it, the ledger's own record tells. `term` is the ledger's term of the last takeover that
    served (L9); of a bounded ledger it stays 1."""

    number: int
    ledger_id: int
    created_at_ms: int = 0
    # A segment stays the same one whatever is known of it: a page and a head may differ in that.
    contents: Contents | None = attrs.field(default=None, eq=False)
    term: int = WRITER_TERM

    @property
    def place(self) -> Segment:
        """The same without its contents: nobody plans what is dropped."""
        return attrs.evolve(self, contents=None)


@attrs.frozen
class LogPage:
    """The segments of a log that are numbered from `number * page_segments` to before `(number + 1) * page_segments`.

    Never changed once it is written. Segments that were trimmed before that may be missing; those that the log's record
    counts as its own never are."""

    log_name: str
    number: int
    segments: tuple[Segment, ...]


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
class Transaction:
    """What was committed to a log under one name: the highest number. A later commit with that number or a lower one is a
    repetition, and changes nothing. `committed_at_ms` is by the committer's clock."""

    transaction_id: str
    number: int
    committed_at_ms: int = 0

    @property
    def is_of_stream(self) -> bool:
        """True if its id is that of a streaming query. Jobs never take the place of one."""
        return self.transaction_id.startswith(STREAM_PREFIX)


@attrs.frozen
class LogCursor:
    """A cursor that a log's record names. `cursor_id` is unique permanently: the key below which the cursor's own record is.

    Until that record exists, the cursor begins at `begins_at`."""

    name: str
    cursor_id: str
    begins_at: Position


@attrs.frozen
class LogMetadata:
    """One log: its *head*. It names the last segments; pages name those before them. `token` as in `LedgerMetadata`.

    The log's segments are all numbers from `first_segment_number` to before `next_segment_number`. One that is below the
    first in `segments` is in the page `page_of(number)`. The last two are always here, if there are two, and all from
    `first_open_number` on: the ledgers of the segments before that one are closed (L8). A log that
    was deleted has no segments, and keeps its numbers: the next one of that name goes on with them, so that no position
    ever means another record (L4). `transactions` are those that were committed, the last one last.

    The ledgers of all segments below `deleted_before_number` are deleted. Those from there to before the first segment
    were trimmed, or the log was deleted, and their ledgers may still exist (L7): `dropped` are those of them that left this
    record, the others are in pages.

    `cursors` are here so that a change of them and a trim conflict: their names are unique, and they end with the log.

    With `is_unbounded` new ledgers of the log are unbounded, and a takeover goes on with the last one, if that is (L9)."""

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

    @property
    def is_deleted(self) -> bool:
        """True if the log was deleted; then this is what is left of it."""
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
        segments = tuple(
            attrs.evolve(each, contents=known[each.ledger_id])
            if each.ledger_id in known and (each.contents is None or not each.contents.is_complete)
            else each
            for each in self.segments
        )
        return attrs.evolve(self, segments=segments)

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
            self, created_at_ms=now_ms, deleted_at_ms=0, custom={}, transactions=(), is_unbounded=is_unbounded
        )

    def split(self) -> tuple[tuple[LogPage, ...], LogMetadata]:
        """The pages that are complete and may leave the head, and the head without them: it keeps `page_segments` segments
        or more, and less than twice as many, unless older ones may be open.

        Only of a record that is true: a page is written before the CAS that leaves it out, and never changed. What it
        names must be the log's whatever becomes of that CAS; so nothing is added or trimmed before the split."""
        size = self.page_segments
        # What may be open stays in the head, where a takeover finds it (L8): pages name closed ledgers only.
        end = min(self.next_segment_number // size - 1, self.page_of(self.first_open_number))
        numbers = range(self.page_of(self.first_listed_number), end)
        pages = tuple(
            LogPage(self.name, number, tuple(each for each in self.segments if each.number // size == number))
            for number in numbers
        )
        # At least a page's worth stays in the head, and with it the last two, which a takeover recovers (L1).
        kept = tuple(each for each in self.segments if each.number // size not in numbers)
        moved = sum(len(page.segments) for page in pages)
        assert moved + len(kept) == len(self.segments), "each segment is in a page or in the head"
        return pages, attrs.evolve(self, segments=kept)

    def trimmed_before(self, segment_number: int) -> LogMetadata:
        """The same without the segments below this number. The last segment always stays."""
        first = max(self.first_segment_number, min(segment_number, self.next_segment_number - 1))
        kept = tuple(segment for segment in self.segments if segment.number >= first)
        assert kept[-1:] == self.segments[-1:], "the last segment always stays (L3)"
        dropped = (*self.dropped, *(each.place for each in self.segments if each.number < first))
        first_open = max(first, self.first_open_number)
        return attrs.evolve(
            self, segments=kept, first_segment_number=first, dropped=dropped, first_open_number=first_open
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
            first_open_number=self.next_segment_number,
            dropped=(*self.dropped, *(each.place for each in self.segments)),
            deleted_at_ms=max(1, now_ms),
            deletions=self.deletions + 1,
            transactions=(),
            cursors=(),
        )

    def faults(self) -> list[str]:
        """What is impossible in the record, even though every field has its type."""
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
        if not listed <= self.first_open_number <= end:
            faults.append(f"first_open_number is {self.first_open_number}, not one of {listed} to {end} (L8)")
        if not self.is_deleted and not numbers and first != end:
            faults.append(f"segments: there are none, of a log that has {first} to {end - 1}")
        left = [segment.number for segment in self.dropped]
        # Whatever numbers a damaged record has, looking at it takes no longer than it is long.
        is_ascending = left == sorted(set(left))
        is_between = all(self.deleted_before_number <= number < first for number in left)
        if not (1 <= self.deleted_before_number <= first and is_ascending and is_between):
            faults.append(f"dropped: {_shown(left)} are not of {self.deleted_before_number} to {first - 1} (L7)")
        names = [each.transaction_id for each in self.transactions]
        if len(set(names)) < len(names):
            faults.append("transactions: one of them stands there twice")
        if len({each.name for each in self.cursors}) < len(self.cursors):
            faults.append("cursors: two of them have one name")
        return faults


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
