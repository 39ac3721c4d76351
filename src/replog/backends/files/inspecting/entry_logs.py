"""Inspecting entry logs, and the journal files that are the log: which ledgers use how much, and their records."""

from __future__ import annotations

import os
from collections.abc import Iterator

import attrs

from replog.backends.files.catalog import Catalog
from replog.backends.files.directory import entry_log_name, entry_log_number, journal_number
from replog.backends.files.inspecting.indexes import open_index
from replog.backends.files.inspecting.inspected_file import InspectedFile, Unreadable
from replog.backends.files.inspecting.log_scan import InspectedLog
from replog.backends.files.inspecting.places import Place
from replog.backends.files.inspecting.records import problems_in, report_record
from replog.backends.files.inspecting.survey import add_usage, survey
from replog.backends.inspection.read_only import Progress, ignore_progress
from replog.backends.inspection.reports import EntryLogReport, LedgerUsage, Problem, RecordReport
from replog.backends.ranges import LedgerRanges
from replog.errors import ConfigError


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
