"""What a record of a log file says, as a report."""

from __future__ import annotations

import os
import struct

from replog.backends.files.record import (
    RECORD_HEADER_BYTES,
    RecordType,
    unpack_drop,
    unpack_drop_entries,
    unpack_epoch,
    unpack_marks,
)
from replog.backends.files.scanning import ScannedRecord, batch_places
from replog.backends.inspection.reports import MarksReport, Problem, RecordReport, report_batch

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
    """What is wrong with what an intact record holds: then it was written so."""
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
        report.ledger_id, key, fence_term, confirmed, _ = unpack_marks(payload)
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
