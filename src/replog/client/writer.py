"""The writer of one ledger: gathers entries into batches and drives the writing machine.

What the application pushes while batches are under way gathers into the next one: no timer, and nothing is paid for an
entry but a list's append. A push never waits for the machine; the machine's answers send what has gathered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import trio

from replog.client.channel import Answer
from replog.client.confirmations import Confirmations
from replog.client.driving import Surroundings, WaitingEffects
from replog.client.failure import another
from replog.config import ClientOptions
from replog.errors import (
    AddTimeoutError,
    FencedError,
    LedgerClosedError,
    MetastoreUncertainError,
    NotEnoughBookiesError,
    ReplogError,
    UnauthorizedError,
)
from replog.hookspecs import EnsembleChanged, Event, WriterFenced
from replog.protocol.batch import ENTRY_BYTES_MAX, check_payload
from replog.protocol.effects import (
    Confirmed,
    Effect,
    Failed,
    Finished,
    SendAdd,
    SendLastAddConfirmed,
)
from replog.protocol.messages import AddRequest, Response, Status, WriteLastAddConfirmedRequest
from replog.protocol.model import LedgerMetadata
from replog.protocol.writing import LedgerWriting

_DEPTH_MIN = 2  # batches in flight on a fast disk; more would only cut them smaller
_SLOW_ROUND_S = 0.002  # rounds that take longer let more batches fly
_CLOSE_PATIENCE = 3  # times the metastore's own timeout
_FAREWELL_S = 5.0  # for closing after the application failed or was cancelled
_LAG_BYTES_MAX = 32 << 20  # that the slowest bookie may be behind before everybody waits for it
_LAG_CHECK_BYTES = 1 << 20  # how much is sent between two looks at that
_BATCH_OVERHEAD_BYTES = 4  # of an entry in a batch, beside its payload
_BATCH_ENTRIES_MAX = 1 << 16

# Until a large piece of memory was freed once, glibc gives that of each batch back to the kernel and faults it in anew
# for the next: several times the cost of building the batch.
_ = bytes(16 << 20)
del _


class LedgerWriter:
    """The one writer of a ledger. Made by `Client.create_ledger`; use it as a context.

    Leaving the context without an error confirms everything and closes the ledger; leaving it on an error closes it at
    the last confirmed entry, as far as that can be done in a few seconds. After that every method raises
    `trio.ClosedResourceError`. Once the writer has failed, every method raises why: `FencedError` if another client
    recovers the ledger, `AddTimeoutError` or `NotEnoughBookiesError` if entries could not be confirmed in time. The
    outcome of unconfirmed entries is then unknown (W4).
    """

    def __init__(
        self,
        machine: LedgerWriting,
        key: bytes,
        surroundings: Surroundings,
        options: ClientOptions,
        observe: Callable[[Event], None],
    ) -> None:
        self.ledger_id = machine.metadata.ledger_id
        self.last_add_pushed = -1
        self.batches_sent = 0
        self.entries_sent = 0
        self.on_progress: Callable[[], None] | None = None  # called after confirmations, and after a failure
        self._machine = machine
        self._key = key
        self._term = machine.metadata.term
        self._surroundings = surroundings
        self._membership = surroundings.membership
        self._options = options
        self._observe = observe
        self._waiting_effects = WaitingEffects(surroundings, machine, self._drive)
        self._confirmations = Confirmations()
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._in_flight_bytes_max = options.in_flight_bytes_max
        self._depth = _DEPTH_MIN
        self._batch_bytes_max = options.batch_bytes_max * machine.quorum.stride
        self._unchecked_bytes = 0  # sent since the last look at who lags behind
        self._driving = False
        self._send_scheduled = False
        self._held = False
        self._alone = False
        self._last_effect: Effect | None = None
        self._closing = False  # no push is taken any more
        self._is_machine_closed = False
        self._closed = trio.Event()
        self._error: ReplogError | None = None
        self._is_error_told = False
        self._fragments = machine.metadata.fragments
        self._attention = trio.Event()
        self._published = -1
        self._token = trio.lowlevel.current_trio_token()

    # -- looking --------------------------------------------------------------------------------------------------

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that is confirmed, with all before it; -1 if there is none."""
        return self._confirmations.confirmed

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's record, as this writer knows it."""
        return self._machine.metadata

    @property
    def unconfirmed_bytes(self) -> int:
        """Payload bytes that were pushed and are not confirmed."""
        return self._confirmations.unconfirmed_bytes

    @property
    def length_bytes(self) -> int:
        """Payload bytes pushed since the ledger was created."""
        return self._machine.length + self._gathered_bytes

    @property
    def unconfirmed(self) -> range:
        """The ids that were pushed and are not confirmed."""
        return range(self.last_add_confirmed + 1, self.last_add_pushed + 1)

    @property
    def error(self) -> ReplogError | None:
        """Why the writer failed, or None."""
        return self._error

    def statistics(self) -> dict[str, float]:
        """Counters and gauges."""
        return {
            "last_add_pushed": self.last_add_pushed,
            "last_add_confirmed": self.last_add_confirmed,
            "unconfirmed_bytes": self.unconfirmed_bytes,
            "batches_sent": self.batches_sent,
            "entries_sent": self.entries_sent,
            "batches_in_flight": self._confirmations.in_flight,
            "batches_in_flight_max": self._depth,
            "fragments": len(self._machine.metadata.fragments),
        }

    # -- pushing and appending --------------------------------------------------------------------------------------

    def push_nowait(self, data: bytes) -> int:
        """Puts an entry in flight and returns its id; `flush` or `last_add_confirmed` tells when it is confirmed.

        Raises `trio.WouldBlock` if the byte budget `in_flight_bytes_max` is used up (W6), `PayloadTooLargeError` or
        TypeError for what is no entry: then nothing was pushed. Costs no system call while others are in flight.
        """
        if type(data) is not bytes or len(data) > ENTRY_BYTES_MAX:
            check_payload(data)
        confirmations = self._confirmations
        if confirmations.unconfirmed_bytes + len(data) > self._in_flight_bytes_max and confirmations.unconfirmed_bytes:
            self.check_usable()
            raise trio.WouldBlock
        if self._closing or self._error is not None:
            self.check_usable()
        confirmations.unconfirmed_bytes += len(data)
        self._gathered.append(data)
        self._gathered_bytes += len(data)
        self.last_add_pushed += 1
        if not self._send_scheduled:
            self._schedule_send()
        return self.last_add_pushed

    async def push(self, data: bytes) -> int:
        """As `push_nowait`, but waits for the byte budget. If cancelled, nothing was pushed."""
        check_payload(data)
        await trio.lowlevel.checkpoint()
        await self._wait_for_budget(len(data))
        return self.push_nowait(data)

    async def append(self, data: bytes) -> int:
        """Appends an entry, and returns its id once it is confirmed (W2). Many tasks may append at once: their entries
        share batches. If cancelled, or if it raises, the outcome is unknown (W4), except as for `push`."""
        if type(data) is not bytes or len(data) > ENTRY_BYTES_MAX:
            check_payload(data)
        if not self.has_room(len(data)):
            await self._wait_for_budget(len(data))
        if self._closing or self._error is not None:
            self.check_usable()
        self._gathered.append(data)
        self._gathered_bytes += len(data)
        self._confirmations.unconfirmed_bytes += len(data)
        self.last_add_pushed += 1
        entry_id = self.last_add_pushed
        event = self._confirmations.gathering()
        if self._send_scheduled or not self._may_send():
            await event.wait()
        else:
            await self._lead(event)
        if self._confirmations.confirmed < entry_id:
            self.check_usable()
        return entry_id

    async def _lead(self, event: trio.Event) -> None:
        """Lets every other task that is ready append too, then sends what has gathered."""
        self._send_scheduled = True
        try:
            await trio.lowlevel.checkpoint()
        finally:
            self._send_scheduled = False
            self._alone = len(self._gathered) == 1 and not self._confirmations.in_flight
            self._drive()
            self._alone = False
        if not event.is_set():
            await event.wait()

    async def extend(self, data: Sequence[bytes]) -> range:
        """Appends many entries, and returns their ids once all are confirmed. They are sent as few batches. If cancelled, or
        if it raises, each of them has an unknown outcome; an invalid one raises before any is sent."""
        data = list(data)
        size_bytes = self._check_payloads(data)
        await self._wait_for_budget(size_bytes)
        self._gathered += data
        self._gathered_bytes += size_bytes
        self._confirmations.unconfirmed_bytes += size_bytes
        first = self.last_add_pushed + 1
        self.last_add_pushed += len(data)
        ids = range(first, self.last_add_pushed + 1)
        if data:
            event = self._confirmations.gathering()
            self._drive()
            if not event.is_set():
                await event.wait()
            if self._confirmations.confirmed < ids[-1]:
                self.check_usable()
        return ids

    def _check_payloads(self, data: list[bytes]) -> int:
        if not (set(map(type, data)) <= {bytes}) or (data and max(map(len, data)) > ENTRY_BYTES_MAX):
            for payload in data:
                check_payload(payload)
        return sum(map(len, data))

    async def flush(self) -> None:
        """Waits until everything pushed so far is confirmed. If cancelled, it goes on being in flight."""
        await trio.lowlevel.checkpoint()
        self.check_usable()
        await self._confirm_all()

    async def _confirm_all(self) -> None:
        last = self.last_add_pushed
        if self._confirmations.confirmed >= last:
            return
        event = self._confirmations.gathering() if self._gathered else self._confirmations.all_sent(last)
        self._drive()
        await event.wait()
        if self._confirmations.confirmed < last:
            self.check_usable()

    def has_room(self, size_bytes: int) -> bool:
        """Whether an entry of this size can be pushed without waiting for the byte budget."""
        unconfirmed_bytes = self._confirmations.unconfirmed_bytes
        return unconfirmed_bytes + size_bytes <= self._in_flight_bytes_max or not unconfirmed_bytes

    async def wait_for_room(self, size_bytes: int) -> None:
        """Returns once there is room. Raises as `push` does."""
        await self._wait_for_budget(size_bytes)

    def abandon(self, error: ReplogError) -> None:
        """Fails the writer: whatever is unconfirmed has an unknown outcome. The ledger is left as it is."""
        self._machine.abandon(error)
        self._drive()

    def leave(self) -> None:
        """Ends the writer, and leaves its ledger as it is: nobody was to write to it after all."""
        self._closed.set()

    async def _wait_for_budget(self, size_bytes: int) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        self.check_usable()
        while not self.has_room(size_bytes):
            await self._confirmations.freed().wait()
            self.check_usable()

    def check_usable(self) -> None:
        """Raises what every method raises once the writer has failed or was closed."""
        if self._error is not None:
            self._is_error_told = True
            raise another(self._error)
        if self._closing:
            raise trio.ClosedResourceError(f"ledger {self.ledger_id}: this writer was closed")

    # -- sending --------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Gathers only, and sends nothing until `release`: the entries before these are not all confirmed (L2)."""
        self._held = True

    def release(self) -> None:
        """Sends what has gathered, and goes on as usual."""
        self._held = False
        self._drive()

    def _schedule_send(self) -> None:
        """Sends at once if nothing is in flight: nothing is gained by waiting for more. Else soon."""
        if not self._confirmations.in_flight and not self._held:
            self._drive()
        else:
            self._send_scheduled = True
            self._token.run_sync_soon(self._send_soon)

    def _send_soon(self) -> None:
        self._send_scheduled = False
        self._drive()

    def _may_send(self) -> bool:
        if self._confirmations.in_flight >= self._depth or self._held or self._machine.is_done:
            return False
        return self._unchecked_bytes < _LAG_CHECK_BYTES or self._keep_up()

    def _keep_up(self) -> bool:
        """Whether no bookie has fallen behind: the slowest one must not do so without bound."""
        for bookie_id in self._machine.ensemble():
            channel = self._membership.channel(bookie_id)
            if channel is not None and channel.outstanding_bytes > _LAG_BYTES_MAX:
                return False
        self._unchecked_bytes = 0
        return True

    def _send_batch(self) -> None:
        payloads, size_bytes = self._take_batch()
        last = self.last_add_pushed - len(self._gathered)
        self._confirmations.sent(last, size_bytes, trio.current_time(), self.last_add_pushed)
        self._unchecked_bytes += size_bytes
        self.batches_sent += 1
        self.entries_sent += len(payloads)
        self._published = self._machine.last_add_confirmed  # the batch carries it
        self._machine.add(payloads, time.time_ns())
        if not self._attention.is_set():
            self._attention.set()

    def _take_batch(self) -> tuple[list[bytes], int]:
        """As many of the gathered entries as fit into a batch for each rotation, by their average size; at least one."""
        gathered, size_bytes = self._gathered, self._gathered_bytes
        limit_bytes = self._batch_bytes_max
        if size_bytes + _BATCH_OVERHEAD_BYTES * len(gathered) <= limit_bytes and len(gathered) <= _BATCH_ENTRIES_MAX:
            self._gathered, self._gathered_bytes = [], 0
            return gathered, size_bytes
        count = max(1, min(_BATCH_ENTRIES_MAX, len(gathered) * limit_bytes // (size_bytes + 1)))
        batch = gathered[:count]
        while len(batch) > 1 and sum(map(len, batch)) > 2 * limit_bytes:
            del batch[len(batch) // 2 :]  # their sizes differ much
        del gathered[: len(batch)]
        batch_bytes = sum(map(len, batch))
        self._gathered_bytes -= batch_bytes
        return batch, batch_bytes

    # -- driving the machine ----------------------------------------------------------------------------------------

    def _drive(self) -> None:
        """Performs effects and sends what has gathered, until there is nothing left to do.

        Answers that come meanwhile, in the frames below, leave what follows from them to this loop."""
        if self._driving:
            return
        self._driving = True
        try:
            while True:
                effects = self._machine.take_effects()
                self._last_effect = effects[-1] if effects else None
                for effect in effects:
                    self._perform(effect)
                if not effects:
                    if self._machine.metadata.fragments is not self._fragments:
                        self._report_ensemble_change()
                    if not self._gathered or self._send_scheduled or not self._may_send():
                        return
                    self._send_batch()
        finally:
            self._driving = False

    def _report_ensemble_change(self) -> None:
        before, self._fragments = self._fragments[-1], self._machine.metadata.fragments
        after = self._fragments[-1]
        pairs = enumerate(zip(before.ensemble, after.ensemble, strict=True))
        replaced = {index: (old, new) for index, (old, new) in pairs if old != new}
        self._published = -1  # a bookie that is new does not know it
        if not self._attention.is_set():
            self._attention.set()
        if replaced:  # else only the close dropped a fragment without entries
            self._observe(EnsembleChanged(self.ledger_id, after.first_entry_id, replaced))

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, SendAdd):
            self._send_add(effect)
        elif isinstance(effect, Confirmed):
            self._confirmed(effect.last_add_confirmed)
        elif isinstance(effect, SendLastAddConfirmed):
            self._send_last_add_confirmed(effect)
        elif isinstance(effect, Failed):
            self._fail(effect.error)
        elif isinstance(effect, Finished):
            self._closed.set()
        else:
            self._waiting_effects.put(effect)  # type: ignore[arg-type]

    def _send_add(self, effect: SendAdd) -> None:
        channel = self._membership.channel(effect.bookie_id)
        if channel is None:
            self._bookie_failed(effect.index, effect.bookie_id)
            return
        batch = effect.batch
        alone = self._alone and effect is self._last_effect
        request = AddRequest(channel.next_request_id(), self.ledger_id, self._key, self._term, batch, False, -1, alone)
        context = (effect.index, effect.bookie_id, batch.first_entry_id)
        channel.ask(request, self._add_answered, context, self._options.add_timeout_s)

    def _add_answered(self, answer: Answer, context: tuple[int, str, int]) -> None:
        index, bookie_id, first_entry_id = context
        if isinstance(answer, Response) and answer.status is Status.OK:
            self._machine.add_confirmed(index, bookie_id, first_entry_id)
        elif isinstance(answer, Response) and answer.status is Status.FENCED:
            self._machine.add_fenced(answer.fence_term)
        elif isinstance(answer, Response) and answer.status is Status.UNAUTHORIZED:
            self._machine.abandon(UnauthorizedError(self.ledger_id, f"refused by bookie {bookie_id}: {answer.detail}"))
        else:
            self._bookie_failed(index, bookie_id)
        self._drive()

    def _send_last_add_confirmed(self, effect: SendLastAddConfirmed) -> None:
        channel = self._membership.channel(effect.bookie_id)
        if channel is not None:
            request = WriteLastAddConfirmedRequest(
                channel.next_request_id(), self.ledger_id, self._key, self._term, effect.last_add_confirmed
            )
            channel.ask(request, self._last_add_confirmed_answered, None, self._options.add_timeout_s)

    def _last_add_confirmed_answered(self, answer: Answer, _context: object) -> None:
        if isinstance(answer, Response) and answer.status is Status.FENCED:
            self._machine.add_fenced(answer.fence_term)
            self._drive()

    def _bookie_failed(self, index: int, bookie_id: str) -> None:
        self._membership.shun(bookie_id)
        self._machine.bookie_failed(index, bookie_id)

    def _confirmed(self, last_add_confirmed: int) -> None:
        sent_at = self._confirmations.advance(last_add_confirmed)
        slow_rounds = int((trio.current_time() - sent_at) / _SLOW_ROUND_S)
        self._depth = max(_DEPTH_MIN, min(self._options.batches_in_flight_max, _DEPTH_MIN + slow_rounds))
        if self.on_progress is not None:
            self.on_progress()

    def _fail(self, error: ReplogError) -> None:
        unconfirmed = self.unconfirmed
        if isinstance(error, FencedError | AddTimeoutError | LedgerClosedError | NotEnoughBookiesError):
            error.unconfirmed = unconfirmed
        self._error = error
        self._gathered, self._gathered_bytes = [], 0
        self._confirmations.fail()
        self._closed.set()
        self._attention.set()
        if self.on_progress is not None:
            self.on_progress()
        if isinstance(error, FencedError):
            self._observe(WriterFenced(self.ledger_id, unconfirmed))

    # -- background -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """The writer's background task: changes of ensemble, deadlines, publishing when idle. Ends when it is closed."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._waiting_effects.run)
                nursery.start_soon(self._supervise)
                await self._closed.wait()
                nursery.cancel_scope.cancel()
        finally:  # nobody drives it any more, be it closed or cancelled with its client: nobody may wait for it
            self._closing = self._is_machine_closed = True
            self._gathered, self._gathered_bytes = [], 0
            self._confirmations.fail()
            self._closed.set()

    async def _supervise(self) -> None:
        """Looks after the writer a few times a second, and not at all while it is idle."""
        tick_s = self._options.explicit_last_add_confirmed_after_s
        missing, retry_at = 0, 0.0
        entries_sent = -1
        while True:
            is_up_to_date = self._published >= self.last_add_confirmed
            if not self._confirmations.in_flight and is_up_to_date and not self._machine.missing:
                self._attention = trio.Event()
                await self._attention.wait()
            await trio.sleep(tick_s)
            is_idle = not self._confirmations.in_flight and entries_sent == self.entries_sent
            if is_idle and self._published < self.last_add_confirmed and not self._machine.is_changing:
                self._published = self.last_add_confirmed
                self._machine.publish()
            entries_sent = self.entries_sent
            if self._machine.missing != missing:
                missing = self._machine.missing
                retry_at = trio.current_time() + self._options.bookie_retry_after_s
            elif missing and trio.current_time() >= retry_at:
                missing = 0
                self._machine.bookies_changed()
            self._check_deadline()
            self._drive()

    def _check_deadline(self) -> None:
        sent_at = self._confirmations.oldest_sent_at
        timeout_s = self._options.add_quorum_timeout_s
        if sent_at is None or trio.current_time() - sent_at < timeout_s:
            return
        unconfirmed = self.unconfirmed
        fate = f"entries {unconfirmed[0]}..{unconfirmed[-1]} have an unknown fate: recover the ledger to know"
        problem = f"not confirmed within {timeout_s} s by {self._machine.quorum.ack} bookies of each write set; {fate}"
        ensemble, missing = self._machine.ensemble(), self._machine.missing
        if missing:
            gone = [bookie_id for index, bookie_id in enumerate(ensemble) if missing >> index & 1]
            usable = [bookie_id for bookie_id in ensemble if bookie_id not in gone]
            problem = f"ledger {self.ledger_id}: {problem}; {', '.join(gone)} failed, and nobody can replace them"
            self._machine.abandon(NotEnoughBookiesError(problem, self._machine.quorum.ack, usable, gone))
        else:
            self._machine.abandon(AddTimeoutError(self.ledger_id, problem))

    # -- closing --------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Confirms what was pushed, takes nothing more, and closes the ledger (R1). Idempotent. Raises the writer's failure
        if it failed, unless that was raised before. If cancelled, the ledger may be open or closed; recover it to know."""
        self._closing = True
        if self._error is None and not self._is_machine_closed:
            await self._confirm_all()
        await self._close()

    async def _close(self) -> None:
        self._closing = True
        if self._error is None and not self._is_machine_closed:
            self._is_machine_closed = True
            self._gathered, self._gathered_bytes = [], 0
            self._machine.close()
            self._drive()
        self._confirmations.fail()
        with trio.move_on_after(_CLOSE_PATIENCE * self._options.metastore_timeout_s):
            await self._closed.wait()
        if not self._closed.is_set():
            self._machine.abandon(MetastoreUncertainError(f"ledger {self.ledger_id}: closing it took too long"))
            self._drive()
        if self._error is not None and not self._is_error_told:
            self._is_error_told = True
            raise another(self._error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            await self.say_farewell(error)
            return
        try:
            await self.aclose()
        except trio.Cancelled as cancelled:
            await self.say_farewell(cancelled)
            raise

    async def say_farewell(self, error: BaseException) -> None:
        """Closes at the last confirmed entry, if that can be done in a few seconds."""
        with trio.CancelScope(deadline=trio.current_time() + _FAREWELL_S, shield=True):
            try:
                await self._close()
            except ReplogError as problem:
                error.add_note(f"and its ledger was not closed: {problem}")
        self._closed.set()  # if the deadline passed, the background task ends all the same
