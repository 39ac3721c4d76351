"""B6: which files are rewritten, in which order their batches stand afterwards, and what is told of it."""

import contextlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from replog.abc import DropEntries, DropLedger, PutBatch
from replog.backends.files.log_file import LogFile
from replog.backends.files.options import FilesTuning
from replog.backends.files.record import RECORD_HEADER_BYTES
from replog.backends.files.storage import FilesStorage, open_storage
from replog.testing.disk import MemoryDisk
from replog.testing.storage_conformance import make_batch
from tests.backends.files.small_storage import sections_of

OPTIONS = FilesTuning(journal_file_bytes=64 << 10, spare_files=1, compaction_bytes_per_s=0, scrub_bytes_per_s=0)


def open_on(disk: MemoryDisk, options: FilesTuning = OPTIONS) -> contextlib.closing[FilesStorage]:
    return contextlib.closing(open_storage("/st", options, disk=disk, background=False))


def file_of(storage: FilesStorage, ledger_id: int) -> LogFile:
    """Where the only batches of a ledger are."""
    (section,) = sections_of(storage, ledger_id)
    return section.file


def ledgers_by_file(storage: FilesStorage, files: int) -> list[list[int]]:
    """Fills so many journal files with ledgers of one batch each; which ledgers are in which, for all full ones."""
    ledger_id = 0
    while storage.statistics()["journal_files"] <= files:
        ledger_id += 1
        storage.commit([PutBatch(make_batch(ledger_id, 0, 3, size_bytes=1000))])
    found: dict[int, list[int]] = {}
    for each in range(1, ledger_id):
        found.setdefault(file_of(storage, each).number, []).append(each)
    return [found[number] for number in sorted(found)][:files]


def keep(storage: FilesStorage, ledgers: list[int], share: float) -> list[int]:
    """Drops all but this share of the ledgers."""
    kept = ledgers[: max(1, round(len(ledgers) * share))]
    storage.commit([DropLedger(ledger_id) for ledger_id in ledgers if ledger_id not in kept])
    return kept


def expect_readable(storage: FilesStorage, ledgers: list[int]) -> None:
    for ledger_id in ledgers:
        assert storage.read(ledger_id, 1, 1, 1) == [make_batch(ledger_id, 0, 3, size_bytes=1000)]


def test_compaction_with_nothing_to_do_writes_nothing() -> None:
    with open_on(MemoryDisk()) as storage:
        first, _ = ledgers_by_file(storage, 2)
        keep(storage, first, 0.1)
        storage.compact(is_major=True)
        before = storage.statistics()
        assert before["copied_batches"]
        storage.commit([PutBatch(make_batch(1000, 0, 3, size_bytes=1000))])
        storage.compact(is_major=True)
        for name in ("catalogs_written", "copied_batches"):  # nor is a short entry log rewritten because of its header
            assert storage.statistics()[name] == before[name]


def test_minor_and_major_rewrite_files_below_their_thresholds() -> None:
    disk = MemoryDisk()
    with open_on(disk) as storage:
        few, half, most, empty = ledgers_by_file(storage, 4)
        kept = [*keep(storage, few, 0.1), *keep(storage, half, 0.5), *keep(storage, most, 0.95)]
        storage.commit([DropLedger(ledger_id) for ledger_id in empty])
        places = {
            name: file_of(storage, ledgers[0]) for name, ledgers in (("few", few), ("half", half), ("most", most))
        }
        before = storage.statistics()
        storage.compact()
        minor = storage.statistics()
        assert file_of(storage, few[0]) is not places["few"], "under 0.2 of it is needed"
        assert [file_of(storage, half[0]), file_of(storage, most[0])] == [places["half"], places["most"]]
        assert minor["minor_compactions"] == before["minor_compactions"] + 1
        assert minor["copied_batches"] == len([each for each in kept if each in few])
        assert minor["copied_bytes"] == minor["copied_batches"] * len(make_batch(1, 0, 3, size_bytes=1000).data)
        assert minor["entry_logs"] == 1
        assert minor["removed_files"] == before["removed_files"] + 1, (
            "that which was copied; the empty one had gone before"
        )
        storage.compact(is_major=True)
        major = storage.statistics()
        assert file_of(storage, half[0]) is not places["half"], "under 0.8 of it is needed"
        assert file_of(storage, most[0]) is places["most"]
        assert (major["minor_compactions"], major["major_compactions"]) == (minor["minor_compactions"], 1)
        assert major["last_compaction_s"] > 0
        assert major["live_batch_bytes"] >= 0.8 * major["batch_bytes"] - 60_000
        expect_readable(storage, kept)
    with open_on(disk) as storage:
        expect_readable(storage, kept)
        assert {ledger_id for ledger_id in storage.ledger_ids() if ledger_id <= most[-1]} == set(kept)


