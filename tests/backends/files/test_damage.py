"""B3, B8: every flipped byte and every truncation of a journal is reported, and what is intact is served.

The same of all other files: see `test_every_byte`."""

import contextlib

import pytest

from replog.abc import UNBOUNDED, DropLedger, Mutation, PutBatch, SetMarks, Storage
from replog.backends.files.checkpoint import Checkpointer
from replog.backends.files.record import PAGE_BYTES
from replog.backends.memory import MemoryStorage
from replog.errors import StorageDamagedError, StorageUncertainError
from replog.testing.disk import MemoryDisk
from replog.testing.storage_conformance import make_batch
from tests.backends.files.workload import FIRST_FILE, State, Workload, open_small, position_of

COMMITS: list[list[Mutation]] = [
    [PutBatch(make_batch(1, 0, 2)), SetMarks(1, b"key", 1)],
    [PutBatch(make_batch(1, 2, 1)), PutBatch(make_batch(2, 0, 1))],
    [SetMarks(3, None, 4, 5)],
    [DropLedger(2), PutBatch(make_batch(1, 3, 3))],
]
LEDGERS = (1, 2, 3)


def look(disk: MemoryDisk) -> tuple[State, int]:
    """All that is to be seen, and below which ledger something is lost; the disk stays as it is."""
    with contextlib.closing(open_small(disk.after_kill())) as storage:
        return seen(storage), storage.doubt().lost_below


def seen(storage: Storage) -> State:
    entries = [(ledger_id, entry_id) for ledger_id in LEDGERS for entry_id in range(7)]
    reads = tuple(tuple(storage.read(*entry, 1, 0)) for entry in entries)
    return tuple(storage.ledger_ids()), tuple(map(storage.marks, LEDGERS)), reads


def small_journal() -> tuple[MemoryDisk, list[int], list[State]]:
    """A disk whose storage was killed, where each group ends, and what was to be seen after each."""
    disk = MemoryDisk()
    open_small(disk)
    ends, states = [PAGE_BYTES], [look(disk)[0]]
    for mutations in COMMITS:
        disk = disk.after_kill()
        storage = open_small(disk)  # so that there are epochs too
        storage.commit(mutations)
        ends.append(position_of(storage))
        states.append(look(disk)[0])
    return disk, ends, states


def without(group: int) -> State:
    """What is to be seen if this one is lost (0: none)."""
    storage = MemoryStorage()
    for at, mutations in enumerate(COMMITS, 1):
        if at != group:
            storage.commit(mutations)
    return seen(storage)


@pytest.mark.sized
def test_every_flipped_byte(is_long: bool) -> None:
    disk, ends, states = small_journal()
    content = disk.content(FIRST_FILE)
    for offset in (*range(60), *range(PAGE_BYTES, ends[-1] + 60))[:: 1 if is_long else 3]:
        content[offset] ^= 0x40
        group = next((at for at in range(1, len(ends)) if ends[at - 1] <= offset < ends[at]), 0)
        assert look(disk) == (without(group), UNBOUNDED if group else 0), offset
        content[offset] ^= 0x40
    assert look(disk) == (without(0), 0) == (states[-1], 0)


@pytest.mark.sized
def test_every_truncation(is_long: bool) -> None:
    disk, ends, states = small_journal()
    whole = bytes(disk.content(FIRST_FILE))
    content = disk.content(FIRST_FILE)
    near_ends = {end + by for end in ends for by in (-1, 0, 1)}
    for length in range(ends[-1] + 1):
        if not is_long and length % 3 and length not in near_ends:
            continue
        if 100 < length < PAGE_BYTES:
            continue  # as before and after: in the empty part of the header page
        content[:] = whole[:length]
        complete = max((at for at, end in enumerate(ends) if end <= length), default=0)
        assert look(disk) == (states[complete], UNBOUNDED if complete < len(COMMITS) else 0), length


def test_catalog_knows_the_last_group_after_a_clean_close() -> None:
    """Even if the mark was put back."""
    disk, ends, _ = small_journal()
    disk = disk.after_kill()
    mark = bytes(disk.content("/st/durable-mark"))
    open_small(disk).close()
    disk.content("/st/durable-mark")[:] = mark
    disk.content(FIRST_FILE)[ends[-2]] ^= 1
    with contextlib.closing(open_small(disk)) as storage:
        assert storage.doubt().lost_below == UNBOUNDED
        assert f"{FIRST_FILE} is damaged at {ends[-2]}, or" in storage.doubt().reasons[0]


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


def test_damage_in_any_file_is_served_around(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, workload, ends = rolled_journal(monkeypatch)
    for path in sorted(ends):
        for offset in (PAGE_BYTES, PAGE_BYTES + 10, (PAGE_BYTES + ends[path]) // 2, ends[path] - 1):
            survivor = disk.after_kill()
            survivor.content(path)[offset] ^= 1
            for _ in range(2):
                with contextlib.closing(open_small(survivor)) as storage:
                    assert storage.doubt().lost_below == UNBOUNDED
                    assert len(storage.doubt().reasons) == 1
                    assert path in storage.doubt().reasons[0]
    assert disk.open_count == 0
    with contextlib.closing(open_small(disk)) as storage:
        workload.settle(storage)


def test_storage_is_refused_when_format_file_is_missing() -> None:
    disk, _, _ = small_journal()
    disk = disk.after_kill()
    disk.unlink("/st/storage.json")
    with pytest.raises(StorageDamagedError, match=r"storage.json is missing, but .* holds records"):
        open_small(disk)


def test_damage_under_an_open_storage_is_never_absence() -> None:
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
