"""The records of one journal file or entry log, one after the other, and telling a torn tail from damage (B3).

The rules are those of the replay at a start, with two differences. After damage the scan goes on at the next intact record,
so that all damage is found. And somebody may be writing: a place that looks wrong is read again *after* what proves that it was
durable was seen, and only then believed. A recycled file begins with another header page, so a look at that tells whether what
was read was still of the old life.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from replog.backends.files.directory import journal_name
from replog.backends.files.inspecting.reading import InspectedFile, Unreadable
from replog.backends.files.inspecting.reports import Problem
from replog.backends.files.record import (
    FORMAT,
    LAST_OF_GROUP,
    MAGIC,
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    FileHeader,
    RecordHeader,
    RecordType,
    checksum_seed,
    payload_checksum,
    unpack_epoch,
    unpack_file_header,
    unpack_record_header,
)

_EPOCH_BYTES = 8
_PROBLEMS_MAX = 1000  # in one file: whoever has more has lost the file


class ScannedRecord(NamedTuple):
    """A record and where its header stands. The payload is valid until the next one is asked for."""

    offset: int
    header: RecordHeader
    payload: memoryview
    is_intact: bool


class _Found(NamedTuple):
    offset: int
    header: RecordHeader


class LogScan:
    """One reading of one file; iterate it, then look at its attributes. Never raises for what the file holds.

    `expected_sequence`: of the first group, where the file before this one tells."""

    is_journal = True

    def __init__(self, file: InspectedFile, header: FileHeader, expected_sequence: int | None = None) -> None:
        self.file = file
        self.header = header
        self.seed = checksum_seed(header.number, header.identity)
        self.epoch = header.epoch
        self.end = PAGE_BYTES  # of the last whole group
        self.groups = 0
        self.records = 0
        self.first_sequence: int | None = None
        self.last_sequence: int | None = None
        self.is_followed = False  # the next file goes on where this one ends
        self.was_recycled = False
        self.problems: list[Problem] = []
        self._offset = PAGE_BYTES
        self._sequence = expected_sequence  # of the record that comes next
        self._position = 0
        self._is_group_whole = True

    def __iter__(self) -> Iterator[ScannedRecord]:
        try:
            while True:
                yield from self._burst()
                record = self._next()
                if record is None or not record.is_intact:
                    record = self._judge()
                if record is None:
                    break
                yield record
                self._advance(record)
        except Unreadable as error:
            self.report(error.offset, "unreadable", error.reason)
        if self.problems and self._is_another_life():
            self.was_recycled = True
            self.problems.clear()
            self.report(self.end, "gone", "it was used again while it was read; what was read before is as of then")

    def report(self, offset: int, kind: str, reason: str) -> None:
        """Notes a problem."""
        if len(self.problems) < _PROBLEMS_MAX:
            self.problems.append(Problem(self.file.path, offset, kind, reason))

    # -- the chain of records -------------------------------------------------------------------------------------

    def _burst(self) -> list[ScannedRecord]:
        """All that `_next` and `_advance` would give one by one, as far as it is intact and in memory: most of a file."""
        file = self.file
        data, start, seed = file.data, file.start, self.seed
        size, view = len(data), memoryview(data)
        at = self._offset - start
        epoch, sequence, position, is_whole = self.epoch, self._sequence, self._position, self._is_group_whole
        found: list[ScannedRecord] = []
        if sequence is None or at < 0:
            return found
        while at + RECORD_HEADER_BYTES <= size:
            header = unpack_record_header(data, at, seed)
            if header is None or header[6] != epoch or header[7] != sequence or header[5] != position:
                break
            begin = at + RECORD_HEADER_BYTES
            stop = begin + header[4]
            if stop > size:
                break
            payload = view[begin:stop]
            if payload_checksum(payload) != header[8]:
                break
            found.append(ScannedRecord(start + at, header, payload, True))
            is_whole = is_whole or position == 0
            position += 1
            at = stop
            if header[1] == RecordType.EPOCH and header[4] >= _EPOCH_BYTES:
                epoch = unpack_epoch(payload)
            if header[2] & LAST_OF_GROUP:
                if is_whole:
                    self.end = start + at
                    self.groups += 1
                self.last_sequence = sequence
                sequence += 1
                position = 0
        if found:
            self.records += len(found)
            self.first_sequence = found[0].header.sequence if self.first_sequence is None else self.first_sequence
            self._offset, self.epoch = start + at, epoch
            self._sequence, self._position, self._is_group_whole = sequence, position, is_whole
        return found

    def _next(self) -> ScannedRecord | None:
        """The record that stands here if its header is intact and belongs here."""
        file, offset = self.file, self._offset
        at = file.seek(offset, RECORD_HEADER_BYTES)
        header = unpack_record_header(file.data, at, self.seed) if at >= 0 else None
        if header is None or not self._belongs(header):
            return None
        at = file.seek(offset + RECORD_HEADER_BYTES, header.length)
        if at < 0:
            return ScannedRecord(offset, header, memoryview(b""), False)
        payload = memoryview(file.data)[at : at + header.length]
        return ScannedRecord(offset, header, payload, payload_checksum(payload) == header.payload_checksum)

    def _belongs(self, header: RecordHeader) -> bool:
        if header.epoch != self.epoch or header.position != self._position:
            return False
        return header.sequence == self._sequence or (self._sequence is None and header.position == 0)

    def _advance(self, record: ScannedRecord) -> None:
        header = record.header
        self._offset = record.offset + RECORD_HEADER_BYTES + header.length
        self._sequence = header.sequence
        self._is_group_whole = record.is_intact and (self._is_group_whole or header.position == 0)
        self._position = header.position + 1
        self.records += 1
        self.first_sequence = header.sequence if self.first_sequence is None else self.first_sequence
        if record.is_intact and header.record_type == RecordType.EPOCH and header.length >= _EPOCH_BYTES:
            self.epoch = unpack_epoch(record.payload)
        if header.flags & LAST_OF_GROUP:
            if self._is_group_whole:
                self.end = self._offset
                self.groups += 1
            self.last_sequence = header.sequence
            self._sequence = header.sequence + 1
            self._position = 0

    # -- what it means that no record stands here -----------------------------------------------------------------

    def _judge(self) -> ScannedRecord | None:
        """Goes on, if that is possible: the next record, intact or not. None at the end of what the file holds."""
        record = self._read_again()
        if record is not None and record.is_intact:
            return record
        proof, is_torn = self._find_proof()
        if self.is_followed:
            record = self._read_again()  # it was the last one when it was read first
            return record if record is not None and record.is_intact else None
        if proof is None:
            if is_torn or record is not None:
                self._report_torn()
            return None
        record = self._read_again()
        if record is not None and record.is_intact:
            return record
        if self._is_another_life():
            self.report(self._offset, "damage", "it was used again while it was read")
            return None
        what = "a record's payload" if record is not None else "a record's header"
        group = "" if self._sequence is None else f" of group {self._sequence}"
        self.report(self._offset, "damage", f"{what}{group} is unreadable, and {proof}")
        if record is not None:
            return record
        return self._resume()

    def _read_again(self) -> ScannedRecord | None:
        self.file.forget()
        return self._next()

    def _find_proof(self) -> tuple[str | None, bool]:
        """What proves that a group which isn't whole here was durable once; and whether there is anything of it."""
        following = self._next_file_sequence()
        if following is not None and self._sequence is not None:
            if following == self._sequence and self._position == 0:
                self.is_followed = True
                return None, False
            if following > self._sequence:
                return f"the next file begins with group {following}", True
        is_torn = self._position > 0
        sequence = self._sequence
        for found in self._headers_from(self._offset):
            if sequence is None:
                sequence = found.header.sequence
            if found.header.sequence > sequence:
                return f"group {found.header.sequence} stands at {found.offset}", True
            is_torn = is_torn or found.header.sequence == sequence
        return None, is_torn

    def _headers_from(self, offset: int) -> Iterator[_Found]:
        """All intact record headers from here to the end of the file, whatever life they are from."""
        file = self.file
        while file.seek(offset, RECORD_HEADER_BYTES) >= 0:
            start = file.seek(offset, RECORD_HEADER_BYTES)
            data = file.data
            at = data.find(MAGIC, start)
            while at >= 0:
                header = unpack_record_header(data, at, self.seed)
                if header is not None:
                    yield _Found(offset + at - start, header)
                at = data.find(MAGIC, at + 1)
            offset += len(data) - start - RECORD_HEADER_BYTES + 1
            file.forget()

    def _next_file_sequence(self) -> int | None:
        """The sequence with which the next file begins, or None if it has no record yet."""
        number = self.header.number + 1
        path = f"{os.path.dirname(self.file.path) or '.'}/{journal_name(number)}"
        try:
            with InspectedFile(path) as file:
                start = file.read(0, PAGE_BYTES + RECORD_HEADER_BYTES)
        except Unreadable:
            return None  # whoever inspects that file will say so
        header = unpack_file_header(start)
        if header is None or header.number != number or header.identity != self.header.identity:
            return None
        record = unpack_record_header(start, PAGE_BYTES, checksum_seed(number, header.identity))
        return record.sequence if record else None

    def _report_torn(self) -> None:
        group = "" if self._sequence is None else f" {self._sequence}"
        self.report(
            self.end,
            "torn tail",
            f"group{group} is not whole: a crash tore it, or it is just being written",
        )

    def _resume(self) -> ScannedRecord | None:
        """The next record behind a damaged header."""
        for found in self._headers_from(self._offset):
            if self._sequence is not None and found.header.sequence < self._sequence:
                continue  # of an earlier life
            self._offset, self.epoch = found.offset, found.header.epoch
            self._sequence, self._position = found.header.sequence, found.header.position
            self._is_group_whole = False
            record = self._read_again()
            if record is not None:
                if not record.is_intact:
                    self.report(self._offset, "damage", "a record's payload is unreadable")
                return record
        return None

    def _is_another_life(self) -> bool:
        try:
            return self.file.file_header() != self.header
        except Unreadable:
            return False


