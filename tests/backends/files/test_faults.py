"""B1, B5: what a full and a failing disk do, at every write and sync."""

import contextlib
import errno
from collections.abc import Iterator

import pytest
import trio

from replog.abc import DropLedger, PutBatch, SetMarks
from replog.backends.files.options import FilesTuning
from replog.backends.files.storage import FilesStorage, open_storage
from replog.errors import StorageError, StorageFailedError, StorageFullError, StorageUncertainError
from replog.testing.disk import MemoryDisk
from replog.testing.storage_conformance import make_batch
from tests.backends.files.workload import CHANGES, SMALL, Workload, count_changes, open_small

CAPACITY_BYTES = 400_000


def fill(storage: FilesStorage) -> Iterator[int]:
    """Ledgers of one batch each, until the disk is full."""
    ledger_id = 0
    while True:
        ledger_id += 1
        try:
            storage.commit([PutBatch(make_batch(ledger_id, 0, 3, size_bytes=3000)), SetMarks(ledger_id, b"k", 1)])
        except StorageFullError:
            return
        yield ledger_id


def test_a_full_disk_serves_reads_and_fences_and_recovers() -> None:
    disk = MemoryDisk()
    storage = open_small(disk)
    disk.capacity_bytes = CAPACITY_BYTES
    stored = list(fill(storage))
    assert len(stored) >= 20
    for _ in range(3):
        with pytest.raises(StorageFullError, match="no space left"):
            storage.commit([PutBatch(make_batch(9999, 0, 3, size_bytes=3000))])
    assert storage.read(9999, 0, 1, 0) == []
    assert storage.marks(9999) is None
    assert all(storage.read(ledger_id, 1, 1, 0) for ledger_id in stored)
    assert not [path for path in disk.paths() if path.endswith(".tmp")]
    storage.commit([SetMarks(stored[0], fence_term=7)])  # recovery still fences
    for ledger_id in stored[:-1]:
        storage.commit([DropLedger(ledger_id)])  # and garbage collection still makes room
    again = list(fill(storage))[:5]
    assert len(again) == 5
    storage.close()
    storage = open_storage("/st", SMALL, disk=disk, background=False)
    assert storage.read(stored[-1], 0, 1, 0)
    disk.capacity_bytes = 1 << 40
    storage.commit([PutBatch(make_batch(10_000, 0, 3, size_bytes=100_000))])
    storage.close()


@pytest.mark.sized
@pytest.mark.parametrize(
    "code", [errno.ENOSPC, errno.EIO, pytest.param(errno.EDQUOT, marks=pytest.mark.long(is_sampled=False))]
)
def test_an_error_at_every_change_of_the_disk(code: int, is_long: bool) -> None:
    """At every third in `make test`: which ones, differs from one error to the other."""
    first, step = (1, 1) if is_long else (1 + code % 3, 3)
    disk = MemoryDisk(1)
    count = count_changes(disk)
    with contextlib.closing(open_small(disk)) as storage:
        Workload(1).run(storage, 30)
    outcomes = {run_into(change, code) for change in (*range(first, count[0] + 1, step), count[0] + 1)}
    assert "failed" in outcomes
    assert "done" in outcomes
    assert ("full" in outcomes) == (code != errno.EIO)


def run_into(change: int, code: int) -> str:
    """Lets the n-th change of the disk fail, checks what is left, and tells what happened."""
    disk = MemoryDisk(1)
    workload = Workload(1)
    count = 0

    def fault(operation: str, path: str) -> None:
        nonlocal count
        count += operation in CHANGES
        if operation in CHANGES and count == change:
            raise OSError(code, "injected", path)

    disk.fault = fault
    storage = None
    outcome = "done"
    try:
        storage = open_small(disk)
        workload.run(storage, 30)
    except StorageFullError:
        outcome = "full" if storage else "full at the start"
        if storage is not None:
            workload.not_written()
            assert workload.state(storage) == workload.state(workload.acknowledged)
            workload.run(storage, 10)
    except StorageFailedError:
        outcome = "failed" if storage else "failed at the start"
        if storage is not None:
            expect_stopped(storage)
    if storage is not None:
        storage.close()
    assert disk.open_count == 0
    again = open_small(disk.after_kill())
    workload.settle(again)
    again.close()
    return outcome


