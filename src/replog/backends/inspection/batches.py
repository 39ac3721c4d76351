"""Reports on single batches, from their bytes."""

from __future__ import annotations

from replog.backends.inspection.reports import BatchReport
from replog.errors import RemoteProtocolError
from replog.protocol.batch import Batch, check_damage, decode
from replog.protocol.digest import DigestType

_DIGESTS = {DigestType.CRC32C: "crc32c", DigestType.HMAC_SHA256: "hmac-sha256"}


def report_batch(path: str, offset: int, data: bytes) -> BatchReport:
    """The batch with these bytes. If they are no batch of this format, only its place and what is wrong."""
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
