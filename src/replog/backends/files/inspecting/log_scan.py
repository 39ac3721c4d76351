"""All records of one journal file or entry log, and what is wrong with it: a torn tail or damage (B3).

The storage's own `Chain` parses. Two things differ from a start's replay. After damage the scan goes on at the next intact
record, so that all damage is found. And somebody may be writing: a place that looks wrong is read again *after* what proves
that it was durable was seen, and only then believed. A recycled file begins with another header page, so a look at that page
says whether what was read was still of the old life.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

import attrs

from replog.backends.files.directory import journal_name
from replog.backends.files.inspecting.places import InspectedFile, Unreadable
from replog.backends.files.log_file import EntryLogFile, LogFile
from replog.backends.files.record import (
    FORMAT,
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    FileHeader,
    RecordHeader,
    RecordType,
    checksum_seed,
    unpack_drop,
    unpack_drop_entries,
    unpack_epoch,
    unpack_file_header,
    unpack_marks,
    unpack_record_header,
)
from replog.backends.files.scanning import Chain, FoundBatch, ScannedRecord, batch_places, batches_of, find_header
from replog.backends.inspection.read_only import Progress, ignore_progress
from replog.backends.inspection.reports import MarksReport, Problem, RecordReport, report_batch

_PROBLEMS_MAX = 1000  # of one file: a file with more is lost


class LogScan:
    """One reading of one file; iterate it, then look at its attributes. Never raises for what the file holds.

    `expected_sequence`: of the first group of a journal file, if the file before it tells."""

    def __init__(
        self, file: InspectedFile, header: FileHeader, *, is_journal: bool, expected_sequence: int | None = None
    ) -> None:
        self.file = file
        self.header = header
        self.is_journal = is_journal
        seed = checksum_seed(header.number, header.identity)
        self.chain = Chain(seed, header.epoch, expected_sequence if is_journal else 0, is_journal=is_journal)
        self.end = PAGE_BYTES  # of the last whole group, or of the last run
        self.groups = 0
        self.records = 0
        self.first_sequence: int | None = None
        self.last_sequence: int | None = None
        self.is_followed = False  # the next file goes on where this one ends
        self.was_recycled = False
        self.problems: list[Problem] = []
        self._is_group_whole = True
        self._is_complete = False  # an entry log's last run was read

    def __iter__(self) -> Iterator[ScannedRecord]:
        try:
            while (record := self._next_or_judge()) is not None:
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

    def _next_or_judge(self) -> ScannedRecord | None:
        record = None if self._is_complete else self.chain.next(self.file)
        if record is not None and record.is_intact:
            return record
        return self._judge_journal() if self.is_journal else self._judge_entry_log()

    def _advance(self, record: ScannedRecord) -> None:
        header = record.header
        self.records += 1
        self.first_sequence = header.sequence if self.first_sequence is None else self.first_sequence
        self._is_group_whole = record.is_intact and (self._is_group_whole or header.position == 0)
        self.chain.advance(record)
        if not self.is_journal:
            self.end = self.chain.offset
            self._is_complete = record.is_last_of_group
        elif record.is_last_of_group:
            self.last_sequence = header.sequence
            if self._is_group_whole:
                self.end = self.chain.offset
                self.groups += 1

    # -- when there is no intact record -----------------------------------------------------------------------------

    def _judge_journal(self) -> ScannedRecord | None:
        """The next record, intact or not, if the scan can go on. None at the end of the file's records."""
        record = self._read_again()
        if record is not None and record.is_intact:
            return record
        proof, is_torn = self._find_proof()
        if self.is_followed:
            # The file went on while it was read: this was its last record when the window was read.
            record = self._read_again()
            return record if record is not None and record.is_intact else None
        if proof is None:
            if is_torn or record is not None:
                group = "" if self.chain.sequence is None else f" {self.chain.sequence}"
                why = f"group{group} is not whole: a crash tore it, or it is just being written"
                self.report(self.end, "torn tail", why)
            return None
        # Now that the proof was seen, what is missing here was durable: if it still is missing, it is lost.
        record = self._read_again()
        if record is not None and record.is_intact:
            return record
        if self._is_another_life():
            self.report(self.chain.offset, "damage", "it was used again while it was read")
            return None
        group = "" if self.chain.sequence is None else f" of group {self.chain.sequence}"
        return self._go_on_behind_damage(record, f"{group} is unreadable, and {proof}")

    def _judge_entry_log(self) -> ScannedRecord | None:
        """Judges an entry log like `_judge_journal`. An entry log gets its name when it is whole: nothing in it may be
        missing."""
        if self._is_complete:
            if self.file.size_bytes != self.end:
                self.report(self.end, "damage", f"{self.file.size_bytes - self.end} bytes follow its last record")
            return None
        record = self._read_again()
        if record is not None and record.is_intact:
            return record
        return self._go_on_behind_damage(record, " is unreadable")

    def _go_on_behind_damage(self, record: ScannedRecord | None, why: str) -> ScannedRecord | None:
        what = "a record's payload" if record is not None else "a record's header"
        self.report(self.chain.offset, "damage", what + why)
        return self._resume() if record is None else record

    def _read_again(self) -> ScannedRecord | None:
        self.file.forget()
        return self.chain.next(self.file)

    def _headers(self) -> Iterator[tuple[int, RecordHeader]]:
        """All intact headers from here to the end of the file, whatever life they are from."""
        offset = self.chain.offset
        while (found := find_header(self.file, offset, self.chain.seed)) is not None:
            yield found
            offset = found[0] + 1

    def _find_proof(self) -> tuple[str | None, bool]:
        """The proof that an incomplete group was durable once; and whether any of it exists."""
        sequence = self.chain.sequence
        following = self._next_file_sequence()
        if following is not None and sequence is not None:
            if following == sequence and self.chain.position == 0:
                self.is_followed = True
                return None, False
            if following > sequence:
                return f"the next file begins with group {following}", True
        is_torn = self.chain.position > 0
        for offset, header in self._headers():
            if sequence is None:
                sequence = header.sequence
            if header.sequence > sequence:
                return f"group {header.sequence} stands at {offset}", True
            is_torn = is_torn or header.sequence == sequence
        return None, is_torn

    def _next_file_sequence(self) -> int | None:
        """The sequence with which the next file begins, or None if it has no record yet."""
        number = self.header.number + 1
        path = f"{os.path.dirname(self.file.path) or '.'}/{journal_name(number)}"
        try:
            with InspectedFile(path) as file:
                start = file.read(0, PAGE_BYTES + RECORD_HEADER_BYTES)
        except Unreadable:
            return None  # the inspection of that file says so
        header = unpack_file_header(start)
        if header is None or header.number != number or header.identity != self.header.identity:
            return None
        record = unpack_record_header(start, PAGE_BYTES, checksum_seed(number, header.identity))
        return record.sequence if record else None

    def _resume(self) -> ScannedRecord | None:
        """The next record behind a damaged header."""
        chain = self.chain
        for offset, header in self._headers():
            if not self._may_follow(header):
                continue  # of an earlier life
            chain.offset, chain.epoch = offset, header.epoch
            chain.sequence, chain.position = header.sequence, header.position
            self._is_group_whole = False
            record = self._read_again()
            if record is not None:
                if not record.is_intact:
                    self.report(offset, "damage", "a record's payload is unreadable")
                return record
        return None

    def _may_follow(self, header: RecordHeader) -> bool:
        chain = self.chain
        if self.is_journal:
            return chain.sequence is None or header.sequence >= chain.sequence
        return header.epoch == chain.epoch and header.position > chain.position

    def _is_another_life(self) -> bool:
        try:
            return self.file.file_header() != self.header
        except Unreadable:
            return False


