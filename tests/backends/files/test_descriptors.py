"""Descriptors of full files: pinned while they are read, however few may be open."""

import contextlib

from replog.abc import PutBatch
from replog.testing.disk import MemoryDisk
from replog.testing.storage_conformance import make_batch
from tests.backends.files.workload import SMALL, open_small


def test_one_read_over_more_files_than_may_be_open() -> None:
    disk = MemoryDisk()
    batches = [make_batch(1, 2 * number, 2, size_bytes=12_000) for number in range(20)]
    with contextlib.closing(open_small(disk)) as storage:
        for batch in batches:
            storage.commit([PutBatch(batch)])
    with contextlib.closing(open_small(disk)) as storage:  # nothing is open yet
        assert storage.statistics()["journal_files"] > 2 * SMALL.open_files_max
        assert storage.read(1, 0, 1, 1 << 30) == batches
        assert sum(file.fd >= 0 for file in storage._contents.files()) > SMALL.open_files_max
        assert storage.read(1, 0, 1, 1) == batches[:1]
        assert storage.read(1, 39, 1, 1) == batches[-1:]
        open_files = [
            file for file in storage._contents.files() if file.fd >= 0 and file is not storage._journal.current
        ]
        assert len(open_files) <= SMALL.open_files_max
    assert disk.open_count == 0


def test_no_file_stays_pinned_when_one_cannot_be_opened() -> None:
    disk = MemoryDisk()
    batches = [make_batch(1, 2 * number, 2, size_bytes=12_000) for number in range(20)]
    with contextlib.closing(open_small(disk)) as storage:
        for batch in batches:
            storage.commit([PutBatch(batch)])
    with contextlib.closing(open_small(disk)) as storage:
        disk.unlink("/st/journal/000000000003.journal")
        with contextlib.suppress(Exception):
            storage.read(1, 0, 1, 1 << 30)
        assert [file.path for file in storage._contents.files() if file.pins] == []
