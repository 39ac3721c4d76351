"""The required content of a storage: a storage in memory with the same commits, and the comparison with it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import trio

from replog.abc import Storage, StoredRange
from replog.backends.memory import MemoryStorage
from replog.errors import StorageUncertainError
from replog.protocol.batch import Batch
from replog.protocol.mutations import Marks, Mutation, PutBatch
from replog.testing.storage_conformance.candidate import PLENTY_BYTES, expect

_READS_OF_SAMPLE = 4  # a life has hundreds of samples

Read = tuple[int, int, int, int]  # ledger id, entry id, stamp, the limit in bytes


class Model:
    """Everything that was committed, and every batch ever seen, so that absent ones are looked for, too."""

    def __init__(self) -> None:
        self._storage = MemoryStorage()
        self._batches: dict[Batch, None] = {}
        self._streams: dict[tuple[int, int], int] = {}  # by ledger and stamp the highest entry
        self._ledger_ids: dict[int, None] = {}

    def commit(self, mutations: Sequence[Mutation]) -> None:
        """Commit these: they must be there from now on."""
        self.hear_of(mutations)
        self._storage.commit(mutations)

    def hear_of(self, mutations: Sequence[Mutation]) -> None:
        """Remember these: they may be there or not, and `difference` looks for them."""
        for mutation in mutations:
            if isinstance(mutation, PutBatch):
                batch = mutation.batch
                self._batches[batch] = None
                stream = batch.ledger_id, batch.stamp
                self._streams[stream] = max(batch.last_entry_id, self._streams.get(stream, 0))
                self._ledger_ids[batch.ledger_id] = None
            else:
                self._ledger_ids[mutation.ledger_id] = None

    @property
    def ledger_ids(self) -> list[int]:
        """The ledgers that must be listed."""
        return self._storage.ledger_ids()

    def stored(self) -> list[Batch]:
        """All batches that must be there, in the order in which they were first seen."""
        return [batch for batch in self._batches if (self.wanted(read_of(batch)) or [])[:1] == [batch]]

    def has_heard_of(self, batch: Batch) -> bool:
        """True if this batch was ever committed, byte for byte."""
        return batch in self._batches

    @property
    def known_ledger_ids(self) -> list[int]:
        """All ledgers ever seen, including deleted ones."""
        return list(self._ledger_ids)

    def difference(self, storage: Storage) -> str | None:
        """The first difference between the storage and what it must be, in words; None if there is none."""
        found, wanted = storage.ledger_ids(), self._storage.ledger_ids()
        if found != wanted:
            missing, other = set(wanted).difference(found), set(found).difference(wanted)
            return f"ledger_ids() lacks {sorted(missing)} and has {sorted(other)} too much: {found}"
        # The last one was never written: a storage must not invent ledgers.
        for ledger_id in (*self._ledger_ids, 1 << 60):
            if wrong := self._wrong_marks(storage, ledger_id) or self._wrong_ranges(storage, ledger_id):
                return wrong
        return next((wrong for read in self.reads() if (wrong := self._wrong_read(storage, read))), None)

    def sampled_difference(self, storage: Storage, chance: random.Random) -> str | None:
        """Compares like `difference`, but only random marks and reads."""
        if not self._ledger_ids:
            return None
        ledger_id = chance.choice(list(self._ledger_ids)[-12:])
        wrong = self._wrong_marks(storage, ledger_id) or self._wrong_ranges(storage, ledger_id)
        if wrong or not self._batches:
            return wrong
        batches = list(self._batches)
        for _ in range(_READS_OF_SAMPLE):
            # Half of the looks at the newest ones, which are where changes are; the
            # others find old ones that were lost.
            batch = chance.choice(batches[-20:] if chance.random() < 0.5 else batches)
            # One before and one behind the batch, too: mistakes by one live at its ends.
            entry_id = max(0, chance.randrange(batch.first_entry_id - 1, batch.last_entry_id + 2))
            bytes_max = chance.choice((0, 500, 5000, 100_000, PLENTY_BYTES))
            if wrong := self._wrong_read(storage, (batch.ledger_id, entry_id, batch.stamp, bytes_max)):
                return wrong
        return None

    def settle(self, storage: Storage, in_flight: Sequence[Mutation] | None, why: str) -> None:
        """Everything committed must be there, and the commit in flight completely or not at all; it counts as committed if it
        is there."""
        if in_flight is not None:
            self.hear_of(in_flight)
        without = self.difference(storage)
        if without is None:
            return
        if in_flight is None:
            expect(False, why, without)
            return
        self._storage.commit(in_flight)
        with_it = self.difference(storage)
        if with_it is not None:
            expect(
                False,
                f"{why}; the commit in flight is there wholly or not at all",
                f"{without}\n  and if the commit in flight counts: {with_it}\n  in flight: {in_flight}",
            )

    def ranges(self, ledger_id: int) -> list[StoredRange]:
        """The ranges of a ledger that must be held."""
        return self._storage.ranges(ledger_id)

    def _wrong_ranges(self, storage: Storage, ledger_id: int) -> str | None:
        found, wanted = list(storage.ranges(ledger_id)), self._storage.ranges(ledger_id)
        return None if found == wanted else f"ranges({ledger_id}) gives {found}, not {wanted}"

    def reads(self) -> Iterator[Read]:
        """All reads that show everything present, and that nothing absent is returned."""
        for (ledger_id, stamp), last_entry_id in self._streams.items():
            yield ledger_id, 0, stamp, PLENTY_BYTES
            yield ledger_id, last_entry_id + 1, stamp, PLENTY_BYTES
        for batch in self._batches:
            yield read_of(batch)

    def wanted(self, read: Read) -> list[Batch] | None:
        """The required result of this read; None if it must raise `StorageUncertainError`, because the entry was
        dropped (F5)."""
        return _unless_uncertain(lambda: self._storage.read(*read))

    def wanted_marks(self, ledger_id: int) -> Marks | None:
        """The required marks of this ledger."""
        return self._storage.marks(ledger_id)

    def _wrong_marks(self, storage: Storage, ledger_id: int) -> str | None:
        found, wanted = storage.marks(ledger_id), self.wanted_marks(ledger_id)
        return None if found == wanted else f"marks({ledger_id}) are {found}, not {wanted}"

    def _wrong_read(self, storage: Storage, read: Read) -> str | None:
        wanted, found = self.wanted(read), _unless_uncertain(lambda: storage.read(*read))
        if found != wanted:
            return f"read{read} gives {told(found)}, not {told(wanted)}"
        try:
            at_once = _unless_uncertain(lambda: storage.read_nowait(*read))
        except trio.WouldBlock:
            return None
        if at_once is None or wanted is None:
            # A dropped entry may be in the memory of a storage for a moment longer.
            return None if wanted is None else f"read_nowait{read} raises, while `read` gives {told(found)}"
        if at_once == wanted[: len(at_once)] and bool(at_once) == bool(wanted):
            return None
        return f"read_nowait{read} gives {told(at_once)}, while `read` gives {told(found)}"


def read_of(batch: Batch) -> Read:
    """A read of only this batch."""
    return batch.ledger_id, batch.last_entry_id, batch.stamp, 0


def _unless_uncertain(call: Callable[[], list[Batch]]) -> list[Batch] | None:
    try:
        return call()
    except StorageUncertainError:
        return None


def told(batches: Sequence[Batch] | None) -> str:
    """A short description of batches."""
    if batches is None:
        return "StorageUncertainError"
    some = ", ".join(map(repr, batches[:4]))
    return f"{len(batches)} batches: {some}{', ...' if len(batches) > 4 else ''}" if batches else "nothing"
