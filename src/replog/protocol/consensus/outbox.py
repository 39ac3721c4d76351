"""The messages that leave a member, and the time when they do: a message may only depend on state that is on the disk
(Q1, Q2).

A member has its term, its vote and its log on its disk. Changes gather until the shell takes them as a `Write`; writes
become durable in their order. A message that says something of this state waits for the write that has it.
"""

from __future__ import annotations

from collections import deque

import attrs

from replog.protocol.consensus.log import Base, EntryLog, LogEntry
from replog.protocol.consensus.messages import Message


@attrs.frozen
class Write:
    """The state to make durable in one step: the vote; the base, if it has changed; and the entries from `first` on,
    which replace all from that index on. `first` is 0 if no entry has changed."""

    number: int
    term: int
    voted_for: str | None
    base: Base | None
    first: int
    entries: tuple[LogEntry, ...]


@attrs.define
class _Begun:
    """A write under way, and up to which index its log is still this log."""

    number: int
    last: int


class Outbox:
    """The messages of one member, and the writes that they wait for."""

    def __init__(self, log: EntryLog) -> None:
        self.sent: list[tuple[str, Message]] = []  # may leave now
        self.is_dirty = False  # something has changed since the last write was begun
        self.durable_last = log.last  # the log is on the disk up to this entry
        self._log = log
        self._held: deque[tuple[int, str, Message]] = deque()
        self._begun: deque[_Begun] = deque()
        self._number = 0  # of the last write that was begun
        self._written = 0  # of the last one that is durable
        self._base_changed = False
        self._first_changed = 0

    def changed(self, first: int = 0, *, is_base: bool = False) -> None:
        """The term, the vote, the entries from this one on or the base have changed."""
        self.is_dirty = True
        self._base_changed |= is_base
        if first:
            self._first_changed = min(first, self._first_changed or first)
            # What is on the disk, or on its way there, is another entry from there on.
            self.durable_last = min(self.durable_last, first - 1)
            for each in self._begun:
                each.last = min(each.last, first - 1)

    def say(self, name: str, message: Message, *, is_free: bool = False) -> None:
        """Sends a message once all that has changed so far is durable; at once if it says nothing of that."""
        number = self._number + self.is_dirty
        if is_free or number <= self._written:
            self.sent.append((name, message))
        else:
            self._held.append((number, name, message))

    def begin_write(self, term: int, voted_for: str | None) -> Write | None:
        """Takes what has changed; None if nothing has."""
        if not self.is_dirty:
            return None
        self._number += 1
        log, first = self._log, self._first_changed
        begin = max(first, log.base.index + 1)
        entries = log.entries_from(begin) if first else ()
        base = log.base if self._base_changed else None
        self.is_dirty, self._base_changed, self._first_changed = False, False, 0
        self._begun.append(_Begun(self._number, log.last))
        return Write(self._number, term, voted_for, base, begin if first else 0, entries)

    def written(self, number: int) -> None:
        """A write, and all before it, are durable: what waited for it leaves."""
        assert self._written < number <= self._number, "writes end in their order"
        self._written = number
        while self._begun and self._begun[0].number <= number:
            self.durable_last = max(self.durable_last, self._begun.popleft().last)
        while self._held and self._held[0][0] <= number:
            _, name, message = self._held.popleft()
            self.sent.append((name, message))

    def take_sent(self) -> list[tuple[str, Message]]:
        """Returns the messages that may leave, in their order, and forgets them."""
        sent, self.sent = self.sent, []
        return sent
