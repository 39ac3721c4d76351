"""Inspecting one ledger: its marks, its batches wherever they stand, and the holes between them."""

from __future__ import annotations

import os
import struct
from collections import OrderedDict
from collections.abc import Iterator

import attrs

from replog.backends.files.catalog import Catalog
from replog.backends.files.inspecting.entry_logs import LogPlace, log_places
from replog.backends.files.inspecting.holes import Coverage
from replog.backends.files.inspecting.indexes import DamagedIndex, OpenIndex, index_of
from replog.backends.files.inspecting.journals import WalkedFile
from replog.backends.files.inspecting.places import Place
from replog.backends.files.inspecting.reading import InspectedFile, Progress, Unreadable, ignore_progress
from replog.backends.files.inspecting.records import report_batch
from replog.backends.files.inspecting.reports import BatchReport, EntryReport, LedgerReport, Problem
from replog.backends.files.inspecting.scanning import EntryLogScan, LogScan, read_file_header
from replog.backends.files.inspecting.survey import BatchPlace, Survey, places_in, survey
from replog.backends.files.record import RECORD_HEADER_BYTES, RecordType, payload_checksum
from replog.errors import EntryNotFoundError, RemoteProtocolError, StorageFailedError, StorageUncertainError
from replog.protocol.batch import decode

_HOLES_MAX = 1000
_OPEN_FILES_MAX = 32
_ATTEMPTS = 5
_MAX = (1 << 64) - 1
# First id, last id, stride, stamp, age and offset downwards, file, size, checksum: sorts as bytes. Some 100 bytes each.
_KEY = struct.Struct(">qqIqQQIII")


@attrs.define
class _Collected:
    survey: Survey
    paths: list[str] = attrs.field(factory=list)
    keys: list[bytes] = attrs.field(factory=list)
    problems: list[Problem] = attrs.field(factory=list)

    def add(self, path: str, age: int, batch: BatchPlace) -> None:
        if not self.paths or self.paths[-1] != path:
            self.paths.append(path)
        file = len(self.paths) - 1
        place = (_MAX - age, _MAX - batch.offset, file, batch.size_bytes, batch.checksum)
        self.keys.append(_KEY.pack(batch.first, batch.last, batch.stride, batch.stamp, *place))


def inspect_ledger(place: Place, ledger_id: int, progress: Progress = ignore_progress) -> LedgerInspection:
    """Finds the ledger's batches. On a running bookie whose files change meanwhile it is done again, up to five times.

    Raises `ConfigError`, `StorageFailedError` if a directory can't be read."""
    try:
        collected = _collect(place, ledger_id, progress)
        for _ in range(_ATTEMPTS - 1):
            if not any(problem.kind == "gone" for problem in collected.problems):
                break
            collected = _collect(place, ledger_id, progress)
    except Unreadable as error:
        raise StorageFailedError(f"{error.path}: {error.reason}", "Run this as the user that owns it") from error
    return LedgerInspection(ledger_id, collected, progress)


def _collect(place: Place, ledger_id: int, progress: Progress) -> _Collected:
    collected = _Collected(Survey(place))

    def on_batch(walked: WalkedFile, batch: BatchPlace) -> None:
        if batch.ledger_id == ledger_id:
            collected.add(walked.path, walked.number, batch)

    found = collected.survey = survey(place, progress, on_batch)
    collected.problems += found.problems
    if found.catalog is not None:
        for log in log_places(place, found.catalog):
            if log.age is not None:
                _collect_from(log, found.catalog, ledger_id, collected, progress)
    return collected


def _collect_from(log: LogPlace, catalog: Catalog, ledger_id: int, collected: _Collected, progress: Progress) -> None:
    """By its index; by reading it where the index has no whole page of the ledger."""
    try:
        index = OpenIndex(index_of(log.path), catalog.identity, progress)
    except Unreadable as error:
        collected.problems.append(
            Problem(error.path, error.offset, "gone" if error.is_gone else "unreadable", error.reason)
        )
    except DamagedIndex as error:
        collected.problems.append(Problem(index_of(log.path), error.offset, "damage", error.reason))
    else:
        try:
            if _collect_pages(log, index, ledger_id, collected):
                return
        finally:
            index.close()
    _collect_by_reading(log, catalog, ledger_id, collected, progress)


