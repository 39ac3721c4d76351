"""B1, B5: a full disk and a failing one, at every kind of write, sync, allocation, rename, removal, opening and reading."""

from __future__ import annotations

import contextlib
import errno
import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import trio

from replog.backends.files.options import FilesTuning
from replog.backends.files.storage import FilesStorage
from replog.errors import StorageError, StorageFailedError, StorageFullError, StorageUncertainError
from replog.protocol.mutations import DropLedger, PutBatch, SetMarks
from replog.testing.disk import MemoryDisk
from replog.testing.storage_conformance import make_batch
from tests.backends.files.workload import (
    INSIDE,
    PROFILES,
    Workload,
    count_kinds,
    frequent_looks,
    kind_of,
    open_small,
)

OPERATIONS = {
    "pwritev",
    "fdatasync",
    "sync_directory",
    "rename",
    "unlink",
    "make_directory",
    "allocate",
    "open",
    "pread",
    "names",
    "lock",
    "drop_cached",
}
TAKES_SPACE = {"pwritev", "allocate", "rename", "unlink", "open", "make_directory"}
FULL = {errno.ENOSPC, errno.EDQUOT}
SEED = 3
IN_LONG_LANE = pytest.mark.long(is_sampled=False)


class Injection:
    """The n-th operation of a kind fails, once or with all of the same name after it, while `is_armed`."""

    def __init__(self, disk: MemoryDisk, kind: str, at: int, code: int, *, is_lasting: bool) -> None:
        self.is_armed = True
        self.has_struck = False
        self._kind = kind
        self._at = at
        self._code = code
        self._is_lasting = is_lasting
        self.kinds: Counter[str] = Counter()
        disk.fault = self._fault

    def __str__(self) -> str:
        lasting = ", and all after it" if self._is_lasting else ""
        return f"{errno.errorcode[self._code]} at {self._kind!r} number {self._at}{lasting}"

    def _fault(self, operation: str, path: str) -> None:
        if not self.is_armed:
            return
        if operation in OPERATIONS:
            kind = kind_of(operation, path)
            self.kinds[kind] += 1
            is_hit = kind == self._kind and self.kinds[kind] == self._at
            if is_hit or (self._is_lasting and self.has_struck and self._kind.startswith(f"{operation} ")):
                self.has_struck = True
                raise OSError(self._code, "injected", path)


class Life:
    """A storage's life on a failing disk. What is not a named error, or is not true afterwards, fails the test."""

    def __init__(self, options: FilesTuning) -> None:
        self.options = options
        self.disk = MemoryDisk(SEED)
        self.workload = Workload(SEED, options)
        self.injection: Injection | None = None
        self.outcomes: set[str] = set()
        self.storage: FilesStorage | None = None

    def run(self) -> None:
        with frequent_looks():
            if self._open():
                for step in range(8):
                    if not self._step(step):
                        break
            self._close()
        self._expect_all_after(self.disk.after_kill())
        self._expect_all_after(self.disk.after_power_loss(random.Random(SEED)))

    def _arm(self, is_armed: bool) -> None:
        if self.injection is not None:
            self.injection.is_armed = is_armed

    def _open(self) -> bool:
        try:
            self.storage = open_small(self.disk, self.options)
        except StorageError:
            self.outcomes.add("not opened")
            assert self.disk.open_count == 0, "a descriptor stays open"
            return False
        return True

    def _step(self, step: int) -> bool:
        """Commits, reads and maintenance; whether the storage goes on."""
        storage = self.storage
        assert storage is not None
        work: tuple[Callable[[], None], ...] = (
            *[lambda: self.workload.run(storage, 1)] * 9,
            self._read,
            (storage.scrub, storage.compact, lambda: storage.compact(is_major=True))[step % 3],
        )
        for each in work:
            try:
                each()
            except StorageFullError:
                self.outcomes.add("full")
                self.workload.not_written()
                self._expect_nothing_changed()
            except StorageFailedError:
                self.outcomes.add("failed")
                self._arm(False)
                expect_stopped(storage)
                self._arm(True)
                return False
        self._expect_nothing_changed()
        if step == 4:
            self._close()
            return self._open()
        return True

    def _expect_nothing_changed(self) -> None:
        assert self.storage is not None
        self._arm(False)
        try:
            found = self.workload.state(self.storage)
        except StorageFailedError:
            self.outcomes.add("failed")
            expect_stopped(self.storage)  # it failed behind the scenes
        except StorageUncertainError:
            self.storage.scrub()  # an index couldn't be read, and is made anew
            found = self.workload.state(self.storage)
            assert found == self.workload.expected()[0]
        else:
            if self.storage.doubt().lost_below:
                # It could not read a journal when it was opened, serves the rest, and vouches for nothing (B8).
                self.workload.check_part(self.storage)
            else:
                assert found == self.workload.expected()[0]
        self._arm(True)

    def _read(self) -> None:
        assert self.storage is not None
        for batch in self.workload.batches[-12:]:
            place = batch.ledger_id, batch.first_entry_id, batch.stamp, 0
            for read in (self.storage.read, self.storage.read_nowait):
                try:
                    assert read(*place) == self.workload.acknowledged.read(*place)
                except (StorageUncertainError, trio.WouldBlock):
                    self.outcomes.add("uncertain")

    def _close(self) -> None:
        if self.storage is not None:
            self.storage.close()
            self.storage = None
        assert self.disk.open_count == 0, "a descriptor stays open"

    def _expect_all_after(self, disk: MemoryDisk) -> None:
        storage = open_small(disk, self.options)
        assert not [path for path in disk.paths() if path.endswith(".tmp")]
        self.workload.check(storage)
        storage.compact(is_major=True)
        storage.close()
        assert disk.open_count == 0


