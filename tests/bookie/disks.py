"""A storage on a disk of some bytes, which runs full, hangs and rots as a test wants it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from replog.abc import Damage, Mutation, PutBatch, Storage
from replog.errors import StorageFullError, StorageUncertainError
from replog.protocol.batch import Batch
from replog.protocol.mutations import DropLedger
from tests.kit import FaultyStorage

RECORD_BYTES = 64  # of marks, and of a dropped ledger


class SmallStorage(FaultyStorage):
    """Stored entries take space, and dropped ledgers do until a compaction.

    A call whose name is in `gates` says that it has begun, and then waits until its gate is opened, or a long one until the
    storage is closed."""

    def __init__(self, inner: Storage, left_bytes: int | None = None, *, is_instant: bool = True) -> None:
        super().__init__(inner, is_instant=is_instant)
        self.left_bytes = left_bytes
        self.tells_space = True
        self.calls: list[str] = []  # that ended, but for reads and looks at the space
        self.gates: dict[str, threading.Event] = {}
        self.begun: dict[str, threading.Event] = {}
        self.rotten: list[Damage] = []
        self.found_by_scrubbing: list[Damage] = []
        self.compact_error: Exception | None = None
        self._taken: dict[int, int] = {}
        self._garbage_bytes = 0
        self._closed = threading.Event()

    def hang(self, name: str) -> threading.Event:
        """The next calls of this name wait for the gate that this returns."""
        self.begun[name] = threading.Event()
        self.gates[name] = threading.Event()
        return self.gates[name]

    def _pass(self, name: str, *, is_long: bool = False) -> None:
        gate = self.gates.get(name)
        if gate is None:
            return
        self.begun[name].set()
        for _ in range(6000):  # a minute, of a busy machine
            if gate.wait(0.01) or (is_long and self._closed.is_set()):
                return
        raise AssertionError(f"a test forgot the gate of {name}")

    def commit(self, mutations: Sequence[Mutation]) -> None:
        self._pass("commit")
        needed = sum(_size(each) for each in mutations)
        if self.left_bytes is not None and needed > self.left_bytes:
            raise StorageFullError("no space", "make some")
        super().commit(mutations)
        for each in mutations:
            if isinstance(each, PutBatch):
                self._taken[each.batch.ledger_id] = self._taken.get(each.batch.ledger_id, 0) + _size(each)
            elif isinstance(each, DropLedger):
                self._garbage_bytes += self._taken.pop(each.ledger_id, 0)
                self.calls.append(f"drop {each.ledger_id}")
        if self.left_bytes is not None:
            self.left_bytes -= needed

    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        self._pass("read")
        for each in self.rotten:
            is_asked_for = (each.ledger_id, each.stamp) == (ledger_id, stamp)
            if is_asked_for and each.first_entry_id <= entry_id <= each.last_entry_id:
                raise StorageUncertainError(each.description, "ask another bookie")
        return super().read(ledger_id, entry_id, stamp, bytes_max)

    def free_bytes(self) -> int | None:
        self._pass("free_bytes")
        return self.left_bytes if self.tells_space else None

    def compact(self, *, is_major: bool = False) -> None:
        self._pass("compact", is_long=True)
        if self.compact_error is not None:
            raise self.compact_error
        if self.left_bytes is not None:
            self.left_bytes += self._garbage_bytes
            self._garbage_bytes = 0
        self.calls.append("major compaction" if is_major else "minor compaction")

    def scrub(self) -> None:
        self._pass("scrub", is_long=True)
        self.rotten += self.found_by_scrubbing
        self.found_by_scrubbing = []
        self.calls.append("scrub")

    def damage(self) -> Sequence[Damage]:
        self._pass("damage")
        return list(self.rotten)

    def close(self) -> None:
        self._pass("close")
        self._closed.set()
        self.calls.append("close")
        super().close()


def _size(mutation: Mutation) -> int:
    return len(mutation.batch.data) if isinstance(mutation, PutBatch) else RECORD_BYTES
