"""Inspecting index files: their sections and batches, and whether they say what the log files hold."""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator
from typing import NamedTuple

import attrs
from crc32c import crc32c

from replog.backends.files.directory import (
    entry_log_name,
    entry_log_number,
    journal_name,
    journal_number,
    number_of_index,
)
from replog.backends.files.index_file import (
    BATCH_BYTES,
    FORMAT,
    HEADER_BYTES,
    IndexHeader,
    SectionEntry,
    unpack_directory,
    unpack_index_header,
)
from replog.backends.files.inspecting.places import Place
from replog.backends.files.inspecting.reading import InspectedFile, Progress, Unreadable, ignore_progress, list_names
from replog.backends.files.inspecting.reports import IndexedBatch, IndexReport, Problem, SectionReport
from replog.backends.files.inspecting.scanning import EntryLogScan, LogScan, read_file_header
from replog.backends.files.inspecting.survey import places_in, survey
from replog.backends.files.record import RECORD_HEADER_BYTES, RecordType, payload_checksum
from replog.backends.ranges import LedgerRanges
from replog.errors import ConfigError, StorageFailedError

_COLUMNS = "qqQIII"  # first and last ids, offsets, strides, sizes, checksums
_IDENTITY = struct.Struct("<qqqqIII")  # ledger, stamp, first, last, stride, size, checksum


class IndexedPlace(NamedTuple):
    """A batch as a page has it."""

    first: int
    last: int
    offset: int
    stride: int
    size: int
    checksum: int


class OpenIndex:
    """An index file that is open for reading, its header and directory checked. Raises `Unreadable`, `DamagedIndex`."""

    def __init__(self, path: str, identity: bytes | None, progress: Progress = ignore_progress) -> None:
        self.file = InspectedFile(path, progress)
        try:
            self.header, self.sections = self._read(identity)
        except BaseException:
            self.file.close()
            raise

    def _read(self, identity: bytes | None) -> tuple[IndexHeader, list[SectionEntry]]:
        header = unpack_index_header(self.file.read(0, HEADER_BYTES))
        if header is None:
            raise DamagedIndex(0, "its header is unreadable")
        if header.format != FORMAT:
            raise DamagedIndex(0, f"it has format {header.format}: use a newer replog")
        if identity is not None and header.identity != identity:
            raise DamagedIndex(0, f"it is of bookie-{header.identity.hex()}")
        number = number_of_index(os.path.basename(self.file.path))
        if number is not None and number != header.number:
            raise DamagedIndex(0, f"it is the index of file {header.number}, misnamed")
        if HEADER_BYTES + header.directory_bytes > self.file.size_bytes:
            raise DamagedIndex(HEADER_BYTES, "it ends within its directory")
        sections = unpack_directory(header, self.file.read(HEADER_BYTES, header.directory_bytes))
        if sections is None:
            raise DamagedIndex(HEADER_BYTES, "its directory doesn't match its checksum")
        return header, sections

    def page(self, section: SectionEntry) -> list[IndexedPlace] | None:
        """The batches of a section in the order of their first ids, or None if its page is damaged."""
        size = section.batches * BATCH_BYTES
        at = self.file.seek(section.page_offset, size)
        if at < 0 or crc32c(memoryview(self.file.data)[at : at + size]) != section.page_checksum:
            return None
        columns = []
        for code in _COLUMNS:
            column = array(code)
            stop = at + section.batches * column.itemsize
            column.frombytes(memoryview(self.file.data)[at:stop])
            columns.append(column)
            at = stop
        return list(map(IndexedPlace, *columns))

    def close(self) -> None:
        """Gives the file back."""
        self.file.close()


