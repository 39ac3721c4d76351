"""Inspecting entry logs, the journal files that are the log, and the indexes beside both."""

from __future__ import annotations

import os
from collections.abc import Iterator

import attrs

from replog.backends.files.catalog import Catalog
from replog.backends.files.directory import entry_log_name, entry_log_number, journal_number, number_of_index
from replog.backends.files.index_file import BATCH_BYTES, HEADER_BYTES, SectionEntry
from replog.backends.files.index_page import IndexPage
from replog.backends.files.indexing import DamagedIndex, IndexFile
from replog.backends.files.inspecting.journals import add_usage, survey
from replog.backends.files.inspecting.log_scan import InspectedLog, problems_in, report_record
from replog.backends.files.inspecting.places import InspectedFile, Place, Unreadable, list_names, must_be_readable
from replog.backends.files.log_file import index_path
from replog.backends.files.scanning import FoundBatch
from replog.backends.inspection.read_only import READ_ONLY, Progress, ignore_progress
from replog.backends.inspection.reports import (
    EntryLogReport,
    IndexedBatch,
    IndexReport,
    LedgerUsage,
    Problem,
    RecordReport,
    SectionReport,
)
from replog.backends.ranges import LedgerRanges
from replog.errors import ConfigError

# -- indexes ----------------------------------------------------------------------------------------------------------
#
# Inspecting index files: their sections and batches, and whether they say what the log files hold.


_Row = tuple[int, int, int, int, int, int]  # first id, last id, offset, stride, size, checksum


def rows(page: IndexPage) -> Iterator[_Row]:
    """The batches of a page in the order of their first ids."""
    return zip(*page.columns, strict=True)


def open_index(log_path: str, identity: bytes | None) -> IndexFile | Problem:
    """The index beside a log file, or why it can't be used."""
    return _open(index_path(log_path), identity)


def _open(path: str, identity: bytes | None) -> IndexFile | Problem:
    try:
        return IndexFile(READ_ONLY, path, number=number_of_index(os.path.basename(path)), identity=identity)
    except FileNotFoundError:
        return Problem(path, 0, "gone", "the file is missing; the next start makes it again")
    except OSError as error:
        return Unreadable(path, 0, error).problem
    except DamagedIndex as error:
        return Problem(path, error.offset, "damage", error.reason)


def inspect_indexes(
    place: Place, *, with_batches: bool = False, verify: bool = False, progress: Progress = ignore_progress
) -> Iterator[IndexedBatch | IndexReport]:
    """Each index file: its batches, if they are wanted, then what it says of itself. All pages are checked; with `verify`
    the log files are read too, and compared. Raises `ConfigError` if there can be none here, `StorageFailedError`."""
    for path in _paths(place):
        inspection = _Inspection(place, path, verify, progress, IndexReport(path))
        yield from inspection.run(with_batches)
        yield inspection.report


def _paths(place: Place) -> list[str]:
    if place.file is not None:
        if number_of_index(os.path.basename(place.file)) is None:
            raise ConfigError(f"{place.file} is not an index file: its name must be like 000000000001.index")
        return [place.file]
    with must_be_readable():
        directories = [each for each in (place.journal, place.logs) if each is not None]
        names = [(directory, name) for directory in directories for name in list_names(directory)]
        found = [f"{directory}/{name}" for directory, name in names if number_of_index(name) is not None]
        expected = _expected(place)
    return [*found, *sorted(expected - set(found))]


def _expected(place: Place) -> set[str]:
    """The indexes that the catalog's files must have."""
    catalog = place.catalog()
    if catalog is None or isinstance(catalog, Problem):
        return set()
    paths = (place.log_path(file.is_journal, file.number) for file in catalog.files)
    return {index_path(path) for path in paths if path}


