"""Inspecting entry logs and indexes: what the index says, what the file says, and every flipped byte of both."""

from pathlib import Path

import pytest

from replog.backends.files.entry_log import EntryLogWriter
from replog.backends.files.inspecting import find_place, inspect_entry_logs, inspect_indexes
from replog.backends.files.inspecting.places import InspectedFile
from replog.backends.files.record import PAGE_BYTES, FileHeader, payload_checksum
from replog.backends.inspection.reports import EntryLogReport, IndexedBatch, IndexReport, RecordReport
from replog.protocol.batch import Batch
from replog.testing.storage_conformance import make_batch
from tests.backends.files.inspecting.places import (
    QuickDisk,
    damage_of,
    flip,
    make_compacted,
    make_filled,
    traces,
)

IDENTITY = bytes(range(16))


def small_entry_log(directory: Path) -> list[Batch]:
    """An entry log of two ledgers and two stamps, and its index, without a storage around."""
    directory.mkdir()
    writer = EntryLogWriter(QuickDisk(), str(directory), 7, IDENTITY)
    batches = [
        *(make_batch(3, at * 2, 2, size_bytes=30_000) for at in range(4)),
        make_batch(3, 8, 2, stamp=2),
        make_batch(5, 0, 1, stride=3),
    ]
    section = None
    for batch in batches:
        if section != (batch.ledger_id, batch.stamp):
            section = (batch.ledger_id, batch.stamp)
            writer.begin_section(*section)
        place = (batch.first_entry_id, batch.last_entry_id, batch.stride)
        writer.add(*place, batch.data, payload_checksum(batch.data))
    QuickDisk().close(writer.finish().fd)
    return batches


def logs_at(path: Path, with_records: bool = False) -> tuple[list[EntryLogReport], list[RecordReport]]:
    found = list(inspect_entry_logs(find_place(str(path)), with_records=with_records))
    logs = [each for each in found if isinstance(each, EntryLogReport)]
    return logs, [each for each in found if isinstance(each, RecordReport)]


def index_at(path: Path, **options: bool) -> IndexReport:
    (report,) = (each for each in inspect_indexes(find_place(str(path)), **options) if isinstance(each, IndexReport))  # type: ignore[arg-type]
    return report


# -- entry logs -----------------------------------------------------------------------------------------------------


def test_an_entry_log_alone(tmp_path: Path) -> None:
    batches = small_entry_log(tmp_path / "x")
    (by_index,), none = logs_at(tmp_path / "x" / "000000000007.log")
    (by_reading,), records = logs_at(tmp_path / "x", with_records=True)
    assert (by_index.source, by_reading.source, none) == ("index", "scan", [])
    for log in (by_index, by_reading):
        assert (log.kind, log.number, log.batches) == ("entry log", 7, len(batches))
        assert log.batch_bytes == log.live_bytes == sum(len(batch.data) for batch in batches)
        assert [(used.ledger_id, used.batches) for used in log.ledgers] == [(3, 5), (5, 1)]
    assert {record.type for record in records} == {"RUN"}
    assert [record.position for record in records] == list(range(len(records)))
    assert [record.is_last_of_group for record in records][-1:] == [True]
    stored = [batch for record in records for batch in record.batches]
    data = (tmp_path / "x" / "000000000007.log").read_bytes()
    assert [data[each.offset : each.offset + each.size_bytes] for each in stored] == [batch.data for batch in batches]
    assert [each.stride for each in stored][-1] == 3


