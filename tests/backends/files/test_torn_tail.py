"""B3: halves of groups, and what earlier lives of a file left behind, never count, alone or together.

Processes are killed here: a clean `close` leaves a catalog that knows the last group, so nothing is torn."""

from replog.abc import Doubt, DropLedger, PutBatch
from replog.testing.disk import MemoryDisk
from replog.testing.storage_conformance import make_batch
from tests.backends.files.workload import FIRST_FILE, open_small, position_of

SIZE_BYTES = 2000
MARK = "/st/durable-mark"


def batches(*first_entry_ids: int, ledger_id: int = 1) -> list[PutBatch]:
    return [PutBatch(make_batch(ledger_id, first, 1, size_bytes=SIZE_BYTES)) for first in first_entry_ids]


def test_the_halves_of_two_torn_groups_do_not_make_one() -> None:
    disk = MemoryDisk()
    storage = open_small(disk)
    storage.commit(batches(0))
    start = position_of(storage)
    before, mark = bytes(disk.content(FIRST_FILE)), bytes(disk.content(MARK))
    storage.commit(batches(100, 101, 102))
    end = position_of(storage)
    disk = disk.after_kill()
    disk.content(MARK)[:] = mark  # nobody was told

    content = disk.content(FIRST_FILE)
    first_record_end = start + (end - start) // 3
    content[start:first_record_end] = before[start:first_record_end]  # the first of three records was lost
    storage = open_small(disk)
    assert storage.read(1, 101, 1, 0) == []
    torn = bytes(content)
    storage.commit(batches(200, 201, 202))
    disk = disk.after_kill()
    disk.content(MARK)[:] = mark
    content = disk.content(FIRST_FILE)
    content[first_record_end:] = torn[first_record_end:]  # of the next group only its beginning survived
    storage = open_small(disk)
    assert storage.doubt() == Doubt()
    assert [storage.read(1, entry, 1, 0) for entry in (100, 101, 102, 200, 201, 202)] == [[]] * 6
    assert len(storage.read(1, 0, 1, 0)) == 1
    storage.close()


def test_a_shorter_group_over_a_torn_one_ends_where_it_ends() -> None:
    disk = MemoryDisk()
    storage = open_small(disk)
    storage.commit(batches(0))
    start = position_of(storage)
    mark = bytes(disk.content(MARK))
    storage.commit(batches(100, 101, 102, 103))
    disk = disk.after_kill()
    disk.content(MARK)[:] = mark
    disk.content(FIRST_FILE)[start : start + 10] = bytes(10)
    storage = open_small(disk)
    storage.commit(batches(100))
    storage.close()
    storage = open_small(disk)
    assert [len(storage.read(1, entry, 1, 0)) for entry in (0, 100, 101, 102, 103)] == [1, 1, 0, 0, 0]
    storage.close()


def test_a_header_before_the_payload_of_an_earlier_life_is_torn() -> None:
    """A batch ends with its own CRC32C, so a plain CRC32C over it is the same for every batch of that length."""
    disk = MemoryDisk()
    storage = open_small(disk)
    first, new, old = (make_batch(ledger_id, 0, 1, size_bytes=SIZE_BYTES) for ledger_id in (1, 2, 3))
    storage.commit([PutBatch(first)])
    mark = bytes(disk.content(MARK))
    storage.commit([PutBatch(new)])
    end = position_of(storage)
    disk = disk.after_kill()
    disk.content(MARK)[:] = mark
    disk.content(FIRST_FILE)[end - len(new.data) : end] = old.data
    storage = open_small(disk)
    assert storage.ledger_ids() == [1]
    assert storage.read(1, 0, 1, 0) == [first]
    storage.close()


def test_records_of_an_earlier_life_of_the_file_are_not_replayed() -> None:
    """A file is used again as it is: behind the new records stand whole groups of its earlier life."""
    disk = MemoryDisk()
    storage = open_small(disk)
    for ledger_id in range(1, 20):
        storage.commit([*batches(*range(6), ledger_id=ledger_id), DropLedger(ledger_id - 1)])
    replays_over_stale_records = 0
    for ledger_id in range(20, 50):
        storage.commit([*batches(*range(6), ledger_id=ledger_id), DropLedger(ledger_id - 1)])
        current = storage._journal.current
        replays_over_stale_records += b"rlgr" in disk.content(current.path)[current.position :]
        storage.close()
        storage = open_small(disk)
        assert storage.ledger_ids() == [ledger_id]
        assert len(storage.read(ledger_id, 0, 1, 1 << 20)) == 6
    assert replays_over_stale_records > 5, "hardly any file with stale records behind its end was replayed"
    storage.close()
