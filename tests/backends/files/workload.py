"""A random workload on a files storage beside the same workload in memory, on a disk that fails."""

from __future__ import annotations

import random
from collections.abc import Callable

from replog.abc import Storage
from replog.backends.files.options import FilesOptions
from replog.backends.files.storage import FilesStorage, open_storage
from replog.backends.memory import MemoryStorage
from replog.protocol.batch import Batch
from replog.protocol.mutations import DropLedger, Mutation, PutBatch, SetMarks
from replog.testing.disk import MemoryDisk, PowerLoss
from replog.testing.storage_exam import make_batch

SMALL = FilesOptions(journal_file_bytes=64 << 10, spare_files=1, fill_ahead_bytes=16 << 10, open_files_max=2)
CHANGES = {"pwritev", "fdatasync", "sync_directory", "rename", "unlink", "make_directory", "allocate"}
LEDGERS = range(1, 4)

State = tuple[object, ...]


def open_small(disk: MemoryDisk) -> FilesStorage:
    return open_storage("/st", SMALL, disk=disk, background=False)


class Workload:
    """Random commits, what was acknowledged, and what must be there after a crash."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.acknowledged = MemoryStorage()
        self.history: list[list[Mutation]] = []
        self.in_flight: list[Mutation] | None = None
        self.batches: list[Batch] = []
        self.ledgers = list(LEDGERS)
        self.next_entry: dict[int, int] = {}

    def next_commit(self) -> list[Mutation]:
        mutations: list[Mutation] = []
        for _ in range(self.chance.choice((1, 1, 2, 5))):
            at = self.chance.randrange(len(self.ledgers))
            ledger_id = self.ledgers[at]
            kind = self.chance.random()
            if kind < 0.6:
                mutations.append(PutBatch(self._batch(ledger_id)))
            elif kind < 0.75:
                marks = SetMarks(ledger_id, b"key %d" % ledger_id, self.chance.randrange(50), self.chance.randrange(9))
                mutations.append(marks)
            else:
                mutations.append(DropLedger(ledger_id))
                self.ledgers[at] = max(self.ledgers) + 1
        return mutations

    def _batch(self, ledger_id: int) -> Batch:
        first = self.next_entry.get(ledger_id, 0)
        again = [batch for batch in self.batches if batch.ledger_id == ledger_id]
        if again and self.chance.random() < 0.1:
            return self.chance.choice(again)
        size_bytes = self.chance.choice((10, 200, 2000, 2000, 4000, 40_000 if self.chance.random() < 0.2 else 700))
        batch = make_batch(ledger_id, first, 3, size_bytes=size_bytes)
        self.next_entry[ledger_id] = first + 3
        self.batches.append(batch)
        return batch

    def run(self, storage: Storage, commits: int) -> None:
        """Commits; what is under way when an exception ends it stays in `in_flight`."""
        for _ in range(commits):
            self.in_flight = self.next_commit()
            storage.commit(self.in_flight)
            self.acknowledge()

    def acknowledge(self) -> None:
        if self.in_flight is not None:
            self.acknowledged.commit(self.in_flight)
            self.history.append(self.in_flight)
            self.in_flight = None

    def not_written(self) -> None:
        self.in_flight = None

    def state(self, storage: Storage) -> State:
        """All that can be seen of a storage."""
        known = range(1, max(self.ledgers) + 1)
        seen = tuple(storage.read(batch.ledger_id, batch.first_entry_id, 1, 0) for batch in self.batches)
        for batch, found in zip(self.batches, seen, strict=True):
            assert found in ([], [batch]), "wrong data"
        return (*storage.ledger_ids(), *(storage.marks(ledger_id) for ledger_id in known), seen)

    def settle(self, storage: Storage) -> None:
        """After a crash: everything acknowledged is there, and what was in flight wholly or not at all."""
        found = self.state(storage)
        if found == self.state(self.acknowledged):
            self.not_written()
            return
        assert self.in_flight is not None, "what was acknowledged is not what is there"
        self.acknowledge()
        assert found == self.state(self.acknowledged), "what is there was never committed, or is a half of it"


def stop_at(disk: MemoryDisk, change: int, reason: Callable[[str], BaseException] = PowerLoss) -> None:
    """Makes the n-th change of the disk from now on fail, for ever after."""
    count = 0

    def fault(operation: str, path: str) -> None:
        nonlocal count
        if operation in CHANGES:
            count += 1
            if count >= change:
                raise reason(f"{operation} {path}")

    disk.fault = fault


def count_changes(disk: MemoryDisk) -> list[int]:
    """Counts the changes of the disk from now on: in a list of one number."""
    count = [0]

    def fault(operation: str, path: str) -> None:
        del path
        count[0] += operation in CHANGES

    disk.fault = fault
    return count


FIRST_FILE = "/st/journal/000000000001.journal"


def position_of(storage: FilesStorage) -> int:
    """Where the next group goes in the current file."""
    return storage._journal.current.position
