"""What one commit writes to the journal, and what it changes then."""

from __future__ import annotations

from replog.backends.files.journal import Record
from replog.backends.files.record import (
    RECORD_HEADER_BYTES,
    MarksOfLedger,
    RecordType,
    payload_checksum,
    sealed_checksum,
)
from replog.protocol.batch import Batch
from replog.protocol.mutations import DropEntries

# A batch, all marks of a ledger, a ledger to drop, entries to drop
Change = Batch | MarksOfLedger | int | DropEntries


class Plan:
    """The records of one commit, and what they change, in the same order."""

    __slots__ = ("changes", "has_batches", "records", "size")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.changes: list[Change] = []
        self.has_batches = False
        self.size = 0

    def add_batch(self, batch: Batch) -> None:
        """Adds the record of a batch."""
        data = batch.data
        checksum = sealed_checksum(data) if batch.is_sealed else payload_checksum(data)
        self.records.append((RecordType.BATCH, data, checksum))
        self.changes.append(batch)
        self.has_batches = True
        self.size += RECORD_HEADER_BYTES + len(data)

    def stores(self, ledger_id: int) -> bool:
        """True if a batch of this ledger is stored."""
        return any(isinstance(each, Batch) and each.ledger_id == ledger_id for each in self.changes)

    def add(self, record_type: RecordType, payload: bytes, change: MarksOfLedger | int | DropEntries) -> None:
        """Adds the record of something else."""
        self.records.append((record_type, payload, payload_checksum(payload)))
        self.changes.append(change)
        self.size += RECORD_HEADER_BYTES + len(payload)
