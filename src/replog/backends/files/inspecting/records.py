"""What a record of a log file says, as a report."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

from replog.backends.files.inspecting.reports import BatchReport, MarksReport, Problem, RecordReport
from replog.backends.files.inspecting.scanning import ScannedRecord
from replog.backends.files.record import (
    LAST_OF_GROUP,
    RECORD_HEADER_BYTES,
    RecordType,
    unpack_drop,
    unpack_epoch,
    unpack_marks,
)
from replog.errors import RemoteProtocolError
from replog.protocol.batch import HEADER, Batch, check_damage, decode
from replog.protocol.digest import DigestType

_DIGESTS = {DigestType.CRC32C: "crc32c", DigestType.HMAC_SHA256: "hmac-sha256"}
_TYPE_NAMES = {int(record_type): record_type.name for record_type in RecordType}
_SIZE_FIELD = 4  # of a batch's header


def batch_places(payload: memoryview) -> Iterator[tuple[int, int]]:
    """Where the batches of a BATCH or RUN begin in its payload, and their sizes. Stops where there is no batch."""
    at = 0
    while at + HEADER.size <= len(payload):
        size = HEADER.unpack_from(payload, at)[_SIZE_FIELD]
        if size < HEADER.size or at + size > len(payload):
            return
        yield at, size
        at += size


def report_batch(path: str, offset: int, data: bytes) -> BatchReport:
    """The batch with these bytes. One that is none of this format has only its place and its problem."""
    try:
        batch = decode(data)
    except RemoteProtocolError as error:
        return BatchReport(path, offset, len(data), -1, 0, -1, -1, 1, 0, -1, 0, "", str(error))
    report = described(path, offset, batch)
    try:
        check_damage(batch)
    except RemoteProtocolError as error:
        report.problem = str(error)
    return report


def described(path: str, offset: int, batch: Batch) -> BatchReport:
    """What a batch's header says."""
    return BatchReport(
        path,
        offset,
        len(batch.data),
        batch.ledger_id,
        batch.stamp,
        batch.first_entry_id,
        batch.last_entry_id,
        batch.stride,
        batch.count,
        batch.last_add_confirmed,
        batch.timestamp_ns,
        _DIGESTS[batch.digest_type],
    )


def report_record(path: str, record: ScannedRecord) -> RecordReport:
    """The record, and what it holds if it is intact."""
    offset, header, payload, is_intact = record
    name = _TYPE_NAMES.get(header.record_type) or f"type {header.record_type}"
    report = RecordReport(
        os.path.basename(path),
        offset,
        RECORD_HEADER_BYTES + header.length,
        name,
        header.sequence,
        header.position,
        bool(header.flags & LAST_OF_GROUP),
        is_intact,
    )
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
    elif record_type == RecordType.EPOCH:
        report.detail = f"epoch {as_epoch(unpack_epoch(payload))} begins"


def as_epoch(epoch: int) -> str:
    """An epoch in words: a random number of 64 bits, too long for the numbers of JSON."""
    return f"{epoch:016x}"
