"""The reader of one ledger, as applications use it. Its entries come from a scan (`replog.client.scan`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Self

import trio

from replog.client.entries import Batches, Entry, EntryBatch
from replog.client.following import Following
from replog.client.scan import LedgerScan
from replog.config import check_number
from replog.errors import ConfigError, EntryNotFoundError
from replog.protocol.model import LedgerMetadata, LedgerState
from replog.runtime.continued_call import ContinuedCall


class LedgerReader:
    """Reads one ledger, and never fences it (D1). Made by `Client.open_ledger`; use it as a context.

    Iterate it for entries, or `batches()`, from the entry it was opened at to the last one that is known to be confirmed now; one
    that follows waits for more, from term to term, until the ledger is closed. It belongs to one task at a time: another one gets
    `trio.BusyResourceError`.
    """

    def __init__(
        self,
        make_scan: Callable[[LedgerMetadata, int], LedgerScan],
        metadata: LedgerMetadata,
        first_entry_id: int,
        nursery: trio.Nursery,
        following: Following | None = None,
    ) -> None:
        self.ledger_id = metadata.ledger_id  #: The id of the ledger.
        self._make_scan = make_scan
        self._scan = make_scan(metadata, first_entry_id)
        self._following = following  # of a reader that follows
        self._take = ContinuedCall(nursery, self._find_batch)
        self._closed = False

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's record, as this reader knows it."""
        return self._scan.metadata

    @property
    def is_closed(self) -> bool:
        """True if the ledger is closed: then `last_add_confirmed` is its last entry permanently."""
        return self._scan.metadata.state is LedgerState.CLOSED

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that is known to be confirmed; `refresh` asks again. -1 if there is none."""
        return self._scan.last_readable

    async def refresh(self, wait_s: float = 0.0) -> int:
        """Asks how far the ledger is confirmed now, and returns `last_add_confirmed`; with `wait_s`, waits up to that long
        for it to advance. Raises `MetastoreError`, `LedgerNotFoundError`."""
        self._check_open()
        await self._scan.refresh(wait_s)
        return self.last_add_confirmed

    async def read(self, first: int, last: int) -> list[bytes]:
        """The entries from `first` to `last`, both included. Raises `EntryNotFoundError` if `last` is past
        `last_add_confirmed`, and what reading can raise."""
        self._check_open()
        try:
            is_known = first >= 0 and last <= self.last_add_confirmed
        except TypeError:
            check_number("first", first)
            check_number("last", last)
            raise
        if not is_known:
            problem = (
                f"entries {first}..{last} were asked for, and {self.last_add_confirmed} is the last that may be read"
            )
            raise EntryNotFoundError(self.ledger_id, max(last, 0), problem)
        # A scan of its own, so that what this reader iterates over keeps its place.
        scan = self._make_scan(self._scan.metadata, first)
        scan.adopt(self.last_add_confirmed)
        scan.want_only(first, last)
        found: list[bytes] = []
        while len(found) < last - first + 1:
            batch = await scan.take()
            assert batch is not None, "all of it is confirmed"
            found += batch.payloads()
        return found[: last - first + 1]

    def batches_between(self, first: int, last: int) -> LedgerRangeReader:
        """The entries from `first` to `last`, both included, in batches as they were stored; nothing after them is
        requested. Independent of this reader's iteration.

        The caller must know that `last` is confirmed, perhaps from another reader: bookies are not asked again (D1).
        Iterating raises `EntryNotFoundError` if the ledger is closed and ends before it, and as `receive_batch` does."""
        self._check_open()
        if not 0 <= first <= last:
            raise ConfigError(
                f"ledger {self.ledger_id}: {first} to {last} are not entries: the first must not be after the last"
            )
        return LedgerRangeReader(self._make_scan(self._scan.metadata, first), first, last)

    async def receive_batch(self) -> EntryBatch | None:
        """The next batch of entries; None after the last one that is known to be confirmed.

        One that follows waits for more instead, until the ledger is closed. Raises `EntryUnreadableError` (retry: yes),
        `EntryNotFoundError`, `LedgerTrimmedError`, `MetastoreError`. If cancelled, nothing is lost."""
        self._check_open()
        return await self._take()

    async def _find_batch(self) -> EntryBatch | None:
        while True:
            batch = await self._scan.take()
            if batch is not None or self._following is None or self._scan.is_at_end:
                return batch
            await self._following.wait_for_news(self._scan)
            self._check_open()  # it may have been closed meanwhile

    def receive_batch_nowait(self) -> EntryBatch:
        """The non-blocking form of `receive_batch`: raises `trio.WouldBlock` if no batch has arrived yet, or at the end."""
        self._check_open()
        if not self._take.goes_on:
            return self._scan.take_nowait()
        batch = self._take.take_nowait()
        if batch is None:
            raise trio.WouldBlock
        return batch

    def batches(self) -> Batches[EntryBatch]:
        """The entries in batches, as they were stored: by far the cheapest way to read many. Use one at a time."""
        self._check_open()
        return Batches(self._take)

    def __aiter__(self) -> LedgerEntries:
        self._check_open()
        return LedgerEntries(self._take)

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError(f"ledger {self.ledger_id}: this reader was closed")

    async def aclose(self) -> None:
        """Ends the reader. Idempotent."""
        self._close()
        await trio.lowlevel.checkpoint()

    def _close(self) -> None:
        self._closed = True
        self._take.end()
        if self._following is not None:
            self._following.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()


class LedgerEntries:
    """An async iterator over `Entry`. It executes a checkpoint for each batch, not for each entry."""

    def __init__(self, take: Callable[[], Awaitable[EntryBatch | None]]) -> None:
        self._take = take
        self._entries: Iterator[Entry] = iter(())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Entry:
        while True:
            for entry in self._entries:
                return entry
            batch = await self._take()
            if batch is None:
                raise StopAsyncIteration
            self._entries = iter(batch)


class LedgerRangeReader(Batches[EntryBatch]):
    """Reads the entries from `first` to `last` of a ledger that has them, in batches (D1). An async iterator."""

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
        """The non-blocking form of `receive_batch`: raises `trio.WouldBlock` if no batch has arrived yet, or at the end."""
        if self._next > self._last:
            raise trio.WouldBlock
        return self._given_out(self._scan.take_nowait())

    def _given_out(self, batch: EntryBatch) -> EntryBatch:
        if batch.last_entry_id > self._last:
            batch = batch.through(self._last)
        self._next = batch.last_entry_id + 1
        return batch
