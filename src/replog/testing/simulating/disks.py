"""The disks of simulated bookies: commits take virtual time, and can fail; reads can fail or give damaged bytes.

Everything that a commit made durable survives, except by `forget`. A crash or a failed sync in the middle of a commit keeps a
prefix of its mutations; none of them was acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
import trio

from replog.abc import Doubt, DropEntries, DropLedger, Marks, Mutation, PutBatch, Sighting, Storage, StoredRange
from replog.backends.dropped import EntryDroppedError
from replog.backends.memory import MemoryStorage, _Content
from replog.errors import StorageFailedError, StorageFullError, StorageUncertainError
from replog.protocol import batch as batches
from replog.protocol.batch import Batch
from replog.protocol.model import WRITER_TERM
from replog.testing.simulating.lost_commits import CommitHistory
from replog.testing.simulating.world import World

_PLENTY_BYTES = 1 << 40
_INSTANT_S = 0.0004
COMMIT_S = 0.003  # of a healthy disk, on average


@attrs.define
class ReadFaults:
    """Probabilities that a read fails, and that it gives damaged bytes."""

    uncertain_rate: float = 0.0
    lies_rate: float = 0.0


@attrs.define
class NoticedLosses:
    """The losses of a disk that left a trace, for oracles: `doubted_below` is the range that its doubt must cover once
    it is bounded.

    Fences of ledgers below `fences_lost_below` may have been lost; `lost_fences` has, by ledger, the highest term that was."""

    doubted_below: int = 0
    fences_lost_below: int = 0
    lost_fences: dict[int, int] = attrs.field(factory=dict)

    def add(self, next_ledger_id: int, lost_fences: Mapping[int, int]) -> None:
        """The disk lost something while ledgers below this id existed, and these fences with it."""
        self.doubted_below = next_ledger_id
        self.fences_lost_below = max(self.fences_lost_below, next_ledger_id)
        for ledger_id, term in lost_fences.items():
            self.lost_fences[ledger_id] = max(term, self.lost_fences.get(ledger_id, 0))


class SimulatedDisk:
    """The state that outlives a bookie's processes, and the present faults of the disk."""

    def __init__(self, world: World, name: str, bookie_id: str) -> None:
        self.world = world
        self.name = name
        self.content = _Content(bookie_id=bookie_id)
        self.random = world.stream(f"disk of {name}")
        self.commit_s = COMMIT_S
        self.is_full = False  # then commits with entries fail
        self.marks_full_rate = 0.0  # probability that a commit without entries fails too while the disk is full
        self.fails_next_sync = False
        self.reads = ReadFaults()
        self.stalled_until_s = 0.0
        self.on_drop: Callable[[int], None] = lambda _ledger_id: None  # called before a ledger is dropped
        self.on_drop_entries: Callable[[DropEntries], None] = lambda _mutation: None  # before entries are
        self.history: CommitHistory | None = None  # None unless the disk may forget commits
        self.doubt = Doubt()  # what the storage reports, durably
        self.noticed = NoticedLosses()
        self.forgotten: set[tuple[int, int]] = set()  # (ledger id, entry id) of entries that were durable and were lost

    def heal(self) -> None:
        """End all faults except slowness."""
        self.is_full = self.fails_next_sync = False
        self.marks_full_rate = 0.0
        self.reads = ReadFaults()
        self.stalled_until_s = 0.0

    def forget(self, commits: int, trace: str, next_ledger_id: int) -> None:
        """Lose the last commits, while no process has the disk open.

        `trace` is what the next process finds: "loss" if it sees that something was lost, "doubt" if it cannot be sure that
        nothing was lost (B8), "nothing" if it cannot notice."""
        assert self.history is not None
        lost = self.history.forget(self.content, commits)
        self.forgotten.update(lost.entries)
        self.world.tell(self.name, f"forgets {commits} commits, {len(lost.entries)} entries, leaves {trace}")
        if lost.entries:
            self.world.count("bookie forgot entries")
        if lost.fences:
            self.world.count("bookie forgot a fence")
        self.world.count(f"forgetting left {trace}")
        if trace != "nothing":
            self.noticed.add(next_ledger_id, lost.fences)
            self.doubt = self.doubt.raised(("simulated",), is_lost=trace == "loss")

    def commit(self, mutations: Sequence[Mutation]) -> None:
        """Make these mutations durable."""
        if self.history is not None:
            # Before they are applied: it keeps what they are about to change.
            self.history.remember(self.content, mutations)
        for mutation in mutations:
            if isinstance(mutation, DropEntries):
                self.on_drop_entries(mutation)
        MemoryStorage(self.content).commit(mutations)

    def duration_s(self, mean_s: float) -> float:
        """Draw how long an operation takes now; one in twenty takes ten times as long."""
        duration_s = self.random.random() * 2 * mean_s * (10 if self.random.random() < 0.05 else 1)
        return self.world.due_s(max(duration_s, self.stalled_until_s - self.world.now_s)) - self.world.now_s

    def holds(self, batch: Batch) -> bool:
        """True if the bytes of this batch are durable, or their ledger was deleted here."""
        if self.has_dropped(batch.ledger_id):
            return True  # they were durable until then
        return all(
            self._is_dropped(batch.ledger_id, entry_id, batch.stamp)
            or any(found.data == batch.data or found.holds(entry_id) for found in self._read(batch, entry_id))
            for entry_id in batch.entry_ids
        )

    def _read(self, batch: Batch, entry_id: int) -> list[Batch]:
        return MemoryStorage(self.content).read(batch.ledger_id, entry_id, batch.stamp, 1)[:1]

    def _is_dropped(self, ledger_id: int, entry_id: int, stamp: int) -> bool:
        """True if an entry was durable here, or may have been, until the bookie dropped it as another's (F5)."""
        try:
            MemoryStorage(self.content).read(ledger_id, entry_id, stamp, 1)
        except EntryDroppedError:
            return True
        return False

    def has_dropped(self, ledger_id: int) -> bool:
        """True if this ledger was deleted on this disk."""
        return ledger_id in self.content.deleted

    def has_entry(self, ledger_id: int, entry_id: int, stamp: int = WRITER_TERM) -> bool:
        """True if an entry is durable, or was durable until the disk lost it."""
        return (
            (ledger_id, entry_id) in self.forgotten
            or self._is_dropped(ledger_id, entry_id, stamp)
            or self.stores(ledger_id, entry_id, stamp)
        )

    def stores(self, ledger_id: int, entry_id: int, stamp: int = WRITER_TERM) -> bool:
        """True if an entry is durable."""
        if self._is_dropped(ledger_id, entry_id, stamp):
            return False
        return bool(MemoryStorage(self.content).read(ledger_id, entry_id, stamp, 1))

    def marks(self, ledger_id: int) -> Marks | None:
        """The durable marks of a ledger."""
        return MemoryStorage(self.content).marks(ledger_id)

    def ledger_ids(self) -> list[int]:
        """The ids of all ledgers on this disk."""
        return MemoryStorage(self.content).ledger_ids()


