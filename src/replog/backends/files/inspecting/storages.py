"""Inspecting a storage as a whole: its identity, the process that has it open, and how much it holds."""

from __future__ import annotations

import os
import struct
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator

import attrs

from replog.backends.directory import LOCK_FILE
from replog.backends.files.catalog import NAME as CATALOG
from replog.backends.files.catalog import Catalog
from replog.backends.files.index_file import SectionEntry
from replog.backends.files.indexing import IndexFile
from replog.backends.files.inspecting.entry_logs import LogInspection, LogPlace, log_places, open_index, rows
from replog.backends.files.inspecting.journals import Survey, WalkedFile, begin_survey, survey
from replog.backends.files.inspecting.log_scan import InspectedLog
from replog.backends.files.inspecting.places import InspectedFile, Place, Unreadable, list_names, must_be_readable
from replog.backends.files.record import payload_checksum
from replog.backends.files.scanning import FoundBatch
from replog.backends.files.spares import SPARE_PREFIX
from replog.backends.inspection.ledgers import IDENTITY, Copy, LedgerInspection
from replog.backends.inspection.read_only import READ_ONLY, Progress, ignore_progress, is_locked, owner_of
from replog.backends.inspection.reports import BatchReport, LedgerReport, Problem, StorageReport
from replog.errors import ConfigError
from replog.runtime.disk_errors import exists


def inspect_storage(place: Place, progress: Progress = ignore_progress) -> StorageReport:
    """Everything about a storage. Reads the part of the journal that a start would replay.

    Raises `ConfigError` if this is not a storage's directory, `StorageFailedError` if it can't be read."""
    if place.root is None or place.version is None or place.bookie_id is None or place.file is not None:
        raise ConfigError(f"{place.path} is not a storage's directory: name the one with storage.json in it")
    lock = f"{place.root}/{LOCK_FILE}"
    known = place.root, "files", place.version, place.bookie_id
    report = StorageReport(*known, is_locked(lock), owner_of(lock), place.journal)
    place.vouching().describe(report)
    with must_be_readable():
        _measure_space(place, report)
        if place.journal is None:
            _describe_catalog(report, begin_survey(place))
        else:
            _count(place, report, survey(place, progress), progress)
    return report


def _measure_space(place: Place, report: StorageReport) -> None:
    assert place.root is not None
    report.free_bytes = READ_ONLY.free_bytes(place.root)
    report.catalog_bytes = _size(f"{place.root}/{CATALOG}")
    sizes: Counter[str] = Counter()
    for kind, directory in (("root", place.root), ("journal", place.journal), ("entry log", place.logs)):
        for name in list_names(directory) if directory is not None else ():
            of = "index" if name.endswith(".index") else "spare" if name.startswith(SPARE_PREFIX) else kind
            sizes[of] += _size(f"{directory}/{name}")
    report.total_bytes, report.index_bytes, report.entry_log_bytes = sizes.total(), sizes["index"], sizes["entry log"]
    if place.journal is not None:
        report.journal_bytes, report.spare_bytes = sizes["journal"], sizes["spare"]
        report.spare_files = len(place.spares())
        with must_be_readable():
            if exists(place.journal):
                report.journal_free_bytes = READ_ONLY.free_bytes(place.journal)


def _size(path: str) -> int:
    """The size of a file, 0 if it is gone; directories have none."""
    try:
        return os.stat(path).st_size if os.path.isfile(path) else 0
    except OSError:
        return 0


def _describe_catalog(report: StorageReport, known: Survey) -> None:
    """Describes the facts that are known without the journal."""
    report.problems += known.problems
    if known.catalog is not None:
        _describe_marks(report, known)


def _describe_marks(report: StorageReport, known: Survey) -> None:
    catalog = known.catalog
    report.ledgers = len(known.index.ledgers)
    report.deleted_ledgers = sum(last - first + 1 for first, last in known.deleted)
    if catalog is not None:
        report.catalog_generation = catalog.generation
        report.first_journal_to_replay, report.catalog_sequence = catalog.first_journal, catalog.sequence
        report.adopted_files = sum(file.is_journal for file in catalog.files)
        report.entry_logs = len(catalog.files) - report.adopted_files