@attrs.define
class _Inspection:
    place: Place
    path: str
    verify: bool
    progress: Progress
    report: IndexReport
    reasons: dict[int, str] = attrs.field(factory=dict)  # by offset in the log file

    def run(self, with_batches: bool) -> Iterator[IndexedBatch]:
        report = self.report
        index = _open(self.path, self.place.identity)
        if isinstance(index, Problem):
            report.problems.append(index)
            return
        try:
            header = index.header
            report.file_bytes, report.number = index.size_bytes, header.number
            report.kind = "journal" if header.is_journal else "entry log"
            report.end_bytes, report.switches = header.end_bytes, header.switches
            self._check_pages(index)
            if self.verify:
                _Comparison(self, index).run()
            if with_batches:
                yield from self._batches(index)
        except OSError as error:
            report.problems.append(Unreadable(self.path, 0, error).problem)
        finally:
            index.close()

    def damaged(self, offset: int, reason: str) -> None:
        """Notes what is wrong with the index."""
        self.report.problems.append(Problem(self.path, offset, "damage", reason))

    def _check_pages(self, index: IndexFile) -> None:
        report = self.report
        end = HEADER_BYTES + index.header.directory_bytes
        for each in index.entries:
            is_intact = index.page(each) is not None
            if not is_intact:
                self.damaged(each.page_offset, f"the page of ledger {each.ledger_id} doesn't match its checksum")
            entries = each.ledger_id, each.stamp, each.first, each.last
            report.sections.append(SectionReport(*entries, each.batches, each.data_bytes, each.page_offset, is_intact))
            report.batches += each.batches
            report.batch_bytes += each.data_bytes
            end += each.batches * BATCH_BYTES
        if end != index.size_bytes:
            self.damaged(min(end, index.size_bytes), f"it should be {end} bytes long")

    def _batches(self, index: IndexFile) -> Iterator[IndexedBatch]:
        name = os.path.basename(self.path)
        for entry, (first, last, offset, stride, size, _) in _rows_of(index):
            of_ledger = entry.ledger_id, entry.stamp, first, last, stride
            yield IndexedBatch(name, offset, size, *of_ledger, self.reasons.get(offset, ""))


def _rows_of(index: IndexFile) -> Iterator[tuple[SectionEntry, _Row]]:
    """The batches of all intact pages."""
    for entry in index.entries:
        page = index.page(entry)
        if page is not None:
            yield from ((entry, row) for row in rows(page))


_Identity = tuple[int, int, int, int, int]  # ledger, stamp, first id, last id, stride


class _Comparison:
    """An index beside its log file."""

    def __init__(self, inspection: _Inspection, index: IndexFile) -> None:
        self._inspection = inspection
        self._index = index
        self._by_offset: dict[int, tuple[_Identity, int, int]] = {}
        self._ledgers = {entry.ledger_id for entry in index.entries}
        self._deleted: LedgerRanges | None = None
        self._differences: list[tuple[int, str]] = []  # offsets in the log file, and reasons
        for entry, (first, last, offset, stride, size, checksum) in _rows_of(index):
            self._by_offset[offset] = (entry.ledger_id, entry.stamp, first, last, stride), size, checksum
        self._identities = {identity for identity, _, _ in self._by_offset.values()}

    def run(self) -> None:
        """Compares; notes what differs."""
        header, inspection = self._index.header, self._inspection
        suffix = ".journal" if header.is_journal else ".log"
        path = self._index.path.removesuffix(".index") + suffix
        log = InspectedLog(path, header.number, header.is_journal, header.identity, inspection.progress)
        verified = sum(map(self._is_verified, log.batches()))
        inspection.report.problems += log.problems
        if log.scan is None or any(problem.kind == "gone" for problem in log.problems):
            # There is nothing to compare with, and `log.problems` says why. A bookie that runs may use a file again at any
            # moment, and what was read of it is of two lives then.
            return
        if log.scan.end != header.end_bytes:
            inspection.damaged(0, f"it says that the log file ends at {header.end_bytes}, it does at {log.scan.end}")
        for offset in self._by_offset:
            self._differs(offset, "the log file has no such batch here")
        for offset, reason in self._differences:
            inspection.damaged(offset, reason)
        inspection.reasons.update(self._differences)
        inspection.report.verified_batches = verified

    def _is_verified(self, batch: FoundBatch) -> bool:
        """True if the index has this batch at its place; else notes what is wrong, if anything is."""
        _, offset, size, checksum = batch.location
        identity = batch[:5]
        indexed = self._by_offset.pop(offset, None)
        if indexed == (identity, size, checksum):
            return True
        ledger_id = batch.ledger_id
        if indexed is not None:
            self._differs(offset, "the log file has another batch here")
        elif identity not in self._identities and not self._is_deleted(ledger_id):
            self._differs(offset, f"a batch of ledger {ledger_id} stands in the log file, and not in the index")
        return False

    def _differs(self, offset: int, reason: str) -> None:
        self._differences.append((offset, reason))

    def _is_deleted(self, ledger_id: int) -> bool:
        """True if nothing of this ledger need be indexed. Without a storage around the file that is not known."""
        place = self._inspection.place
        if self._deleted is None:
            is_known = place.root is not None and place.journal is not None
            self._deleted = survey(place).deleted if is_known else LedgerRanges([(0, (1 << 63) - 1)])
        return ledger_id not in self._ledgers and ledger_id in self._deleted


# -- entry logs -------------------------------------------------------------------------------------------------------
#
# Inspecting entry logs, and the journal files that are the log: which ledgers use how much, and their records.


@attrs.frozen
class LogPlace:
    """A log file of the catalog, or one that was found beside."""

    path: str
    is_journal: bool
    number: int
    age: int | None