class EntryLogScan(LogScan):
    """The records of an entry log: one chain of positions, whole, since the file got its name only afterwards."""

    is_journal = False

    def __init__(self, file: InspectedFile, header: FileHeader) -> None:
        super().__init__(file, header, 0)
        self._is_complete = False

    def _burst(self) -> list[ScannedRecord]:
        return []  # its records are few and large

    def _next(self) -> ScannedRecord | None:
        return None if self._is_complete else super()._next()

    def _belongs(self, header: RecordHeader) -> bool:
        return header.epoch == self.epoch and header.position == self._position

    def _advance(self, record: ScannedRecord) -> None:
        position = record.header.position
        super()._advance(record)
        if record.header.flags & LAST_OF_GROUP:
            self._is_complete = True
        self._sequence, self._position = 0, position + 1
        self.end = self._offset

    def _judge(self) -> ScannedRecord | None:
        if self._is_complete:
            if self.file.size_bytes != self.end:
                self.report(self.end, "damage", f"{self.file.size_bytes - self.end} bytes follow its last record")
            return None
        record = self._read_again()
        if record is not None and record.is_intact:
            return record
        what = "a record's header" if record is None else "a record's payload"
        self.report(self._offset, "damage", f"{what} is unreadable")
        return record if record is not None else self._resume()

    def _resume(self) -> ScannedRecord | None:
        for found in self._headers_from(self._offset + 1):
            if found.header.epoch == self.epoch and found.header.position > self._position:
                self._offset, self._position = found.offset, found.header.position
                record = self._read_again()
                if record is not None:
                    if not record.is_intact:
                        self.report(self._offset, "damage", "a record's payload is unreadable")
                    return record
        return None


def read_file_header(file: InspectedFile, number: int | None, identity: bytes | None) -> FileHeader | Problem:
    """The header page, or why it isn't the one that belongs here. Raises `Unreadable`."""
    header = file.file_header()
    reason = ""
    if header is None:
        reason = "its header page is unreadable"
    elif header.format != FORMAT:
        return Problem(file.path, 0, "unreadable", f"it has format {header.format}: use a newer replog")
    elif identity is not None and header.identity != identity:
        reason = f"it is a file of bookie-{header.identity.hex()}"
    elif number is not None and header.number != number:
        reason = f"it is file {header.number}, misnamed"
    if header is not None and not reason:
        return header
    if not file.is_in_place():  # recycling renames a file before it overwrites it
        return Problem(file.path, 0, "gone", "it was used again since its name was read")
    return Problem(file.path, 0, "damage", reason)
