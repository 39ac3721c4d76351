"""The reader of a log: reads its ledgers one after the other, without gap or duplicate (L6)."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

import trio

from replog.client.entries import Batches, EntryBatch
from replog.client.following import Following
from replog.client.ledgers import Ledgers
from replog.client.scan import LedgerScan, find_end
from replog.errors import EntryNotFoundError, LedgerNotFoundError, PositionError, TrimmedError
from replog.log.log_records import LogRecords
from replog.log.record_batches import Record, RecordBatch
from replog.protocol.model import LedgerState, LogMetadata, LogPage, Position, Segment
from replog.records.paths import log_key_path
from replog.runtime.continued_call import ContinuedCall

# A roll closes the previous ledger a few milliseconds after the next one is in use; if the writer died, it stays open. A reader
# that doesn't follow waits `_SIGN_OF_LIFE_S` for any change, and `_CLOSING_S` in all. Then it ends in the open ledger: the
# ledger's last entries may not be known yet, and reading on in the next one would skip them (L6).
_SIGN_OF_LIFE_S = 0.5
_CLOSING_S = 5.0
_NOTHING: Iterator[Record] = iter(())


class LogReader(trio.abc.ReceiveChannel[Record]):
    """Reads a log after a position. Made by `Client.read_log`; use it as a context, and iterate it or its `batches()`.

    Without `follow` it ends at the last entry that is known to be confirmed; with `follow` it waits for more, across
    rolls and takeovers. Never fences (D1). Cancelling a wait loses nothing: the next call continues at the same place. It
    belongs to one task at a time: another one gets `trio.BusyResourceError`.
    """

    def __init__(
        self, name: str, ledgers: Ledgers, records: LogRecords, password: bytes, after: Position | None, follow: bool
    ) -> None:
        self.name = name  #: The name of the log.
        self._position = after  # of the last record that was returned in a batch
        self._place: Position | None = None  # where reading this segment began, or that of the next one begins
        self._record: Record | None = None  # the last one of that batch that iterating returned
        self._ledgers = ledgers
        self._records = records
        self._password = password
        self._following = Following(ledgers.records, ledgers.options.follow_wait_s) if follow else None
        self._metadata: LogMetadata | None = None
        self._version = -1
        self._page: LogPage | None = None  # the last one that was read
        self._scan: LedgerScan | None = None
        self._iterator: Iterator[Record] = iter(())
        self._find_batch = ContinuedCall(ledgers.nursery, self._next_of_scans)
        self._closed = False
        self._waited_for_closing = False
        self._asked_again = False

    async def _start(self) -> None:
        """Finds the ledger to begin with. Raises `LogNotFoundError`, `TrimmedError`, `PositionError`, `MetastoreError`."""
        # A follower may be started before the log's first writer: then it waits for the log to be created.
        metadata = await (self._reread() if self._following is None else self._wait_for_log())
        if self._position is None:
            return
        if not 1 <= self._position.segment < metadata.next_segment_number:
            problem = f"{self._position} is not a position of log {self.name!r}: its last segment is "
            raise PositionError(f"{problem}{metadata.next_segment_number - 1}")
        self._place = Position(self._position.segment, self._position.entry + 1)
        await self._open_next()

    async def _wait_for_log(self) -> LogMetadata:
        while True:
            metadata, version = await self._records.head(self.name)
            if metadata is not None and version is not None and not metadata.is_deleted:
                self._metadata, self._version = metadata, version
                return metadata
            await self._ledgers.records.metastore.wait_changed(log_key_path(self.name), version)

    # -- reading --------------------------------------------------------------------------------------------------

    @property
    def position(self) -> Position | None:
        """The position of the last record that was returned: read on after it. Before the first, the `after` it was opened
        with; of one that was opened with `since`, the place that was found."""
        return self._position if self._record is None else self._record.position

    async def __anext__(self) -> Record:
        for record in self._iterator:
            self._record = record
            return record
        return await self._next_record()

    async def _next_record(self) -> Record:
        while True:
            batch = await self.receive_batch()
            if batch is None:
                raise StopAsyncIteration
            self._iterator = iter(batch)
            for record in self._iterator:
                self._record = record
                return record

    async def receive(self) -> Record:
        """The next record. Raises `trio.EndOfChannel` at the end, unless it follows; otherwise as iterating does."""
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise trio.EndOfChannel from None

    def batches(self) -> Batches[RecordBatch]:
        """The records in batches, as they were stored: by far the cheapest way to read many. Iterate this or the reader, not
        both: the next batch omits the rest of the batch that an iteration is in."""
        return Batches(self.receive_batch)

    async def receive_batch(self) -> RecordBatch | None:
        """The next batch of records; None at the end, unless it follows. Raises `EntryUnreadableError` (retry: yes),
        `EntryNotFoundError`, `TrimmedError`, `MetastoreError`."""
        batch = await self._find_batch()
        return None if batch is None else self._given_out(batch)

    async def _next_of_scans(self) -> EntryBatch | None:
        while True:
            self._check_open()
            if self._scan is None:
                if not await self._open_next():
                    return None
                continue
            try:
                batch = await self._scan.take()
                if batch is not None:
                    return batch
                if not await self._at_end_of_known(self._scan):
                    return None
            except (LedgerNotFoundError, EntryNotFoundError):
                # Bookies may have dropped a deleted ledger before this client learns of the deletion.
                if not await self._is_trimmed():
                    raise
                self._scan = None

    def receive_batch_nowait(self) -> RecordBatch:
        """The non-blocking form of `receive_batch`: raises `trio.WouldBlock` if no batch has arrived yet, or at the end. A call
        that waits has batches fetched: of this one alone none comes."""
        self._check_open()
        if self._find_batch.goes_on:
            batch = self._find_batch.take_nowait()
        else:
            batch = None if self._scan is None else self._scan.take_nowait()
        if batch is None:
            raise trio.WouldBlock
        return self._given_out(batch)

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError(f"log {self.name!r}: this reader was closed")

    @property
    def _begins_at(self) -> Position:
        """The first position that was not returned yet, once a segment was looked for."""
        assert self._place is not None, "a segment was looked for"
        last = self._position
        if last is None or last.segment != self._place.segment:
            return self._place
        return max(self._place, Position(last.segment, last.entry + 1))

    def _given_out(self, batch: EntryBatch) -> RecordBatch:
        assert self._place is not None, "a segment is read"
        number = self._place.segment
        # For callers that take batches the whole batch counts as returned. Iterating sets `_record` right after this.
        self._position, self._record, self._iterator = Position(number, batch.last_entry_id), None, _NOTHING
        return RecordBatch(number, batch)

    async def _at_end_of_known(self, scan: LedgerScan) -> bool:
        """All known confirmed entries were returned. Finds out more; returns False if the reader is at its end."""
        if scan.is_at_end:
            self._scan, self._place = None, Position(self._begins_at.segment + 1, 0)
            return True
        if self._following is not None:
            await self._following.wait_for_news(scan)
            return True
        log = await self._reread()
        # In the log's last segment there is nothing to wait for: the last confirmed entry is the end.
        if self._begins_at.segment == log.next_segment_number - 1 or self._waited_for_closing:
            if self._asked_again:
                # Otherwise a busy writer would keep this reader forever.
                return False
            self._asked_again = True
            await find_end(scan)
            return True
        # Its writer has rolled and is about to close it, or is dead: then this is the end until a takeover.
        self._waited_for_closing = True
        await self._wait_for_closing(scan)
        return True

    async def _wait_for_closing(self, scan: LedgerScan) -> None:
        """Returns when the ledger is closed; or when no entry after it is known to be confirmed, or no client seems to be about
        to close it: then its end is not known before the next takeover, which may never come."""
        ends_at_s = trio.current_time() + _CLOSING_S
        seen: object = None
        while trio.current_time() < ends_at_s:
            await scan.refresh()
            metadata, version = await self._ledgers.records.get_head(scan.ledger_id)
            if metadata.state is LedgerState.CLOSED:
                await scan.refresh()
                return
            # If an entry behind it is confirmed, all of this ledger was confirmed before (L2): its close is on its way, unless
            # the writer died.
            behind = await self._seen_behind()
            if behind is None or (version, behind) == seen:
                return
            seen = version, behind
            is_recovered = metadata.state is LedgerState.IN_RECOVERY
            is_attended = is_recovered or self._ledgers.is_written_here(scan.ledger_id)
            patience_s = _CLOSING_S if is_attended else _SIGN_OF_LIFE_S
            with trio.move_on_at(min(ends_at_s, trio.current_time() + patience_s)):
                await self._ledgers.records.wait_changed(scan.ledger_id, version)

    async def _seen_behind(self) -> tuple[int, LedgerState | None, int] | None:
        """The number of the log's last segment, its state, and how far it is known to be confirmed: a writer that appends changes
        that. None if no entry after this segment can be confirmed, because the writer died during a roll."""
        log = await self._reread()
        last = log.listed(log.next_segment_number - 1)
        assert last is not None, "the head names the last segment (L1)"
        try:
            metadata, _ = await self._ledgers.records.get(last.ledger_id)
            scan = self._ledgers.scan(metadata, 0, self._password)
            await scan.refresh()
        except LedgerNotFoundError:
            return last.number, None, -1  # it was deleted meanwhile
        is_unused = scan.metadata.state is LedgerState.OPEN and scan.last_readable < 0
        if is_unused and last.number == self._begins_at.segment + 1:
            return None
        return last.number, scan.metadata.state, scan.last_readable

    # -- from ledger to ledger ----------------------------------------------------------------------------------------

    async def _open_next(self) -> bool:
        """Opens the ledger with the next entries to read. Returns False if there is none; a follower waits for one."""
        while True:
            self._check_open()
            metadata = self._metadata
            begins_at = None if self._place is None else self._begins_at
            if metadata is None or begins_at is None or begins_at.segment >= metadata.next_segment_number:
                metadata = await self._reread()
            if begins_at is None:
                begins_at = self._place = metadata.begins_at
            if begins_at.segment < metadata.next_segment_number:
                try:
                    await self._open(*await self._find(metadata, begins_at))
                    return True
                except LedgerNotFoundError:
                    if not await self._is_trimmed():
                        raise
            elif self._following is None:
                return False
            else:
                await self._following.wait_changed(log_key_path(self.name), self._version)

    async def _find(self, metadata: LogMetadata, begins_at: Position) -> tuple[Segment, Position]:
        """The segment to read from this position on, and where in it. The position is below the next segment. The segment is in
        the head, or in its page, of which one is kept. Raises `TrimmedError` if something before it is missing."""
        while (place := metadata.resume(begins_at)) is not None:
            number = place.segment
            found = metadata.listed(number)
            if found is not None:
                return found, place
            page_number = metadata.page_of(number)
            if self._page is None or self._page.number != page_number:
                self._page = await self._records.page(self.name, page_number)
            for segment in () if self._page is None else self._page.segments:
                if segment.number == number:
                    return segment, place
            # It is not in its page either: it was trimmed meanwhile, or the page is damaged. `after_missing` finds out which.
            self._page = None
            await self._records.after_missing(metadata, number)
            metadata = await self._reread()
        raise self._trimmed(begins_at, metadata)

    async def _open(self, segment: Segment, place: Position) -> None:
        metadata, _ = await self._ledgers.records.get(segment.ledger_id)
        scan = self._ledgers.scan(metadata, place.entry, self._password)
        await scan.refresh()
        last = scan.metadata.last_entry_id
        if last is not None and place.entry > last + 1:
            raise PositionError(f"{self._position} is not a position of log {self.name!r}: that segment ends at {last}")
        self._scan, self._place = scan, place
        self._waited_for_closing = self._asked_again = False

    async def _is_trimmed(self) -> bool:
        """True if a ledger is gone because the log was trimmed up to what was read, so that reading goes on where the log begins.
        Raises `TrimmedError` if more was trimmed."""
        metadata, begins_at = await self._reread(), self._begins_at
        if metadata.resume(begins_at) is None:
            raise self._trimmed(begins_at, metadata)
        return begins_at < metadata.begins_at

    def _trimmed(self, position: Position, log: LogMetadata) -> TrimmedError:
        remedy = "go on there (a new reader without `after`, or a cursor that is moved there)"
        problem = f"{position} was trimmed away; the log begins at {log.begins_at}: {remedy}"
        return TrimmedError(self.name, problem, log.begins_at)

    async def _reread(self) -> LogMetadata:
        """The log's record as it is now. Raises `LogNotFoundError` if the log was deleted; `TrimmedError` if it was, and
        created again: a reader never reads one log and then another."""
        log, version = await self._records.get(self.name)
        if self._metadata is not None and log.deletions != self._metadata.deletions:
            raise self._trimmed(self._metadata.begins_at if self._place is None else self._begins_at, log)
        self._metadata, self._version = log, version
        return log

    # -- ending -----------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Ends the reader. Idempotent."""
        self._close()
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        self._closed = True
        self._iterator = iter(())
        self._find_batch.end()
        if self._following is not None:
            self._following.end()


async def started(reader: LogReader) -> LogReader:
    """The reader, once it knows where it begins. Raises as `Client.read_log`."""
    await reader._start()
    return reader
