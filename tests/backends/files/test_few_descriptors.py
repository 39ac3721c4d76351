"""Few files may be open at a time; one reading may need more of them than that."""

import contextlib
import errno

import attrs
import pytest

from replog.backends.files.storage import open_storage
from replog.errors import StorageUncertainError
from replog.protocol.mutations import DropLedger, PutBatch
from replog.testing.disk import MemoryDisk
from replog.testing.storage_conformance import make_batch
from tests.backends.files.workload import SMALL


def test_read_spans_more_files_than_may_be_open() -> None:
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


def test_compaction_of_many_small_files_opens_few_at_a_time() -> None:
    disk = MemoryDisk()
    options = attrs.evolve(SMALL, open_files_max=3)
    batches = [make_batch(ledger_id, 0, 3, size_bytes=50) for ledger_id in range(1, 31)]
    most = 0

    def fault(operation: str, path: str) -> None:
        nonlocal most
        most = max(most, disk.open_count)

    with contextlib.closing(open_storage("/st", options, disk=disk, background=False)) as storage:
        for batch in batches:
            storage.commit([PutBatch(batch)])
            storage.commit([PutBatch(make_batch(1000 + batch.ledger_id, 0, 3, size_bytes=15_000))])
            storage.commit([DropLedger(1000 + batch.ledger_id)])
        assert storage.statistics()["journal_files"] > 25
        disk.fault = fault
        storage.compact()
        assert storage.statistics()["journal_files"] < 5
        assert 0 < most < 15
        for batch in batches:
            assert storage.read(batch.ledger_id, 0, 1, 0) == [batch]


def test_too_many_open_files_is_not_reported_as_damage() -> None:
    """R4: reads say unknown, compaction and scrubbing leave it for another time; then all is well."""
    disk = MemoryDisk()
    batches = [make_batch(ledger_id, 0, 3, size_bytes=50) for ledger_id in range(1, 9)]
    storage = open_storage("/st", SMALL, disk=disk, background=False)
    for batch in batches:
        storage.commit([PutBatch(batch)])
        storage.commit([PutBatch(make_batch(1000 + batch.ledger_id, 0, 3, size_bytes=15_000))])
        storage.commit([DropLedger(1000 + batch.ledger_id)])

    def fault(operation: str, path: str) -> None:
        if operation == "open" and path.endswith(".journal"):
            raise OSError(errno.EMFILE, "Too many open files", path)

    disk.fault = fault
    storage.compact()
    storage.scrub()
    with pytest.raises(StorageUncertainError, match="Too many open files"):
        storage.read(1, 0, 1, 0)
    disk.fault = lambda operation, path: None
    assert storage.damage() == ()
    storage.compact()
    assert storage.statistics()["copied_batches"] >= 6
    for batch in batches:
        assert storage.read(batch.ledger_id, 0, 1, 0) == [batch]
    storage.close()
    assert disk.open_count == 0
