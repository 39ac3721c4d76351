"""Inspecting one ledger: its batches wherever they stand, the same as a read gives them, and the holes between."""

import contextlib
from pathlib import Path

import attrs
import pytest

from replog.abc import PutBatch, SetMarks
from replog.backends.files.catalog import CatalogFile, pack_catalog, unpack_catalog
from replog.backends.files.entry_log import EntryLogWriter
from replog.backends.files.inspecting import find_place, inspect_ledger, inspect_storage
from replog.backends.files.record import payload_checksum
from replog.backends.inspection.ledgers import Coverage, LedgerInspection
from replog.backends.inspection.reports import Hole
from replog.errors import EntryNotFoundError, StorageUncertainError
from replog.protocol.digest import DigestType
from replog.testing.storage_conformance import make_batch
from tests.backends.files.inspecting.places import (
    QuickDisk,
    damage_of,
    flip,
    golden,
    make_compacted,
    make_filled,
    open_quick,
    traces,
)


def looked_at(path: Path, ledger_id: int, journal: Path | None = None) -> LedgerInspection:
    return inspect_ledger(find_place(str(path), None if journal is None else str(journal)), ledger_id)


# -- what is found --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [make_filled, make_compacted])
@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["inside", "elsewhere"])
def test_listed_batches_are_the_readable_ones(tmp_path: Path, make: object, is_elsewhere: bool) -> None:
    assert callable(make)
    path = tmp_path / "st"
    journal = tmp_path / "journal" if is_elsewhere else None
    make(path, journal=journal)
    for ledger_id in (1, 3):
        inspection = looked_at(path, ledger_id, journal)
        found = [batch for batch in inspection.batches() if batch.is_current]
        entries = list(inspection.entries())
        report = inspection.report
        with contextlib.closing(open_quick(path, journal)) as storage:
            marks = storage.marks(ledger_id)
            assert marks is not None
            for batch in found:
                (stored,) = storage.read(ledger_id, batch.first_entry_id, batch.stamp, 0)
                assert stored.last_entry_id == batch.last_entry_id
                assert len(stored.data) == batch.size_bytes
            payloads = [storage.read(ledger_id, each.entry_id, 1, 0)[0] for each in entries]
        for entry, stored in zip(entries, payloads, strict=True):
            assert stored.payloads()[stored.entry_ids.index(entry.entry_id)] == entry.payload
        assert [each.entry_id for each in entries] == list(range(marks.last_entry_id + 1))
        assert (report.fence_term, report.last_add_confirmed) == (marks.fence_term, marks.last_add_confirmed)
        assert (report.last_entry_id, report.has_key) == (marks.last_entry_id, marks.key is not None)
        assert (report.holes, report.damaged_batches, report.problems) == ([], 0, [])
        assert report.batches == len(found)


def test_deleted_ledger_differs_from_unknown_ledger(tmp_path: Path) -> None:
    make_filled(tmp_path / "st")
    deleted = looked_at(tmp_path / "st", 2)
    assert (deleted.report.is_known, deleted.report.is_deleted) == (True, True)
    assert not any(batch.is_current for batch in deleted.batches())
    assert list(deleted.entries()) == []
    never = looked_at(tmp_path / "st", 99)
    assert not never.report.is_known
    with pytest.raises(EntryNotFoundError, match="entry 0"):
        never.payload(0)


def test_golden_ledger(tmp_path: Path) -> None:
    inspection = looked_at(golden(tmp_path / "st"), 7)
    report = inspection.report
    assert (report.fence_term, report.last_add_confirmed, report.last_entry_id, report.has_key) == (3, 0, 2, True)
    assert [(batch.stamp, batch.digest, batch.problem) for batch in inspection.batches()] == [
        (1, "crc32c", ""),
        (2, "hmac-sha256", ""),
    ]
    assert inspection.payload(0) == b"7/0/1 .............."


def test_the_newest_copy_counts_and_the_highest_stamp_is_given(tmp_path: Path) -> None:
    path = tmp_path / "st"
    batch, copy_of_another = make_batch(1, 0, 2), make_batch(1, 1, 1, stamp=3)
    with contextlib.closing(open_quick(path)) as storage:
        for _ in range(2):
            storage.commit([PutBatch(batch)])
        storage.commit([PutBatch(copy_of_another)])
    inspection = looked_at(path, 1)
    found = [(each.stamp, each.offset, each.is_current) for each in inspection.batches()]
    assert [each[0] for each in found] == [1, 1, 3]
    assert [each[2] for each in found] == [True, False, True]
    assert found[0][1] > found[1][1]
    assert (inspection.report.batches, inspection.report.copies) == (2, 3)
    assert inspection.payload(1) == copy_of_another.payloads()[0]
    assert inspection.payload(1, stamp=1) == batch.payloads()[1]
    with pytest.raises(EntryNotFoundError):
        inspection.payload(0, stamp=3)


def test_marks_alone_are_known(tmp_path: Path) -> None:
    with contextlib.closing(open_quick(tmp_path / "st")) as storage:
        storage.commit([SetMarks(5, None, 4, 7)])
    report = looked_at(tmp_path / "st", 5).report
    assert (report.is_known, report.fence_term, report.last_add_confirmed, report.has_key) == (True, 4, 7, False)
    assert (report.batches, report.last_entry_id, report.holes) == (0, -1, [])


