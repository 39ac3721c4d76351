"""What is true of a ledger and of a log: the records that stand in the metastore, and positions in logs.

These classes are immutable; a change makes a new one, and becomes true by a CAS on the record's version (M1).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import NamedTuple

import attrs

from replog.errors import PositionError
from replog.protocol.batch import ENTRY_ID_MAX
from replog.protocol.digest import DigestType
from replog.protocol.quorum import Quorum

NO_ENTRY = -1  # the last entry of an empty ledger, and the last add confirmed before the first (R8)
WRITER_TERM = 1  # of the client that created a bounded ledger (T2)
RECOVERY_TERM = 2  # of everybody who recovers it: concurrent recoveries don't fence each other (T2)


class LedgerState(enum.Enum):
    """OPEN: has a writer. IN_RECOVERY: somebody looks for its end. CLOSED: its last entry is fixed, for ever."""

    OPEN = "open"
    IN_RECOVERY = "in recovery"
    CLOSED = "closed"


@attrs.frozen
class Fragment:
    """The entries from `first_entry_id` to the next fragment are stored on this ensemble, by index.

    `term` is the stamp of the entries in it: that of the writer that first wrote them (T3)."""

    first_entry_id: int
    ensemble: tuple[str, ...]
    term: int = WRITER_TERM


@attrs.frozen
class LedgerMetadata:
    """One ledger. `token` names the attempt that wrote this version, so that a lost answer can be resolved (M1)."""

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

    def with_fragment(self, fragment: Fragment) -> LedgerMetadata:
        """The same with this fragment at the end; it replaces one that starts at the same entry (C2)."""
        kept = self.fragments[:-1] if self.last_fragment.first_entry_id == fragment.first_entry_id else self.fragments
        if kept and kept[-1].first_entry_id >= fragment.first_entry_id:
            raise AssertionError(f"ledger {self.ledger_id}: a fragment at {fragment.first_entry_id} behind {kept[-1]}")
        return attrs.evolve(self, fragments=(*kept, fragment))

    def closed_at(self, last_entry_id: int) -> LedgerMetadata:
        """The same, closed; a last fragment that would hold no entry is dropped, the first one never."""
        kept = [fragment for fragment in self.fragments[1:] if fragment.first_entry_id <= last_entry_id]
        fragments = (self.fragments[0], *kept)
        return attrs.evolve(self, fragments=fragments, state=LedgerState.CLOSED, last_entry_id=last_entry_id)


@attrs.frozen
class Segment:
    """A ledger's place in a log. Numbers grow and are never reused (L3); ledger ids need not grow."""

    number: int
    ledger_id: int
    created_at_ms: int = 0


@attrs.frozen
class LogMetadata:
    """One log: the list of its ledgers. `token` as in `LedgerMetadata`."""

    name: str
    segments: tuple[Segment, ...] = ()
    next_segment_number: int = 1
    token: str = ""
    created_at_ms: int = 0
    custom: Mapping[str, str] = attrs.field(factory=dict)

    def with_ledger(self, ledger_id: int, created_at_ms: int) -> LogMetadata:
        """The same with this ledger as its last segment."""
        segment = Segment(self.next_segment_number, ledger_id, created_at_ms)
        return attrs.evolve(self, segments=(*self.segments, segment), next_segment_number=self.next_segment_number + 1)

    def trimmed_before(self, segment_number: int) -> LogMetadata:
        """The same without the segments below this number. The last segment always stays."""
        kept = tuple(segment for segment in self.segments[:-1] if segment.number >= segment_number)
        return attrs.evolve(self, segments=(*kept, *self.segments[-1:]))


_POSITION = re.compile(r"(\d{1,19}):(\d{1,19})", re.ASCII)


class Position(NamedTuple):
    """A place in a log: (segment number, entry id). Ordered, stable for ever, not dense (L4).

    Printed as "17:42"; `Position.parse` reads that back."""

    segment: int
    entry: int

    def __str__(self) -> str:
        return f"{self.segment}:{self.entry}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Reads "17:42". Raises `PositionError`."""
        match = _POSITION.fullmatch(text.strip())
        if match is None or int(match[1]) > ENTRY_ID_MAX or int(match[2]) > ENTRY_ID_MAX:
            raise PositionError(f"{text!r} is no position: one looks like 17:42, segment and entry")
        return cls(int(match[1]), int(match[2]))