def log_places(place: Place, catalog: Catalog | None) -> list[LogPlace]:
    """The files that hold batches in their final place, ascending by age: those of the catalog, then other entry logs.
    Without a catalog: all entry logs and journal files. Raises `Unreadable`."""
    if catalog is None:
        found = [LogPlace(path, True, number, None) for number, path in place.journal_files()]
    else:
        paths = [(file, place.log_path(file.is_journal, file.number)) for file in catalog.files]
        found = [LogPlace(path, file.is_journal, file.number, file.age) for file, path in paths if path is not None]
    known = {each.path for each in found}
    found += [LogPlace(path, False, number, None) for number, path in place.entry_logs() if path not in known]
    return found


def inspect_entry_logs(
    place: Place, *, with_records: bool = False, progress: Progress = ignore_progress
) -> Iterator[RecordReport | EntryLogReport | Problem]:
    """Each entry log and adopted journal file: its records, if `with_records`, then the file. The figures come from the
    indexes, unless records are asked for or an index is damaged. Without indexes all journal files are the log, and are read."""
    found = place.catalog()
    catalog = None if isinstance(found, Problem) else found
    try:
        deleted = LedgerRanges([] if catalog is None else catalog.deleted)
        if place.root is not None and place.journal is not None:
            known = survey(place, progress)
            deleted = known.deleted
            yield from known.problems
        elif isinstance(found, Problem):
            yield found
        files = log_places(place, catalog) if place.file is None else [_single(place, catalog)]
        for each in files:
            inspection = LogInspection(each, place.identity, deleted, progress)
            if with_records or not inspection.read_index():
                yield from inspection.scan(with_records)
            report = inspection.report
            if each.age is not None or report.batches or report.problems or not each.is_journal:
                yield report
    except Unreadable as error:
        yield error.problem


def _single(place: Place, catalog: Catalog | None) -> LogPlace:
    assert place.file is not None
    name = os.path.basename(place.file)
    of_journal, of_entry_log = journal_number(name), entry_log_number(name)
    number = of_entry_log if of_journal is None else of_journal
    if number is None:
        raise ConfigError(
            f"{place.file} is neither an entry log nor a journal file: its name must be like {entry_log_name(1)}"
        )
    is_journal = of_journal is not None
    files = [] if catalog is None else catalog.files
    ages = [each.age for each in files if (each.is_journal, each.number) == (is_journal, number)]
    return LogPlace(place.file, is_journal, number, ages[0] if ages else None)


class LogInspection:
    """One log file: by its index or by reading it."""

    def __init__(self, log: LogPlace, identity: bytes | None, deleted: LedgerRanges, progress: Progress) -> None:
        self._log = log
        self._identity = identity
        self._deleted = deleted
        self._progress = progress
        self._usage: dict[int, LedgerUsage] = {}
        kind = "journal" if log.is_journal else "entry log"
        self.report = EntryLogReport(log.path, kind, log.number, log.age)

    def read_index(self) -> bool:
        """Takes the figures from the index. False if it can't; then the file is to be scanned."""
        report = self.report
        index = open_index(self._log.path, self._identity)
        if isinstance(index, Problem):
            # Of a missing index the scan says what is wrong, if anything is.
            if index.kind == "damage":
                report.problems.append(index)
            return False
        index.close()
        try:
            # Opened, and not only asked for its size: a file that this user may not read is a problem to show.
            with InspectedFile(self._log.path) as file:
                report.file_bytes = file.size_bytes
        except Unreadable:
            return False
        for section in index.entries:
            used = self._usage.setdefault(section.ledger_id, LedgerUsage(section.ledger_id, 0, 0))
            used.batches += section.batches
            used.batch_bytes += section.data_bytes
        report.source = "index"
        self._sum()
        return True

    def scan(self, with_records: bool) -> Iterator[RecordReport]:
        """Reads the file, and takes the figures from its batches."""
        report, place = self.report, self._log
        log = InspectedLog(place.path, place.number, place.is_journal, self._identity, self._progress)
        for record in log.records():
            for batch in log.batches_of(record):
                add_usage(self._usage, batch)
            if with_records:
                described = report_record(place.path, record)
                report.problems += problems_in(place.path, described)
                yield described
        report.file_bytes = log.file_bytes
        report.problems += log.problems
        self._sum()

    def _sum(self) -> None:
        report = self.report
        for used in self._usage.values():
            used.is_deleted = used.ledger_id in self._deleted
            report.batches += used.batches
            report.batch_bytes += used.batch_bytes
            report.live_bytes += 0 if used.is_deleted else used.batch_bytes
        report.ledgers = sorted(self._usage.values(), key=lambda used: (-used.batch_bytes, used.ledger_id))
