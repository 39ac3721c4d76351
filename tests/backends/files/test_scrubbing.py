"""R4: damage is found while other copies are whole, told, mended by storing the batch again, and never called absence."""

import contextlib
from pathlib import Path

import attrs
import pytest

from replog.abc import DropLedger, PutBatch
from replog.backends.files.compaction import worth_compacting
from replog.backends.files.storage import FilesStorage, open_storage
from replog.errors import StorageUncertainError
from replog.testing.disk import MemoryDisk
from replog.testing.storage_conformance import make_batch
from tests.backends.files.small_storage import sections_of
from tests.backends.files.test_compaction import (
    OPTIONS,
    expect_readable,
    file_of,
    keep,
    ledgers_by_file,
    open_on,
    wait_until,
)


def batch_of(ledger_id: int) -> PutBatch:
    return PutBatch(make_batch(ledger_id, 0, 3, size_bytes=1000))


def damage(disk: MemoryDisk, storage: FilesStorage, ledger_id: int) -> str:
    """Flips a byte in the only batch of a ledger; returns what the error says of the place."""
    (place,) = storage._contents.index.locate(ledger_id, 0, 1, 0, {})
    disk.content(place.file.path)[place.offset + place.size // 2] ^= 1
    return f"{place.file.path} is damaged at {place.offset}"


def damaged_ledgers(storage: FilesStorage) -> list[int]:
    assert storage.statistics()["damaged_batches"] == len(storage.damage())
    return sorted(each.ledger_id for each in storage.damage())


def test_scrub_finds_damage_before_any_read() -> None:
    disk = MemoryDisk()
    with open_on(disk) as storage:
        first, second, third = ledgers_by_file(storage, 3)
        places = {ledger_id: damage(disk, storage, ledger_id) for ledger_id in (first[3], third[0])}
        assert storage.damage() == ()
        storage.scrub()
        found = {each.ledger_id: each for each in storage.damage()}
        assert found.keys() == places.keys()
        for ledger_id, place in places.items():
            each = found[ledger_id]
            assert (each.stamp, each.first_entry_id, each.last_entry_id) == (1, 0, 2)
            assert place in each.description
            with pytest.raises(StorageUncertainError, match=place):
                storage.read(ledger_id, 1, 1, 1)
        expect_readable(storage, [each for each in storage.ledger_ids() if each not in places])
        assert storage.statistics()["scrubs"] == 1
        assert storage.statistics()["scrubbed_bytes"] >= 3000 * len([*first, *second, *third])
    with open_on(disk) as storage:
        assert storage.damage() == (), "it is known since the start"
        storage.scrub()
        assert damaged_ledgers(storage) == sorted(places)


def test_damaged_file_is_not_compacted_again() -> None:
    """Copying it would end at the same batch each time."""
    disk = MemoryDisk()
    with open_on(disk) as storage:
        one, other = ledgers_by_file(storage, 2)
        kept, kept_elsewhere = keep(storage, one, 0.15), keep(storage, other, 0.15)
        files = [file_of(storage, kept[0]), file_of(storage, kept_elsewhere[0])]
        assert worth_compacting(storage._contents, is_major=False) == [files]
        damage(disk, storage, kept[0])
        with pytest.raises(StorageUncertainError):
            storage.read(kept[0], 0, 1, 1)
        assert worth_compacting(storage._contents, is_major=False) == [files[1:]]


def test_scrub_reads_the_current_file() -> None:
    disk = MemoryDisk()
    with open_on(disk) as storage:
        storage.commit([batch_of(1), batch_of(2)])
        damage(disk, storage, 2)
        storage.scrub()
        assert damaged_ledgers(storage) == [2]
        storage.commit([batch_of(2)])
        assert damaged_ledgers(storage) == []
        expect_readable(storage, [1, 2])


def test_damage_is_gone_when_batch_is_stored_again() -> None:
    disk = MemoryDisk()
    with open_on(disk) as storage:
        (ledgers,) = ledgers_by_file(storage, 1)
        bad = ledgers[2]
        damage(disk, storage, bad)
        with pytest.raises(StorageUncertainError):
            storage.read(bad, 0, 1, 1)
        assert damaged_ledgers(storage) == [bad]
        storage.commit([batch_of(bad)])
        assert damaged_ledgers(storage) == []
        expect_readable(storage, ledgers)
        storage.scrub()
        assert damaged_ledgers(storage) == [], "the damaged copy is not the one that reads find"
        storage.compact(is_major=True)
        assert damaged_ledgers(storage) == []
        expect_readable(storage, ledgers)
    with open_on(disk) as storage:
        storage.scrub()
        assert damaged_ledgers(storage) == []
        expect_readable(storage, ledgers)


def test_dropping_the_ledger_forgets_it() -> None:
    disk = MemoryDisk()
    with open_on(disk) as storage:
        (ledgers,) = ledgers_by_file(storage, 1)
        for ledger_id in ledgers[:2]:
            damage(disk, storage, ledger_id)
        storage.scrub()
        assert damaged_ledgers(storage) == ledgers[:2]
        storage.commit([DropLedger(ledgers[0])])
        assert damaged_ledgers(storage) == [ledgers[1]]
        storage.scrub()
        assert damaged_ledgers(storage) == [ledgers[1]]
        storage.commit([DropLedger(ledgers[1])])
        assert damaged_ledgers(storage) == []


@pytest.mark.parametrize("is_known", [False, True])
def test_compaction_skips_a_damaged_file(is_known: bool) -> None:
    disk = MemoryDisk()
    with open_on(disk) as storage:
        one, other = ledgers_by_file(storage, 2)
        kept, kept_elsewhere = keep(storage, one, 0.15), keep(storage, other, 0.15)
        bad = kept[0]
        place = damage(disk, storage, bad)
        if is_known:
            storage.scrub()
        was_in = file_of(storage, bad)
        storage.compact()
        assert file_of(storage, bad) is was_in
        assert file_of(storage, kept_elsewhere[0]) is not file_of(storage, bad)
        assert not file_of(storage, kept_elsewhere[0]).is_journal
        assert damaged_ledgers(storage) == [bad]
        with pytest.raises(StorageUncertainError, match=place):
            storage.read(bad, 0, 1, 1)
        expect_readable(storage, [*kept[1:], *kept_elsewhere])
        assert not [path for path in disk.paths() if path.endswith(".tmp")]
    with open_on(disk) as storage:
        expect_readable(storage, [*kept[1:], *kept_elsewhere])
        with pytest.raises(StorageUncertainError, match=place):
            storage.read(bad, 0, 1, 1)


def test_compaction_takes_the_newer_of_two_copies() -> None:
    """The older one may be what a repair replaced: nobody need know of its damage here, and it holds nothing up."""
    disk = MemoryDisk()
    with open_on(disk) as storage:
        (ledgers,) = ledgers_by_file(storage, 1)
        bad, *dropped = ledgers
        damage(disk, storage, bad)
        storage.commit([batch_of(bad)])
        while storage.statistics()["journal_files"] <= 2:
            dropped.append(1000 + len(dropped))
            storage.commit([batch_of(dropped[-1])])
        storage.commit([DropLedger(ledger_id) for ledger_id in dropped])
        assert len(sections_of(storage, bad)) == 2
        storage.compact()
        assert not file_of(storage, bad).is_journal, "one copy is left, in an entry log"
        assert not [file.path for file in storage._contents.files() if file.is_damaged]
        expect_readable(storage, [bad])
    with open_on(disk) as storage:
        storage.scrub()
        assert damaged_ledgers(storage) == []
        expect_readable(storage, [bad])


def flip_page(disk: MemoryDisk, storage: FilesStorage, ledger_id: int) -> str:
    """Flips a byte of a ledger's page in its index, and takes the page out of memory; returns the index's path."""
    (section,) = sections_of(storage, ledger_id)
    disk.content(section.file.index_path)[section.page_offset + 3] ^= 1
    section.page = None
    return section.file.index_path


def test_damaged_index_is_written_again_without_a_damage_report() -> None:
    disk = MemoryDisk()
    with open_on(disk) as storage:
        ledgers, others = ledgers_by_file(storage, 2)
        path = flip_page(disk, storage, ledgers[1])
        broken = bytes(disk.content(path))
        with pytest.raises(StorageUncertainError, match=rf"a page of {path} at \d+ is unreadable"):
            storage.read(ledgers[1], 0, 1, 1)
        storage.scrub()
        assert storage.damage() == ()
        assert bytes(disk.content(path)) != broken
        expect_readable(storage, [*ledgers, *others])
        kept = keep(storage, ledgers, 0.5)
        flip_page(disk, storage, kept[2])
        storage.compact(is_major=True)
        assert not file_of(storage, kept[2]).is_journal, "it was made anew, then rewritten"
        expect_readable(storage, [*kept, *others])
    with open_on(disk) as storage:
        expect_readable(storage, [*kept, *others])


def test_without_index_and_batch_nothing_is_called_absent() -> None:
    """The index can't be made anew from a damaged file: what it can't tell is damage too."""
    disk = MemoryDisk()
    with open_on(disk) as storage:
        (ledgers,) = ledgers_by_file(storage, 1)
        bad = ledgers[1]
        damage(disk, storage, bad)
        flip_page(disk, storage, bad)
        for _ in range(3):
            with pytest.raises(StorageUncertainError):
                storage.read(bad, 0, 1, 1)
            storage.scrub()
            assert damaged_ledgers(storage) == [bad]
        expect_readable(storage, [each for each in ledgers if each != bad])
        storage.commit([batch_of(bad)])
        expect_readable(storage, ledgers)
        assert damaged_ledgers(storage) == []
        storage.compact(is_major=True)
        expect_readable(storage, ledgers)


def test_read_ends_before_an_unreadable_batch() -> None:
    """A page of the index, or a whole file, that is gone behind good batches ends the answer before it."""
    disk = MemoryDisk()
    batches = [make_batch(1, 2 * number, 2, size_bytes=3000) for number in range(50)]
    with open_on(disk) as storage:
        for batch in batches:
            storage.commit([PutBatch(batch)])
        _, two, *_ = sorted(sections_of(storage, 1), key=lambda section: section.first)
        disk.content(two.file.index_path)[two.page_offset] ^= 1
        two.page = None
        with pytest.raises(StorageUncertainError, match="is unreadable"):
            storage.read(1, 0, 1, 1 << 30)  # soon there is more to tell
        storage.scrub()
        assert storage.read(1, 0, 1, 1 << 30) == batches
        disk.content(two.file.index_path)[two.page_offset] ^= 1
        disk.content(two.file.path)[two.file.position - 100] ^= 1
        two = min(two.file.sections, key=lambda section: section.first)
        two.page = None
        storage.scrub()
        assert storage.read(1, 0, 1, 1 << 30) == [batch for batch in batches if batch.first_entry_id < two.first][:1]
        with pytest.raises(StorageUncertainError, match="is unreadable"):
            storage.read(1, two.first, 1, 1 << 30)
    disk.content(two.file.path)[two.file.position - 100] ^= 1
    with open_on(disk) as storage:
        storage.scrub()
    with open_on(disk) as storage:
        disk.unlink(two.file.path)
        assert storage.read(1, 0, 1, 1 << 30)[0] == batches[0]
        with pytest.raises(StorageUncertainError, match="could not open"):
            storage.read(1, two.first, 1, 1 << 30)


def test_it_runs_by_itself(tmp_path: Path) -> None:
    options = attrs.evolve(OPTIONS, scrub_interval_s=0.02)
    with contextlib.closing(open_storage(str(tmp_path), options)) as storage:
        (ledgers,) = ledgers_by_file(storage, 1)
        (place,) = storage._contents.index.locate(ledgers[0], 0, 1, 0, {})
        path = Path(place.file.path)
        with path.open("r+b") as file:
            file.seek(place.offset + 100)
            file.write(b"\xff\xee\xdd")
        wait_until(lambda: bool(storage.damage()))
        assert damaged_ledgers(storage) == [ledgers[0]]
        storage.commit([batch_of(ledgers[0])])
        scrubs = storage.statistics()["scrubs"]
        wait_until(lambda: storage.statistics()["scrubs"] > scrubs + 2)
        assert damaged_ledgers(storage) == []
