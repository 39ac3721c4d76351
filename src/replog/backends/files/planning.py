"""What one commit writes to the journal, and what it changes then."""

from __future__ import annotations

from replog.backends.files.journal import Record
from replog.backends.files.record import RECORD_HEADER_BYTES, RecordType, payload_checksum, sealed_checksum
from replog.protocol.batch import Batch

Change = Batch | tuple[int, bytes | None, int, int] | int  # a batch, all marks of a ledger, a ledger to drop


class Plan:
    """The records of one commit, and what they change, in the same order."""

    __slots__ = ("changes", "has_batches", "records", "size")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.changes: list[Change] = []
        self.has_batches = False
        self.size = 0

    def add(self, record_type: RecordType, payload: bytes, change: Change) -> None:
        """Adds a record."""
        is_sealed = isinstance(change, Batch) and change.is_sealed
        checksum = sealed_checksum(payload) if is_sealed else payload_checksum(payload)
        self.records.append((record_type, payload, checksum))
        self.changes.append(change)
        self.size += RECORD_HEADER_BYTES + len(payload)