def expect_stopped(storage: FilesStorage) -> None:
    calls = (
        lambda: storage.commit([SetMarks(1, fence_term=99)]),
        lambda: storage.read(1, 0, 1, 0),
        lambda: storage.read_nowait(1, 0, 1, 0),
        lambda: storage.marks(1),
        storage.ledger_ids,
    )
    for call in calls:
        with pytest.raises(StorageFailedError, match="has stopped"):
            call()


def test_failed_sync_is_fatal_and_not_tried_again() -> None:
    disk = MemoryDisk()
    storage = open_small(disk)
    syncs = 0

    def fault(operation: str, path: str) -> None:
        nonlocal syncs
        if operation == "fdatasync":
            syncs += 1
            raise OSError(errno.EIO, "Input/output error", path)

    disk.fault = fault
    with pytest.raises(StorageFailedError, match="could not sync") as caught:
        storage.commit([SetMarks(1, fence_term=1)])
    assert isinstance(caught.value, StorageError)
    assert "restart the bookie" in caught.value.hint
    expect_stopped(storage)
    assert syncs == 1
    storage.close()


def test_short_writes_are_continued() -> None:
    disk = MemoryDisk()
    disk.write_bytes_max = 777
    workload = Workload(5)
    storage = open_small(disk)
    workload.run(storage, 20)
    storage.close()
    storage = open_small(disk)
    assert workload.state(storage) == workload.state(workload.acknowledged)


def test_more_batches_than_one_call_can_write() -> None:
    batches = [make_batch(1, entry_id, 1) for entry_id in range(3000)]
    disk = MemoryDisk()
    storage = open_small(disk)
    storage.commit([PutBatch(batch) for batch in batches])
    storage.close()
    storage = open_small(disk)
    assert storage.read(1, 0, 1, 1 << 30) == batches


def test_a_read_error_is_uncertainty_never_absence() -> None:
    disk = MemoryDisk()
    storage = open_small(disk)
    storage.commit([PutBatch(make_batch(1, 0))])

    def fault(operation: str, path: str) -> None:
        if operation.startswith("pread"):
            raise OSError(errno.EIO, "Input/output error", path)

    disk.fault = fault
    with pytest.raises(StorageUncertainError, match=r"000000000001\.journal is damaged at \d+: it cannot be read"):
        storage.read(1, 0, 1, 0)
    with pytest.raises(trio.WouldBlock):
        storage.read_nowait(1, 0, 1, 0)
    assert storage.read(1, 5, 1, 0) == []


def test_ten_thousand_dropped_batches_need_few_files() -> None:
    disk = MemoryDisk()
    options = FilesTuning(journal_file_bytes=64 << 10, spare_files=2)
    with contextlib.closing(open_storage("/st", options, disk=disk, background=False)) as storage:
        storage.commit([SetMarks(0, b"kept", 3)])
        most = 0
        for ledger_id in range(3, 2000):
            storage.commit([PutBatch(make_batch(ledger_id, 0, 5, size_bytes=1000)), DropLedger(ledger_id - 2)])
            most = max(most, disk.size_bytes())
        assert most <= 6 * options.capacity_bytes
        assert storage.statistics()["journal_recycled_files"] > 100
        assert len(storage._contents.index.deleted) <= 2
    with contextlib.closing(open_storage("/st", options, disk=disk, background=False)) as storage:
        assert storage.ledger_ids() == [0, 1998, 1999]
        marks = storage.marks(0)
        assert marks is not None
        assert marks.fence_term == 3
