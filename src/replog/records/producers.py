"""The record of a log's producers in the metastore."""

from __future__ import annotations

from replog.protocol.envelope import SEQUENCE_MAX
from replog.protocol.producers import ProducersRecord
from replog.records.encoding import corrupt, decode, encode


def encode_producers(record: ProducersRecord) -> bytes:
    """The value of the record of a log's producers."""
    return encode(record)


def decode_producers(key: str, value: bytes, log_name: str) -> ProducersRecord:
    """The producers of this log in the value of its key. Raises `MetastoreCorruptError`, naming the key and every fault."""
    record = decode(key, value, ProducersRecord)
    faults = [] if record.log_name == log_name else [f"it is of log {record.log_name!r}"]
    if record.through < 0 or record.deletions < 0:
        faults.append(f"through is {record.through}, and deletions {record.deletions}")
    names = [each.name for each in record.producers]
    if len(set(names)) < len(names):
        faults.append("two producers have one name")
    for each in record.producers:
        sequences = [sequence for sequence, _, _ in each.ids]
        are_possible = all(0 <= sequence <= SEQUENCE_MAX for sequence in sequences)
        are_places = all(1 <= segment <= record.through and entry >= 0 for _, segment, entry in each.ids)
        if not sequences or not are_possible or not are_places or len(set(sequences)) < len(sequences):
            faults.append(f"producer {each.name!r} has the ids {each.ids[:3]}")
    if faults:
        raise corrupt(key, faults)
    return record
