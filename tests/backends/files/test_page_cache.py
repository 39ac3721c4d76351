"""What was written long ago is dropped from the page cache; what was written last, and what is written again, is not."""

from __future__ import annotations

import contextlib
import errno
import time
from pathlib import Path

import attrs
import pytest
import trio

from replog.backends.files.options import FilesTuning
from replog.backends.files.storage import FilesStorage, open_storage
from replog.errors import StorageUncertainError
from replog.protocol.batch import Batch
from replog.protocol.mutations import DELETED_TERM, DropLedger, Marks, PutBatch
from replog.testing.disk import MemoryDisk
from replog.testing.storage_conformance import make_batch
from tests.backends.files.workload import count_kinds, open_small

FILE_BYTES = 64 << 10
PER_FILE = 3  # of these batches; a fourth does not fit
ENTRY_BYTES = 5_000
DELETED = Marks(fence_term=DELETED_TERM)


def options_of(files: float, **others: object) -> FilesTuning:
    return FilesTuning(
        journal_file_bytes=FILE_BYTES,
        page_cache_bytes=int(files * FILE_BYTES),
        fill_ahead_bytes=0,
        compaction_bytes_per_s=0,
        scrub_bytes_per_s=0,
        minor_compaction_interval_s=0,
        major_compaction_interval_s=0,
        scrub_interval_s=0,
        **others,  # type: ignore[arg-type]
    )


def batch_of(ledger_id: int) -> Batch:
    return make_batch(ledger_id, 0, 3, size_bytes=ENTRY_BYTES)


def write(storage: FilesStorage, ledgers: range) -> None:
    """Each ledger has one batch, and `PER_FILE` of them are in a journal file."""
    for ledger_id in ledgers:
        storage.commit([PutBatch(batch_of(ledger_id))])


def cached(storage: FilesStorage, ledgers: range) -> list[int]:
    """Those that can be read without waiting for the disk."""
    found = []
    for ledger_id in ledgers:
        with contextlib.suppress(trio.WouldBlock):
            batches = storage.read_nowait(ledger_id, 0, 1, 0)
            if storage.marks(ledger_id) != DELETED:
                assert batches == [batch_of(ledger_id)]
                found.append(ledger_id)
    return found


def test_old_files_are_dropped_and_can_be_read_from_the_disk() -> None:
    ledgers = range(1, 8 * PER_FILE + 1)
    with contextlib.closing(open_small(MemoryDisk(), options_of(3))) as storage:
        write(storage, ledgers)
        kept = cached(storage, ledgers)
        assert kept == list(ledgers)[-4 * PER_FILE :], "three full files, and the one that is written"
        dropped = ledgers[: -4 * PER_FILE]
        assert storage.statistics()["page_cache_dropped_bytes"] > 0.7 * FILE_BYTES * len(dropped) / PER_FILE
        for ledger_id in dropped:
            assert storage.read(ledger_id, 0, 1, 0) == [batch_of(ledger_id)]
        assert cached(storage, ledgers) == list(ledgers), "what was read is in memory again, and stays"


def test_nothing_is_dropped_without_a_limit() -> None:
    ledgers = range(1, 30 * PER_FILE + 1)
    disk = MemoryDisk()
    kinds = count_kinds(disk)
    with contextlib.closing(open_small(disk, options_of(0))) as storage:
        write(storage, ledgers)
        assert cached(storage, ledgers) == list(ledgers)
        assert storage.statistics()["page_cache_dropped_bytes"] == 0
    assert not kinds["drop_cached journal file"]


def test_files_of_a_trimmed_log_are_not_dropped() -> None:
    """They are written again soon, which is fastest into pages that are in memory."""
    disk = MemoryDisk()
    kinds = count_kinds(disk)
    with contextlib.closing(open_small(disk, options_of(4.5))) as storage:
        for ledger_id in range(1, 40 * PER_FILE):
            write(storage, range(ledger_id, ledger_id + 1))
            if ledger_id > 3 * PER_FILE:
                storage.commit([DropLedger(ledger_id - 3 * PER_FILE)])
        assert storage.statistics()["journal_recycled_files"] > 20
    assert not kinds["drop_cached journal file"]
    assert not kinds["drop_cached spare file"]