# -- damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("digest_type", list(DigestType))
def test_damaged_batch_is_reported_and_not_shown(tmp_path: Path, digest_type: DigestType) -> None:
    path = tmp_path / "st"
    batches = [make_batch(1, first, 2, size_bytes=4000, digest_type=digest_type) for first in range(0, 40, 2)]
    with contextlib.closing(open_quick(path)) as storage:
        for batch in batches:
            storage.commit([PutBatch(batch)])
    victim = list(looked_at(path, 1).batches())[1]
    flip(path / "journal" / victim.path, victim.offset + 1000)
    inspection = looked_at(path, 1)
    checked = list(inspection.batches())
    assert [each.first_entry_id for each in checked if each.problem] == [2]
    assert inspection.report.damaged_batches == 1
    assert damage_of([inspection.report])
    assert [each.entry_id for each in inspection.entries()] == [at for at in range(40) if at not in (2, 3)]
    with pytest.raises(StorageUncertainError, match="entry 3 of ledger 1"):
        inspection.payload(3)


def test_log_file_is_read_when_an_index_page_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "st"
    make_filled(path)
    before = [(each.path, each.offset) for each in looked_at(path, 1).batches()]
    index = path / "journal" / "000000000001.index"
    flip(index, 72 + 3 * 64 + 5)
    inspection = looked_at(path, 1)
    assert [(each.path, each.offset) for each in inspection.batches()] == before
    assert [problem.path for problem in damage_of([inspection.report])] == [str(index)]


def test_index_naming_another_batch_is_reported(tmp_path: Path) -> None:
    """All checksums are right, and yet it is not what the index says."""
    path = tmp_path / "st"
    open_quick(path).close()
    catalog = unpack_catalog((path / "catalog").read_bytes())
    assert catalog is not None
    writer = EntryLogWriter(QuickDisk(), str(path / "logs"), 7, catalog.identity)
    writer.begin_section(1, 1)
    right, wrong = make_batch(1, 0, 2), make_batch(1, 2, 2)
    writer.add(0, 1, 1, right.data, payload_checksum(right.data))
    writer.add(4, 5, 1, wrong.data, payload_checksum(wrong.data))
    file = writer.finish()
    QuickDisk().close(file.fd)
    files = [CatalogFile(False, 7, 7, file.position)]
    (path / "catalog").write_bytes(pack_catalog(attrs.evolve(catalog, files=files)))
    inspection = looked_at(path, 1)
    assert [batch.problem for batch in inspection.batches()] == ["", "another batch stands here"]
    assert [entry.entry_id for entry in inspection.entries()] == [0, 1]


def test_torn_group_does_not_count(tmp_path: Path) -> None:
    """Its first record deletes a ledger, its last one is torn: nobody was told of either."""
    path = golden(tmp_path / "st")
    assert inspect_storage(find_place(str(path))).deleted_ledgers == 1
    torn = max(looked_at(path, 7).batches(), key=lambda batch: batch.offset)
    flip(path / "journal" / torn.path, torn.offset + 80)
    report = inspect_storage(find_place(str(path)))
    assert (report.deleted_ledgers, report.last_sequence) == (0, 1)
    assert [problem.kind for problem in report.problems] == ["torn tail"]
    assert looked_at(path, 7).report.last_entry_id == 1


def test_file_is_gone_when_it_vanishes_after_listing(tmp_path: Path) -> None:
    path = tmp_path / "st"
    make_filled(path)
    inspection = looked_at(path, 1)
    (path / "journal" / "000000000001.journal").unlink()
    gone = [batch for batch in inspection.batches() if batch.problem]
    assert gone
    assert {problem.kind for problem in inspection.report.problems} == {"gone"}
    assert inspection.report.damaged_batches == 0


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    make_compacted(tmp_path / "st")
    before = traces(tmp_path)
    inspection = looked_at(tmp_path / "st", 1)
    assert list(inspection.batches())
    assert list(inspection.entries())
    assert inspection.payload(0)
    inspection.close()
    assert traces(tmp_path) == before


# -- holes ----------------------------------------------------------------------------------------------------------


def holes_of(*ranges: tuple[int, int, int]) -> tuple[list[Hole], list[int]]:
    coverage = Coverage({stride for _, _, stride in ranges})
    coverage.keep(10)
    for each in sorted(ranges):
        coverage.add(*each)
    assert coverage.hole_count == len(coverage.holes())
    return coverage.holes(), list(coverage.absent())


def test_holes_between_batches() -> None:
    assert holes_of() == ([], [])
    assert holes_of((0, 9, 1), (10, 19, 1)) == ([], [])
    assert holes_of((2, 3, 1), (3, 9, 1), (4, 5, 1), (12, 13, 1)) == ([Hole(0, 1, 1), Hole(10, 11, 1)], [])
    assert Hole(10, 11, 1).entries == 2


def test_holes_where_entries_stripe() -> None:
    """W1: of five bookies this one has the remainders 0 and 3; one batch of the latter is missing."""
    assert holes_of((0, 45, 5), (3, 18, 5), (33, 48, 5)) == ([Hole(23, 28, 5)], [1, 2, 4])
    assert holes_of((0, 9, 1), (10, 30, 5)) == ([], [])
    assert holes_of((0, 1, 1), (5, 15, 2)) == ([Hole(3, 3, 2)], [])


def test_holes_agree_with_a_set_of_ids() -> None:
    ranges = [(0, 8, 2), (1, 1, 1), (5, 17, 4), (12, 13, 1), (20, 40, 2), (23, 31, 4)]
    held = {entry_id for first, last, stride in ranges for entry_id in range(first, last + 1, stride)}
    holes, _ = holes_of(*ranges)
    missing = {
        entry_id for hole in holes for entry_id in range(hole.first_entry_id, hole.last_entry_id + 1, hole.stride)
    }
    reach = {remainder: max(each for each in held if each % 4 == remainder) for remainder in range(4)}
    assert missing == {each for each in range(max(held)) if each not in held and each < reach[each % 4]}
