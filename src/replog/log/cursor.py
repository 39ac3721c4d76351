"""A reader of a log that remembers how far it has come, in the metastore, under a name.

Rules:

- A commit covers entries that iteration has *returned*, never merely fetched ones: a worker that dies repeats, and
  skips nothing.
- One CAS is under way at a time. Commits that wait for it share the next one, which writes the newest position. So any
  number of commits costs the metastore no more than it does at once.
- A position only rises; `Client.cursors.move` is the way back. It never rises beyond the log's end: a position that
  this reader has not returned is looked up first.
- Once the cursor is known to be lost, every verb raises that.
"""

from __future__ import annotations

from typing import Self

import trio

from replog.client.entries import Batches
from replog.errors import CursorLostError, MetastoreError, PositionError
from replog.log.cursor_catalog import CursorCatalog, HeldCursor
from replog.log.log_reader import LogReader
from replog.log.log_summaries import CursorLag, LogSummaries
from replog.log.record_batches import Record, RecordBatch
from replog.protocol.model import Position

COMMIT_INTERVAL_S = 0.1  # between the writes of commits that `commit_nowait` notes


class Cursor(trio.abc.ReceiveChannel[Record]):
    """Reads a log on from where its cursor is, and commits. Made by `Client.cursor`; iterate it, or its `batches()`.

    A worker that dies repeats what it has not committed, and skips nothing. Raises as `LogReader` does, and `CursorLostError`
    once another client has the cursor. Cancelling a wait loses nothing."""

    def __init__(self, catalog: CursorCatalog, held: HeldCursor, reader: LogReader, logs: LogSummaries) -> None:
        self._catalog = catalog
        self._logs = logs
        self._held = held
        self._reader = reader
        self._returned: Position | None = None  # the last record that was returned
        self._wanted = held.record.begins_at  # what is to be written next, at least
        self._writing = trio.Lock()
        self._is_wanted = trio.Event()
        self._lost: CursorLostError | None = None
        self._is_loss_told = False

    # -- looking --------------------------------------------------------------------------------------------------------

    @property
    def log_name(self) -> str:
        """The log that it reads."""
        return self._held.record.log_name

    @property
    def name(self) -> str:
        """Its name, which is unique in the log."""
        return self._held.cursor.name

    @property
    def term(self) -> int:
        """The number of this acquisition, higher than all before: for a store of the user's own, to refuse older workers."""
        return self._held.record.term

    @property
    def position(self) -> Position | None:
        """The position of the last record that was returned; None before the first."""
        return self._returned

    @property
    def begins_at(self) -> Position:
        """The first position that is not committed, durably: where the next worker begins."""
        return self._held.record.begins_at

    async def lag(self) -> CursorLag:
        """How much of the log is behind the last commit. Closed segments cost no read of a bookie.

        Fields that bookies cannot answer now are None. Raises `LogNotFoundError`, `MetastoreError`."""
        return await self._logs.lag_of(self._held.record)

    # -- reading --------------------------------------------------------------------------------------------------------

    async def __anext__(self) -> Record:
        self._check_held()
        record = await self._reader.__anext__()
        self._returned = record.position
        return record

    async def receive(self) -> Record:
        """The next record. Raises `trio.EndOfChannel` at the end, unless it follows; otherwise as iterating does."""
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise trio.EndOfChannel from None

    def batches(self) -> Batches[RecordBatch]:
        """The records in batches, as they were stored. Iterate this or the cursor, not both."""
        return Batches(self.receive_batch)

    async def receive_batch(self) -> RecordBatch | None:
        """The next batch of records, all of which a commit then covers; None at the end, unless it follows. Raises as iterating
        does."""
        self._check_held()
        batch = await self._reader.receive_batch()
        if batch is not None:
            self._returned = batch.last_position
        return batch

    def receive_batch_nowait(self) -> RecordBatch:
        """The non-blocking form of `receive_batch`: raises `trio.WouldBlock` if no batch has arrived yet, or at the end."""
        self._check_held()
        batch = self._reader.receive_batch_nowait()
        self._returned = batch.last_position
        return batch

    # -- committing -----------------------------------------------------------------------------------------------------

    async def commit(self, position: Position | str | None = None) -> None:
        """Makes durable that all records up to the last one that was returned, or up to `position`, are done with.

        Returns once it is written; commits of many tasks share one write. Raises `CursorLostError` (see there);
        `PositionError` if the log is not known to have that position, and `NotEnoughBookiesError` if no bookie can say whether it
        has: then nothing was committed; `MetastoreError`: then it is written or not, and committing again is harmless, as it is
        after a cancellation."""
        given = self._returned if position is None else Position.parse(position)
        if given is not None and not self._is_known(given):
            self._check_held()
            await self._logs.check_position(self.log_name, given)
        # Noted before waiting for the lock: a commit that has it and has not written yet writes this one, too.
        wanted = self._note(given)
        try:
            async with self._writing:
                await self._write(wanted)
        except CursorLostError:
            self._is_loss_told = True
            raise

    def commit_nowait(self, position: Position | str | None = None) -> None:
        """Commits without blocking: the commit is written soon, together with all within a tenth of a second, and at
        the latest when the cursor's block is left without error. Thousands a second cost the metastore a few writes.

        Raises `CursorLostError` once that is known; then commits noted since the last write are not written.
        `PositionError` for a position behind the last record that was returned: only `commit` can find out whether the
        log has it."""
        given = self._returned if position is None else Position.parse(position)
        if given is not None and not self._is_known(given):
            self._check_held()
            raise PositionError(
                f"cursor {self.name!r} of log {self.log_name!r} has not returned {given} yet; nothing was committed: "
                "use `commit`, which looks up whether the log has it"
            )
        if self._note(given) > self._held.record.begins_at:
            self._is_wanted.set()

    def _is_known(self, position: Position) -> bool:
        """True if the log certainly has it: it was returned, or is before a committed or noted position."""
        return position < self._wanted or (self._returned is not None and position <= self._returned)

    def _note(self, last: Position | None) -> Position:
        self._check_held()
        if last is not None:
            self._wanted = max(self._wanted, Position(last.segment, last.entry + 1))
        return self._wanted

    async def _write(self, wanted: Position) -> None:
        """With the lock: so all that came while another one wrote is written at once by the first that gets it."""
        self._check_held()
        if wanted <= self._held.record.begins_at:
            return  # the one before has written it
        try:
            self._held = await self._catalog.commit(self._held, self._wanted)
        except CursorLostError as error:
            self._lost = error
            raise

    async def flush(self) -> None:
        """Writes noted commits that are not written yet. Raises as `commit` does, but a loss that was raised before
        only once."""
        if not self._is_loss_told:
            async with self._writing:
                await self._write(self._wanted)

    async def _run(self) -> None:
        """Writes what `commit_nowait` notes, until cancelled, or the cursor is lost."""
        while self._lost is None:
            await self._is_wanted.wait()
            self._is_wanted = trio.Event()
            try:
                async with self._writing:
                    await self._write(self._wanted)
            except CursorLostError:
                return  # the next verb raises it
            except MetastoreError:
                self._is_wanted.set()  # it stays noted, and `flush` raises the failure
            # After a failure, too: a metastore that is away is not asked in a tight loop.
            await trio.sleep(COMMIT_INTERVAL_S)

    def _check_held(self) -> None:
        if self._lost is not None:
            self._is_loss_told = True
            raise CursorLostError(
                self.log_name, self.name, "it is lost to this client since an earlier commit"
            ) from self._lost

    # -- ending -----------------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Ends the reading. Commits stay. Idempotent."""
        await self._reader.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *left: object) -> None:
        await self.aclose()