def expect_stopped(storage: FilesStorage) -> None:
    """B1: for good, and every call says so."""
    calls: tuple[Callable[[], object], ...] = (
        lambda: storage.read(1, 0, 1, 0),
        lambda: storage.read_nowait(1, 0, 1, 0),
        lambda: storage.commit([SetMarks(1, fence_term=99)]),
        lambda: storage.marks(1),
        storage.ledger_ids,
        storage.free_bytes,
        storage.compact,
        storage.scrub,
        storage.damage,
        storage.doubt,
        lambda: storage.bound_doubt(1),
        storage.statistics,
    )
    for call in calls:
        with pytest.raises(StorageFailedError, match="has stopped"):
            call()


def kinds_of_a_life(options: FilesTuning) -> Counter[str]:
    """How often each kind of operation happens if nothing fails."""
    life = Life(options)
    life.injection = Injection(life.disk, "nothing", 0, 0, is_lasting=False)
    life.run()
    return life.injection.kinds


def places(kinds: Counter[str], many: int) -> Iterator[tuple[str, int]]:
    chance = random.Random(SEED)
    for kind, count in sorted(kinds.items()):
        yield from ((kind, at) for at in sorted(chance.sample(range(1, count + 1), min(many, count))))


@pytest.mark.sized
@pytest.mark.crash
@pytest.mark.parametrize(
    ("profile", "code", "is_lasting"),
    [
        pytest.param("inside", errno.ENOSPC, True, id="inside-ENOSPC-lasting"),
        pytest.param("elsewhere", errno.EIO, False, id="elsewhere-EIO"),
        *(
            pytest.param(*each, id=f"{each[0]}-{errno.errorcode[each[1]]}{'-lasting' * each[2]}", marks=IN_LONG_LANE)
            for each in (
                ("elsewhere", errno.ENOSPC, True),
                ("inside", errno.EIO, False),
                *((profile, errno.ENOSPC, False) for profile in PROFILES),
                *((profile, errno.EDQUOT, True) for profile in PROFILES),
                *((profile, errno.EIO, True) for profile in PROFILES),
            )
        ),
    ],
)
def test_an_error_at_every_kind_of_operation(profile: str, code: int, is_lasting: bool, is_long: bool) -> None:
    """At one place of each kind, or at many in the long lane."""
    many = 25 if is_long else 1
    kinds = kinds_of_a_life(PROFILES[profile])
    assert len(kinds) > 25
    outcomes: set[str] = set()
    struck: list[bool] = []
    for kind, at in places(kinds, many):
        life = Life(PROFILES[profile])
        life.injection = Injection(life.disk, kind, at, code, is_lasting=is_lasting)
        life.workload.may_doubt = code == errno.EIO and kind.startswith("pread ")  # for good, as far as anybody knows
        try:
            life.run()
        except Exception as error:
            raise AssertionError(f"{profile}, {life.injection}: {error!r}") from error
        if code in FULL and kind.split()[0] in TAKES_SPACE:
            assert "failed" not in life.outcomes, f"{profile}, {life.injection}: a full disk stops nothing for good"
        outcomes |= life.outcomes
        struck.append(life.injection.has_struck)
    assert sum(struck) > 0.9 * len(struck)  # not all: what the cache lets go depends on the order of sets
    assert outcomes >= {"not opened", "uncertain"}
    assert ("full" if code in FULL else "failed") in outcomes


