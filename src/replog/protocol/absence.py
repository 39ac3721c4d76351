"""Decides whether an entry is absent, from what the members of its write set answered (R4, R10, B8a).

A copy that is found decides at once, and never comes here. Denials are *proven* (the bookie vouches for its storage) or
*weak* (B8). Absence needs one of these:

- proven denials of (Qw - Qa) + 1 members, after every member that can be reached was heard. Recovery waits
  once for a member that neither refuses nor answers. If a member was declared lost, all others must be heard, and deny.
- a denial, proven or weak, of every member that was not declared lost; but not if an ack quorum lost something, for then
  a confirmed entry may be gone: the members that were declared lost, and those that know of their loss.

Sets of members are bit masks of ensemble indices.
"""

from __future__ import annotations

import enum

import attrs

from replog.protocol.messages import Denial
from replog.protocol.quorum import Quorum


class Verdict(enum.Enum):
    """The decision that the answers allow so far."""

    ABSENT = enum.auto()
    WAIT = enum.auto()  # absent, unless a member that was not heard yet answers otherwise
    OPEN = enum.auto()  # more answers are needed
    LOST = enum.auto()  # an ack quorum lost something: no further answer can decide it


@attrs.define
class Absences:
    """The members that cannot answer any question; `lost` are those that were declared lost (B8a)."""

    unreachable: int = 0
    lost: int = 0
    is_loss_accepted: bool = False  # an operator knows that confirmed entries may be gone
    given_up: int = 0  # they were waited for, and have not answered anything since
    _awaited: int = 0  # they are waited for, and have not answered anything since
    _has_answered: int = 0

    def answered(self, index: int) -> None:
        """This member has answered something: it can be reached, and is not silent."""
        self._has_answered |= 1 << index
        self.unreachable &= ~(1 << index)
        self._awaited &= ~(1 << index)
        self.given_up &= ~(1 << index)

    def is_there(self, index: int) -> bool:
        """True if this member has answered something, and can be reached."""
        return bool(self._has_answered & ~self.unreachable & ~self.lost & 1 << index)

    def await_silent(self, silent: int) -> bool:
        """Starts to wait for these silent members. Returns True if any of them answered something before."""
        self._awaited = silent & ~self.given_up
        assert self._awaited, "somebody is waited for"
        return bool(self._awaited & self._has_answered)

    def patience_ended(self) -> None:
        """Ends the wait. A member that has answered something meanwhile is not silent, however long the recovery takes."""
        self.given_up |= self._awaited


class Hearing:
    """The denials of one entry."""

    def __init__(self, quorum: Quorum, entry_id: int) -> None:
        self.entry_id = entry_id
        self.members = quorum.write_mask(entry_id)
        # members, by what they said last
        self.proven = 0
        self.weak = 0
        self.unknown = 0  # damage, an I/O error, or a copy that does not verify
        self._after_loss = 0  # of the weak, those that know of a loss
        self._quorum = quorum

    @property
    def heard(self) -> int:
        """The members that answered."""
        return self.proven | self.weak | self.unknown

    def denies(self, index: int, denial: Denial) -> None:
        """This member has no such entry. Its last answer counts."""
        bit = self._only_member(index)
        self._forget(bit)
        if denial is Denial.PROVEN:
            self.proven |= bit
        else:
            self.weak |= bit
            self._after_loss |= bit if denial is Denial.AFTER_LOSS else 0
        self._check()

    def cannot_tell(self, index: int) -> None:
        """This member answered with doubt: damage, an I/O error, a copy that does not verify."""
        bit = self._only_member(index)
        self._forget(bit)
        self.unknown |= bit
        self._check()

    def _check(self) -> None:
        assert self.proven + self.weak + self.unknown == self.heard, "one answer of each member counts, the last"
        assert not self._after_loss & ~self.weak, "a denial after a loss is weak (R10)"

    def _only_member(self, index: int) -> int:
        return 1 << index & self.members

    def _forget(self, bit: int) -> None:
        self.unknown &= ~bit
        self.proven &= ~bit
        self.weak &= ~bit
        self._after_loss &= ~bit

    def losers(self, absences: Absences) -> int:
        """The members that lost something: they say so themselves, or an operator does."""
        return (self._after_loss | absences.lost) & self.members

    def silent(self, absences: Absences) -> int:
        """The members that have not answered yet and may still do so."""
        return self.members & ~(self.heard | absences.lost | absences.unreachable)

    def decide(self, absences: Absences) -> Verdict:
        """Decides about the entry (R10)."""
        assert not absences.lost & absences.unreachable, "who is lost for good is not waited for (B8a)"
        expected = self.members & ~absences.lost
        if expected == self.members and self._quorum.is_absent(self.entry_id, self.proven):
            # A member that was not heard may hold the entry: a copy always wins over any number of denials.
            is_heard = not self.silent(absences) & ~absences.given_up
            return Verdict.ABSENT if is_heard else Verdict.WAIT
        # From here on weak denials count, too: then every member that is not lost must have denied.
        if (self.proven | self.weak) != expected:
            return Verdict.OPEN
        may_be_gone = self.losers(absences).bit_count() >= self._quorum.ack
        return Verdict.LOST if may_be_gone and not absences.is_loss_accepted else Verdict.ABSENT
