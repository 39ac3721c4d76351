"""Inspecting the journal: the same verdict as a start's (B3), and nothing that runs meanwhile is taken for damage."""

import contextlib
import itertools
from pathlib import Path

import pytest

from replog.abc import Doubt, DropLedger, Mutation, PutBatch, SetMarks
from replog.backends.files import window
from replog.backends.files.inspecting import find_place, inspect_journal
from replog.backends.files.inspecting.places import InspectedFile, Place
from replog.backends.files.record import (
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    FileHeader,
    RecordType,
    checksum_seed,
    pack_file_header,
    pack_record_header,
    payload_checksum,
)
from replog.backends.inspection.reports import JournalFileReport, Problem, RecordReport
from replog.errors import ConfigError, ReplogError
from replog.testing.disk import MemoryDisk
from replog.testing.storage_conformance import make_batch
from tests.backends.files.inspecting.places import (
    SECRET,
    damage_of,
    fill,
    flip,
    golden,
    make_filled,
    open_quick,
    traces,
    write_out,
)
from tests.backends.files.workload import FIRST_FILE, open_small


def inspected(path: Path, **options: bool) -> list[RecordReport | JournalFileReport | Problem]:
    return list(inspect_journal(find_place(str(path)), **options))  # type: ignore[arg-type]


def files_of(reports: list[RecordReport | JournalFileReport | Problem]) -> list[JournalFileReport]:
    return [each for each in reports if isinstance(each, JournalFileReport)]


def records_of(reports: list[RecordReport | JournalFileReport | Problem]) -> list[RecordReport]:
    return [each for each in reports if isinstance(each, RecordReport)]


def small_journal(disk: MemoryDisk) -> list[int]:
    """Four groups of several lives. Where each ends."""
    ends = [PAGE_BYTES]
    commits: list[list[Mutation]] = [
        [PutBatch(make_batch(1, 0, 2)), SetMarks(1, SECRET, 1)],
        [PutBatch(make_batch(ledger_id, 2, 1)) for ledger_id in (1, 2, 4, 5)],
        [SetMarks(3, None, 4, 5)],
        [DropLedger(2), PutBatch(make_batch(1, 3, 3))],
    ]
    for mutations in commits:
        with contextlib.closing(open_small(disk)) as storage:
            storage.commit(mutations)
            ends.append(storage._journal.current.position)
    return ends


# -- what is shown ------------------------------------------------------------------------------------------------


def test_golden_journal(tmp_path: Path) -> None:
    reports = inspected(golden(tmp_path / "st"), with_records=True)
    (file,) = files_of(reports)
    assert (file.state, file.groups, file.batches, file.first_sequence, file.last_sequence) == ("current", 2, 2, 1, 2)
    assert [(each.type, each.ledger_id, each.sequence, each.is_intact) for each in records_of(reports)] == [
        ("EPOCH", None, 1, True),
        ("BATCH", 7, 1, True),
        ("MARKS", 7, 1, True),
        ("MARKS", 8, 1, True),
        ("DROP", 9, 2, True),
        ("BATCH", 7, 2, True),
    ]
    second = records_of(reports)[-1].batches[0]
    assert (second.first_entry_id, second.stride, second.stamp, second.digest) == (2, 3, 2, "hmac-sha256")
    assert damage_of(reports) == []


def test_no_report_has_a_key(tmp_path: Path) -> None:
    """B7: who may read a directory's reports may not write its ledgers."""
    make_filled(tmp_path / "st")
    reports = inspected(tmp_path / "st", with_records=True)
    marks = [each.marks for each in records_of(reports) if each.marks is not None]
    assert any(each.has_key for each in marks)
    assert "secret" not in repr(reports)


def test_the_states_of_files(tmp_path: Path) -> None:
    path = tmp_path / "st"
    make_filled(path)
    (path / "journal" / "spare-000007.journal").write_bytes(b"whatever")
    files = files_of(inspected(path))
    states = [file.state for file in files]
    assert states[:2] == ["adopted", "adopted"]
    assert states.count("current") == 1
    assert states[-1] == "spare"
    assert [file.number for file in files[:-1]] == list(range(1, len(files)))
    sequences = [(file.first_sequence, file.last_sequence) for file in files if file.first_sequence]
    assert all(before[1] + 1 == after[0] for before, after in itertools.pairwise(sequences))  # type: ignore[operator]
    later = files_of(list(inspect_journal(find_place(str(path)), first_number=3)))
    assert [file.number for file in later if file.number] == [file.number for file in files if (file.number or 0) >= 3]