def _count(place: Place, report: StorageReport, known: Survey, progress: Progress) -> None:
    _describe_marks(report, known)
    report.problems += known.problems
    report.journal_files = len(place.journal_files())
    report.batches = report.batch_bytes = report.live_bytes = 0
    usages = []
    for file, usage in known.journal:
        report.last_sequence = file.last_sequence if file.last_sequence is not None else report.last_sequence
        usages += list(usage.values())
    for log in log_places(place, known.catalog):
        if log.age is None:
            continue
        inspection = LogInspection(log, place.identity, known.deleted, progress)
        if not inspection.read_index():
            for _ in inspection.scan(False):
                pass
        report.problems += inspection.report.problems
        usages += inspection.report.ledgers
    for used in usages:
        report.batches += used.batches
        report.batch_bytes += used.batch_bytes
        report.live_bytes += 0 if used.ledger_id in known.deleted else used.batch_bytes


# -- ledgers ----------------------------------------------------------------------------------------------------------
#
# Inspecting one ledger of a files storage: its marks, its batches wherever they stand, and the holes between them.


_OPEN_FILES_MAX = 32
_ATTEMPTS = 5
_MAX = (1 << 64) - 1
# Age and offset downwards, so that the copy that counts sorts first; then file, size, checksum. Some 100 bytes each.
_PLACE = struct.Struct(">QQIII")


@attrs.define
class _Collected:
    """The places of one ledger's batches. Keys are an `IDENTITY` and a `_PLACE`."""

    ledger_id: int
    progress: Progress
    survey: Survey
    paths: list[str] = attrs.field(factory=list)
    keys: list[bytes] = attrs.field(factory=list)
    problems: list[Problem] = attrs.field(factory=list)

    def add(self, path: str, age: int, identity: tuple[int, int, int, int], place: tuple[int, int, int]) -> None:
        """`identity`: first id, last id, stride, stamp; `place`: offset, size, checksum."""
        if not self.paths or self.paths[-1] != path:
            self.paths.append(path)
        offset, size, checksum = place
        packed = _PLACE.pack(_MAX - age, _MAX - offset, len(self.paths) - 1, size, checksum)
        self.keys.append(IDENTITY.pack(*identity) + packed)

    def add_batch(self, path: str, age: int, batch: FoundBatch) -> None:
        """Adds a batch of this ledger that a scan found."""
        if batch.ledger_id == self.ledger_id:
            _, *place = batch.location
            self.add(path, age, (batch.first, batch.last, batch.stride, batch.stamp), (place[0], place[1], place[2]))

    def add_log(self, log: LogPlace, catalog: Catalog) -> None:
        """By its index; by reading it where the index has no whole page of the ledger."""
        assert log.age is not None
        index = open_index(log.path, catalog.identity)
        if isinstance(index, Problem):
            self.problems.append(index)
        else:
            try:
                if self._add_pages(log.path, log.age, index):
                    return
            except OSError as error:
                self.problems.append(Unreadable(index.path, 0, error).problem)
            finally:
                index.close()
        scanned = InspectedLog(log.path, log.number, log.is_journal, catalog.identity, self.progress)
        for batch in scanned.batches():
            self.add_batch(log.path, log.age, batch)
        self.problems += scanned.problems

    def _add_pages(self, path: str, age: int, index: IndexFile) -> bool:
        pages = [(entry, index.page(entry)) for entry in index.entries if entry.ledger_id == self.ledger_id]
        damaged: list[SectionEntry] = [entry for entry, page in pages if page is None]
        if damaged:
            reason = f"the page of ledger {self.ledger_id} doesn't match its checksum"
            self.problems.append(Problem(index.path, damaged[0].page_offset, "damage", reason))
            return False
        for entry, page in pages:
            assert page is not None
            for first, last, offset, stride, size, checksum in rows(page):
                self.add(path, age, (first, last, stride, entry.stamp), (offset, size, checksum))
        return True


