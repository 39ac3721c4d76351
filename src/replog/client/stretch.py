"""A stretch of a ledger in batches, for who knows that it is confirmed (D1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from replog.client.entries import Batches, EntryBatch
from replog.errors import EntryNotFoundError

if TYPE_CHECKING:
    from replog.client.reader import LedgerScan


class LedgerStretch(Batches[EntryBatch]):
    """The entries from the first to the last, of a ledger that has them. An async iterator over batches."""

    def __init__(self, scan: LedgerScan, first: int, last: int) -> None:
        super().__init__(self.receive_batch)
        scan.adopt(last)
        scan.want_only(first, last)
        self._scan = scan
        self._next = first
        self._last = last

    async def receive_batch(self) -> EntryBatch | None:
        """The next batch; None after the last one. Raises as `LedgerReader.receive_batch`. If cancelled, nothing is lost."""
        if self._next > self._last:
            await trio.lowlevel.checkpoint()
            return None
        batch = await self._scan.take()
        if batch is None:
            problem = f"the ledger is closed, and ends at entry {self._scan.last_readable} (R7)"
            raise EntryNotFoundError(self._scan.ledger_id, self._last, problem)
        return self._given_out(batch)

    def receive_batch_nowait(self) -> EntryBatch:
        """As `receive_batch`, but raises `trio.WouldBlock` if none is here yet, or at the end."""
        if self._next > self._last:
            raise trio.WouldBlock
        return self._given_out(self._scan.take_nowait())

    def _given_out(self, batch: EntryBatch) -> EntryBatch:
        if batch.last_entry_id > self._last:
            batch = batch.through(self._last)
        self._next = batch.last_entry_id + 1
        return batch
