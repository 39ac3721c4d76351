"""B3: every flipped byte and every truncation of a journal is reported, or cuts the last group, of which nobody was told.

The same of all other files: see `test_every_byte`."""

import contextlib

import pytest

from replog.abc import DropLedger, Mutation, PutBatch, SetMarks
from replog.backends.files.checkpoint import Checkpointer
from replog.backends.files.record import PAGE_BYTES
from replog.errors import StorageDamagedError, StorageIdentityError, StorageUncertainError
from replog.testing.disk import MemoryDisk
from replog.testing.storage_exam import make_batch
from tests.backends.files.workload import FIRST_FILE, State, Workload, open_small, position_of

COMMITS: list[list[Mutation]] = [
    [PutBatch(make_batch(1, 0, 2)), SetMarks(1, b"key", 1)],
    [PutBatch(make_batch(1, 2, 1)), PutBatch(make_batch(2, 0, 1))],
    [SetMarks(3, None, 4, 5)],
    [DropLedger(2), PutBatch(make_batch(1, 3, 3))],
]
LEDGERS = (1, 2, 3)
IGNORED = (*range(52, 60),)  # of the header page: behind the header


def look(disk: MemoryDisk) -> State:
    """All that is to be seen; the disk stays as it is."""
    with contextlib.closing(open_small(disk.after_kill())) as storage:
        entries = [(ledger_id, entry_id) for ledger_id in LEDGERS for entry_id in range(7)]
        reads = tuple(tuple(storage.read(*entry, 1, 0)) for entry in entries)
        return tuple(storage.ledger_ids()), tuple(map(storage.marks, LEDGERS)), reads


def small_journal() -> tuple[MemoryDisk, list[int], list[State]]:
    """A disk whose storage was killed, where each group ends, and what was to be seen after each."""
    disk = MemoryDisk()
    open_small(disk)
    ends, states = [PAGE_BYTES], [look(disk)]
    for mutations in COMMITS:
        disk = disk.after_kill()
        storage = open_small(disk)  # so that there are epochs too
        storage.commit(mutations)
        ends.append(position_of(storage))
        states.append(look(disk))
    return disk, ends, states


def test_every_flipped_byte() -> None:
    disk, ends, states = small_journal()
    content = disk.content(FIRST_FILE)
    reported = cut = 0
    for offset in (*range(60), *range(PAGE_BYTES, ends[-1] + 60)):
        content[offset] ^= 0x40
        if offset < PAGE_BYTES or offset < ends[-2]:
            if offset in IGNORED:
                assert look(disk) == states[-1]
            else:
                with pytest.raises((StorageDamagedError, StorageIdentityError), match=FIRST_FILE):
                    look(disk)
                reported += 1
        else:
            state = look(disk)
            assert state == (states[-2] if ends[-2] <= offset < ends[-1] else states[-1]), offset
            cut += state == states[-2]
        content[offset] ^= 0x40
    assert reported > ends[-2] - PAGE_BYTES
    assert cut == ends[-1] - ends[-2]
    assert look(disk) == states[-1]


def test_every_truncation() -> None:
    disk, ends, states = small_journal()
    whole = bytes(disk.content(FIRST_FILE))
    content = disk.content(FIRST_FILE)
    for length in range(ends[-1] + 1):
        if 100 < length < PAGE_BYTES:
            continue  # as before and after: in the empty part of the header page
        content[:] = whole[:length]
        if length < 52:
            with pytest.raises(StorageDamagedError, match="header is unreadable"):
                look(disk)
        else:
            complete = max((at for at, end in enumerate(ends) if end <= length), default=0)
            assert look(disk) == states[complete]


def test_after_a_clean_close_the_last_group_is_not_taken_for_a_torn_tail() -> None:
    disk, ends, states = small_journal()
    disk = disk.after_kill()
    open_small(disk).close()
    content = disk.content(FIRST_FILE)
    whole = bytes(content)
    for offset in range(ends[-2], ends[-1]):
        content[offset] ^= 0x40
        with pytest.raises(
            StorageDamagedError, match=f"{FIRST_FILE} is damaged at {ends[-2]}: group 4 .* catalog knows group 4"
        ):
            look(disk)
        content[offset] ^= 0x40
    for length in range(PAGE_BYTES, ends[-1]):
        content[:] = whole[:length]
        with pytest.raises(StorageDamagedError, match=f"{FIRST_FILE} is damaged at .* catalog knows group 4"):
            look(disk)
    content[:] = whole
    assert look(disk) == states[-1]


def rolled_journal(monkeypatch: pytest.MonkeyPatch) -> tuple[MemoryDisk, Workload, dict[str, int]]:
    """A killed storage whose journal is to be replayed from several files, a workload that knows what is in it, and where
    the files end."""
    monkeypatch.setattr(Checkpointer, "is_worthwhile", lambda checkpointer: False)  # the mark stays where it is
    disk = MemoryDisk()
    workload = Workload(1)
    storage = open_small(disk)
    while len(storage._journal.sealed) < 4:
        workload.run(storage, 1)
    disk = disk.after_kill()
    return disk, workload, {file.path: file.position for file in storage._journal.files.values()}


def test_damage_in_any_file_but_the_last_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, workload, ends = rolled_journal(monkeypatch)
    for path in sorted(ends)[:-1]:
        for offset in (0, PAGE_BYTES, PAGE_BYTES + 10, (PAGE_BYTES + ends[path]) // 2, ends[path] - 1):
            disk.content(path)[offset] ^= 1
            with pytest.raises(StorageDamagedError, match="is damaged at"):
                open_small(disk)
            disk.content(path)[offset] ^= 1
    assert disk.open_count == 0
    with contextlib.closing(open_small(disk)) as storage:
        workload.settle(storage)


def test_a_missing_file_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, _, ends = rolled_journal(monkeypatch)
    for path in sorted(ends)[:-1]:
        survivor = disk.after_kill()
        survivor.unlink(path)
        with pytest.raises(StorageDamagedError, match="missing"):
            open_small(survivor)
    assert len(ends) >= 5


def test_an_empty_journal_directory_is_damage_not_a_new_storage() -> None:
    """B4: a wiped directory must not serve under the old identity."""
    disk = MemoryDisk()
    open_small(disk).close()
    disk.unlink(FIRST_FILE)
    with pytest.raises(StorageDamagedError, match="no journal file"):
        open_small(disk)


def test_a_missing_format_file_is_no_reason_to_start_anew() -> None:
    disk, _, _ = small_journal()
    disk = disk.after_kill()
    disk.unlink("/st/storage.json")
    with pytest.raises(StorageDamagedError, match=r"storage.json is missing, but .* holds records"):
        open_small(disk)


def test_damage_under_an_open_storage_is_uncertainty_never_absence() -> None:
    disk = MemoryDisk()
    batches = [make_batch(1, first) for first in (0, 3, 6)]
    with contextlib.closing(open_small(disk)) as storage:
        storage.commit([PutBatch(batch) for batch in batches])
        content = disk.content(FIRST_FILE)
        content[content.index(b"1/4/1")] ^= 1
        assert storage.read(1, 0, 1, 10_000) == batches[:1]
        for read in (storage.read, storage.read_nowait):
            with pytest.raises(StorageUncertainError, match="doesn't match its checksum"):
                read(1, 4, 1, 10_000)
        storage.commit([PutBatch(batches[1])])  # written again by a repair
        assert storage.read(1, 0, 1, 10_000) == batches