class SimulatedStorage(Storage):
    """A disk as one process has opened it."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self._world = disk.world
        self._inner = MemoryStorage(disk.content)
        self._stopped: StorageFailedError | None = None
        self._committing: Sequence[Mutation] = ()

    @property
    def bookie_id(self) -> str:
        """The id of the bookie (`Storage.bookie_id`)."""
        return self._inner.bookie_id

    def crash(self) -> None:
        """End the process: a prefix of the commit under way becomes durable, and every later call fails."""
        self._apply_some(self._committing)
        self._stopped = StorageFailedError(f"bookie {self.bookie_id}: its process is dead", "It was killed")

    def _apply_some(self, mutations: Sequence[Mutation]) -> None:
        kept = self.disk.random.randint(0, len(mutations))
        if kept:
            self.disk.commit(mutations[:kept])

    def _check(self) -> None:
        if self._stopped is not None:
            raise self._stopped

    def commit(self, mutations: Sequence[Mutation]) -> None:
        """Commits the mutations (`Storage.commit`)."""
        self._check()
        disk = self.disk
        has_entries = any(isinstance(mutation, PutBatch) for mutation in mutations)
        # Noted while it sleeps: a crash in the middle keeps a prefix of exactly these.
        self._committing = mutations
        self._world.threads.sleep(disk.duration_s(disk.commit_s))
        self._committing = ()
        self._check()
        if disk.is_full and (has_entries or disk.random.random() < disk.marks_full_rate):
            self._world.count("commit without space")
            raise StorageFullError(f"bookie {self.bookie_id}: no space", "Make some")
        if disk.fails_next_sync:
            disk.fails_next_sync = False
            self._apply_some(mutations)
            self._world.tell(disk.name, "a sync fails")
            self._world.count("sync failed")
            self._stopped = StorageFailedError(f"bookie {self.bookie_id}: a sync failed", "Restart it")
            raise self._stopped
        for mutation in mutations:
            if isinstance(mutation, DropLedger):
                disk.on_drop(mutation.ledger_id)
        disk.commit(mutations)
        self._world.tell(disk.name, f"commits {len(mutations)}")

    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        """The batches from the entry on (`Storage.read`)."""
        self._check()
        # In trio's thread a read must not take time: all tasks would wait for it.
        if self._world.threads.is_in_thread:
            self._world.threads.sleep(self.disk.duration_s(_INSTANT_S))
            self._check()
        return self._read(ledger_id, entry_id, stamp, bytes_max)

    def _read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        disk, faults = self.disk, self.disk.reads
        if faults.uncertain_rate and disk.random.random() < faults.uncertain_rate:
            self._world.count("read uncertain")
            raise StorageUncertainError(f"ledger {ledger_id}, entry {entry_id}: can't be read", "Ask another bookie")
        found = self._inner.read(ledger_id, entry_id, stamp, bytes_max)
        if found and faults.lies_rate and disk.random.random() < faults.lies_rate:
            self._world.count("read damaged")
            found[0] = damaged(found[0])
        return found

    def read_nowait(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        """The same as `read`, where half of the reads find the entry in memory (`Storage.read_nowait`)."""
        self._check()
        if self.disk.random.random() < 0.5:
            raise trio.WouldBlock
        return self._read(ledger_id, entry_id, stamp, bytes_max)

    def marks(self, ledger_id: int) -> Marks | None:
        """The ledger's marks, or None (`Storage.marks`)."""
        self._check()
        return self._inner.marks(ledger_id)

    def ledger_ids(self) -> list[int]:
        """The ids of all ledgers (`Storage.ledger_ids`)."""
        self._check()
        return self._inner.ledger_ids()

    def ranges(self, ledger_id: int) -> list[StoredRange]:
        """The stored ranges of a ledger (`Storage.ranges`)."""
        self._check()
        return self._inner.ranges(ledger_id)

    def doubt(self) -> Doubt:
        """The ledgers that the storage cannot vouch for (`Storage.doubt`)."""
        return self.disk.doubt

    def bound_doubt(self, below_ledger_id: int) -> None:
        """Limits the doubt to ledgers below this one (`Storage.bound_doubt`)."""
        self._check()
        self._world.threads.sleep(self.disk.duration_s(self.disk.commit_s))
        self._check()
        self.disk.doubt = self.disk.doubt.bounded(below_ledger_id)
        self._world.tell(self.disk.name, f"is in doubt below {self.disk.doubt.doubted_below}")

    def settle_doubt(self, found: Doubt, left: Doubt) -> None:
        """Replaces the doubt `found` by `left` (`Storage.settle_doubt`)."""
        self._check()
        self._world.threads.sleep(self.disk.duration_s(self.disk.commit_s))
        self._check()
        if self.disk.doubt == found:
            self.disk.doubt = left
            noticed = self.disk.noticed
            noticed.doubted_below = min(noticed.doubted_below, left.doubted_below)
            self._world.count("doubt settled")
            self._world.tell(self.disk.name, f"vouches again from ledger {left.doubted_below} on")

    def sighting(self) -> Sighting:
        """The last sighting of the metastore (`Storage.sighting`)."""
        self._check()
        return self._inner.sighting()

    def keep_sighting(self, sighting: Sighting) -> None:
        """Keeps a sighting of the metastore (`Storage.keep_sighting`)."""
        self._check()
        self._world.threads.sleep(self.disk.duration_s(self.disk.commit_s))
        self._check()
        self._inner.keep_sighting(sighting)

    def free_bytes(self) -> int | None:
        """The free bytes on the disk (`Storage.free_bytes`)."""
        self._check()
        return 0 if self.disk.is_full else _PLENTY_BYTES

    def close(self) -> None:
        """Closes the storage (`Storage.close`)."""
        self._world.threads.sleep(self.disk.duration_s(_INSTANT_S))
        if self._stopped is None:
            self._inner.close()


def damaged(batch: Batch) -> Batch:
    """Return a copy of the batch with one bit of its payload flipped, as a disk or a wire may do."""
    data = bytearray(batch.data)
    data[-6] ^= 4
    return batches.decode(bytes(data))
