"""The content of a simulated bookie's disk for one ledger."""

from __future__ import annotations

import bisect

from replog.protocol.batch import Batch
from replog.protocol.mutations import Marks, SetMarks
from replog.protocol.proofs import better_proof

_READ_BATCHES_MAX = 3


class LedgerOnDisk:
    """The durable state of one ledger on one bookie."""

    __slots__ = ("deleted", "fence_term", "firsts", "held", "key", "last_add_confirmed", "last_entry_id", "proof")

    def __init__(self) -> None:
        self.key: bytes | None = None
        self.fence_term = 0
        self.last_add_confirmed = -1
        self.last_entry_id = -1
        self.proof = b""
        self.deleted = False
        self.held: dict[tuple[int, int], Batch] = {}  # by (stamp, entry id)
        self.firsts: dict[int, list[int]] = {}  # by stamp: the first ids of the batches, sorted

    def marks(self) -> Marks:
        """The marks from which a restarted bookie makes its machine."""
        return Marks(self.key, self.fence_term, self.last_add_confirmed, self.last_entry_id, self.proof)

    def copy(self) -> LedgerOnDisk:
        """The same, apart from this one."""
        copied = LedgerOnDisk()
        copied.key, copied.fence_term, copied.deleted = self.key, self.fence_term, self.deleted
        copied.last_add_confirmed, copied.last_entry_id = self.last_add_confirmed, self.last_entry_id
        copied.proof = self.proof
        copied.held = dict(self.held)
        copied.firsts = {stamp: list(firsts) for stamp, firsts in self.firsts.items()}
        return copied

    def put(self, batch: Batch) -> None:
        """Stores a batch."""
        for entry_id in batch.entry_ids:
            self.held[batch.stamp, entry_id] = batch
        bisect.insort(self.firsts.setdefault(batch.stamp, []), batch.first_entry_id)
        self.last_entry_id = max(self.last_entry_id, batch.last_entry_id)
        self.last_add_confirmed = max(self.last_add_confirmed, batch.last_add_confirmed)

    def overlapping(self, batch: Batch) -> list[Batch]:
        """The stored batches of the batch's identities."""
        return [self.held[batch.stamp, each] for each in batch.entry_ids if (batch.stamp, each) in self.held]

    def read(self, entry_id: int, stamp: int) -> list[Batch]:
        """The batch that holds the entry, and some that start after it."""
        found = self.held.get((stamp, entry_id))
        if found is None:
            return []
        firsts = self.firsts[stamp]
        start = bisect.bisect_right(firsts, found.first_entry_id)
        following = firsts[start : start + _READ_BATCHES_MAX - 1]
        return [found, *(self.held[stamp, first] for first in following)]

    def raise_marks(self, mutation: SetMarks) -> None:
        """Raises the durable marks."""
        if mutation.key is not None:
            self.key = mutation.key
        if mutation.fence_term is not None:
            self.fence_term = max(self.fence_term, mutation.fence_term)
        if mutation.last_add_confirmed is not None:
            self.last_add_confirmed = max(self.last_add_confirmed, mutation.last_add_confirmed)
        self.proof = better_proof(self.proof, mutation.proof)