@pytest.mark.parametrize("is_major", [False, True])
def test_compaction_is_off_when_threshold_is_0(is_major: bool) -> None:
    options = attrs.evolve(OPTIONS, minor_compaction_threshold=0.0, major_compaction_threshold=0.0)
    with open_on(MemoryDisk(), options) as storage:
        (few,) = ledgers_by_file(storage, 1)
        kept = keep(storage, few, 0.1)
        storage.compact(is_major=is_major)
        assert storage.statistics()["copied_batches"] == 0
        assert file_of(storage, kept[0]).is_journal


def test_alternating_ledgers_are_put_in_order() -> None:
    """All of it is needed: minor compaction leaves it alone."""
    disk = MemoryDisk()
    with open_on(disk) as storage:
        batches = [
            make_batch(ledger_id, 2 * turn, 2, size_bytes=700) for turn in range(40) for ledger_id in range(1, 6)
        ]
        for batch in batches:
            storage.commit([PutBatch(batch)])
        assert storage.statistics()["journal_files"] > 4
        storage.compact()
        assert storage.statistics()["entry_logs"] == 0
        storage.compact(is_major=True)
        statistics = storage.statistics()
        assert (statistics["entry_logs"], statistics["journal_files"]) == (1, 1)
        for ledger_id in range(1, 6):
            places = storage._contents.index.locate(ledger_id, 0, 1, 1 << 30, {})
            in_log = [place for place in places if not place.file.is_journal]
            assert len(in_log) > 30
            gaps = [after.offset - before.offset - before.size for before, after in itertools.pairwise(in_log)]
            assert set(gaps) <= {0, RECORD_HEADER_BYTES}, "one after the other"
            assert gaps.count(0) > 0.9 * len(gaps), "most of them in one record"
            expected = [batch for batch in batches if batch.ledger_id == ledger_id]
            assert storage.read(ledger_id, 0, 1, 1 << 30) == expected
        storage.compact(is_major=True)
        assert storage.statistics()["copied_batches"] == statistics["copied_batches"], "what is in order is left alone"


def test_compaction_orders_more_ledgers_than_a_file_has_batches() -> None:
    """In no file a ledger comes twice, but a reading of one would jump from file to file."""
    disk = MemoryDisk()
    with open_on(disk) as storage:
        batches = [
            make_batch(ledger_id, 2 * turn, 2, size_bytes=700) for turn in range(6) for ledger_id in range(1, 60)
        ]
        for batch in batches:
            storage.commit([PutBatch(batch)])
        files = [file for file in storage._contents.files() if file.is_indexed]
        assert len(files) > 5
        assert all(len(file.sections) == file.switches for file in files)
        storage.compact(is_major=True)
        assert not any(file.is_journal for file in storage._contents.files() if file.is_indexed)
        for ledger_id in range(1, 60):
            assert storage.read(ledger_id, 0, 1, 1 << 30) == [each for each in batches if each.ledger_id == ledger_id]


def test_consecutive_ledgers_are_not_compacted_for_order() -> None:
    with open_on(MemoryDisk()) as storage:
        files = ledgers_by_file(storage, 4)
        for ledgers in files:
            keep(storage, ledgers, 0.95)
        storage.compact(is_major=True)
        assert storage.statistics()["copied_batches"] == 0


def test_single_ledger_is_not_compacted_for_its_order() -> None:
    with open_on(MemoryDisk()) as storage:
        for turn in range(200):
            storage.commit([PutBatch(make_batch(1, 2 * turn, 2, size_bytes=700))])
        storage.compact(is_major=True)
        assert storage.statistics()["copied_batches"] == 0


def test_entry_logs_are_as_long_as_asked_for() -> None:
    options = attrs.evolve(OPTIONS, entry_log_bytes=64 << 10)
    disk = MemoryDisk()
    with open_on(disk, options) as storage:
        for turn in range(60):
            for ledger_id in range(1, 6):
                storage.commit([PutBatch(make_batch(ledger_id, 2 * turn, 2, size_bytes=700))])
        storage.compact(is_major=True)
        sizes = [len(disk.content(path)) for path in disk.paths() if path.endswith(".log")]
        assert len(sizes) > 3
        assert max(sizes) <= (64 << 10) + 8192
        for ledger_id in range(1, 6):
            assert len(storage.read(ledger_id, 0, 1, 1 << 30)) == 60


