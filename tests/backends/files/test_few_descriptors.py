"""Few files may be open at a time; one reading may need more of them than that."""

import contextlib

import attrs

from replog.backends.files.storage import open_storage
from replog.protocol.mutations import PutBatch
from replog.testing.disk import MemoryDisk
from replog.testing.storage_exam import make_batch
from tests.backends.files.workload import SMALL


def test_a_reading_over_more_files_than_may_be_open() -> None:
    disk = MemoryDisk()
    options = attrs.evolve(SMALL, open_files_max=1)
    batches = [make_batch(1, 3 * at, 3, size_bytes=9000) for at in range(12)]
    with contextlib.closing(open_storage("/st", options, disk=disk, background=False)) as storage:
        for batch in batches:
            storage.commit([PutBatch(batch)])
        assert storage.statistics()["journal_files"] > 5
        before = disk.open_count
        assert storage.read(1, 0, 1, 1 << 30) == batches
        for batch in batches:
            assert storage.read(1, batch.first_entry_id, 1, 0) == [batch]
        assert storage.damage() == ()
        assert disk.open_count <= before + 2
    assert disk.open_count == 0