def test_a_single_file_and_a_directory_of_files(tmp_path: Path) -> None:
    make_filled(tmp_path / "st")
    whole = files_of(inspected(tmp_path / "st"))
    alone = tmp_path / "alone"
    alone.mkdir()
    for file in whole:
        (alone / Path(file.path).name).write_bytes(Path(file.path).read_bytes())
    for path in (tmp_path / "st" / "journal", alone):
        found = files_of(inspected(path))
        assert [(each.number, each.used_bytes, each.groups) for each in found] == [
            (each.number, each.used_bytes, each.groups) for each in whole
        ]
    (found_alone,) = files_of(inspected(alone / "000000000002.journal"))
    assert found_alone.state == "full"
    assert (found_alone.first_sequence, found_alone.used_bytes) == (whole[1].first_sequence, whole[1].used_bytes)


def test_path_without_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "nowhere", tmp_path / "empty", tmp_path / "file"):
        with pytest.raises(ConfigError, match=str(path)):
            inspected(path)
    for content in (b"", b"[]", b"{", b'{"format": "x", "version": 1, "bookie_id": 5}', b'{"version": []}'):
        (tmp_path / "empty" / "storage.json").write_bytes(content)
        with pytest.raises(ReplogError, match=r"storage\.json"):
            inspected(tmp_path / "empty")


# -- damage -------------------------------------------------------------------------------------------------------


def opens(disk: MemoryDisk) -> bool:
    """Whether a start finds nothing wrong."""
    with contextlib.closing(open_small(disk.after_kill())) as storage:
        return storage.doubt() == Doubt()


@pytest.mark.sized
def test_every_flipped_byte_has_the_verdict_of_a_start(tmp_path: Path, is_long: bool) -> None:
    """B3: damage where a start is in doubt, and only there, but for header pages: a start can do without them."""
    disk = MemoryDisk()
    ends = small_journal(disk)
    write_out(disk, tmp_path)
    path = tmp_path / "journal" / "000000000001.journal"
    verdicts = set()
    for offset in (*range(60), *range(PAGE_BYTES, ends[-1] + 50, 3))[:: 1 if is_long else 3]:
        disk.content(FIRST_FILE)[offset] ^= 0x40
        flip(path, offset)
        is_fine = opens(disk)
        problems = damage_of(inspected(tmp_path, with_records=True))
        assert (problems == []) == (is_fine and not offset < 52), (offset, problems)
        if not is_fine:
            assert problems[0].path in (str(path), str(path.parent), str(tmp_path / "catalog"))
        verdicts.add(is_fine)
        disk.content(FIRST_FILE)[offset] ^= 0x40
        flip(path, offset)
    assert verdicts == {True, False}
    assert damage_of(inspected(tmp_path)) == []


def test_every_truncation_has_the_verdict_of_a_start(tmp_path: Path) -> None:
    disk = MemoryDisk()
    ends = small_journal(disk)
    write_out(disk, tmp_path)
    path = tmp_path / "journal" / "000000000001.journal"
    whole = path.read_bytes()
    for length in (0, 30, 51, 52, PAGE_BYTES, *range(PAGE_BYTES + 1, ends[-1] + 1, 7)):
        content = disk.content(FIRST_FILE)
        content[:] = whole[:length]
        path.write_bytes(whole[:length])
        assert (damage_of(inspected(tmp_path)) == []) == opens(disk), length


def test_wiped_groups_are_judged_as_at_a_start(tmp_path: Path) -> None:
    """A page that was never written, at any place of a group and over more than one."""
    disk = MemoryDisk()
    ends = small_journal(disk)
    write_out(disk, tmp_path)
    path = tmp_path / "journal" / "000000000001.journal"
    whole = path.read_bytes()
    places = sorted({*ends, *(end + 40 for end in ends[:-1]), *(end - 50 for end in ends[1:])})
    for start in places:
        for stop in places:
            if start < stop:
                wiped = whole[:start] + bytes(stop - start) + whole[stop:]
                disk.content(FIRST_FILE)[:] = wiped
                path.write_bytes(wiped)
                assert (damage_of(inspected(tmp_path)) == []) == opens(disk), (start, stop)


def test_a_group_with_a_hole_is_not_whole(tmp_path: Path) -> None:
    disk = MemoryDisk()
    small_journal(disk)
    write_out(disk, tmp_path)
    records = records_of(inspected(tmp_path, with_records=True))
    victim = next(record for record in records if record.sequence == 2 and record.type == "BATCH")
    flip(tmp_path / "journal" / victim.path, victim.offset + 9)
    (file,) = files_of(inspected(tmp_path))
    assert (file.groups, file.records, file.last_sequence) == (3, len(records) - 1, 4)


