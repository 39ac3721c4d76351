"""Inspecting the journal: its files in order, and their records."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator

import attrs

from replog.backends.files.catalog import Catalog
from replog.backends.files.directory import journal_name, journal_number
from replog.backends.files.index import Index
from replog.backends.files.inspecting.log_scan import InspectedLog, LogScan, as_epoch, problems_in, report_record
from replog.backends.files.inspecting.places import Place, Unreadable
from replog.backends.files.record import RecordType
from replog.backends.files.scanning import FoundBatch, ScannedRecord
from replog.backends.files.spares import SPARE_PREFIX
from replog.backends.inspection.read_only import Progress, ignore_progress, is_locked
from replog.backends.inspection.reports import JournalFileReport, LedgerUsage, Problem, RecordReport, Vouching
from replog.backends.ranges import LedgerRanges
from replog.errors import ConfigError
from replog.protocol.mutations import DELETED_TERM, Marks

_KNOWN_TYPES = frozenset(RecordType)


@attrs.define
class JournalWalk:
    """The journal files of a place, scanned in order. Iterate `files`; each is to be finished before the next.

    `problems` are those of the whole: files that should be there and aren't, a journal that ends too early. Known at the end."""

    place: Place
    catalog: Catalog | None = None
    progress: Progress = ignore_progress
    problems: list[Problem] = attrs.field(factory=list)
    _sequence: int | None = None  # of the last group so far
    _previous: int | None = None  # number of the file before
    _is_first: bool = True
    _is_whole: bool = True  # all files that were listed could be read
    _vouching: Vouching = attrs.field(factory=Vouching)  # as it was before the files were read

    def files(self, first_number: int = 0, paths: list[tuple[int, str]] | None = None) -> Iterator[WalkedFile]:
        """The files from this number on. Raises `Unreadable` if the directory can't be read."""
        # Read before the files: what it says was durable must be in them.
        self._vouching = self.place.vouching()
        listed = self.place.journal_files() if paths is None else paths
        self._is_first = not any(number < first_number for number, _ in listed)
        numbers = [number for number, _ in listed if number >= first_number]
        for number, path in listed:
            if number < first_number:
                continue
            walked = WalkedFile(self, number, path)
            yield walked
            if walked.scan is None or walked.scan.was_recycled:
                self._sequence = None
                self._is_whole = False
            elif walked.scan.last_sequence is not None:
                self._sequence = walked.scan.last_sequence
            self._previous = number
            self._is_first = False
        if paths is None and self.place.root is not None:
            self._find_missing(first_number, numbers)
            self._check_end(first_number)

    def expected_sequence(self, number: int) -> int | None:
        """With which group this file must begin, if the one before it was read."""
        if self.catalog is not None and number == self.catalog.first_journal:
            return self.catalog.sequence + 1
        if number == 1:
            return 1
        return self._sequence + 1 if self._sequence is not None and self._previous == number - 1 else None

    def state_of(self, number: int, scan: LogScan) -> str:
        """The state of a file that was scanned."""
        catalog = self.catalog
        if self.adopted_end(number) is not None:
            return "adopted"
        if catalog is not None and number < catalog.first_journal:
            return "dropped"
        if scan.last_sequence is None:
            return "current" if self._is_first else "unused"
        return "full" if scan.is_followed else "current"

    def adopted_end(self, number: int) -> int | None:
        """Where a file ends that the catalog has, or None if it hasn't."""
        files = self.catalog.files if self.catalog else []
        return next((file.end_bytes for file in files if file.is_journal and file.number == number), None)

    def _find_missing(self, first_number: int, numbers: list[int]) -> None:
        """Files that should be there. On an open storage they may have been recycled since: only a stopped one proves it."""
        expected: set[int] = set()
        start = 1
        if self.catalog is not None:
            expected.update(file.number for file in self.catalog.files if file.is_journal)
            start = self.catalog.first_journal
        elif first_number > 1:
            start = first_number
        expected.update(range(start, max(numbers, default=start) + 1))
        lock = self.place.lock_path()
        # A bookie that runs recycles files while their names are read. Only of a stopped one a missing file is a loss.
        kind = "damage" if lock is not None and is_locked(lock) is False else "gone"
        for number in sorted(number for number in expected - set(numbers) if number >= first_number):
            self.problems.append(
                Problem(f"{self.place.journal}/{journal_name(number)}", 0, kind, "the file is missing")
            )

    def _check_end(self, first_number: int) -> None:
        """Whether the journal gets as far as the catalog or the mark know that it was durable."""
        catalog = self.catalog
        if catalog is None or first_number > catalog.first_journal or not self._is_whole:
            return
        last = catalog.sequence if self._sequence is None else self._sequence
        durable = max(catalog.durable_sequence, self._vouching.position or 0)
        if max(last, self._vouching.accounted) < durable:
            reason = f"its last group is {last}, but group {durable} was durable"
            # A bookie that runs recycles files in any order, once a catalog is durable that needs none of them.
            kind = "damage" if self.place.catalog() == catalog else "gone"
            self.problems.append(Problem(self.place.journal or "", 0, kind, reason))


