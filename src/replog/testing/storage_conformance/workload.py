"""Random commits as bookies make them: batches in and out of order, copies by recoveries, marks, deletions."""

from __future__ import annotations

import random
from collections.abc import Callable

import attrs

from replog.protocol.batch import Batch
from replog.protocol.digest import Digest, DigestType
from replog.protocol.mutations import DropEntries, DropLedger, Mutation, PutBatch, SetMarks
from replog.protocol.proofs import prove
from replog.testing.storage_conformance.batches import make_batch

_LEDGERS = 6
_SIZES_BYTES = (0, 10, 100, 100, 1000, 3000)
_LARGE_BYTES = 40_000
_DIGEST = Digest(DigestType.HMAC_SHA256, 1, b"password")


@attrs.define
class _Ledger:
    ledger_id: int
    stamp: int = 1
    next_entry_id: int = 0
    late: list[Batch] = attrs.field(factory=list)  # made, but still on their way


class Workload:
    """Random commits from a seed. No identity gets two payloads (T3), and ledger 0 is not used.

    The commits do not depend on a storage: a copy of this object makes the same ones. `batches` are all that were made."""

    def __init__(self, seed: int) -> None:
        self.batches: list[Batch] = []
        self._chance = random.Random(seed)
        self._ledgers = [_Ledger(ledger_id) for ledger_id in range(1, _LEDGERS + 1)]
        self._next_ledger_id = _LEDGERS + 1
        self._kinds: list[Callable[[_Ledger], list[Mutation]]] = [
            # How often each kind is drawn: mostly appends, as in life, and the rare
            # kinds often enough to meet each other.
            *[self._next_batch] * 9,
            *[self._gathering] * 3,
            *[self._late_batch] * 3,
            *[self._again] * 2,
            *[self._marks] * 3,
            self._fence_unseen,
            self._new_stamp,
            self._drop_entries,
            self._drop,
        ]

    def next_commit(self) -> list[Mutation]:
        """The mutations of the next commit; at least one."""
        mutations: list[Mutation] = []
        for _ in range(self._chance.choice((1, 1, 1, 2, 3, 8))):
            ledger = self._chance.choice(self._ledgers)
            mutations += self._chance.choice(self._kinds)(ledger)
        # Never empty: a commit of nothing would say nothing about durability.
        return mutations or [SetMarks(self._ledgers[0].ledger_id, b"key of the first one")]

    def _make(self, ledger: _Ledger, first_entry_id: int, count: int, stride: int = 1) -> Batch:
        large = self._chance.random() < 0.01
        batch = make_batch(
            ledger.ledger_id,
            first_entry_id,
            count,
            stride=stride,
            stamp=ledger.stamp,
            size_bytes=_LARGE_BYTES // count if large else self._chance.choice(_SIZES_BYTES),
            last_add_confirmed=self._chance.randrange(-1, first_entry_id + 1),
        )
        self.batches.append(batch)
        return batch

    def _next_batch(self, ledger: _Ledger) -> list[Mutation]:
        count = self._chance.choice((1, 1, 2, 5, 20))
        batch = self._make(ledger, ledger.next_entry_id, count)
        ledger.next_entry_id += count
        if self._chance.random() < 0.15:
            ledger.late.append(batch)
            return []
        return [PutBatch(batch)]

    def _gathering(self, ledger: _Ledger) -> list[Mutation]:
        """As many batches as the ensemble has bookies, without those of other write sets and those that are late (W1)."""
        stride, count = self._chance.choice((2, 3, 5)), self._chance.choice((1, 3, 7))
        mutations: list[Mutation] = []
        for index in range(stride):
            batch = self._make(ledger, ledger.next_entry_id + index, count, stride)
            fate = self._chance.random()
            if fate < 0.2:
                ledger.late.append(batch)
            elif fate < 0.8:
                mutations.append(PutBatch(batch))
        ledger.next_entry_id += stride * count
        self._chance.shuffle(mutations)
        return mutations

    def _late_batch(self, ledger: _Ledger) -> list[Mutation]:
        """Batches by which a recovery fills holes, in any order."""
        if not ledger.late:
            return []
        return [PutBatch(ledger.late.pop(self._chance.randrange(len(ledger.late))))]

    def _again(self, ledger: _Ledger) -> list[Mutation]:
        """Batches that are stored already, or will be, or belong to a deleted ledger."""
        del ledger
        return [PutBatch(self._chance.choice(self.batches))] if self.batches else []

    def _marks(self, ledger: _Ledger) -> list[Mutation]:
        key = self._chance.choice((None, b"", b"key", b"another key"))
        fence_term = self._chance.choice((None, ledger.stamp, self._chance.randrange(1 << 40)))
        confirmed = self._chance.choice((None, ledger.next_entry_id, self._chance.randrange(-1, 200)))
        proof = b""
        if confirmed is not None and confirmed % 2:
            proof = prove(_DIGEST, ledger.ledger_id, ledger.stamp, confirmed)
        return [SetMarks(ledger.ledger_id, key, fence_term, confirmed, proof)]

    def _fence_unseen(self, ledger: _Ledger) -> list[Mutation]:
        """Fence a ledger, possibly one that was never seen before (R3)."""
        del ledger
        return [SetMarks(self._new_ledger_id(), b"key", self._chance.randrange(1, 9))]

    def _new_stamp(self, ledger: _Ledger) -> list[Mutation]:
        """A takeover: the next writer's entries may have the same ids as those of the previous one (T3)."""
        ledger.stamp += self._chance.randrange(1, 4)
        ledger.late.clear()
        ledger.next_entry_id = max(0, ledger.next_entry_id - self._chance.randrange(30))
        return [SetMarks(ledger.ledger_id, fence_term=ledger.stamp)]

    def _drop_entries(self, ledger: _Ledger) -> list[Mutation]:
        """A part of the ledger is another bookie's now (F5)."""
        first = self._chance.randrange(ledger.next_entry_id + 1)
        last = first + self._chance.choice((0, 5, 40, 1 << 40))
        stride = self._chance.choice((1, 1, 1, 2, 3, 5))
        last -= (last - first) % stride
        return [DropEntries(ledger.ledger_id, self._chance.randrange(1, ledger.stamp + 1), first, last, stride)]

    def _drop(self, ledger: _Ledger) -> list[Mutation]:
        at = self._ledgers.index(ledger)
        self._ledgers[at] = _Ledger(self._new_ledger_id())
        return [DropLedger(ledger.ledger_id)]

    def _new_ledger_id(self) -> int:
        ledger_id = self._next_ledger_id
        self._next_ledger_id += self._chance.choice((1, 1, 2, 1 << 33))
        return ledger_id
