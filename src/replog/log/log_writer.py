"""The writer of a log: appends to the log's last ledger, and rolls to new ones (L2, L5).

Entries keep the order of the calls across ledgers; `replog.log.rolling` says how.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import trio

from replog.client.endings import WriterContext
from replog.client.entry_writer import EntryWriter
from replog.client.ledgers import Ledgers
from replog.client.pacing import Stage
from replog.errors import FencedError, ProducersFullError, ReplogError
from replog.log.committers import answer_committers
from replog.log.log_driver import LogDriver
from replog.log.producers import Producers
from replog.log.record_batches import Positions
from replog.log.rolling import CurrentSegment, NextLedger, Rolling
from replog.protocol.batch import Payloads, check_payload
from replog.protocol.chaining import LogChanged
from replog.protocol.envelope import pack, pack_each
from replog.protocol.model import LedgerState, Position
from replog.protocol.producers import entry_id_of
from replog.runtime.nursery import open_service_nursery

# `Position(...)` in a third of the time: without the keywords of a named tuple's constructor.
_position: Callable[[tuple[int, int]], Position] = partial(tuple.__new__, Position)


class LogEntries:
    """Appends to a log for callers outside of the trio run, who can't await."""

    def __init__(self, current: CurrentSegment) -> None:
        self._current = current

    def append_nowait(self, data: bytes, ended: Callable[[bool], None]) -> Position:
        """Appends without blocking (`EntryWriter.append_nowait`)."""
        current = self._current
        try:
            return _position((current.segment, current.writer.append_nowait(data, ended)))
        except FencedError as error:
            raise current.with_positions(error) from None

    def extend_nowait(self, payloads: Payloads, ended: Callable[[bool], None]) -> Positions:
        """Appends several entries without blocking (`EntryWriter.extend_nowait`)."""
        current = self._current
        try:
            return Positions(current.segment, current.writer.extend_nowait(payloads, ended))
        except FencedError as error:
            raise current.with_positions(error) from None

    def flush_nowait(self, ended: Callable[[bool], None]) -> Position:
        """Flushes without blocking (`EntryWriter.flush_nowait`)."""
        current = self._current
        writer, segment = current.last_flushed
        try:
            return Position(segment, writer.flush_nowait(ended))
        except FencedError as error:
            raise current.with_positions(error) from None

    def check_confirmed(self, position: Position) -> None:
        """Raises an error unless the entry at this position is confirmed (`EntryWriter.check_confirmed`)."""
        current = self._current
        # What is in neither ledger was confirmed before the last roll.
        writer = current.holding(position.segment)
        if writer is not None:
            try:
                writer.check_confirmed(position.entry)
            except FencedError as error:
                raise current.with_positions(error) from None