@attrs.define
class InspectedLog:
    """One log file, read from end to end. `problems`, `file_bytes` and `scan` are known when all records were taken."""

    path: str
    number: int
    is_journal: bool
    identity: bytes | None
    progress: Progress = ignore_progress
    expected_sequence: int | None = None
    file_bytes: int = 0
    is_gone: bool = False
    scan: LogScan | None = None
    problems: list[Problem] = attrs.field(factory=list)
    _file: LogFile | None = None  # what the places of its batches name

    def records(self) -> Iterator[ScannedRecord]:
        """All records, those of a last group that isn't whole, too. Never raises."""
        try:
            with InspectedFile(self.path, self.progress) as file:
                self.file_bytes = file.size_bytes
                header = read_file_header(file, self.number, self.identity)
                if isinstance(header, Problem):
                    self.is_gone = header.kind == "gone"
                    self.problems.append(header)
                    return
                scan = LogScan(file, header, is_journal=self.is_journal, expected_sequence=self.expected_sequence)
                self.scan = scan
                yield from scan
                self.is_gone = scan.was_recycled
                self.problems += scan.problems
                if not self.is_gone and not file.is_in_place():
                    self.problems.append(Problem(self.path, 0, "gone", "it was removed or renamed while it was read"))
        except Unreadable as error:
            self.is_gone = error.is_gone
            self.problems.append(error.problem)

    def batches(self) -> Iterator[FoundBatch]:
        """The batches of all intact records. Never raises."""
        for record in self.records():
            yield from self.batches_of(record)

    def batches_of(self, record: ScannedRecord) -> Iterator[FoundBatch]:
        """The batches of a record of this file, if it is intact and has any."""
        if record.is_intact and record.header.record_type in (RecordType.BATCH, RecordType.RUN):
            if self._file is None:
                self._file = EntryLogFile(self.number, self.path, -1)
            yield from batches_of(record, self._file)


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
    # Recycling renames a file before it overwrites it: then another header is not damage.
    if not file.is_in_place():
        return Problem(file.path, 0, "gone", "it was used again since its name was read")
    return Problem(file.path, 0, "damage", reason)