def no_fault(operation: str, path: str) -> None:
    """The disk is well again."""


@pytest.mark.parametrize("taken_bytes", [1, 500, 4000, 4096, 4500, 8191])
def test_half_written_group_is_wiped_when_disk_is_full(taken_bytes: int) -> None:
    """`StorageFullError` means that nothing of it happened, also after a crash: the first of several writes may have taken
    all but the padding."""
    disk = MemoryDisk(1)
    workload = Workload(1, INSIDE)
    storage = open_small(disk, INSIDE)
    workload.run(storage, 5)
    disk.write_bytes_max = taken_bytes
    writes = 0

    def fault(operation: str, path: str) -> None:
        nonlocal writes
        if operation == "pwritev":
            writes += 1
            if writes == 2:
                disk.write_bytes_max = 1 << 20
                raise OSError(errno.ENOSPC, "injected", path)

    disk.fault = fault
    with pytest.raises(StorageFullError):
        storage.commit(
            [PutBatch(make_batch(77, 0, 3, size_bytes=1300)), PutBatch(make_batch(77, 3, 3, size_bytes=1300))]
        )
    disk.fault = no_fault
    for survivor in (disk.after_kill(), *(disk.after_power_loss(random.Random(seed)) for seed in range(20))):
        again = open_small(survivor, INSIDE)
        workload.check(again)
        assert again.read(77, 0, 1, 0) == []
    workload.run(storage, 5)
    workload.check(open_small(disk.after_power_loss(random.Random(1)), INSIDE))


@pytest.mark.parametrize("profile", PROFILES)
def test_compaction_goes_on_when_an_index_stays_unreadable(profile: str) -> None:
    """R4: reads say unknown, and maintenance ends."""
    disk = MemoryDisk(1)
    workload = Workload(1, PROFILES[profile])
    storage = open_small(disk, PROFILES[profile])
    workload.run(storage, 60)
    storage.compact(is_major=True)
    workload.run(storage, 30)
    operations = 0

    def fault(operation: str, path: str) -> None:
        nonlocal operations
        operations += 1
        assert operations < 20_000, "it never ends"
        if operation == "pread" and ".index" in path:
            raise OSError(errno.EIO, "injected", path)

    disk.fault = fault
    storage.compact()
    storage.compact(is_major=True)
    storage.scrub()
    disk.fault = no_fault
    storage.scrub()
    workload.check(storage)
    storage.close()
    assert disk.open_count == 0
    workload.check(open_small(disk, PROFILES[profile]))


@pytest.mark.parametrize("clock_step_s", [1.0, 0.0], ids=["filled", "allocated"])
@pytest.mark.parametrize("capacity_bytes", [400_000, 500_000, 700_000])
@pytest.mark.parametrize("profile", PROFILES)
def test_a_full_disk_fences_and_drops_and_makes_room_again(
    profile: str, capacity_bytes: int, clock_step_s: float
) -> None:
    """B5: everything is full and sealed, and the catalog finds no space either: the reserve is for that."""
    disk = MemoryDisk(1)
    disk.clock_step_s = clock_step_s
    options = PROFILES[profile]
    storage = open_small(disk, options)
    disk.capacity_bytes = capacity_bytes
    for life in range(3):
        stored: list[int] = []
        ledger_id = 1000 * life
        while True:
            ledger_id += 1
            try:
                storage.commit([PutBatch(make_batch(ledger_id, 0, 3, size_bytes=3000)), SetMarks(ledger_id, b"k", 1)])
            except StorageFullError:
                break
            stored.append(ledger_id)
        assert len(stored) > 5
        for at in stored:
            storage.commit([SetMarks(at, fence_term=7)])
            assert storage.read(at, 0, 1, 0) == [make_batch(at, 0, 3, size_bytes=3000)]
        kept = stored[
            0 if profile == "inside" else -1
        ]  # a flush of the oldest would need space before it gives any back
        for at in stored:
            if at != kept:
                storage.commit([DropLedger(at)])
        storage.compact(is_major=True)
        storage.commit([PutBatch(make_batch(1000 * life + 999, 0, 3, size_bytes=3000))])
        marks = storage.marks(kept)
        assert marks is not None
        assert marks.fence_term == 7
        storage.commit([DropLedger(kept), DropLedger(1000 * life + 999)])
        storage.close()
        assert disk.open_count == 0
        storage = open_small(disk, options)
        assert storage.ledger_ids() == []
    storage.close()