def test_every_flipped_byte_of_an_entry_log_is_found(tmp_path: Path) -> None:
    small_entry_log(tmp_path / "x")
    path = tmp_path / "x" / "000000000007.log"
    size = path.stat().st_size
    for offset in (*range(52), *range(PAGE_BYTES, size, 911), *range(size - 700, size, 5)):
        flip(path, offset)
        logs, _ = logs_at(path, with_records=True)
        assert [problem.path for problem in damage_of(logs)][:1] == [str(path)], offset
        flip(path, offset)
    whole = path.read_bytes()
    for length in (0, 51, 52, PAGE_BYTES, PAGE_BYTES + 39, PAGE_BYTES + 41, size // 2, size - 1):
        path.write_bytes(whole[:length])
        assert damage_of(logs_at(path, with_records=True)[0]), length
    path.write_bytes(whole + b"more")
    assert damage_of(logs_at(path, with_records=True)[0])
    path.write_bytes(whole)
    assert damage_of(logs_at(path, with_records=True)[0]) == []


def test_the_logs_of_a_storage(tmp_path: Path) -> None:
    make_compacted(tmp_path / "st")
    by_index, _ = logs_at(tmp_path / "st")
    by_reading, records = logs_at(tmp_path / "st", with_records=True)
    assert any(log.kind == "entry log" and log.age is not None for log in by_index)
    assert [(log.path, log.batches, log.live_bytes) for log in by_index if log.kind == "entry log"] == [
        (log.path, log.batches, log.live_bytes) for log in by_reading if log.kind == "entry log"
    ]
    assert {record.type for record in records} >= {"RUN"}
    assert damage_of(by_index) == damage_of(by_reading) == []


def test_deleted_ledgers_are_not_live(tmp_path: Path) -> None:
    """The deletion stands in the journal only, behind the mark."""
    make_filled(tmp_path / "st")
    logs, _ = logs_at(tmp_path / "st")
    assert logs
    for log in logs:
        (deleted,) = (used for used in log.ledgers if used.is_deleted)
        assert deleted.ledger_id == 2
        assert log.live_bytes == log.batch_bytes - deleted.batch_bytes
        assert 0.6 < (log.live_share or 0) < 0.7


def test_log_file_is_read_when_its_index_is_damaged(tmp_path: Path) -> None:
    make_filled(tmp_path / "st")
    before, _ = logs_at(tmp_path / "st")
    flip(tmp_path / "st" / "journal" / "000000000002.index", 80)
    (tmp_path / "st" / "journal" / "000000000001.index").unlink()
    logs, _ = logs_at(tmp_path / "st")
    assert [log.source for log in logs][:2] == ["scan", "scan"]
    assert [(log.batches, log.batch_bytes) for log in logs] == [(log.batches, log.batch_bytes) for log in before]
    assert [problem.path[-18:] for problem in damage_of(logs)] == ["000000000002.index"]


# -- indexes --------------------------------------------------------------------------------------------------------


def test_an_index_and_its_batches(tmp_path: Path) -> None:
    batches = small_entry_log(tmp_path / "x")
    path = tmp_path / "x" / "000000000007.index"
    report = index_at(path, verify=True)
    assert (report.kind, report.number, report.verified_batches) == ("entry log", 7, len(batches))
    assert report.problems == []
    assert [(each.ledger_id, each.stamp, each.batches) for each in report.sections] == [(3, 1, 4), (3, 2, 1), (5, 1, 1)]
    found = [
        each for each in inspect_indexes(find_place(str(path)), with_batches=True) if isinstance(each, IndexedBatch)
    ]
    log = (tmp_path / "x" / "000000000007.log").read_bytes()
    assert [log[each.offset : each.offset + each.size_bytes] for each in found] == [batch.data for batch in batches]


def test_every_flipped_byte_of_an_index_is_found(tmp_path: Path) -> None:
    small_entry_log(tmp_path / "x")
    path = tmp_path / "x" / "000000000007.index"
    padding = range(68, 72)
    for offset in range(path.stat().st_size):
        flip(path, offset)
        assert bool(damage_of([index_at(path)])) == (offset not in padding), offset
        flip(path, offset)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        assert damage_of([index_at(path)]), length


def test_an_index_is_compared_with_its_log_file(tmp_path: Path) -> None:
    """Also where both have right checksums, and are not of one file."""
    make_filled(tmp_path / "one")
    make_filled(tmp_path / "two", commits=230)
    for path in sorted((tmp_path / "one" / "journal").glob("*.index")):
        report = index_at(path, verify=True)
        assert report.problems == []
        assert report.verified_batches == report.batches > 0
    index = tmp_path / "one" / "journal" / "000000000001.index"
    log = tmp_path / "one" / "journal" / "000000000001.journal"
    flip(log, PAGE_BYTES + 5000)
    report = index_at(index, verify=True)
    assert damage_of([report])
    assert report.verified_batches is not None
    assert report.verified_batches < report.batches
    listed = list(inspect_indexes(find_place(str(index)), with_batches=True, verify=True))
    assert [each.problem for each in listed if isinstance(each, IndexedBatch) and each.problem]


def test_index_is_right_when_its_log_file_is_recycled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "st"
    make_filled(path)
    journal = path / "journal"
    real = InspectedFile.file_header

    def recycled_at_once(file: InspectedFile) -> FileHeader | None:
        header = real(file)
        if file.name == "000000000001.journal" and file.is_in_place():
            used_again = (journal / file.name).rename(journal / "000000000099.journal")
            used_again.write_bytes((journal / "000000000002.journal").read_bytes())
        return header

    monkeypatch.setattr(InspectedFile, "file_header", recycled_at_once)
    report = index_at(journal / "000000000001.index", verify=True)
    assert [problem.kind for problem in report.problems] == ["gone"]
    assert report.verified_batches is None


def test_index_problem_is_shown_when_it_lacks_a_batch(tmp_path: Path) -> None:
    """A ledger whose batches stand in a full file, not in its index, and that nobody deleted, is lost to reads."""
    path = tmp_path / "st"
    make_filled(path)
    for name in ("000000000001.index", "000000000002.index"):
        assert damage_of([index_at(path / "journal" / name, verify=True)]) == []
    other = tmp_path / "x"
    batches = small_entry_log(other)
    writer = EntryLogWriter(QuickDisk(), str(tmp_path), 7, IDENTITY)
    writer.begin_section(3, 1)
    for batch in batches[:3]:
        place = (batch.first_entry_id, batch.last_entry_id, batch.stride)
        writer.add(*place, batch.data, payload_checksum(batch.data))
    QuickDisk().close(writer.finish().fd)
    (tmp_path / "000000000007.index").replace(other / "000000000007.index")
    report = index_at(other / "000000000007.index", verify=True)
    assert any("not in the index" in problem.reason for problem in damage_of([report]))


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    make_compacted(tmp_path / "st")
    before = traces(tmp_path)
    logs_at(tmp_path / "st", with_records=True)
    list(inspect_indexes(find_place(str(tmp_path / "st")), with_batches=True, verify=True))
    assert traces(tmp_path) == before