def _collect_pages(log: LogPlace, index: OpenIndex, ledger_id: int, collected: _Collected) -> bool:
    assert log.age is not None
    before = len(collected.keys)
    for section in index.sections:
        if section.ledger_id != ledger_id:
            continue
        page = index.page(section)
        if page is None:
            reason = f"the page of ledger {ledger_id} doesn't match its checksum"
            collected.problems.append(Problem(index.file.path, section.page_offset, "damage", reason))
            del collected.keys[before:]
            return False
        for each in page:
            where = (log.path, each.offset, each.size, each.checksum, ledger_id, section.stamp)
            collected.add(log.path, log.age, BatchPlace(*where, each.first, each.last, each.stride, -1))
    return True


def _collect_by_reading(
    log: LogPlace, catalog: Catalog, ledger_id: int, collected: _Collected, progress: Progress
) -> None:
    assert log.age is not None
    try:
        with InspectedFile(log.path, progress) as file:
            header = read_file_header(file, log.number, catalog.identity)
            if isinstance(header, Problem):
                collected.problems.append(header)
                return
            scan = LogScan(file, header) if log.is_journal else EntryLogScan(file, header)
            for record in scan:
                if not record.is_intact or record.header.record_type not in (RecordType.BATCH, RecordType.RUN):
                    continue
                for place in places_in(log.path, record):
                    if place.ledger_id == ledger_id:
                        at = place.offset - record.offset - RECORD_HEADER_BYTES
                        data = record.payload[at : at + place.size_bytes]
                        collected.add(log.path, log.age, attrs.evolve(place, checksum=payload_checksum(data)))
            collected.problems += scan.problems
    except Unreadable as error:
        collected.problems.append(
            Problem(log.path, error.offset, "gone" if error.is_gone else "unreadable", error.reason)
        )