class LogWriter(WriterContext):
    """The one writer of a log, until another client takes over. Made by `Client.write_log`; use it as a context manager.

    An entry is bytes, at most 16 MiB with its key and headers. Any number of tasks may append at once: their entries share
    batches and syncs. Once the writer has failed, every method raises why: `FencedError` if it was deposed, `AddTimeoutError` or
    `NotEnoughBookiesError` if entries could not be confirmed in time. The `positions` of a `FencedError` have an unknown
    outcome: read them back after the takeover (L5).

    Leaving the context without an error confirms everything and closes the last ledger. Leaving it on an error, or cancelled,
    closes it at the last confirmed entry, if that succeeds within a few seconds; the error is raised unchanged, with a note if
    closing failed."""

    def __init__(
        self,
        name: str,
        ledgers: Ledgers,
        driver: LogDriver,
        changed: LogChanged,
        writer: EntryWriter,
        create_ledger: Callable[[int, bool], Awaitable[EntryWriter]],
        password: bytes,
    ) -> None:
        self.name = name  #: The name of the log.
        self._ledgers = ledgers
        self._driver = driver
        self._current = current = CurrentSegment(writer, changed.metadata.segments[-1].number)
        self._entries = LogEntries(current)
        self._next = NextLedger(ledgers, driver, changed, create_ledger, password)
        first = Position(current.segment, writer.first_entry_id)
        self._producers = current.producers = Producers(
            name, changed.metadata.deletions, first, lambda: current.segment, ledgers, driver.records, password
        )
        self._rolling = Rolling(name, current, self._next, ledgers, driver, password)
        self._background = trio.CancelScope()
        self._background_ended = trio.Event()
        self._finished = trio.Event()  # what others had left unfinished

    # -- looking --------------------------------------------------------------------------------------------------

    @property
    def segment(self) -> int:
        """The number of the segment that is appended to."""
        return self._current.segment

    @property
    def ledger_id(self) -> int:
        """The ledger that is appended to."""
        return self._writer.ledger_id

    @property
    def _writer(self) -> EntryWriter:
        return self._current.writer

    @property
    def last_add_pushed(self) -> Position | None:
        """The position of the last entry that was pushed by this writer; None before the first."""
        return self._current.last_add_pushed

    @property
    def last_add_confirmed(self) -> Position | None:
        """The last entry of this writer that is confirmed, with all before it; None before the first."""
        return self._current.last_add_confirmed

    @property
    def unconfirmed_bytes(self) -> int:
        """Payload bytes that were pushed and are not confirmed."""
        previous = self._current.previous
        return self._writer.unconfirmed_bytes + (0 if previous is None else previous.unconfirmed_bytes)

    def statistics(self) -> dict[str, float]:
        """Counters and gauges: those of the current ledger's writer, and of rolling."""
        rolling = {"segment": self.segment, "rolls": self._rolling.rolls, "roll_failures": self._rolling.failures}
        return {**self._writer.statistics(), **rolling}

    # -- appending --------------------------------------------------------------------------------------------------

    async def append(
        self,
        data: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        id: tuple[str, int] | None = None,
    ) -> Position:
        """Appends an entry, and returns its position once it is confirmed: it survives from then on.

        `key` is bytes, and `headers` maps texts to bytes. With a key, `data` may be None: a tombstone, which says that
        the key has no value any more. An `id` is a producer and a sequence, which rises with that producer's entries. An
        entry with this id is in the log at most once: repeat it after any failure, on any writer of the log, and the
        first one's position is returned, even if the data differ (L11).

        Raises `FencedError` if another client took over (outcome unknown), `AddTimeoutError` or `NotEnoughBookiesError` if it was
        not confirmed in time (outcome unknown), `PayloadTooLargeError` or TypeError (not written). With an `id`, also
        `DuplicateError` if the log has forgotten its position, and `ProducersFullError` (not written); the first one of a writer
        reads the log, and raises what reading raises, or `MetastoreError` (not written).

        If cancelled, the outcome is unknown; `last_add_pushed` and `last_add_confirmed` tell its position."""
        if id is not None:
            position = await self._push_once(data, key, headers, id)
            await self._wait_confirmed(position)
            return position
        if key is not None or headers is not None:
            data = pack(data, key=key, headers=headers)
        try:
            writer, segment = self._current.writer, self._current.segment
            try:
                entry_id = writer.admit(data)  # type: ignore[arg-type] # None without a key is refused
            except trio.WouldBlock:
                await self._wait_for_room(len(data))  # type: ignore[arg-type]
                writer, segment = self._current.writer, self._current.segment  # which a roll may have changed
                entry_id = writer.admit(data)  # type: ignore[arg-type]
            await writer.confirmed(entry_id)
            if writer.backlog.confirmed < entry_id:
                writer.check_usable()
            return _position((segment, entry_id))
        except FencedError as error:
            raise self._current.with_positions(error) from None

    async def extend(
        self,
        data: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Mapping[str, bytes] | None] | None = None,
    ) -> Positions:
        """Appends many entries, in order, in as few batches as can be; returns their positions once all are confirmed.

        `keys` and `headers` have one for each entry, or None. Raises as `append` does, and an invalid entry raises before any is
        sent (nothing written). If it raises otherwise or is cancelled, each of them has an unknown outcome."""
        is_plain = keys is None and headers is None
        payloads = Payloads(data if is_plain else pack_each(data, keys, headers))  # type: ignore[arg-type]
        await self._wait_for_room(payloads.size_bytes)
        writer, segment = self._current.writer, self._current.segment
        try:
            return Positions(segment, await writer.extend(payloads))
        except FencedError as error:
            raise self._current.with_positions(error) from None

    def push_nowait(
        self, data: bytes | None, *, key: bytes | None = None, headers: Mapping[str, bytes] | None = None
    ) -> Position:
        """Puts an entry in flight, and returns its position. `flush` tells when it is confirmed.

        Raises `trio.WouldBlock` if the byte budget is used up: nothing was pushed. Otherwise as `append`."""
        if key is not None or headers is not None:
            data = pack(data, key=key, headers=headers)
        try:
            current = self._current
            writer = current.writer
            entry_id = writer.admit(data)  # type: ignore[arg-type]
            if writer.pacing.stage is not Stage.GATHERING:
                writer.pacing.pushed()
            return _position((current.segment, entry_id))
        except FencedError as error:
            raise self._current.with_positions(error) from None

    async def push(
        self,
        data: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        id: tuple[str, int] | None = None,
    ) -> Position:
        """Pushes an entry, and returns its position; waits for the byte budget, which `push_nowait` does not.

        With an `id`, like `append`: for a repetition it returns the first one's position, which `flush` confirms. Raises
        as `append` does. If cancelled, nothing was pushed."""
        if id is not None:
            return await self._push_once(data, key, headers, id)
        data = pack(data, key=key, headers=headers)
        check_payload(data)
        await trio.lowlevel.checkpoint()
        await self._wait_for_room(len(data))
        return self.push_nowait(data)

    async def _push_once(
        self, data: bytes | None, key: bytes | None, headers: Mapping[str, bytes] | None, given: tuple[str, int]
    ) -> Position:
        """Puts an entry with an id in flight, unless there is one; returns the position of that (L11)."""
        entry_id = entry_id_of(given)
        stored = pack(data, key=key, headers=headers, id=entry_id)
        check_payload(stored)
        await trio.lowlevel.checkpoint()
        window = await self._producers.window()
        # Nothing may come between looking and pushing: another task may repeat the same id.
        while (first := window.find(entry_id)) is None:
            try:
                window.check_room(entry_id.producer)
            except ProducersFullError:
                if await self._producers.make_room(window):
                    continue
                if not self._producers.are_saved:
                    self._rolling.want()  # only what is in the record can be retired
                raise
            try:
                position = self.push_nowait(stored)
            except trio.WouldBlock:
                await self._wait_for_room(len(stored))
                continue
            if self._producers.add(window, position, entry_id):
                self._rolling.want()
            return position
        return first

    async def _wait_confirmed(self, position: Position) -> None:
        """Waits for an entry that may be in flight. Raises why it is not confirmed, as often as it is asked."""
        writer = self._current.holding(position.segment)
        if writer is not None and writer.last_add_confirmed < position.entry:
            await writer.backlog.confirmation(position.entry).wait()
        self._entries.check_confirmed(position)

    async def _wait_for_room(self, size_bytes: int) -> None:
        """Waits for room in the current ledger, which a roll may change meanwhile."""
        while True:
            writer = self._writer
            try:
                await writer.wait_for_room(size_bytes)
            except trio.ClosedResourceError:
                if self._writer is writer:
                    raise
            except FencedError as error:
                raise self._current.with_positions(error) from None
            if self._writer is writer:
                return

    async def flush(self) -> None:
        """Waits until everything pushed so far is confirmed.

        Raises as `append` does: the outcome of entries that are not confirmed is unknown. If cancelled, they stay in flight."""
        previous = self._current.previous
        writers = [self._writer] if previous is None else [previous, self._writer]
        for writer in writers:
            try:
                await writer.flush()
            except FencedError as error:
                raise self._current.with_positions(error) from None
            except trio.ClosedResourceError:
                if writer is self._writer:
                    # Otherwise a roll has closed it, after all of it was confirmed.
                    raise

    # -- rolling ----------------------------------------------------------------------------------------------------

    async def roll(self) -> Position:
        """Goes on to a new ledger (L2), so that all before it can be trimmed; returns its first position.

        Appends go on meanwhile. Raises `FencedError` if another client took over, `NotEnoughBookiesError` or `MetastoreError`
        if there can be no new ledger now: then the current one goes on, and the roll is tried again later. `WriteQuorumError`
        says that it has rolled, but that guaranteed copies of what is before are missing still (W8): until they are there, it
        rolls no further, and `roll` raises this again. If cancelled, it may roll or not."""
        await trio.lowlevel.checkpoint_if_cancelled()
        # A request to a writer that has ended would never be answered.
        self._check_usable()
        segment = await self._rolling.roll()
        if not segment:
            self._check_usable()
        return Position(segment, 0)

    def _check_usable(self) -> None:
        try:
            self._writer.check_usable()
        except FencedError as error:
            raise self._current.with_positions(error) from None
        if self._background_ended.is_set():
            raise trio.ClosedResourceError(f"log {self.name!r}: this writer was closed")

    async def _run(self) -> None:
        """The background task: rolls on demand, by bytes, entries and age. Ends when the writer is closed or failed."""
        try:
            with self._background:
                async with open_service_nursery() as nursery:
                    nursery.start_soon(self._finish)
                    nursery.start_soon(self._producers.look)
                    nursery.start_soon(answer_committers, self.name, self._ledgers, self._driver, self._rolling)
                    await self._rolling.run()
                    nursery.cancel_scope.cancel()
        finally:
            self._finished.set()
            self._background_ended.set()
            self._rolling.end()

    async def wait_ended(self) -> None:
        """Returns once this writer was closed; raises why, once it can append no more for another reason. A leader that appends
        nothing hears within seconds that it was deposed, unless it does not reach the metastore.

        Raises `FencedError` if another client took over or deleted the log, `LedgerRecordLostError`, or what an append failed
        with: the outcome is unknown for the `positions` of a `FencedError`, and for `unconfirmed`. Leaving does not raise it
        again. Retry: take over again, if you are still elected. If cancelled, nothing has changed."""
        await self._wait_background_ended()
        if self._writer.error is not None:
            self._check_usable()

    async def _wait_background_ended(self) -> None:
        """Returns once this writer does nothing in the background any more: it was closed, deposed, or has failed."""
        await self._background_ended.wait()

    async def _finish(self) -> None:
        """Finishes this takeover, after which its ledger is no longer pending, and what other clients left unfinished (L7)."""
        try:
            await self._driver.settle(self.name, self._writer)
            await self._driver.finish(self.name)
        finally:
            self._finished.set()

    # -- closing ----------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Confirms everything and closes the last ledger. Idempotent. Raises as `append` does, and `WriteQuorumError` if
        guaranteed copies are missing: then all is confirmed, and closed (W8)."""
        self._rolling.leaving.set()
        async with self._rolling.busy:
            # With `busy` held no roll is under way, so there is one ledger to close.
            try:
                await self._writer.aclose()
                await self._rolling.complete()
                await self._finished.wait()
                await self._summarise_producers()
            except FencedError as error:
                raise self._current.with_positions(error) from None
            finally:
                self._background.cancel()

    async def _summarise_producers(self) -> None:
        """Saves the next writer reading this ledger for ids, if it is closed; what fails, that one does."""
        if self._writer.metadata.state is LedgerState.CLOSED:
            with suppress(ReplogError):
                await self._producers.closed(self.segment)

    async def _say_farewell(self, error: BaseException) -> None:
        """Stops a roll under way, and closes at the last confirmed entry, if that can be done in a few seconds."""
        self._rolling.leaving.set()
        self._background.cancel()
        with trio.CancelScope(shield=True):  # it was cancelled, so it ends at once
            await self._background_ended.wait()
        for writer in (self._current.previous, self._current.writer):
            if writer is not None:
                await writer.say_farewell(error)
