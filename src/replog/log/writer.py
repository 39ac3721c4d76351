"""The writer of a log: appends to the log's last ledger, and rolls to new ones (L2, L5).

Entries keep the order of the calls across ledgers: those pushed after a roll are gathered, and sent only once every
entry of the previous ledger is confirmed. So nothing is confirmed in a ledger before all that stands before it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import trio

from replog.client.endings import WriterContext, copy_for_raise
from replog.client.ledger_writer import LedgerWriter
from replog.client.ledgers import Ledgers
from replog.errors import FencedError, LedgerNotFoundError, ReplogError
from replog.hookspecs import LogRolled
from replog.log.positions import Positions
from replog.log.records import LogRecords
from replog.protocol.batch import Payloads, check_payload
from replog.protocol.chaining import LogChanged, LogRolling
from replog.protocol.model import Position
from replog.runtime.nursery import open_service_nursery

_RETRY_ROLL_AFTER_S = 5.0

_position: Callable[[tuple[int, int]], Position] = partial(tuple.__new__, Position)  # in a third of the time


class _RollRequest:
    """Somebody waits for a roll."""

    __slots__ = ("done", "error", "segment")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.error: ReplogError | None = None
        self.segment = 0  # the new one, if it succeeded


class LogWriter(WriterContext):
    """The one writer of a log, until somebody else takes over. Made by `Client.write_log`; use it as a context.

    Leaving the context without an error confirms everything and closes the last ledger; leaving it on an error closes
    it at the last confirmed entry. Once deposed, every method raises `FencedError`, whose `positions` have an unknown
    fate: read them back after the takeover (L5). Appends of many tasks share batches.
    """

    def __init__(
        self,
        name: str,
        ledgers: Ledgers,
        records: LogRecords,
        changed: LogChanged,
        writer: LedgerWriter,
        create_ledger: Callable[[int], Awaitable[LedgerWriter]],
        password: bytes,
    ) -> None:
        self.name = name
        self._ledgers = ledgers
        self._options = ledgers.options
        self._records = records
        self._metadata = changed.metadata
        self._version = changed.version
        self._writer = writer
        self._segment = changed.metadata.segments[-1].number
        self._create_ledger = create_ledger
        self._password = password
        self._confirmed: Position | None = None  # in segments before the current one
        self._rolls = 0
        self._roll_failures = 0
        self._rolling = trio.Lock()
        self._roll_entries = float("inf") if self._options.roll_entries is None else self._options.roll_entries
        self._roll_bytes = float("inf") if self._options.roll_bytes is None else self._options.roll_bytes
        self._roll_wanted = trio.Event()
        self._roll_requests: list[_RollRequest] = []
        self._segment_started = trio.current_time()
        self._background = trio.CancelScope()
        self._background_ended = trio.Event()
        self._leaving = trio.Event()
        self._finished = trio.Event()
        self._previous: LedgerWriter | None = None  # while not all of it is confirmed
        self._next: LedgerWriter | None = None  # while the log's record may name it, or come to
        self._next_since_ms = 0
        self._next_base = (changed.metadata, changed.version)  # of the log, upon which it was created
        writer.report_to(self._progressed, self._failed)

    # -- looking --------------------------------------------------------------------------------------------------

    @property
    def segment(self) -> int:
        """The number of the segment that is appended to."""
        return self._segment

    @property
    def ledger_id(self) -> int:
        """The ledger that is appended to."""
        return self._writer.ledger_id

    @property
    def last_add_pushed(self) -> Position | None:
        """Where the last entry was put that was pushed by this writer; None before the first."""
        if self._writer.last_add_pushed >= 0:
            return Position(self._segment, self._writer.last_add_pushed)
        if self._previous is not None and self._previous.last_add_pushed >= 0:
            return Position(self._segment - 1, self._previous.last_add_pushed)
        return self._confirmed

    @property
    def last_add_confirmed(self) -> Position | None:
        """The last entry of this writer that is confirmed, with all before it; None before the first."""
        if self._writer.last_add_confirmed < 0:
            if self._previous is not None and self._previous.last_add_confirmed >= 0:
                return Position(self._segment - 1, self._previous.last_add_confirmed)
            return self._confirmed
        return Position(self._segment, self._writer.last_add_confirmed)

    @property
    def unconfirmed_bytes(self) -> int:
        """Payload bytes that were pushed and are not confirmed."""
        previous = self._previous.unconfirmed_bytes if self._previous is not None else 0
        return self._writer.unconfirmed_bytes + previous

    def statistics(self) -> dict[str, float]:
        """Counters and gauges: those of the current ledger's writer, and of rolling."""
        rolling = {"segment": self._segment, "rolls": self._rolls, "roll_failures": self._roll_failures}
        return {**self._writer.statistics(), **rolling}

    # -- appending --------------------------------------------------------------------------------------------------

    async def append(self, data: bytes) -> Position:
        """Appends an entry, and returns its position once it is confirmed: it survives from then on.

        Raises `FencedError` if somebody took over (outcome unknown), `AddTimeoutError` or `NotEnoughBookiesError` if it
        was not confirmed in time (outcome unknown), `PayloadTooLargeError` or TypeError (not written). If cancelled, the
        outcome is unknown; `last_add_pushed` and `last_add_confirmed` tell where it stands."""
        try:
            writer, segment, backlog = self._writer, self._segment, self._writer.backlog
            if backlog.unconfirmed_bytes + len(data) > backlog.bytes_max:
                await self._wait_for_room(len(data))
                writer, segment = self._writer, self._segment  # a roll may have come in between
            return Position(segment, await writer.append(data))
        except FencedError as error:
            raise self._with_positions(error) from None
        except TypeError:
            check_payload(data)
            raise

    async def extend(self, data: Sequence[bytes]) -> Positions:
        """Appends many entries, in order, in as few batches as can be; returns their positions once all are confirmed.
        Raises as `append` does: then each of them has an unknown outcome, unless one was no entry (nothing written)."""
        payloads = Payloads(data)
        await self._wait_for_room(payloads.size_bytes)
        writer, segment = self._writer, self._segment
        try:
            return Positions(segment, await writer.extend(payloads))
        except FencedError as error:
            raise self._with_positions(error) from None

    def push_nowait(self, data: bytes) -> Position:
        """Puts an entry in flight, and returns where it will stand. `flush` tells when it is confirmed.

        Raises `trio.WouldBlock` if the byte budget is used up: nothing was pushed. Otherwise as `append`."""
        try:
            return _position((self._segment, self._writer.push_nowait(data)))
        except FencedError as error:
            raise self._with_positions(error) from None

    async def push(self, data: bytes) -> Position:
        """As `push_nowait`, but waits for the byte budget. If cancelled, nothing was pushed."""
        check_payload(data)
        await trio.lowlevel.checkpoint()
        await self._wait_for_room(len(data))
        return self.push_nowait(data)

    async def _wait_for_room(self, size_bytes: int) -> None:
        """Room in whatever ledger is current when there is some: a roll may come in between."""
        while True:
            writer = self._writer
            try:
                await writer.wait_for_room(size_bytes)
            except trio.ClosedResourceError:
                if self._writer is writer:
                    raise
            except FencedError as error:
                raise self._with_positions(error) from None
            if self._writer is writer:
                return

    async def flush(self) -> None:
        """Waits until everything pushed so far is confirmed. If cancelled, it goes on being in flight."""
        writers = [self._writer] if self._previous is None else [self._previous, self._writer]
        for writer in writers:
            try:
                await writer.flush()
            except FencedError as error:
                raise self._with_positions(error) from None
            except trio.ClosedResourceError:
                if writer is self._writer:
                    raise  # else a roll has closed it, after all of it was confirmed

    def _with_positions(self, error: FencedError) -> FencedError:
        error.positions = Positions(self._segment, self._writer.unconfirmed)
        if self._previous is not None and self._previous.unconfirmed:
            earlier = Positions(self._segment - 1, self._previous.unconfirmed)
            error.positions = [*earlier, *error.positions]
        return error

    # -- rolling ----------------------------------------------------------------------------------------------------

    async def roll(self) -> Position:
        """Goes on to a new ledger (L2), so that all before it can be trimmed; returns its first position.

        Appends go on meanwhile. Raises `FencedError` if somebody took over, `NotEnoughBookiesError` or `MetastoreError`
        if there can be no new ledger now: then the current one goes on, and the roll is tried again later. If cancelled,
        it may roll or not."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_usable()
        request = _RollRequest()
        self._roll_requests.append(request)
        self._roll_wanted.set()
        await request.done.wait()
        if request.error is not None and request.error is not self._writer.error:
            raise copy_for_raise(request.error)
        if not request.segment:
            self._check_usable()
        return Position(request.segment, 0)

    def _check_usable(self) -> None:
        try:
            self._writer.check_usable()
        except FencedError as error:
            raise self._with_positions(error) from None
        if self._background_ended.is_set():
            raise trio.ClosedResourceError(f"log {self.name!r}: this writer was closed")

    def _progressed(self, entries: int, size_bytes: int) -> None:
        if entries >= self._roll_entries or size_bytes >= self._roll_bytes:
            self._roll_wanted.set()

    def _failed(self) -> None:
        self._roll_wanted.set()  # wakes the background task, which ends

    async def run(self) -> None:
        """The background task: rolls on demand, by bytes, entries and age. Ends when the writer is closed or failed."""
        try:
            with self._background:
                async with open_service_nursery() as nursery:
                    nursery.start_soon(self._finish)
                    await self._roll_when_wanted()
                    nursery.cancel_scope.cancel()
        finally:
            self._finished.set()
            self._background_ended.set()
            if self._next is not None:
                self._next.leave()
            for request in self._roll_requests:
                request.done.set()

    async def _finish(self) -> None:
        """What others have left unfinished, and this takeover itself: that the ledger is pending no more (L7)."""
        try:
            await self._records.settle(self.name, self._writer)
            await self._records.finish(self.name)
        finally:
            self._finished.set()

    async def _roll_when_wanted(self) -> None:
        while self._writer.error is None:
            age_s = self._options.roll_age_s
            deadline = float("inf") if age_s is None else self._segment_started + age_s
            with trio.move_on_at(deadline):
                await self._roll_wanted.wait()
            async with self._rolling:
                self._roll_wanted = trio.Event()
                requests = tuple(self._roll_requests)
                error = await self._roll_or_say_why(bool(requests))
                for request in requests:
                    request.error, request.segment = error, 0 if error else self._segment
                    request.done.set()
                del self._roll_requests[: len(requests)]
                # What wanted a roll of the previous ledger meanwhile has it.
                self._roll_wanted = trio.Event()
                if self._roll_requests:
                    self._roll_wanted.set()
            if error is not None and self._writer.error is None:
                await trio.sleep(_RETRY_ROLL_AFTER_S)
                if self._next is not None:
                    self._roll_wanted.set()
            self._progressed(self._writer.last_add_pushed + 1, self._writer.length_bytes)

    async def _roll_or_say_why(self, demanded: bool) -> ReplogError | None:
        if self._writer.error is not None:
            return self._writer.error
        self._segment_started = trio.current_time()
        if self._writer.last_add_pushed < 0 and not demanded and self._next is None:
            return None  # an empty ledger need not be rolled for its age
        try:
            await self._roll()
        except ReplogError as error:
            self._roll_failures += 1  # the current ledger goes on, unless it failed itself
            return error
        return None

    async def _roll(self) -> None:
        """Rolls, or raises why not. After a `MetastoreError` the log's record may name the new ledger, or come to: the
        current one goes on all the same, since a takeover recovers both, and the next roll is to the same ledger."""

        async def create_ledger(segment_number: int) -> int:
            if self._next is not None:
                self._next.leave()  # it was given back
                self._next = None
            self._next = await self._create_ledger(segment_number)
            self._next.hold()
            return self._next.ledger_id

        token = self._ledgers.chance.token()
        if self._next is None:
            self._next_since_ms = self._ledgers.chance.time_ms()
            machine = LogRolling(self._metadata, self._version, token, self._next_since_ms)
        else:
            machine = LogRolling(*self._next_base, token, self._next_since_ms, self._next.ledger_id)
        machine.start()
        try:
            changed = await self._records.drive(machine, create_ledger, self._password)
        except FencedError as error:
            if self._next is not None:
                self._next.leave()
            self._next = None
            self._writer.abandon(error)
            raise
        finally:
            self._next_base = machine.base
        assert self._next is not None
        self._metadata, self._version = changed.metadata, changed.version
        writer, self._next = self._next, None
        await self._switch(writer, changed.metadata.segments[-1].number)
        await self._records.settle(self.name, writer)

    async def _switch(self, writer: LedgerWriter, segment: int) -> None:
        """From here on entries go to the new ledger; it sends them once the previous one is wholly confirmed."""
        previous = self._previous = self._writer
        previous.report_to(None, None)
        self._writer, self._segment = writer, segment
        self._rolls += 1
        try:
            await previous.flush()
        except ReplogError as error:
            writer.abandon(error)
            raise
        if previous.last_add_confirmed >= 0:
            self._confirmed = Position(segment - 1, previous.last_add_confirmed)
        self._previous = None
        writer.report_to(self._progressed, self._failed)
        writer.release()
        await self._close_previous(previous)
        self._ledgers.observe(LogRolled(self.name, segment, writer.ledger_id, previous.ledger_id))

    async def _close_previous(self, previous: LedgerWriter) -> None:
        """Closes the ledger before the current one. It must be closed before the next roll: a takeover recovers two."""
        try:
            await previous.aclose()
            return
        except ReplogError:
            pass  # the metastore fails, or somebody recovers it, who may die: it is closed as anybody would close it
        while self._writer.error is None and not self._leaving.is_set():  # who takes over recovers both
            try:
                await self._ledgers.recover(previous.ledger_id, self._password)
                return
            except LedgerNotFoundError:
                return  # trimmed already
            except ReplogError:
                self._roll_failures += 1
                with trio.move_on_after(_RETRY_ROLL_AFTER_S):
                    await self._leaving.wait()

    # -- closing ----------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Confirms everything and closes the last ledger. Idempotent. Raises as `append` does."""
        self._leaving.set()
        async with self._rolling:
            try:
                await self._writer.aclose()
                await self._finished.wait()
            except FencedError as error:
                raise self._with_positions(error) from None
            finally:
                self._background.cancel()

    async def say_farewell(self, error: BaseException) -> None:
        """Ends a roll under way, and closes at the last confirmed entry, if that can be done in a few seconds."""
        self._leaving.set()
        self._background.cancel()
        with trio.CancelScope(shield=True):  # it was cancelled: it ends at once
            await self._background_ended.wait()
        for writer in (self._previous, self._writer):
            if writer is not None:
                await writer.say_farewell(error)