def test_torn_tail_is_reported_but_not_as_damage(tmp_path: Path) -> None:
    disk = MemoryDisk()
    ends = small_journal(disk)
    write_out(disk, tmp_path)
    path = tmp_path / "journal" / "000000000001.journal"
    flip(path, ends[-1] - 1)
    (file,) = files_of(inspected(tmp_path))
    assert [(each.kind, each.offset) for each in file.problems] == [("torn tail", ends[-2])]
    assert (file.used_bytes, file.last_sequence) == (ends[-2], 3)


def test_scan_goes_on_behind_damage(tmp_path: Path) -> None:
    path = tmp_path / "st"
    make_filled(path)
    journal = path / "journal" / "000000000001.journal"
    places = [record.offset for record in records_of(inspected(path, with_records=True)) if record.path == journal.name]
    flip(journal, places[5] + 8)  # a header
    flip(journal, places[9] + RECORD_HEADER_BYTES + 100)  # a payload
    reports = inspected(path, with_records=True)
    records = [record for record in records_of(reports) if record.path == journal.name]
    assert [record.offset for record in records] == [place for place in places if place != places[5]]
    assert [record.offset for record in records if not record.is_intact] == [places[9]]
    assert [(each.path, each.offset) for each in damage_of(reports)] == [
        (str(journal), places[5]),
        (str(journal), places[9]),
    ]


def test_a_missing_file_is_damage_unless_a_bookie_runs(tmp_path: Path) -> None:
    path = tmp_path / "st"
    make_filled(path)
    (path / "journal" / "000000000002.journal").unlink()
    assert [each.reason for each in damage_of(inspected(path))] == ["the file is missing"]
    with contextlib.closing(open_quick(tmp_path / "other")) as storage:
        (tmp_path / "other" / "lock").rename(path / "lock")  # held still: a lock is the file's, not its name's
        assert damage_of(inspected(path)) == []
        assert [each.kind for each in inspected(path) if isinstance(each, Problem)] == ["gone"]
        (path / "lock").rename(tmp_path / "other" / "lock")
        assert storage.bookie_id


def test_journal_is_damaged_when_it_ends_before_durable_group(tmp_path: Path) -> None:
    """B3: the catalog knows a group that was durable."""
    path = tmp_path / "st"
    make_filled(path)
    current = next(file for file in files_of(inspected(path)) if file.state == "current")
    with open(current.path, "r+b") as file:
        file.seek(PAGE_BYTES)
        file.write(bytes(current.used_bytes - PAGE_BYTES))
    problems = damage_of(inspected(path))
    assert [problem.reason for problem in problems if "was durable" in problem.reason]
    with contextlib.closing(open_quick(path)) as storage:
        assert storage.doubt() != Doubt()


# -- somebody writes meanwhile --------------------------------------------------------------------------------------


def test_no_damage_is_reported_when_group_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The window was read before the group was there, the proof that it was durable is found after."""
    disk = MemoryDisk()
    ends = small_journal(disk)
    write_out(disk, tmp_path)
    real = InspectedFile.read
    reads = 0

    def late(file: InspectedFile, offset: int, size: int) -> bytes:
        nonlocal reads
        data = real(file, offset, size)
        if file.name.endswith(".journal") and offset < ends[2] and offset + size > PAGE_BYTES:
            reads += 1
            if reads <= 2:  # group 2 isn't there yet; group 3 is, as pages come in any order
                start, stop = ends[1] - offset, ends[2] - offset
                data = data[:start] + bytes(stop - start) + data[stop:]
        return data

    monkeypatch.setattr(InspectedFile, "read", late)
    reports = inspected(tmp_path, with_records=True)
    assert damage_of(reports) == []
    assert files_of(reports)[0].last_sequence == 4
    assert reads > 2


def test_recycling_the_last_groups_first_is_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer catalog is durable, which needs no file with these groups: they went before the names were listed."""
    path, journal = tmp_path / "st", tmp_path / "journal"
    with contextlib.closing(open_quick(path, journal)) as storage:
        fill(storage, 100)

        def listed(place: Place) -> list[tuple[int, str]]:
            fill(storage, 100)
            storage.compact(is_major=True)
            return []

        with monkeypatch.context() as patched:
            patched.setattr(Place, "journal_files", lambda place: [])
            place = find_place(str(path), str(journal))
            assert [each.reason for each in damage_of(inspect_journal(place)) if "was durable" in each.reason]
        monkeypatch.setattr(Place, "journal_files", listed)
        problems = [each for each in inspect_journal(place) if isinstance(each, Problem)]
        assert [each.kind for each in problems if "was durable" in each.reason] == ["gone"]
        assert damage_of(problems) == []


