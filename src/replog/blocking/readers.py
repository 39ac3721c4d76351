"""Readers for code without trio: batches cross the threads, entries are cut from them where they are wanted.

A reader belongs to one thread at a time. Only getting the next batches is a call; so iterating costs nothing per entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Generic, Protocol, TypeVar

import trio

from replog.blocking.portal import Portal
from replog.client.entries import Entry, EntryBatch
from replog.client.reader import LedgerReader as AsyncLedgerReader
from replog.errors import ReplogError
from replog.log.reader import LogReader as AsyncLogReader
from replog.log.reader import Record, RecordBatch
from replog.protocol.model import LedgerMetadata

_FETCHED_BATCHES_MAX = 64  # in one call
_FETCHED_BYTES_MAX = 1 << 20


class _Sized(Protocol):
    @property
    def size_bytes(self) -> int: ...


Batch = TypeVar("Batch", bound=_Sized)


class _Fetching(Generic[Batch]):
    """Batches on their way from the trio thread. What has come stays here, also if its caller was interrupted."""

    def __init__(
        self,
        portal: Portal,
        receive_batch: Callable[[], Awaitable[Batch | None]],
        receive_batch_nowait: Callable[[], Batch],
        what: str,
    ) -> None:
        self._portal = portal
        self._receive_batch = receive_batch
        self._receive_batch_nowait = receive_batch_nowait
        self._what = what
        self._fetched: deque[Batch] = deque()

    def next_batch(self, timeout_s: float | None) -> Batch | None:
        if self._fetched:
            self._portal.check_process()
        elif not self._portal.call(self._fetch, timeout_s):
            return None
        return self._fetched.popleft()

    def batches(self) -> Iterator[Batch]:
        """All that come, however long they take."""
        while (batch := self.next_batch(None)) is not None:
            yield batch

    async def _fetch(self, timeout_s: float | None) -> bool:
        """Gets a batch, and those that are there already behind it. False at the end."""
        with trio.move_on_after(float("inf") if timeout_s is None else timeout_s) as scope:
            batch = await self._receive_batch()
        if scope.cancelled_caught:
            raise TimeoutError(f"{self._what}: nothing came within {timeout_s} s; ask again to go on where it stood")
        size_bytes = 0
        while batch is not None:
            self._fetched.append(batch)
            size_bytes += batch.size_bytes
            if len(self._fetched) >= _FETCHED_BATCHES_MAX or size_bytes >= _FETCHED_BYTES_MAX:
                break
            try:
                batch = self._receive_batch_nowait()
            except (trio.WouldBlock, ReplogError):
                break  # no more now; and an error is raised again when it is its turn
        return bool(self._fetched)


class LedgerReader:
    """Reads one ledger, and never fences it (D1). Made by `Client.open_ledger`.

    Iterate it for entries, or `batches()`, from the first entry to the last one that is known to be confirmed now.
    """

    def __init__(self, portal: Portal, reader: AsyncLedgerReader) -> None:
        self.ledger_id = reader.ledger_id
        self._portal = portal
        self._reader = reader
        self._what = f"ledger {reader.ledger_id}"
        self._fetching: _Fetching[EntryBatch] = _Fetching(
            portal, reader.receive_batch, reader.receive_batch_nowait, self._what
        )

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's record, as this reader knows it."""
        return self._portal.call_sync(lambda: self._reader.metadata)

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is closed: then `last_add_confirmed` is its last entry, for ever."""
        return self._portal.call_sync(lambda: self._reader.is_closed)

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that may be read as far as is known; `refresh` learns more. -1 if there is none."""
        return self._portal.call_sync(lambda: self._reader.last_add_confirmed)

    def refresh(self, wait_s: float = 0.0) -> int:
        """Learns how far the ledger may be read now, and returns `last_add_confirmed`; with `wait_s`, waits so long for it
        to advance. Raises `MetastoreError`, `LedgerNotFoundError`."""
        return self._portal.call(self._reader.refresh, wait_s)

    def read(self, first: int, last: int) -> list[bytes]:
        """The entries from `first` to `last`, both included. Raises `EntryNotFoundError` if `last` is past
        `last_add_confirmed`, `EntryUnreadableError` (retry: yes)."""
        return self._portal.call(self._reader.read, first, last)

    def batches_between(self, first: int, last: int) -> Iterator[EntryBatch]:
        """The entries from `first` to `last`, both included, in batches as they were stored; nothing after them is asked for.
        Apart from what this reader iterates over.

        Who calls it knows that `last` is confirmed, perhaps from another reader: bookies are not asked again (D1). Raises
        `ConfigError` if these are no entries. Iterating raises `EntryNotFoundError` if the ledger is closed and ends before
        it, `EntryUnreadableError` (retry: yes), `MetastoreError`; after that, and after `KeyboardInterrupt`, call it again from
        the first entry that has not come."""
        stretch = self._portal.call_sync(self._reader.batches_between, first, last)
        return _Fetching(self._portal, stretch.receive_batch, stretch.receive_batch_nowait, self._what).batches()

    def batches(self) -> Iterator[EntryBatch]:
        """The entries in batches, as they were stored. Iterate this or the reader, not both."""
        return self._fetching.batches()

    def __iter__(self) -> Iterator[Entry]:
        for batch in self.batches():
            yield from batch


class LogReader:
    """Reads a log after a position. Made by `Client.read_log`.

    Without `follow` it ends at the last entry that is known to be confirmed; with it, it waits for more: for ever, or for
    `timeout_s` at a time, and then raises TimeoutError. After that, and after `KeyboardInterrupt`, it can be read on:
    nothing was lost. Never fences (D1). Records that were fetched already can still be read in a forked child.
    """

    def __init__(self, portal: Portal, reader: AsyncLogReader, timeout_s: float | None) -> None:
        self.name = reader.name
        self.timeout_s = timeout_s
        self._fetching: _Fetching[RecordBatch] = _Fetching(
            portal, reader.receive_batch, reader.receive_batch_nowait, f"log {reader.name!r}"
        )
        self._records: Iterator[Record] = iter(())

    def __iter__(self) -> Iterator[Record]:
        while True:
            yield from self._records
            batch = self._fetching.next_batch(self.timeout_s)
            if batch is None:
                return
            self._records = iter(batch)

    def receive(self) -> Record:
        """The next record. Raises `trio.EndOfChannel` at the end, if it doesn't follow; else as iterating does."""
        for record in self:
            return record
        raise trio.EndOfChannel

    def receive_batch(self) -> RecordBatch | None:
        """The next batch of records; None at the end, if it doesn't follow. Raises TimeoutError (see above),
        `EntryUnreadableError` (retry: yes), `EntryNotFoundError`, `TrimmedError`, `MetastoreError`."""
        return self._fetching.next_batch(self.timeout_s)

    def batches(self) -> Iterator[RecordBatch]:
        """The records in batches, as they were stored: by far the cheapest way to read many. Iterate this or the reader,
        not both."""
        while (batch := self.receive_batch()) is not None:
            yield batch