class DamagedIndex(Exception):
    """An index that is none, or not of this log file."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset
        self.reason = reason


def index_of(path: str) -> str:
    """The path of the index beside a log file."""
    return path.rpartition(".")[0] + ".index"


def inspect_indexes(
    place: Place, *, with_batches: bool = False, verify: bool = False, progress: Progress = ignore_progress
) -> Iterator[IndexedBatch | IndexReport]:
    """Each index file: its batches, if they are wanted, then what it says of itself. All pages are checked; with `verify`
    the log files are read too, and compared. Raises `ConfigError` if there can be none here, `StorageFailedError`."""
    for path in _paths(place):
        inspection = _Inspection(place, path, verify, progress)
        yield from inspection.run(with_batches)
        yield inspection.report


def _paths(place: Place) -> list[str]:
    if place.file is not None:
        if number_of_index(os.path.basename(place.file)) is None:
            raise ConfigError(f"{place.file} is no index file: one is called 000000000001.index")
        return [place.file]
    try:
        found = [
            f"{directory}/{name}"
            for directory in (place.journal, place.logs)
            if directory is not None
            for name in list_names(directory)
            if number_of_index(name) is not None
        ]
        expected = _expected(place)
    except Unreadable as error:
        raise StorageFailedError(f"{error.path}: {error.reason}", "Run this as the user that owns it") from error
    return [*found, *sorted(expected - set(found))]


def _expected(place: Place) -> set[str]:
    """The indexes that the catalog's files must have."""
    catalog = place.catalog()
    if catalog is None or isinstance(catalog, Problem):
        return set()
    paths = (log_path(place, file.is_journal, file.number) for file in catalog.files)
    return {index_of(path) for path in paths if path}


def log_path(place: Place, is_journal: bool, number: int) -> str | None:
    """Where a log file of the catalog stands, if its directory is known."""
    directory = place.journal if is_journal else place.logs
    return f"{directory}/{(journal_name if is_journal else entry_log_name)(number)}" if directory else None


@attrs.define
class _Inspection:
    place: Place
    path: str
    verify: bool
    progress: Progress
    report: IndexReport = attrs.field(init=False)
    _reasons: dict[int, str] = attrs.field(factory=dict)  # by offset in the log file

    def __attrs_post_init__(self) -> None:
        self.report = IndexReport(self.path)

    def run(self, with_batches: bool) -> Iterator[IndexedBatch]:
        report = self.report
        try:
            index = OpenIndex(self.path, self.place.identity, self.progress)
        except Unreadable as error:
            kind = "gone" if error.is_gone else "unreadable"
            reason = "the file is missing; it is made anew at the next start" if error.is_gone else error.reason
            self._problem(error.offset, kind, reason)
            return
        except DamagedIndex as error:
            self._problem(error.offset, "damage", error.reason)
            return
        try:
            header = index.header
            report.file_bytes, report.number = index.file.size_bytes, header.number
            report.kind = "journal" if header.is_journal else "entry log"
            report.end_bytes, report.switches = header.end_bytes, header.switches
            self._check_pages(index)
            if self.verify:
                _Comparison(self, index).run()
            if with_batches:
                yield from self._batches(index)
        except Unreadable as error:
            self._problem(error.offset, "unreadable", error.reason)
        finally:
            index.close()

    def _problem(self, offset: int, kind: str, reason: str, path: str = "") -> None:
        self.report.problems.append(Problem(path or self.path, offset, kind, reason))

    def _check_pages(self, index: OpenIndex) -> None:
        report = self.report
        end = HEADER_BYTES + index.header.directory_bytes
        for each in index.sections:
            is_intact = index.page(each) is not None
            if not is_intact:
                self._problem(
                    each.page_offset, "damage", f"the page of ledger {each.ledger_id} doesn't match its checksum"
                )
            report.sections.append(
                SectionReport(
                    each.ledger_id,
                    each.stamp,
                    each.first,
                    each.last,
                    each.batches,
                    each.data_bytes,
                    each.page_offset,
                    is_intact,
                )
            )
            report.batches += each.batches
            report.batch_bytes += each.data_bytes
            end += each.batches * BATCH_BYTES
        if end != index.file.size_bytes:
            self._problem(min(end, index.file.size_bytes), "damage", f"it should be {end} bytes long")

    def _batches(self, index: OpenIndex) -> Iterator[IndexedBatch]:
        for section in index.sections:
            for place in index.page(section) or ():
                yield IndexedBatch(
                    os.path.basename(self.path),
                    place.offset,
                    place.size,
                    section.ledger_id,
                    section.stamp,
                    place.first,
                    place.last,
                    place.stride,
                    self._reasons.get(place.offset, ""),
                )


