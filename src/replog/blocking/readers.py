"""Readers for code without trio: batches cross the threads, entries are cut from them where they are wanted.

A reader belongs to one thread at a time. Only getting the next batches is a call; so iterating costs nothing per entry.

A signal handler may raise after any call that this makes. So fetched batches stay where they are until the statements
that return them, among which there is no call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

import trio

from replog.blocking.contexts import Opened
from replog.blocking.faces import FACES
from replog.blocking.portal import Portal
from replog.client.entries import Entry, EntryBatch
from replog.client.ledger_reader import LedgerReader as TrioLedgerReader
from replog.errors import EndOfLogError, ReplogError
from replog.log.cursor import Cursor as TrioCursor
from replog.log.log_reader import LogReader as TrioLogReader
from replog.log.record_batches import Record, RecordBatch
from replog.protocol.model import Position

_FETCHED_BATCHES_MAX = 64  # in one call
_FETCHED_BYTES_MAX = 1 << 20


class _Sized(Protocol):
    @property
    def size_bytes(self) -> int: ...


Batch = TypeVar("Batch", bound=_Sized)


class _Fetching(Generic[Batch]):
    """Batches on their way from the trio thread. Arrived batches stay here, even if the caller was interrupted."""

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
        self.fetched: deque[Batch] = deque()

    def next_batch(self, timeout_s: float | None) -> Batch | None:
        """The next batch, which stays the next one until the caller deletes `fetched[0]`."""
        if self.fetched:
            self._portal.check_process()
        elif not self._portal.call(self._fetch, timeout_s):
            return None
        return self.fetched[0]

    def next_batch_nowait(self) -> Batch:
        """The non-blocking form of `next_batch`."""
        if self.fetched:
            self._portal.check_process()
        else:
            self._portal.call_sync(self._fetch_nowait)
        return self.fetched[0]

    def batches(self) -> Iterator[Batch]:
        """All batches, however long they take to come."""
        while (batch := self.next_batch(None)) is not None:
            del self.fetched[0]
            yield batch

    def _fetch_nowait(self) -> None:
        self.fetched.append(self._receive_batch_nowait())

    async def _fetch(self, timeout_s: float | None) -> bool:
        """Gets a batch, and those behind it that have arrived already. False at the end."""
        with trio.move_on_after(float("inf") if timeout_s is None else timeout_s) as scope:
            batch = await self._receive_batch()
        if scope.cancelled_caught:
            raise TimeoutError(f"{self._what}: nothing came within {timeout_s} s; ask again to go on where it stood")
        size_bytes = 0
        while batch is not None:
            self.fetched.append(batch)
            size_bytes += batch.size_bytes
            # Both bounds: small batches cost a change of thread each, large ones memory.
            if len(self.fetched) >= _FETCHED_BATCHES_MAX or size_bytes >= _FETCHED_BYTES_MAX:
                break
            try:
                batch = self._receive_batch_nowait()
            except (trio.WouldBlock, ReplogError):
                # No more now; and an error is raised again when it is its turn.
                break
        return bool(self.fetched)


class _Reader(Opened):
    def __init__(self, portal: Portal, reader: Any) -> None:
        super().__init__(portal, reader)
        self._fetching: _Fetching[Any] = _Fetching(
            portal, reader.receive_batch, reader.receive_batch_nowait, self._what
        )

    @property
    def _what(self) -> str:
        raise NotImplementedError

    def receive_batch_nowait(self) -> Any:
        batch = self._fetching.next_batch_nowait()
        del self._fetching.fetched[0]
        return batch


@FACES.face_of(TrioLedgerReader)
class LedgerReader(_Reader):
    """Reads one ledger, and never fences it (D1). Made by `Client.open_ledger`.

    Iterate it for entries, or `batches()`, from the first entry to the last one that is known to be confirmed now."""

    @property
    def _what(self) -> str:
        return f"ledger {self._inner.ledger_id}"

    def batches_between(self, first: int, last: int) -> Iterator[EntryBatch]:
        stretch = self._way.call_sync(self._inner.batches_between, first, last)
        fetching: _Fetching[EntryBatch]
        fetching = _Fetching(self._way, stretch.receive_batch, stretch.receive_batch_nowait, self._what)
        return fetching.batches()

    def receive_batch(self) -> EntryBatch | None:
        batch: EntryBatch | None = self._fetching.next_batch(None)
        if batch is not None:
            del self._fetching.fetched[0]
        return batch

    def batches(self) -> Iterator[EntryBatch]:
        return self._fetching.batches()

    def __iter__(self) -> Iterator[Entry]:
        for batch in self.batches():
            yield from batch


class _LogReading(_Reader):
    """The reader of a log: its records and batches as returned, as opposed to fetched."""

    def __init__(self, portal: Portal, reader: Any, timeout_s: float | None = None) -> None:
        super().__init__(portal, reader)
        self.timeout_s = timeout_s
        self._batch: RecordBatch | None = None  # the one that is iterated over
        self._records: Iterator[Record] = iter(())  # the rest of it
        self._is_torn = False  # an interruption may have taken a record out of the rest that was not given out
        self._given: Record | RecordBatch | None = None  # the last that was given out
        self._begins_after: Position | None = reader.position  # nothing was fetched yet

    @property
    def position(self) -> Position | None:
        if self._given is None:
            return self._begins_after
        return self._given.last_position if isinstance(self._given, RecordBatch) else self._given.position

    def __iter__(self) -> Iterator[Record]:
        while True:
            if self._is_torn:
                position = self.position
                rest = (each for each in self._batch or () if position is None or each.position > position)
                self._records, self._is_torn = rest, False
            try:
                for record in self._records:
                    self._given = record
                    yield record
            except (GeneratorExit, ReplogError):
                raise
            except BaseException:
                self._is_torn = True
                raise
            batch = self._fetching.next_batch(self.timeout_s)
            if batch is None:
                return
            records = iter(batch)
            self._batch, self._records = batch, records
            del self._fetching.fetched[0]

    def receive(self) -> Record:
        for record in self:
            return record
        raise EndOfLogError(f"{self._what}: it is at its end, and this reader does not follow")

    def receive_batch(self) -> RecordBatch | None:
        """The next batch of records; None at the end, if it doesn't follow. Raises TimeoutError (see above),
        `EntryUnreadableError` (retry: yes), `EntryNotFoundError`, `TrimmedError`, `MetastoreError`."""
        batch: RecordBatch | None = self._fetching.next_batch(self.timeout_s)
        return None if batch is None else self._given_out(batch)

    def receive_batch_nowait(self) -> RecordBatch:
        return self._given_out(self._fetching.next_batch_nowait())

    def _given_out(self, batch: RecordBatch) -> RecordBatch:
        self._given, self._batch, self._records = batch, None, iter(())
        del self._fetching.fetched[0]
        return batch

    def batches(self) -> Iterator[RecordBatch]:
        while (batch := self.receive_batch()) is not None:
            yield batch


@FACES.face_of(TrioLogReader)
class LogReader(_LogReading):
    """Reads a log after a position. Made by `Client.read_log`.

    Without `follow` it ends at the last entry that is known to be confirmed; with it, it waits for more: without a limit, or for
    `timeout_s` at a time, and then raises TimeoutError. After that, and after `KeyboardInterrupt`, it can be read on:
    nothing was lost. Never fences (D1). Records that were fetched already can still be read in a forked child.
    """

    @property
    def _what(self) -> str:
        return f"log {self._inner.name!r}"


@FACES.face_of(TrioCursor)
class Cursor(_LogReading):
    """Reads a log on from where its cursor is, and commits. Made by `Client.cursor`; iterate it, or its `batches()`.

    One that follows waits without a limit, or for `timeout_s` at a time once that is set, as `LogReader` does."""

    @property
    def _what(self) -> str:
        return f"log {self._inner.log_name!r}"

    # Batches are fetched ahead, so trio's cursor does not know which ones were returned here.
    def commit(self, position: Position | str | None = None) -> None:
        covered = self.position if position is None else position
        if covered is not None:
            self._way.call(self._inner.commit, covered)

    def commit_nowait(self, position: Position | str | None = None) -> None:
        covered = self.position if position is None else position
        if covered is not None:
            self._way.call_sync(self._inner.commit_nowait, covered)
