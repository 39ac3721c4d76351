"""B1, B5: a full disk and a failing one, at every kind of write, sync, allocation, rename, removal, opening and reading."""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import trio

from replog.backends.files.options import FilesOptions
from replog.backends.files.storage import FilesStorage
from replog.errors import StorageError, StorageFailedError, StorageFullError, StorageUncertainError
from replog.protocol.mutations import DropLedger, PutBatch, SetMarks
from replog.testing.disk import MemoryDisk
from replog.testing.storage_exam import make_batch
from tests.backends.files.workload import ELSEWHERE, INSIDE, PROFILES, Workload, frequent_looks, kind_of, open_small

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
}
FULL = {errno.ENOSPC, errno.EDQUOT}
SEED = 3


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

    def __init__(self, options: FilesOptions) -> None:
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
        """Commits, reads and upkeep; whether the storage goes on."""
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
        return step != 4 or (self._close() is None and self._open())

    def _expect_nothing_changed(self) -> None:
        assert self.storage is not None
        self._arm(False)
        try:
            found = self.workload.state(self.storage)
        except StorageFailedError:
            expect_stopped(self.storage)  # it failed behind the scenes
        except StorageUncertainError:
            self.storage.scrub()  # an index couldn't be read, and is made anew
            found = self.workload.state(self.storage)
            assert found == self.workload.expected()[0]
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
        storage.statistics,
    )
    for call in calls:
        with pytest.raises(StorageFailedError, match="has stopped"):
            call()


def kinds_of_a_life(options: FilesOptions) -> Counter[str]:
    """How often each kind of operation happens if nothing fails."""
    life = Life(options)
    life.injection = Injection(life.disk, "nothing", 0, 0, is_lasting=False)
    life.run()
    return life.injection.kinds


def places(kinds: Counter[str], many: int) -> Iterator[tuple[str, int]]:
    chance = random.Random(SEED)
    for kind, count in sorted(kinds.items()):
        yield from ((kind, at) for at in sorted(chance.sample(range(1, count + 1), min(many, count))))


@pytest.mark.crash
@pytest.mark.parametrize("is_lasting", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO], ids=["ENOSPC", "EDQUOT", "EIO"])
@pytest.mark.parametrize("profile", PROFILES)
def test_an_error_at_every_kind_of_operation(
    profile: str, code: int, is_lasting: bool, request: pytest.FixtureRequest
) -> None:
    """One place of each kind among all tests, every place when `make crash` asks for it."""
    is_long = request.config.option.markexpr == "crash"
    many = 10_000 if is_long else 1 if code == errno.EDQUOT else 2
    kinds = kinds_of_a_life(PROFILES[profile])
    assert len(kinds) > 25
    outcomes: set[str] = set()
    for kind, at in places(kinds, many):
        life = Life(PROFILES[profile])
        life.injection = Injection(life.disk, kind, at, code, is_lasting=is_lasting)
        try:
            life.run()
            assert life.injection.has_struck
        except Exception as error:
            raise AssertionError(f"{profile}, {life.injection}: {error!r}") from error
        outcomes |= life.outcomes
    assert outcomes >= {"not opened", "uncertain"}
    assert ("full" if code in FULL else "failed") in outcomes