class _Comparison:
    """An index beside its log file. Keeps about 200 bytes for each batch of the file."""

    def __init__(self, inspection: _Inspection, index: OpenIndex) -> None:
        self._inspection = inspection
        self._index = index
        self._by_offset: dict[int, bytes] = {}
        self._identities: set[bytes] = set()
        self._ledgers = {section.ledger_id for section in index.sections}
        self._deleted: LedgerRanges | None = None
        self._verified = 0

    def run(self) -> None:
        """Compares; notes what differs."""
        header, inspection = self._index.header, self._inspection
        for section in self._index.sections:
            for each in self._index.page(section) or ():
                packed = _IDENTITY.pack(
                    section.ledger_id, section.stamp, each.first, each.last, each.stride, each.size, each.checksum
                )
                self._by_offset[each.offset] = packed
                self._identities.add(packed[:36])
        suffix = ".journal" if header.is_journal else ".log"
        path = self._index.file.path.removesuffix(".index") + suffix
        try:
            with InspectedFile(path, inspection.progress) as file:
                self._read(file)
        except Unreadable as error:
            kind = "gone" if error.is_gone else "unreadable"
            inspection._problem(error.offset, kind, error.reason, path)
            return
        for offset in self._by_offset:
            self._differs(offset, "the log file has no such batch here")
        inspection.report.verified_batches = self._verified

    def _read(self, file: InspectedFile) -> None:
        header, inspection = self._index.header, self._inspection
        page = read_file_header(file, header.number, header.identity)
        if isinstance(page, Problem):
            inspection.report.problems.append(page)
            return
        scan = LogScan(file, page) if header.is_journal else EntryLogScan(file, page)
        for record in scan:
            if not record.is_intact or record.header.record_type not in (RecordType.BATCH, RecordType.RUN):
                continue
            start = record.offset + RECORD_HEADER_BYTES
            for place in places_in(file.path, record):
                at = place.offset - start
                checksum = place.checksum
                if not header.is_journal:
                    checksum = payload_checksum(record.payload[at : at + place.size_bytes])
                packed = _IDENTITY.pack(
                    place.ledger_id, place.stamp, place.first, place.last, place.stride, place.size_bytes, checksum
                )
                self._compare(place.offset, packed, place.ledger_id)
        inspection.report.problems += scan.problems
        if scan.end != header.end_bytes:
            inspection._problem(
                0, "damage", f"it says that the log file ends at {header.end_bytes}, it does at {scan.end}"
            )

    def _compare(self, offset: int, packed: bytes, ledger_id: int) -> None:
        indexed = self._by_offset.pop(offset, None)
        if indexed == packed:
            self._verified += 1
        elif indexed is not None:
            self._differs(offset, "the log file has another batch here")
        elif packed[:36] not in self._identities and not self._is_deleted(ledger_id):
            self._differs(offset, f"a batch of ledger {ledger_id} stands in the log file, and not in the index")

    def _differs(self, offset: int, reason: str) -> None:
        self._inspection._reasons[offset] = reason
        self._inspection._problem(offset, "damage", reason)

    def _is_deleted(self, ledger_id: int) -> bool:
        """Of a deleted ledger nothing is indexed. Without a storage around the file nobody can tell."""
        place = self._inspection.place
        if self._deleted is None:
            known = place.root is not None and place.journal is not None
            self._deleted = survey(place).deleted if known else LedgerRanges([(0, (1 << 63) - 1)])
        return ledger_id not in self._ledgers and ledger_id in self._deleted


def entry_log_or_journal(path: str) -> bool | None:
    """Whether a path is called like a journal file (True), like an entry log (False), or like neither."""
    name = os.path.basename(path)
    if journal_number(name) is not None:
        return True
    return False if entry_log_number(name) is not None else None