def test_file_rolled_without_space_goes_before_next_commit() -> None:
    """Its descriptor is closed once."""
    disk = MemoryDisk(1)
    storage = open_small(disk, INSIDE)
    storage.commit([PutBatch(make_batch(1, 0, 3, size_bytes=15_000))])

    def fault(operation: str, path: str) -> None:
        if operation == "pwritev" and writes_to_second_file(path):
            raise OSError(errno.ENOSPC, "injected", path)

    def writes_to_second_file(path: str) -> bool:
        return storage._journal.current.number == 2 and ".index" not in path and "catalog" not in path

    disk.fault = fault
    with pytest.raises(StorageFullError):
        storage.commit([PutBatch(make_batch(2, 0, 3, size_bytes=15_000))])
    assert storage._journal.current.number == 2
    disk.fault = no_fault
    storage.compact(is_major=True)  # the first file has little left afterwards
    storage._contents.index.drop(1)
    storage.compact(is_major=True)
    for ledger_id in range(3, 9):
        storage.commit([PutBatch(make_batch(ledger_id, 0, 3, size_bytes=15_000))])
    storage.close()
    assert disk.open_count == 0


@pytest.mark.parametrize("profile", PROFILES)
def test_full_disk_gets_room_from_the_reserve(profile: str) -> None:
    """B5: indexes and the catalog, without which nothing may go, find no space but that of the reserve."""
    disk = MemoryDisk(1)
    options = PROFILES[profile]
    storage = open_small(disk, options)
    kept = make_batch(1, 0, 3, size_bytes=3000)
    storage.commit([PutBatch(kept)])
    disk.capacity_bytes = 600_000
    storage._maintenance.commit_done = lambda: None  # type: ignore[method-assign]  # as if its thread had no turn yet
    ledger_id = 1
    with pytest.raises(StorageFullError):
        while True:
            ledger_id += 1
            storage.commit([PutBatch(make_batch(ledger_id, 0, 3, size_bytes=3000))])
    assert len(storage._journal.sealed) > 3
    for at in range(2, ledger_id):
        storage.commit([DropLedger(at)])
    disk.capacity_bytes = disk.size_bytes()
    kinds = count_kinds(disk)
    storage.compact(is_major=True)
    assert kinds["unlink reserve"] > 0
    assert storage.read(1, 0, 1, 0) == [kept]
    del storage._maintenance.commit_done
    again = [make_batch(1000 + at, 0, 3, size_bytes=3000) for at in range(20)]
    for batch in again:
        storage.commit([PutBatch(batch)])
    storage.close()
    with contextlib.closing(open_small(disk, options)) as storage:
        for batch in (kept, *again):
            assert storage.read(batch.ledger_id, 0, 1, 0) == [batch]
    assert "/st/reserve" in disk.paths(), "there is one again for the next time"


def test_storage_stops_when_free_space_is_unknown() -> None:
    disk = MemoryDisk()
    storage = open_small(disk)

    def fault(operation: str, path: str) -> None:
        if operation == "free_bytes":
            raise OSError(errno.EIO, "Input/output error", path)

    disk.fault = fault
    with pytest.raises(StorageFailedError, match="could not look at the disk"):
        storage.free_bytes()
    disk.fault = lambda operation, path: None
    with pytest.raises(StorageFailedError, match="has stopped"):
        storage.marks(1)
    storage.close()
