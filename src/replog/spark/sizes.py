"""How many bytes the values of a ledger have from one entry on, and when they were sent.

Rules:
- Each stored batch says how many bytes its writer wrote up to it. So a size costs one read, and one more if the extent begins
  inside its ledger.
- In an unbounded ledger each writer counts its own bytes only (T2): it costs one more read for each takeover in between.
- With a stride (E > Qw) a batch counts some bytes of later entries: sizes are about right.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import attrs

import replog
from replog.client.entries import EntryBatch
from replog.protocol.model import LedgerMetadata


@attrs.frozen
class Measured:
    """How many bytes its values have (striped ledgers: about), and when its last entry was sent, by its writer's clock."""

    size_bytes: int
    last_sent_ns: int


class Ruler:
    """Measures the values of a ledger from the entry `first` on. `record` must list all fragments from there on."""

    def __init__(self, reader: replog.LedgerReader, record: LedgerMetadata, first: int) -> None:
        self._reader = reader
        self._record = record
        self._first = first
        self._lengths: dict[int, int] = {}  # what writers wrote up to their last entries, in bytes
        self._before_bytes = None if first else 0  # what the first one of them wrote before `first`

    async def through(self, last: int) -> Measured:
        """The entries and bytes from the first entry through this one, which is confirmed and not before the first.
        Raises as reading."""
        batch = await self._batch(last)
        size_bytes = batch.ledger_bytes - await self._before()
        for end in last_of_writers(self._record, self._first, last):
            if end not in self._lengths:
                self._lengths[end] = (await self._batch(end)).ledger_bytes
            size_bytes += self._lengths[end]
        return Measured(max(0, size_bytes), batch.timestamp_ns)

    async def sent_ns(self, entry_id: int) -> int:
        """When this entry was sent, in ns since the epoch. Raises as reading."""
        return (await self._batch(entry_id)).timestamp_ns

    async def _before(self) -> int:
        if self._before_bytes is None:
            # Not what the entry before says: that may be another writer's.
            batch = await self._batch(self._first)
            self._before_bytes = batch.ledger_bytes - batch.payload_bytes
        return self._before_bytes

    async def _batch(self, entry_id: int) -> EntryBatch:
        async for batch in self._reader.batches_between(entry_id, entry_id):
            return batch
        raise AssertionError("a range that has an entry is not empty")


def last_of_writers(record: LedgerMetadata, first: int, last: int) -> Iterator[int]:
    """The last entry of each writer of a ledger that other writers followed, from entry `first` to before `last`."""
    for before, after in itertools.pairwise(record.fragments):
        if before.term != after.term and first < after.first_entry_id <= last:
            yield after.first_entry_id - 1
