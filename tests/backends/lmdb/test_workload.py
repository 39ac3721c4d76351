"""A random workload on an LMDB storage beside the same in memory, reopened and compacted at random."""

import random
from pathlib import Path

import pytest

from replog.abc import DropLedger, Mutation, PutBatch, SetMarks, Storage
from replog.backends.lmdb.options import LMDBStorageTuning
from replog.backends.lmdb.storage import open_storage
from replog.backends.memory import MemoryStorage
from replog.protocol.batch import Batch
from replog.testing.storage_conformance import make_batch

TINY = LMDBStorageTuning(map_bytes=1 << 20)


class Twins:
    """Commits to both, and compares all that can be seen."""

    def __init__(self, path: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.path = str(path)
        self.storage = open_storage(self.path, TINY)
        self.memory = MemoryStorage()
        self.stored: dict[int, list[Batch]] = {1: [], 2: [], 3: []}
        self.ends: dict[int, int] = {}

    def batches(self, ledger_id: int) -> list[Batch]:
        """A gathering: one batch, or several that stripe (W1), some of which go to other bookies; at times with a hole."""
        chance = self.chance
        first = self.ends.get(ledger_id, 0) + chance.choice((0, 0, 0, 0, 5))
        stride = chance.choice((1, 1, 1, 5)) if ledger_id % 2 else 1
        count = chance.choice((1, 3, 40))
        size_bytes = chance.choice((0, 20, 900, 5000))
        self.ends[ledger_id] = first + stride * count
        stamp = chance.choice((1, 1, 1, 2))
        made = [
            make_batch(ledger_id, first + at, count, stride=stride, stamp=stamp, size_bytes=size_bytes)
            for at in range(stride)
        ]
        chance.shuffle(made)
        return made[: chance.choice((1, 3, 5))]

    def mutations(self) -> list[Mutation]:
        found: list[Mutation] = []
        for _ in range(self.chance.choice((1, 2, 6))):
            ledger_id = self.chance.choice(list(self.stored))
            kind = self.chance.random()
            if kind < 0.6:
                again = self.stored[ledger_id] if self.chance.random() < 0.1 else []
                batches = [self.chance.choice(again)] if again else self.batches(ledger_id)
                self.stored[ledger_id] += batches
                found += map(PutBatch, batches)
            elif kind < 0.9:
                found.append(SetMarks(ledger_id, b"key", self.chance.randrange(50), self.chance.randrange(900)))
            else:
                found.append(DropLedger(ledger_id))
                self.stored.setdefault(max(self.stored) + 1, [])
        self.chance.shuffle(found)
        return found

    def step(self) -> None:
        mutations = self.mutations()
        self.storage.commit(mutations)
        self.memory.commit(mutations)
        if self.chance.random() < 0.05:
            self.storage.compact()
        if self.chance.random() < 0.05:
            self.storage.close()
            self.storage = open_storage(self.path, TINY)

    def seen(self, storage: Storage, asked: list[tuple[int, int, int, int]]) -> list[object]:
        marks = [storage.marks(ledger_id) for ledger_id in range(max(self.stored) + 2)]
        return [storage.ledger_ids(), marks, [storage.read(*each) for each in asked]]

    def compare(self) -> None:
        asked = []
        for _ in range(60):
            ledger_id = self.chance.choice(list(self.stored))
            entry_id = self.chance.randrange(self.ends.get(ledger_id, 0) + 3)
            asked.append((ledger_id, entry_id, self.chance.choice((1, 2, 3)), self.chance.choice((0, 5000, 1 << 20))))
        assert self.seen(self.storage, asked) == self.seen(self.memory, asked)


@pytest.mark.parametrize("seed", range(4))
def test_storage_agrees_with_the_memory_storage(tmp_path: Path, seed: int) -> None:
    twins = Twins(tmp_path, seed)
    try:
        for _ in range(100):
            twins.step()
            twins.compare()
        twins.storage.scrub()
        assert twins.storage.damage() == []
        assert twins.storage.statistics()["ledgers"] == len(twins.storage.ledger_ids())
    finally:
        twins.storage.close()
