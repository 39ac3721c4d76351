"""Commits whose sync is left to others (`Storage.begin_commit`): the same promises as `commit` (B1-B3)."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from replog.backends.disk import Disk
from replog.backends.files.options import FilesTuning
from replog.backends.files.storage import FilesStorage, open_storage
from replog.errors import StorageFailedError, StorageFullError
from replog.protocol.mutations import Mutation, PutBatch, SetMarks
from replog.runtime.kernel_sync import KernelSync, open_kernel_sync
from replog.testing import check_storage
from replog.testing.disk import MemoryDisk
from replog.testing.storage_conformance import basics, bounds, make_batch, marks, threads
from replog.testing.storage_conformance.candidate import Candidate
from replog.testing.storage_conformance.kills import check_kills
from replog.testing.storage_conformance.life import check_life
from tests.runtime.test_kernel_sync import PretendedKernel

OPTIONS = FilesTuning(journal_file_bytes=64 << 10)
ROOT = "/st"


@pytest.fixture
def sync() -> Iterator[KernelSync]:
    sync = KernelSync(PretendedKernel())  # a disk in memory does not ask it
    yield sync
    sync.close()


def put(first: int, size_bytes: int = 100) -> list[Mutation]:
    return [PutBatch(make_batch(1, first, 1, size_bytes=size_bytes))]


def opened(disk: Disk, options: FilesTuning = OPTIONS) -> FilesStorage:
    return open_storage(ROOT, options, disk=disk)


def begun(storage: FilesStorage, sync: KernelSync, mutations: Sequence[Mutation]) -> Callable[[OSError | None], None]:
    end = storage.begin_commit(mutations, sync)
    assert end is not None
    assert sync.has_ended()
    return end


class BeginningStorage(FilesStorage):
    """Commits as an event loop does, whenever that is possible."""

    begun = 0

    def __init__(self, path: str, options: FilesTuning, disk: Disk, *, background: bool) -> None:
        super().__init__(path, options, disk, background=background)
        sync = open_kernel_sync()
        if sync is None:
            pytest.skip("this kernel has no asynchronous I/O, or does not allow it")
        self._sync = sync

    def commit(self, mutations: Sequence[Mutation]) -> None:
        end = self.begin_commit(mutations, self._sync)
        if end is None:
            super().commit(mutations)
            return
        BeginningStorage.begun += 1
        self._sync.wait()
        end(self._sync.outcome())


CHECKS_OF_COMMITS: tuple[Callable[[Candidate], None], ...] = (
    *basics.CHECKS,
    *marks.CHECKS,
    partial(check_kills, kills=2, seed=0),
    partial(check_life, steps=60, seed=0),
    bounds.check_large_commit,
    bounds.check_reading_on,
    threads.check_threads,
    threads.check_order_seen,
)


@pytest.mark.sized
def test_conformance(tmp_path: Path, is_long: bool) -> None:
    """In the long lane the whole conformance suite: what does not depend on how commits end is in `test_storage.py` always."""

    def open_beginning(path: Path) -> BeginningStorage:
        return BeginningStorage(str(path), OPTIONS, Disk(), background=True)

    if is_long:
        check_storage(open_beginning, tmp_path)
    else:
        for number, check in enumerate(CHECKS_OF_COMMITS):
            check(Candidate(open_beginning, tmp_path / f"{number}"))
    assert BeginningStorage.begun > 100


def test_it_asks_the_disk_for_the_same_as_a_commit(sync: KernelSync) -> None:
    seen: list[list[tuple[str, str]]] = []
    for is_begun in (False, True):
        disk = MemoryDisk(1)
        with closing(opened(disk)) as storage:
            storage.commit(put(0))
            asked: list[tuple[str, str]] = []
            disk.fault = lambda operation, path, asked=asked: asked.append((operation, path))  # type: ignore[misc]
            if is_begun:
                begun(storage, sync, put(1))(sync.outcome())
            else:
                storage.commit(put(1))
            seen.append([each for each in asked if "journal" in each[1] or "mark" in each[1]])
            disk.fault = MemoryDisk().fault
    assert seen[0] == seen[1]
    assert [operation for operation, _ in seen[0]] == ["pwritev", "fdatasync", "pwritev"]


def test_nothing_is_read_before_it_is_durable(sync: KernelSync) -> None:
    with closing(opened(MemoryDisk())) as storage:
        end = begun(storage, sync, put(0))
        assert storage.marks(1) is None
        assert storage.ledger_ids() == []
        end(sync.outcome())
        assert [batch.first_entry_id for batch in storage.read(1, 0, 1, 1 << 20)] == [0]
        assert storage.statistics()["commits"] == 1


def test_a_failed_sync_stops_the_storage(sync: KernelSync) -> None:
    disk = MemoryDisk()
    storage = opened(disk)
    storage.commit(put(0))
    failing = [errno.EIO]

    def fault(operation: str, path: str) -> None:
        if operation == "fdatasync" and "journal" in path and failing:
            raise OSError(failing.pop(), "Input/output error", path)

    disk.fault = fault
    end = begun(storage, sync, put(1))
    with pytest.raises(StorageFailedError, match=r"could not sync /st/journal.* \(EIO\)"):
        end(sync.outcome())
    assert storage.begin_commit(put(2), sync) is None
    with pytest.raises(StorageFailedError, match="has stopped"):
        storage.commit(put(2))
    with pytest.raises(StorageFailedError, match="has stopped"):
        storage.read(1, 0, 1, 1 << 20)
    storage.close()
    with closing(opened(disk.after_power_loss(random.Random(1)))) as again:
        assert again.read(1, 0, 1, 1 << 20), "what was confirmed is there"
        assert again.doubt().doubted_below == 0, "nothing that was confirmed is missing"


def test_a_failed_write_stops_the_storage(sync: KernelSync) -> None:
    disk = MemoryDisk()
    storage = opened(disk)

    def fault(operation: str, path: str) -> None:
        if operation == "pwritev" and "journal" in path:
            raise OSError(errno.EIO, "Input/output error", path)

    disk.fault = fault
    with pytest.raises(StorageFailedError, match="could not write"):
        storage.begin_commit(put(0), sync)
    with pytest.raises(StorageFailedError, match="has stopped"):
        storage.commit(put(0))
    storage.close()


def test_without_space_nothing_happened_and_the_storage_goes_on(sync: KernelSync) -> None:
    disk = MemoryDisk()
    with closing(opened(disk)) as storage:
        failing = [errno.ENOSPC]

        def fault(operation: str, path: str) -> None:
            if operation == "pwritev" and "journal" in path and failing:
                raise OSError(failing.pop(), "No space left on device", path)

        disk.fault = fault
        with pytest.raises(StorageFullError):
            storage.begin_commit(put(0), sync)
        assert storage.ledger_ids() == []
        begun(storage, sync, put(0))(sync.outcome())
        assert storage.ledger_ids() == [1]


@pytest.mark.parametrize("seed", range(20))
def test_ended_commit_survives_a_power_loss(sync: KernelSync, seed: int) -> None:
    disk = MemoryDisk(seed)
    with closing(opened(disk)) as storage:
        for first in range(seed % 3):
            begun(storage, sync, put(first))(sync.outcome())
        end = begun(storage, sync, put(seed % 3))
        left = disk.after_power_loss(random.Random(seed))
        end(sync.outcome())
    with closing(opened(left)) as storage:
        for first in range(seed % 3):
            assert storage.read(1, first, 1, 1 << 20)
        assert storage.doubt().doubted_below == 0


def test_begin_commit_refuses_work_with_possible_waits(sync: KernelSync) -> None:
    with closing(opened(MemoryDisk())) as storage:
        storage.commit(put(0))
        assert storage.begin_commit([], sync) is None
        end = begun(storage, sync, put(1))
        assert storage.begin_commit(put(2), sync) is None, "another commit is under way"
        end(sync.outcome())
        first = 2
        # Until the next file of the journal is needed.
        while (ended := storage.begin_commit(put(first, 3000), sync)) is not None:
            assert sync.has_ended()
            ended(sync.outcome())
            first += 1
        assert storage.statistics()["journal_files"] == 1
        storage.commit(put(first, 3000))
        assert storage.statistics()["journal_files"] == 2
        begun(storage, sync, put(first + 1))(sync.outcome())


def test_batches_wait_where_the_journal_is_elsewhere(sync: KernelSync) -> None:
    with closing(opened(MemoryDisk(), FilesTuning(journal_dir="/jn"))) as storage:
        assert storage.begin_commit(put(0), sync) is None
        begun(storage, sync, [SetMarks(1, b"key", 1)])(sync.outcome())  # a fence must not wait
