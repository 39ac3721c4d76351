"""Inspecting one ledger of a files storage: its marks, its batches wherever they stand, and the holes between them."""

from __future__ import annotations

import os
import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator

import attrs

from replog.backends.files.catalog import Catalog
from replog.backends.files.index_file import SectionEntry
from replog.backends.files.indexing import IndexFile
from replog.backends.files.inspecting.entry_logs import LogPlace, log_places
from replog.backends.files.inspecting.indexes import open_index, rows
from replog.backends.files.inspecting.inspected_file import InspectedFile, Unreadable, must_be_readable
from replog.backends.files.inspecting.journals import WalkedFile
from replog.backends.files.inspecting.log_scan import InspectedLog
from replog.backends.files.inspecting.places import Place
from replog.backends.files.inspecting.survey import Survey, survey
from replog.backends.files.record import payload_checksum
from replog.backends.files.scanning import FoundBatch
from replog.backends.inspection.ledgers import IDENTITY, Copy, LedgerInspection
from replog.backends.inspection.read_only import Progress, ignore_progress
from replog.backends.inspection.reports import BatchReport, LedgerReport, Problem

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
        """As `Copies.size_of`."""
        size: int = _PLACE.unpack_from(key, IDENTITY.size)[3]
        return size

    def problem(self, batch: BatchReport, kind: str, reason: str) -> Problem:
        """As `Copies.problem`: by the whole path, where the report has the name."""
        path = next((path for path in self._paths if os.path.basename(path) == batch.path), batch.path)
        return Problem(path, batch.offset, kind, reason)

    def read(self, keys: Iterable[bytes]) -> Iterator[Copy]:
        """As `Copies.read`."""
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