class WalkedFile:
    """One file of a walk: iterate `records`, then take `report`."""

    def __init__(self, walk: JournalWalk, number: int, path: str) -> None:
        self._walk = walk
        self.number = number
        self.path = path
        self.log = InspectedLog(path, number, True, walk.place.identity, walk.progress, walk.expected_sequence(number))
        self.report = JournalFileReport(path, number, "unreadable")

    @property
    def scan(self) -> LogScan | None:
        """The reading of the file, if its header could be read."""
        return self.log.scan

    def records(self) -> Iterator[ScannedRecord]:
        """All records, those of a last group that isn't whole, too. Never raises."""
        report, log = self.report, self.log
        for record in log.records():
            if record.header.record_type == RecordType.BATCH:
                report.batches += 1
            elif record.is_intact and record.header.record_type not in _KNOWN_TYPES:
                reason = f"a record of type {record.header.record_type}, unknown to this replog: use a newer one"
                report.problems.append(Problem(self.path, record.offset, "unreadable", reason))
            yield record
        report.file_bytes = log.file_bytes
        report.problems += log.problems
        if log.scan is not None:
            self._describe(log.scan)
        if log.is_gone:
            report.state = "gone"

    def _describe(self, scan: LogScan) -> None:
        report = self.report
        report.used_bytes, report.groups, report.records = scan.end, scan.groups, scan.records
        report.first_sequence, report.last_sequence = scan.first_sequence, scan.last_sequence
        report.epoch = as_epoch(scan.chain.epoch)
        report.state = self._walk.state_of(self.number, scan)
        end = self._walk.adopted_end(self.number)
        if end is not None and end != scan.end and not self.log.problems:
            reason = f"its records end here, the catalog says at {end}"
            report.problems.append(Problem(self.path, scan.end, "damage", reason))


def inspect_journal(
    place: Place, *, first_number: int = 0, with_records: bool = False, progress: Progress = ignore_progress
) -> Iterator[RecordReport | JournalFileReport | Problem]:
    """The journal in order: of each file its records, if they are wanted, then the file; the spare files; and what is wrong
    with the whole. Raises `ConfigError` if there is no journal here."""
    if place.journal is None:
        raise ConfigError(f"{place.path}: its journal is in another directory; name that with --journal-dir")
    catalog = place.catalog()
    if isinstance(catalog, Problem):
        yield catalog
        catalog = None
    walk = JournalWalk(place, catalog, progress)
    try:
        paths = None if place.file is None else _only(place.file)
        if place.file is not None and not paths:
            yield _spare(place.file)
            return
        for walked in walk.files(first_number, paths):
            for record in walked.records():
                if with_records:
                    report = report_record(walked.path, record)
                    walked.report.problems += problems_in(walked.path, report)
                    yield report
            yield walked.report
        if place.file is None:
            for path in place.spares():
                yield _spare(path)
            yield from walk.problems
    except Unreadable as error:
        yield error.problem


def _only(path: str) -> list[tuple[int, str]]:
    name = os.path.basename(path)
    number = journal_number(name)
    if number is None and not name.startswith(SPARE_PREFIX):
        raise ConfigError(f"{path} is not a journal file: its name must be like {journal_name(1)}")
    return [] if number is None else [(number, path)]


def _spare(path: str) -> JournalFileReport:
    report = JournalFileReport(path, None, "spare")
    try:
        report.file_bytes = os.stat(path).st_size
    except OSError as error:
        unreadable = Unreadable(path, 0, error)
        report.state = "gone" if unreadable.is_gone else "unreadable"
        report.problems.append(unreadable.problem)
    return report


