"""A random workload on a files storage beside the same workload in memory, on a disk that fails."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs

from replog.abc import Doubt, Storage
from replog.backends.dropped import EntryDroppedError
from replog.backends.files import background_pace
from replog.backends.files.options import FilesTuning
from replog.backends.files.storage import FilesStorage, open_storage
from replog.backends.memory import MemoryStorage
from replog.protocol.batch import Batch
from replog.protocol.mutations import DropEntries, DropLedger, Mutation, PutBatch, SetMarks
from replog.testing.disk import MemoryDisk, PowerLoss
from replog.testing.storage_conformance import make_batch

SMALL = FilesTuning(journal_file_bytes=64 << 10, spare_files=1, fill_ahead_bytes=16 << 10, open_files_max=2)
CHANGES = {"pwritev", "fdatasync", "sync_directory", "rename", "unlink", "make_directory", "allocate"}
LEDGERS = range(1, 4)
FRESH_LEDGER = 10_000  # from here on: of what is committed after a crash, to see that it goes on
STAMPS = (1, 1, 2)

State = tuple[object, ...]


@attrs.frozen
class TinyOptions(FilesTuning):
    """Options so small that everything happens within a few hundred KiB: an entry log has a few batches, and the ledger
    cache holds hardly a page."""

    def __attrs_post_init__(self) -> None:
        """Nothing is too small."""


def tiny(*, journal_dir: str = "") -> FilesTuning:
    return TinyOptions(
        journal_file_bytes=64 << 10,
        journal_dir=journal_dir,
        spare_files=1,
        fill_ahead_bytes=16 << 10,
        flush_bytes=100 << 10,
        open_files_max=2,
        ledger_cache_bytes=3000,
        page_cache_bytes=70 << 10,
        entry_log_bytes=40 << 10,
        compaction_bytes_per_s=0,
        scrub_bytes_per_s=0,
    )


INSIDE = tiny()
ELSEWHERE = tiny(journal_dir="/jr")
PROFILES = {"inside": INSIDE, "elsewhere": ELSEWHERE}


@contextmanager
def frequent_looks() -> Iterator[None]:
    """Compaction and scrubbing look after other work every few batches, and not every few MiB."""
    before = background_pace._STRETCH_BYTES
    background_pace._STRETCH_BYTES = 16 << 10
    try:
        yield
    finally:
        background_pace._STRETCH_BYTES = before


def open_small(disk: MemoryDisk, options: FilesTuning = SMALL) -> FilesStorage:
    return open_storage("/st", options, disk=disk, background=False)


class Workload:
    """Random commits and maintenance, what was acknowledged, and what must be there after a crash."""

    def __init__(self, seed: int, options: FilesTuning = SMALL) -> None:
        self.chance = random.Random(seed)
        self.options = options
        self.may_doubt = False  # something worse than a crash happens
        self.acknowledged = MemoryStorage()
        self.history: list[list[Mutation]] = []
        self.in_flight: list[Mutation] | None = None
        self.batches: list[Batch] = []
        self.ledgers = list(LEDGERS)
        self.next_entry: dict[tuple[int, int], int] = {}
        self._expected: list[State] | None = None

    # -- what is done ---------------------------------------------------------------------------------------------

    def next_commit(self) -> list[Mutation]:
        mutations: list[Mutation] = []
        for _ in range(self.chance.choice((1, 1, 2, 5))):
            at = self.chance.randrange(len(self.ledgers))
            ledger_id = self.ledgers[at]
            kind = self.chance.random()
            if kind < 0.7:
                mutations += [PutBatch(batch) for batch in self._batches(ledger_id)]
            elif kind < 0.87:
                marks = SetMarks(ledger_id, b"key %d" % ledger_id, self.chance.randrange(50), self.chance.randrange(9))
                mutations.append(marks)
            elif kind < 0.91:
                first = self.chance.randrange(20)
                last = first + self.chance.choice((3, 10, 1000))
                stride = self.chance.choice((1, 1, 2, 3))
                last -= (last - first) % stride
                mutations.append(DropEntries(ledger_id, self.chance.choice(STAMPS), first, last, stride))
            else:
                mutations.append(DropLedger(ledger_id))
                self.ledgers[at] = max(self.ledgers) + 1
        return mutations

    def _batches(self, ledger_id: int) -> list[Batch]:
        """A new batch, two that overlap without a common entry, in either order (W1), or one of before once more."""
        again = [batch for batch in self.batches[-60:] if batch.ledger_id == ledger_id]
        if again and self.chance.random() < 0.1:
            return [self.chance.choice(again)]
        size_bytes = self.chance.choice((10, 200, 2000, 2000, 4000, 40_000 if self.chance.random() < 0.2 else 700))
        stamp = self.chance.choice(STAMPS)
        first = self.next_entry.get((ledger_id, stamp), 0)
        if self.chance.random() < 0.2:
            starts, stride, end = [first, first + 1], 2, first + 6
            self.chance.shuffle(starts)
        else:
            starts, stride, end = [first], 1, first + 3
        self.next_entry[ledger_id, stamp] = end
        made = [make_batch(ledger_id, at, 3, stride=stride, stamp=stamp, size_bytes=size_bytes) for at in starts]
        self.batches += made
        return made

    def run(self, storage: Storage, commits: int) -> None:
        """Commits; what is under way when an exception ends it stays in `in_flight`."""
        for _ in range(commits):
            self.in_flight = self.next_commit()
            self._expected = None
            storage.commit(self.in_flight)
            self.acknowledge()

    def live(self, disk: MemoryDisk, steps: int, *, commits: int = 8) -> None:
        """A storage's life on this disk: commits, maintenance, closing and opening again; ends with a clean close."""
        with frequent_looks():
            storage = open_small(disk, self.options)
            for step in range(steps):
                self.run(storage, commits)
                match step % 4 if step < 8 else self.chance.randrange(5):
                    case 0:
                        storage.compact(is_major=True)
                    case 1:
                        storage.scrub()
                    case 2:
                        storage.compact()
                    case 3:
                        storage.close()
                        storage = open_small(disk, self.options)
            storage.compact(is_major=True)
            storage.close()

    # -- what must be there ---------------------------------------------------------------------------------------

    def acknowledge(self) -> None:
        if self.in_flight is not None:
            self.acknowledged.commit(self.in_flight)
            self.history.append(self.in_flight)
            self.in_flight = None
            self._expected = None

    def not_written(self) -> None:
        self.in_flight = None
        self._expected = None

    def state(self, storage: Storage) -> State:
        """All that can be seen of a storage: each ledger in one reading, and the newest batches one by one."""
        firsts: dict[tuple[int, int], int] = {}
        for batch in self.batches:
            key = batch.ledger_id, batch.stamp
            firsts[key] = min(batch.first_entry_id, firsts.get(key, batch.first_entry_id))
        whole = tuple(
            read_or_doubt(storage, ledger_id, first, stamp, 1 << 40) for (ledger_id, stamp), first in firsts.items()
        )
        newest = self.batches[-8:] + self.batches[: -8 : max(1, len(self.batches) // 16)]
        single = tuple(read_or_doubt(storage, each.ledger_id, each.last_entry_id, each.stamp, 0) for each in newest)
        for batch, found in zip(newest, single, strict=True):
            assert found in ((), (batch,), None), "wrong data"
        known = range(1, max(self.ledgers) + 1)
        ledger_ids = [ledger_id for ledger_id in storage.ledger_ids() if ledger_id < FRESH_LEDGER]
        return (ledger_ids, [storage.marks(ledger_id) for ledger_id in known], whole, single)

    def expected(self) -> list[State]:
        """What was acknowledged; and that with what is in flight, if anything is."""
        if self._expected is None:
            self._expected = [self.state(self.acknowledged)]
            if self.in_flight is not None:
                following = MemoryStorage()
                for mutations in (*self.history, self.in_flight):
                    following.commit(mutations)
                self._expected.append(self.state(following))
        return self._expected

    def check(self, storage: Storage) -> State:
        """After a crash: everything acknowledged is there, and what was in flight wholly or not at all. Returns which."""
        found = self.state(storage)
        assert self.may_doubt or storage.doubt() == Doubt(), "a crash, or a power loss, that lost nothing is doubted"
        assert found in self.expected(), "what is there is not what was acknowledged, or it is a half of a commit"
        return found

    def check_part(self, storage: Storage) -> None:
        """Of a storage that lost something, perhaps that a ledger was dropped: each batch that is there was written once."""
        for ledger_id, stamp in {(each.ledger_id, each.stamp) for each in self.batches}:
            assert set(read_or_doubt(storage, ledger_id, 0, stamp, 1 << 40) or ()) <= set(self.batches)

    def settle(self, storage: Storage) -> None:
        """As `check`, and what was in flight is acknowledged now, or never will be."""
        found = self.check(storage)
        if found == self.expected()[0]:
            self.not_written()
        else:
            self.acknowledge()


def read_or_doubt(
    storage: Storage, ledger_id: int, entry_id: int, stamp: int, bytes_max: int
) -> tuple[Batch, ...] | None:
    """None if the entry was dropped (F5)."""
    try:
        return tuple(storage.read(ledger_id, entry_id, stamp, bytes_max))
    except EntryDroppedError:
        return None


# -- the disk -----------------------------------------------------------------------------------------------------


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


def kind_of(operation: str, path: str) -> str:
    """What a change of the disk is, in words that a test can count."""
    name = path.rpartition("/")[2]
    if name.endswith(".index.tmp"):
        name = "index of a journal file" if "/logs/" not in path else "index of an entry log"
    elif name.endswith(".log.tmp") or name.endswith(".log"):
        name = "entry log"
    elif name.startswith("spare-"):
        name = "spare file"
    elif name == "new.journal.tmp":
        name = "new journal file"
    elif name.endswith(".journal"):
        name = "journal file"
    elif name.endswith(".index"):
        name = "index"
    return f"{operation} {name}"


def count_kinds(disk: MemoryDisk) -> Counter[str]:
    """Counts what happens to the disk from now on, by kind."""
    kinds: Counter[str] = Counter()
    before = disk.fault

    def fault(operation: str, path: str) -> None:
        before(operation, path)
        kinds[kind_of(operation, path)] += 1

    disk.fault = fault
    return kinds


EVERYTHING = {
    "rename entry log": "a rewritten file gets its name",
    "rename index of an entry log": "and its index",
    "unlink entry log": "an entry log is removed, which was rewritten once more or became empty",
    "rename catalog.tmp": "the mark advances",
    "rename journal file": "a journal file is recycled",
    "rename spare file": "and used again",
    "unlink journal file": "or removed",
    "rename new journal file": "new ones are made",
    "drop_cached entry log": "an entry log is dropped from the page cache",
}
ADOPTION = {
    "rename index of a journal file": "a full journal file is adopted",
    "drop_cached journal file": "and later dropped from the page cache",
}

FIRST_FILE = "/st/journal/000000000001.journal"


def position_of(storage: FilesStorage) -> int:
    """Where the next group goes in the current file."""
    return storage._journal.current.position