def test_compacted_file_has_the_age_of_its_sources() -> None:
    """It doesn't drive out what was written last, which followers read."""
    ledgers = range(1, 8 * PER_FILE + 1)
    with contextlib.closing(open_small(MemoryDisk(), options_of(3))) as storage:
        write(storage, ledgers)
        newest = list(ledgers)[-4 * PER_FILE :]
        for ledger_id in ledgers[: 4 * PER_FILE : 2]:
            storage.commit([DropLedger(ledger_id)])
        storage.compact(is_major=True)
        assert storage.statistics()["copied_batches"] > PER_FILE
        write(storage, range(1000, 1000 + PER_FILE))  # the next file becomes full: then it is looked at
        assert cached(storage, ledgers) == newest[PER_FILE:]


def test_the_page_cache_keeps_an_unflushed_journal_only() -> None:
    ledgers = range(1, 24 * PER_FILE + 1)
    disk = MemoryDisk()
    kinds = count_kinds(disk)
    options = options_of(3, journal_dir="/jn", flush_bytes=2 * FILE_BYTES, entry_log_bytes=FILE_BYTES)
    with contextlib.closing(open_small(disk, options)) as storage:
        write(storage, ledgers)
        assert storage.statistics()["entry_logs"] > 5
        kept = cached(storage, ledgers)
    assert kept == list(ledgers)[-len(kept) :]
    assert PER_FILE < len(kept) < len(ledgers) // 2
    assert kinds["drop_cached entry log"]
    assert not kinds["drop_cached journal file"]


@pytest.mark.parametrize("can_open", [True, False])
def test_closed_file_is_opened_to_be_dropped_from_the_cache(*, can_open: bool) -> None:
    """If not, it is left to the kernel, and nothing fails but who reads it."""
    disk = MemoryDisk()
    kinds = count_kinds(disk)
    before = disk.fault

    def fault(operation: str, path: str) -> None:
        before(operation, path)
        if operation == "open" and "/0000" in path and path.endswith(".journal") and not can_open:
            raise OSError(errno.EMFILE, "Too many open files", path)

    with contextlib.closing(open_small(disk, options_of(4, open_files_max=2))) as storage:
        disk.fault = fault
        write(storage, range(1, 12 * PER_FILE))
        dropped_bytes = storage.statistics()["page_cache_dropped_bytes"]
        assert (dropped_bytes > 4 * FILE_BYTES) == can_open
        if can_open:
            assert storage.read(1, 0, 1, 0) == [batch_of(1)]
        else:
            with pytest.raises(StorageUncertainError, match="Too many"):
                storage.read(1, 0, 1, 0)
        disk.fault = before
    assert bool(kinds["drop_cached journal file"]) == can_open


def test_storage_thread_drops_files_from_a_real_page_cache(tmp_path: Path) -> None:
    """As soon as a file is too old; and all of it can still be read."""
    options = attrs.evolve(options_of(0), journal_file_bytes=1 << 20, page_cache_bytes=2 << 20)
    batches = [make_batch(ledger_id, 0, 3, size_bytes=100 << 10) for ledger_id in range(1, 25)]
    with contextlib.closing(open_storage(str(tmp_path / "st"), options)) as storage:
        for batch in batches:
            storage.commit([PutBatch(batch)])
        full_bytes = sum(file.position for file in storage._contents.files() if file is not storage._journal.current)
        assert full_bytes > 5 << 20
        deadline_s = time.monotonic() + 30
        while storage.statistics()["page_cache_dropped_bytes"] < full_bytes - options.page_cache_bytes:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        for batch in batches:
            assert storage.read(batch.ledger_id, 0, 1, 0) == [batch]