def test_compaction_keeps_one_copy_when_stored_twice() -> None:
    with open_on(MemoryDisk()) as storage:
        batches = [make_batch(ledger_id, 2 * turn, 2, size_bytes=700) for turn in range(20) for ledger_id in (1, 2)]
        for _ in range(3):
            for batch in batches:
                storage.commit([PutBatch(batch)])
        storage.compact(is_major=True)
        expect = [[batch for batch in batches if batch.ledger_id == ledger_id] for ledger_id in (1, 2)]
        assert [storage.read(ledger_id, 0, 1, 1 << 30) for ledger_id in (1, 2)] == expect
        assert storage.statistics()["copied_batches"] <= len(batches)


def test_copy_is_as_new_as_its_source() -> None:
    """A batch was damaged, and stored again. Its new copy is compacted together with an older file than the damaged one."""
    disk, mended = MemoryDisk(), make_batch(7000, 0, 3, size_bytes=1000)
    with open_on(disk) as storage:
        (first,) = ledgers_by_file(storage, 1)
        storage.commit([PutBatch(mended)])
        (section,) = sections_of(storage, 7000)
        damaged, ledger_id = section.file, 8000
        while storage.statistics()["journal_files"] < 4 or file_of(storage, ledger_id) is damaged:
            ledger_id += 1
            storage.commit([PutBatch(make_batch(ledger_id, 0, 3, size_bytes=1000))])
        storage.commit([PutBatch(mended)])
        new = next(each.file for each in sections_of(storage, 7000) if each.file is not damaged)
        others: list[int] = []
        while storage.statistics()["journal_files"] < 6:
            others.append(9000 + len(others))
            storage.commit([PutBatch(make_batch(others[-1], 0, 3, size_bytes=1000))])
        in_new = [each for each in [*range(8001, ledger_id + 1), *others] if file_of(storage, each) is new]
        storage.commit([DropLedger(each) for each in [*first[1:], *in_new]])
        storage.compact()
        files = {each.file for each in sections_of(storage, 7000)}
        assert damaged in files
        assert new not in files, "it was not compacted"
        path = damaged.path
    content = disk.content(path)
    place = bytes(content).index(mended.data)
    content[place + 40] ^= 0xFF
    with open_on(disk) as storage:
        assert storage.read(7000, 1, 1, 1) == [mended]


def test_compaction_copies_batch_of_entry_0_alone() -> None:
    """As the first append to a ledger makes it, if nobody else appends at that time."""
    disk = MemoryDisk()
    batches = [make_batch(1000, 0, 1), make_batch(1000, 1, 3)]
    with open_on(disk) as storage:
        for batch in batches:
            storage.commit([PutBatch(batch)])
        (ledgers,) = ledgers_by_file(storage, 1)
        keep(storage, ledgers, 0.1)
        storage.compact()
        assert not file_of(storage, 1000).is_journal
        assert storage.read(1000, 0, 1, 1 << 20) == batches
    with open_on(disk) as storage:
        assert storage.read(1000, 0, 1, 1 << 20) == batches


def test_file_stays_when_one_entry_of_very_many_does() -> None:
    """The bytes that are needed are an estimate: by that nothing is left, and a batch is."""
    far = 1 << 60
    disk, kept = MemoryDisk(), make_batch(1000, far, 1)
    with open_on(disk) as storage:
        for batch in (make_batch(1000, 0, 1), kept):
            storage.commit([PutBatch(batch)])
        (ledgers,) = ledgers_by_file(storage, 1)
        holding = file_of(storage, 1000)
        storage.commit([DropEntries(1000, kept.stamp, 0, far - 1), *map(DropLedger, ledgers)])
        assert holding.live_bytes == 0
        storage.compact()
        assert storage.read(1000, far, kept.stamp, 1) == [kept]
    with open_on(disk) as storage:
        assert storage.read(1000, far, kept.stamp, 1) == [kept]


def wait_until(reached: Callable[[], bool], deadline_s: float = 30.0) -> None:
    end_s = time.monotonic() + deadline_s
    while not reached():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.01)


def test_it_runs_by_itself(tmp_path: Path) -> None:
    options = attrs.evolve(OPTIONS, minor_compaction_interval_s=0.02, major_compaction_interval_s=0.03)
    with contextlib.closing(open_storage(str(tmp_path), options)) as storage:
        few, half = ledgers_by_file(storage, 2)
        kept = [*keep(storage, few, 0.1), *keep(storage, half, 0.5)]
        wait_until(lambda: not any(file_of(storage, ledger_id).is_journal for ledger_id in kept))
        wait_until(
            lambda: storage.statistics()["minor_compactions"] > 1 and storage.statistics()["major_compactions"] > 1
        )
        expect_readable(storage, kept)