def test_no_damage_is_reported_when_file_is_recycled_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recycling overwrites a file in place, its header page first."""
    monkeypatch.setattr(window, "WINDOW_BYTES", 8192)
    path = tmp_path / "st"
    make_filled(path)
    victim = path / "journal" / "000000000001.journal"
    reports = inspect_journal(find_place(str(victim)), with_records=True)
    seen = [next(reports) for _ in range(3)]
    content = (path / "journal" / "000000000002.journal").read_bytes()
    with open(victim, "r+b") as file:
        file.write(content)
    rest = list(reports)
    (report,) = files_of(rest)
    assert all(isinstance(each, RecordReport) for each in seen)
    assert report.state == "gone"
    assert [each.kind for each in report.problems] == ["gone"]
    assert damage_of(rest) == []


def test_file_is_reported_gone_when_it_vanishes(tmp_path: Path) -> None:
    path = tmp_path / "st"
    make_filled(path)
    reports = inspect_journal(find_place(str(path)))
    first = next(reports)
    (path / "journal" / "000000000002.journal").unlink()
    rest = [each for each in reports if isinstance(each, JournalFileReport)]
    assert isinstance(first, JournalFileReport)
    assert rest[0].state == "gone"
    assert [each.kind for each in rest[0].problems] == ["gone"]
    assert damage_of(rest) == []
    make_filled(tmp_path / "other")
    reports = inspect_journal(find_place(str(tmp_path / "other")))
    next(reports)
    for file in (tmp_path / "other" / "journal").glob("*.journal"):
        file.unlink()
    assert damage_of(reports) == []


def test_memory_is_bounded_by_windows_and_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "st"
    make_filled(path)
    whole = inspected(path, with_records=True)
    largest = max(record.size_bytes for record in records_of(whole))
    monkeypatch.setattr(window, "WINDOW_BYTES", 4096)
    real = InspectedFile.read
    sizes: list[int] = []

    def measured(file: InspectedFile, offset: int, size: int) -> bytes:
        if file.name.endswith(".journal"):
            sizes.append(size)
        return real(file, offset, size)

    monkeypatch.setattr(InspectedFile, "read", measured)
    assert inspected(path, with_records=True) == whole
    assert len(sizes) > 50
    assert max(sizes) <= max(PAGE_BYTES + RECORD_HEADER_BYTES, largest)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    make_filled(tmp_path / "st")
    before = traces(tmp_path)
    inspected(tmp_path / "st", with_records=True)
    assert traces(tmp_path) == before


def test_file_is_gone_when_recycled_before_its_header_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "st"
    make_filled(path)
    journal = path / "journal"
    real = InspectedFile.file_header

    def late(file: InspectedFile) -> FileHeader | None:
        if file.name == "000000000001.journal":
            (journal / file.name).rename(journal / "000000000099.journal")
            with open(journal / "000000000099.journal", "r+b") as recycled:
                recycled.write((journal / "000000000002.journal").read_bytes()[:PAGE_BYTES])
        return real(file)

    monkeypatch.setattr(InspectedFile, "file_header", late)
    first = next(inspect_journal(find_place(str(path))))
    assert isinstance(first, JournalFileReport)
    assert (first.state, [each.kind for each in first.problems]) == ("gone", ["gone"])


# -- records that are intact and make no sense ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record_type", "payload"),
    [
        (RecordType.MARKS, b"short"),
        (RecordType.DROP, b""),
        (RecordType.EPOCH, b"1"),
        (RecordType.BATCH, b""),
        (RecordType.BATCH, b"x" * 200),
        (RecordType.RUN, b"rlog" + b"\xff" * 100),
        (77, b"of the future"),
    ],
    ids=repr,
)
def test_intact_record_with_invalid_content_is_reported(tmp_path: Path, record_type: int, payload: bytes) -> None:
    identity = bytes(range(16))
    seed = checksum_seed(1, identity)
    page = pack_file_header(FileHeader(1, 5, identity))
    checksum = payload_checksum(payload)
    header = pack_record_header(seed, record_type, payload, 0, True, 5, 1, checksum)
    (tmp_path / "000000000001.journal").write_bytes(page + header + payload)
    reports = inspected(tmp_path, with_records=True)
    (record,) = records_of(reports)
    assert record.is_intact
    assert [problem.offset for problem in damage_of(reports)] == [PAGE_BYTES]
