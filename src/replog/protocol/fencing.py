"""Which members of an ensemble a recovery has fenced, and when that is enough (R2, B8a).

Invariants: a member that is fenced stays fenced; the highest last add confirmed that was proven never sinks.
"""

from __future__ import annotations

from replog.protocol.absence import Absences
from replog.protocol.quorum import Quorum


class Fencing:
    """The answers to the fencing requests of one recovery. Sets of members are bit masks of ensemble indices."""

    def __init__(self, quorum: Quorum) -> None:
        self.fenced = 0
        self.highest_proven = -1  # the highest last add confirmed in the answers
        self._quorum = quorum
        self._everybody = (1 << quorum.ensemble) - 1

    def confirm(self, index: int, last_add_confirmed: int) -> None:
        """The fence is durable on this index; its answer proved this last add confirmed."""
        assert 1 << index & self._everybody, "only a member of the ensemble was asked"
        self.fenced |= 1 << index
        self.highest_proven = max(self.highest_proven, last_add_confirmed)

    def is_fenced(self, index: int) -> bool:
        """True if the fence is durable on this index."""
        return bool(self.fenced >> index & 1)

    def awaited(self, absences: Absences) -> int:
        """The members that are not fenced yet, without those that were declared lost."""
        return self._everybody & ~(self.fenced | absences.lost)

    def is_enough(self, absences: Absences) -> bool:
        """True if no ack quorum of any write set can accept adds any more (R2)."""
        assert not absences.lost & ~self._everybody, "only members can be lost"
        if absences.lost and self.awaited(absences):
            # Lost bookies may have accepted adds that nobody else knows of: then all others must be fenced (B8a).
            return False
        return self._quorum.is_covered(self.fenced) or bool(absences.lost and absences.is_loss_accepted)

    def cannot_be_enough(self, absences: Absences) -> bool:
        """True if all members that are not lost are fenced, and that is not enough: the lost ones may be an ack quorum."""
        return bool(absences.lost) and not self.awaited(absences) and not self.is_enough(absences)
