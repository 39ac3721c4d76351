"""The members' log: entries behind a base, which stands for all entries before them.

Indices begin at 1. The base is the last entry that was dropped, because its effects are in the state: its index, its term, and
the members as of it. Which members count is read off the log (Q8): the last entry about them says so, committed or not.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import attrs

from replog.protocol.consensus.groups import Membership


class Kind(enum.IntEnum):
    """The kinds of entries. Its number is written to disks and messages."""

    NOOP = 0  # of a new leader: it commits what is before (Q6)
    COMMANDS = 1
    CHANGE = 2  # the members: from now on the old and the new group must agree
    SETTLE = 3  # from now on the new group alone


_ENTRY_BYTES = 128  # of an entry, about, beside its body

ABOUT_MEMBERS = frozenset((Kind.CHANGE, Kind.SETTLE))


@attrs.frozen
class LogEntry:
    """One step. `body` is what the state machine knows how to read; `members` is what a CHANGE or a SETTLE says."""

    term: int
    kind: Kind
    body: bytes = b""
    members: Membership | None = None

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, about."""
        return _ENTRY_BYTES + len(self.body)


@attrs.frozen
class Base:
    """The last entry that is not in the log any more."""

    index: int = 0
    term: int = 0
    members: Membership = attrs.field(factory=Membership)


class EntryLog:
    """The entries of one member."""

    def __init__(self, base: Base, entries: Sequence[LogEntry] = ()) -> None:
        self.base = base
        self._entries = list(entries)
        self.size_bytes = sum(each.size_bytes for each in self._entries)  # of all entries, about
        self.members, self.members_index = base.members, base.index
        self._look_for_members()

    @property
    def last(self) -> int:
        """The index of the last entry, or the base's if there is none."""
        return self.base.index + len(self._entries)

    @property
    def last_term(self) -> int:
        """The term of the last entry."""
        return self._entries[-1].term if self._entries else self.base.term

    def term_at(self, index: int) -> int | None:
        """The term of this entry; None if it is before the base, or behind the end."""
        if index == self.base.index:
            return self.base.term
        return self[index].term if self.base.index < index <= self.last else None

    def __getitem__(self, index: int) -> LogEntry:
        assert self.base.index < index <= self.last, "the entry is in the log"
        return self._entries[index - self.base.index - 1]

    def entries_from(self, first: int, count_max: int | None = None) -> tuple[LogEntry, ...]:
        """The entries from this one on, so many at most."""
        assert first > self.base.index, "what is before the base is not in the log"
        start = first - self.base.index - 1
        return tuple(self._entries[start : None if count_max is None else start + count_max])

    def is_older(self, last_term: int, last: int) -> bool:
        """True if a log that ends so lacks something that this one has, as far as terms and indices tell (Q3)."""
        return (last_term, last) < (self.last_term, self.last)

    def append(self, entries: Sequence[LogEntry]) -> None:
        """Adds entries at the end."""
        for entry in entries:
            self._entries.append(entry)
            self.size_bytes += entry.size_bytes
            if entry.kind in ABOUT_MEMBERS:
                assert entry.members is not None, "an entry about members says which"
                self.members, self.members_index = entry.members, self.last

    def cut(self, first: int) -> None:
        """Removes the entries from this one on. The members are again those of what stays (Q8)."""
        assert self.base.index < first <= self.last, "an entry that is there is cut"
        self._delete(slice(first - self.base.index - 1, None))
        if self.members_index >= first:
            self._look_for_members()

    def drop(self, index: int) -> None:
        """Drops the entries up to this one, whose effects are in the state."""
        assert self.base.index <= index <= self.last, "what is dropped was in the log"
        term = self.term_at(index)
        assert term is not None, "the entry is in the log"
        members = self.members_at(index)
        self._delete(slice(None, index - self.base.index))
        self.base = Base(index, term, members)

    def restart(self, base: Base) -> None:
        """Begins again behind a copy of the state. Entries that continue it stay (Q12); others go."""
        continues = self.term_at(base.index) == base.term
        self._entries = list(self.entries_from(base.index + 1)) if continues and base.index < self.last else []
        self.size_bytes = sum(each.size_bytes for each in self._entries)
        self.base = base
        self._look_for_members()

    def index_before(self, count_max: int, bytes_max: int) -> int:
        """The index behind which there are so many entries, and so many bytes of them, at most."""
        kept_bytes = 0
        for kept, entry in enumerate(reversed(self._entries)):
            kept_bytes += entry.size_bytes
            if kept >= count_max or kept_bytes > bytes_max:
                return self.last - kept
        return self.base.index

    def _delete(self, places: slice) -> None:
        self.size_bytes -= sum(each.size_bytes for each in self._entries[places])
        del self._entries[places]

    def members_at(self, index: int) -> Membership:
        """The members as of this entry."""
        for place in range(index - self.base.index - 1, -1, -1):
            members = self._entries[place].members
            if members is not None:
                return members
        return self.base.members

    def _look_for_members(self) -> None:
        self.members, self.members_index = self.base.members, self.base.index
        for place in range(len(self._entries) - 1, -1, -1):
            members = self._entries[place].members
            if members is not None:
                self.members, self.members_index = members, self.base.index + place + 1
                return
