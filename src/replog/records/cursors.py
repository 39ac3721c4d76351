"""The records of cursors in the metastore."""

from __future__ import annotations

from replog.protocol.cursors import CursorRecord
from replog.records.encoding import corrupt, decode, encode


def encode_cursor(record: CursorRecord) -> bytes:
    """The value of a cursor's record."""
    return encode(record)


def decode_cursor(key: str, value: bytes, log_name: str, name: str) -> CursorRecord:
    """The record of this cursor in the value of its key. Raises `MetastoreCorruptError`, naming the key and every fault."""
    record = decode(key, value, CursorRecord)
    faults = []
    if (record.log_name, record.name) != (log_name, name):
        faults.append(f"it is cursor {record.name!r} of log {record.log_name!r}")
    if record.term < 1 or record.begins_at.segment < 1 or record.begins_at.entry < 0:
        faults.append(f"its term is {record.term}, and it begins at {record.begins_at}")
    if faults:
        raise corrupt(key, faults)
    return record