# -- records ----------------------------------------------------------------------------------------------------------
#
# A record of a log file, as a report.


_TYPE_NAMES = {int(record_type): record_type.name for record_type in RecordType}


def report_record(path: str, record: ScannedRecord) -> RecordReport:
    """The record, and what it holds if it is intact."""
    offset, header, payload, is_intact = record
    name = _TYPE_NAMES.get(header.record_type) or f"type {header.record_type}"
    place = os.path.basename(path), offset, RECORD_HEADER_BYTES + header.length
    report = RecordReport(*place, name, header.sequence, header.position, record.is_last_of_group, is_intact)
    if is_intact:
        try:
            _describe(report, header.record_type, payload)
        except struct.error:
            report.fault = "its payload is too short for its type"
    return report


def problems_in(path: str, report: RecordReport) -> list[Problem]:
    """The faults in the content of an intact record: then it was written so."""
    found = [Problem(path, batch.offset, "damage", batch.problem) for batch in report.batches if batch.problem]
    if report.fault:
        found.append(Problem(path, report.offset, "damage", report.fault))
    return found


def _describe(report: RecordReport, record_type: int, payload: memoryview) -> None:
    if record_type in (RecordType.BATCH, RecordType.RUN):
        start = report.offset + RECORD_HEADER_BYTES
        places = list(batch_places(payload))
        report.batches = [report_batch(report.path, start + at, bytes(payload[at : at + size])) for at, size in places]
        if not places or sum(batch.size_bytes for batch in report.batches) != len(payload):
            report.fault = "it does not hold whole batches"
        report.ledger_id = report.batches[0].ledger_id if report.batches else None
    elif record_type == RecordType.MARKS:
        report.ledger_id, key, fence_term, confirmed, *_ = unpack_marks(payload)
        report.marks = MarksReport(fence_term, confirmed, key is not None)
    elif record_type == RecordType.DROP:
        report.ledger_id = unpack_drop(payload)
        report.detail = "ledger deleted"
    elif record_type == RecordType.DROP_ENTRIES:
        report.ledger_id, stamp, first, last, stride = unpack_drop_entries(payload)
        each = f", each {stride}th," if stride > 1 else ""
        report.detail = f"entries {first} to {last}{each} of stamp {stamp} dropped"
    elif record_type == RecordType.EPOCH:
        report.detail = f"epoch {as_epoch(unpack_epoch(payload))} begins"


def as_epoch(epoch: int) -> str:
    """An epoch in words: a random number of 64 bits, too long for the numbers of JSON."""
    return f"{epoch:016x}"