class LedgerInspection:
    """A ledger whose batches are found. `report` has what is known without reading them; iterating `batches` reads and
    checks each, and adds what is damaged to the report."""

    def __init__(self, ledger_id: int, collected: _Collected, progress: Progress) -> None:
        self._paths = collected.paths
        self._keys = sorted(collected.keys)
        self._progress = progress
        self._open: OrderedDict[str, InspectedFile] = OrderedDict()
        marks = collected.survey.marks_of(ledger_id)
        is_deleted = ledger_id in collected.survey.deleted
        self.report = LedgerReport(ledger_id, marks is not None or bool(self._keys), is_deleted)
        self.report.problems = collected.problems
        if marks is not None:
            self.report.fence_term, self.report.has_key = marks.fence_term, marks.has_key
            self.report.last_add_confirmed, self.report.last_entry_id = marks.last_add_confirmed, marks.last_entry_id
        self._measure()

    def _measure(self) -> None:
        report = self.report
        coverage = Coverage({_KEY.unpack(key)[2] for key in self._keys})
        coverage.keep(_HOLES_MAX)
        identity = b""
        for key in self._keys:
            report.copies += 1
            if key[:28] == identity:
                continue
            identity = key[:28]
            first, last, stride, _, _, _, _, size, _ = _KEY.unpack(key)
            report.batches += 1
            report.batch_bytes += size
            coverage.add(first, last, stride)
            if not report.is_deleted:
                report.last_entry_id = max(report.last_entry_id, last)
        report.stripes, report.absent_stripes = coverage.stripes, list(coverage.absent())
        report.holes, report.hole_count = coverage.holes(), coverage.hole_count

    def batches(self) -> Iterator[BatchReport]:
        """Each copy of each batch in the order of first ids, the one that counts before the others, read and checked."""
        for report, _ in self._read():
            yield report

    def entries(self) -> Iterator[EntryReport]:
        """The entries of all intact batches that count, in the order of the batches' first ids."""
        for report, data in self._read():
            if report.problem or not report.is_current:
                continue
            try:
                payloads = decode(data).payloads()
            except RemoteProtocolError as error:
                self._note(report, str(error))
                continue
            ids = range(report.first_entry_id, report.last_entry_id + 1, report.stride)
            for entry_id, payload in zip(ids, payloads, strict=True):
                yield EntryReport(report.ledger_id, entry_id, report.stamp, payload)

    def payload(self, entry_id: int, stamp: int | None = None) -> bytes:
        """The payload of one entry: of this stamp, or of the highest. Raises `EntryNotFoundError` if no batch here holds it,
        `StorageUncertainError` if every one that does is damaged."""
        found = [
            (fields[3], key)
            for key in self._keys
            if (fields := _KEY.unpack(key))[0] <= entry_id <= fields[1]
            and (entry_id - fields[0]) % fields[2] == 0
            and stamp in (None, fields[3])
        ]
        if not found:
            raise EntryNotFoundError(self.report.ledger_id, entry_id, "no batch in this storage holds it")
        problem = ""
        for _, key in sorted(found, key=lambda each: -each[0]):
            report, data = self._checked(key, True)
            if not report.problem:
                try:
                    return decode(data).payloads()[(entry_id - report.first_entry_id) // report.stride]
                except RemoteProtocolError as error:
                    report.problem = str(error)
            problem = f"{report.path} is damaged at {report.offset}: {report.problem}"
        raise StorageUncertainError(
            f"entry {entry_id} of ledger {self.report.ledger_id}: {problem}", "Ask another bookie"
        )

    def close(self) -> None:
        """Gives files back. Idempotent."""
        while self._open:
            self._open.popitem()[1].close()

    def _read(self) -> Iterator[tuple[BatchReport, bytes]]:
        identity = b""
        self.report.damaged_batches = 0
        try:
            for key in self._keys:
                is_current = key[:28] != identity and not self.report.is_deleted
                identity = key[:28]
                yield self._checked(key, is_current)
        finally:
            self.close()

    def _checked(self, key: bytes, is_current: bool) -> tuple[BatchReport, bytes]:
        first, last, stride, stamp, _, offset, file, size, checksum = _KEY.unpack(key)
        offset = _MAX - offset
        path = self._paths[file]
        name = os.path.basename(path)
        known = BatchReport(
            name,
            offset,
            size,
            self.report.ledger_id,
            stamp,
            first,
            last,
            stride,
            (last - first) // stride + 1,
            -1,
            0,
            "",
        )
        known.is_current = is_current
        try:
            data = self._file(path).read(offset, size)
            self._progress(size)
        except Unreadable as error:
            self._note(known, error.reason, path, "gone" if error.is_gone else "unreadable")
            return known, b""
        if len(data) != size or payload_checksum(data) != checksum:
            if self._is_same(path):
                self._note(known, "it doesn't match its checksum", path)
            else:
                self._note(known, "its file was used again, or removed, since it was found there", path, "gone")
            return known, data
        report = report_batch(name, offset, data)
        report.is_current = is_current
        if not report.problem and (report.ledger_id, report.stamp, report.first_entry_id, report.last_entry_id) != (
            self.report.ledger_id,
            stamp,
            first,
            last,
        ):
            report.problem = "another batch stands here"
        if report.problem:
            self._note(known, report.problem, path)
            return known, data
        return report, data

    def _note(self, batch: BatchReport, problem: str, path: str = "", kind: str = "damage") -> None:
        batch.problem = problem
        self.report.damaged_batches += kind != "gone"
        self.report.problems.append(Problem(path or batch.path, batch.offset, kind, problem))

    def _is_same(self, path: str) -> bool:
        """Whether the path still leads to the file that was read: else it was used again, which is no damage."""
        return self._open[path].is_in_place()

    def _file(self, path: str) -> InspectedFile:
        file = self._open.get(path)
        if file is None:
            if len(self._open) >= _OPEN_FILES_MAX:
                self._open.popitem(last=False)[1].close()
            file = self._open[path] = InspectedFile(path)
        return file