def inspect_ledger(place: Place, ledger_id: int, progress: Progress = ignore_progress) -> LedgerInspection:
    """Finds the ledger's batches. On a running bookie whose files change meanwhile it is done again, up to five times.

    Raises `ConfigError`, `StorageFailedError` if a directory can't be read."""
    with must_be_readable():
        collected = _collect(place, ledger_id, progress)
        for _ in range(_ATTEMPTS - 1):
            if any(problem.kind == "gone" for problem in collected.problems):
                collected = _collect(place, ledger_id, progress)
    marks = collected.survey.marks_of(ledger_id)
    report = LedgerReport(ledger_id, marks is not None, ledger_id in collected.survey.deleted)
    report.problems = collected.problems
    if marks is not None:
        report.fence_term, report.has_key = marks.fence_term, marks.key is not None
        report.last_add_confirmed, report.last_entry_id = marks.last_add_confirmed, marks.last_entry_id
    return LedgerInspection(report, collected.keys, _FileCopies(ledger_id, collected.paths, progress))


def _collect(place: Place, ledger_id: int, progress: Progress) -> _Collected:
    collected = _Collected(ledger_id, progress, Survey(place))

    def on_batch(walked: WalkedFile, batch: FoundBatch) -> None:
        collected.add_batch(walked.path, walked.number, batch)

    found = collected.survey = survey(place, progress, on_batch)
    collected.problems += found.problems
    if found.catalog is not None:
        for log in log_places(place, found.catalog):
            if log.age is not None:
                collected.add_log(log, found.catalog)
    return collected


class _FileCopies:
    """Reads copies from log files, of which a few stay open."""

    def __init__(self, ledger_id: int, paths: list[str], progress: Progress) -> None:
        self._ledger_id = ledger_id
        self._paths = paths
        self._progress = progress
        self._open: OrderedDict[str, InspectedFile] = OrderedDict()

    def size_of(self, key: bytes) -> int:
        """The size of a copy (`Copies.size_of`)."""
        size: int = _PLACE.unpack_from(key, IDENTITY.size)[3]
        return size

    def problem(self, batch: BatchReport, kind: str, reason: str) -> Problem:
        """A problem of a batch (`Copies.problem`): by the whole path, where the report has the name."""
        path = next((path for path in self._paths if os.path.basename(path) == batch.path), batch.path)
        return Problem(path, batch.offset, kind, reason)

    def read(self, keys: Iterable[bytes]) -> Iterator[Copy]:
        """Reads the copies (`Copies.read`)."""
        return map(self._read, keys)

    def _read(self, key: bytes) -> Copy:
        first, last, stride, stamp = IDENTITY.unpack_from(key)
        _, below, file, size, checksum = _PLACE.unpack_from(key, IDENTITY.size)
        offset, path = _MAX - below, self._paths[file]
        identity = self._ledger_id, stamp, first, last, stride, (last - first) // stride + 1
        known = BatchReport(os.path.basename(path), offset, size, *identity, -1, 0, "")
        try:
            data = self._file(path).read(offset, size)
        except Unreadable as error:
            return Copy(known, b"", "gone" if error.is_gone else "unreadable", error.reason)
        if len(data) == size and payload_checksum(data) == checksum:
            return Copy(known, data)
        if self._open[path].is_in_place():
            return Copy(known, data, "damage", "it doesn't match its checksum")
        # Recycling overwrites a file that nobody needs: then its batches stand elsewhere, and nothing is lost.
        return Copy(known, data, "gone", "its file was used again, or removed, since it was found there")

    def _file(self, path: str) -> InspectedFile:
        file = self._open.get(path)
        if file is None:
            # Batches of a ledger alternate between few files at a time, also in a storage with thousands of files.
            if len(self._open) >= _OPEN_FILES_MAX:
                self._open.popitem(last=False)[1].close()
            file = self._open[path] = InspectedFile(path, self._progress)
        return file

    def close(self) -> None:
        """Gives files back. Idempotent."""
        while self._open:
            self._open.popitem()[1].close()