# -- survey -----------------------------------------------------------------------------------------------------------
#
# A storage's knowledge of its ledgers: from the catalog, and from the journal files that a start would replay.
#
# The storage's own index takes marks and deletions; of batches it keeps only the facts about their ledgers.


BatchSeen = Callable[[WalkedFile, FoundBatch], None]


@attrs.define
class Survey:
    """Made by `survey`. `journal` has the files that were read, with how much each ledger uses of them."""

    place: Place
    catalog: Catalog | None = None
    index: Index = attrs.field(factory=Index)
    journal: list[tuple[JournalFileReport, dict[int, LedgerUsage]]] = attrs.field(factory=list)
    problems: list[Problem] = attrs.field(factory=list)

    @property
    def deleted(self) -> LedgerRanges:
        """The ledgers that were deleted."""
        return self.index.deleted

    def marks_of(self, ledger_id: int) -> Marks | None:
        """The known marks of a ledger, or None."""
        ledger = self.index.ledgers.get(ledger_id)
        if ledger is not None:
            return ledger.marks()
        return Marks(fence_term=DELETED_TERM) if ledger_id in self.deleted else None


def begin_survey(place: Place) -> Survey:
    """Reads only the catalog. Raises `Unreadable`."""
    found = Survey(place)
    catalog = place.catalog()
    if isinstance(catalog, Problem):
        found.problems.append(catalog)
    elif catalog is not None:
        found.catalog = catalog
        found.index.put_catalog(catalog.deleted, catalog.ledgers)
    return found


def survey(place: Place, progress: Progress = ignore_progress, on_batch: BatchSeen | None = None) -> Survey:
    """Reads the catalog, and the journal from where it says; a storage without one: all of the journal.

    Records of a last group that isn't whole don't count. Raises `Unreadable` if a directory can't be read, `ConfigError`
    if the journal is in another directory."""
    if place.journal is None:
        raise ConfigError(f"{place.path}: its journal is in another directory; name that with --journal-dir")
    # The catalog is read first: a bookie that runs writes it only when what it says is durable.
    found = begin_survey(place)
    walk = JournalWalk(place, found.catalog, progress)
    for walked in walk.files(found.catalog.first_journal if found.catalog else 0):
        usage: dict[int, LedgerUsage] = {}
        _survey_file(found, walked, usage, on_batch)
        found.journal.append((walked.report, usage))
        found.problems += walked.report.problems
    found.problems += walk.problems
    return found


def _survey_file(found: Survey, walked: WalkedFile, usage: dict[int, LedgerUsage], on_batch: BatchSeen | None) -> None:
    # The records of a group wait for its last one: until then nobody was told of any of them.
    group: list[ScannedRecord | FoundBatch] = []
    sequence = -1
    for record in walked.records():
        header = record.header
        if header.sequence != sequence:
            group.clear()
            sequence = header.sequence
        if record.is_intact:
            if header.record_type == RecordType.BATCH:
                group += walked.log.batches_of(record)
            else:
                group.append(record._replace(payload=memoryview(bytes(record.payload))))
        if not record.is_last_of_group:
            continue
        for each in group:
            if isinstance(each, ScannedRecord):
                _put_record(found, walked, each)
                continue
            ledger = found.index.ledger(each.ledger_id)
            if ledger is not None:
                ledger.note_batch(each.last, each.last_add_confirmed)
            add_usage(usage, each)
            if on_batch is not None:
                on_batch(walked, each)
        group.clear()


def _put_record(found: Survey, walked: WalkedFile, record: ScannedRecord) -> None:
    try:
        found.index.put_record(record.header.record_type, record.payload)
    except struct.error:
        reason = "its payload is too short for its type"
        found.problems.append(Problem(walked.path, record.offset, "damage", reason))


def add_usage(usage: dict[int, LedgerUsage], batch: FoundBatch) -> None:
    """Counts a batch for its ledger."""
    used = usage.get(batch.ledger_id)
    if used is None:
        used = usage[batch.ledger_id] = LedgerUsage(batch.ledger_id, 0, 0)
    used.batches += 1
    used.batch_bytes += batch.location.size
