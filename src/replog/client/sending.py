"""The sending side of a ledger's writer: drives the writing machine, and sends what has gathered.

Everything here runs in the trio thread: `_drive` performs the machine's effects, in whichever task or callback it happens
to be called, and the background task does what has to wait. What the application calls stands in `replog.client.writer`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import trio

from replog.client.channel import Answer, BookieChannel
from replog.client.confirmations import Confirmations
from replog.client.driving import Surroundings, WaitingEffects
from replog.client.refusals import Refusals
from replog.config import ClientOptions
from replog.errors import (
    AddTimeoutError,
    FencedError,
    NotEnoughBookiesError,
    ReplogError,
)
from replog.hookspecs import EnsembleChanged, Event, WriterFenced
from replog.protocol.batch import Batch
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
from replog.runtime.ticker import Ticker

_DEPTH_MIN = 2  # batches in flight on a fast disk; more would only cut them smaller
_FAR_ROUND_S = 0.01  # no disk makes rounds as long as this: the bookies are far away
_HALVED_BYTES_MIN = 512 << 10  # less than this goes as one batch: what each batch costs would be more than is gained
_SLOW_ROUND_S = 0.002  # rounds that take longer let more batches fly
_LAG_BYTES_MAX = 32 << 20  # that the slowest bookie may be behind before everybody waits for it
_LAG_CHECK_BYTES = 1 << 20  # how much is sent between two looks at that
_ENTRY_OVERHEAD_BYTES = 4  # of an entry in a batch, beside its payload
_BATCH_ENTRIES_MAX = 1 << 16


class BatchSender:
    """Sends what gathers in `_gathered` as batches, and keeps their fate in `_confirmations`. The base of `LedgerWriter`."""

    def __init__(
        self,
        machine: LedgerWriting,
        key: bytes,
        surroundings: Surroundings,
        options: ClientOptions,
        observe: Callable[[Event], None],
        ticker: Ticker,
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
        self._waiting_effects = WaitingEffects(surroundings, machine, self._metastore_answered)
        self._refusals = Refusals(self.ledger_id, self._membership)
        self._is_asking_who_is_left = False
        self._confirmations = Confirmations()
        self._gathered: list[bytes] = []
        self._expected_bytes = 0  # were confirmed since the last batch was sent: as many may be pushed
        self._is_pushed = False  # the last entries were: their caller goes on, and awaits none of them
        self._are_many = False  # entries came together with others lately
        self._in_flight_bytes_max = options.in_flight_bytes_max
        self._push_bytes_max = options.in_flight_bytes_max  # that may be unconfirmed; -1 when no push is taken any more
        self._depth = _DEPTH_MIN
        self._round_s = 0.0  # how long the last batch took
        self._unchecked_bytes = 0  # sent since the last look at who lags behind
        self._driving = False
        self._send_scheduled = False
        self._turn = 0  # counts those that were scheduled, and those that did not wait for it
        self._held = False
        self._alone = False
        self._lone_appends = 0  # since somebody else was seen to append
        self._closing = False
        self._is_machine_closed = False
        self._closed = trio.Event()
        self._error: ReplogError | None = None
        self._is_error_told = False
        self._closed_by_another: LedgerMetadata | None = None  # where this writer would have closed it
        self._fragments = machine.metadata.fragments
        self._ticker = ticker
        self._published = -1
        self._is_awaited = False  # somebody waits for what is to be confirmed, as was told since the last batch
        self._entries_at_look = -1  # sent when it was looked after last
        self._missing_at_look, self._retry_at = 0, 0.0
        self._nursery: trio.Nursery | None = None  # of the background tasks
        self._clock = trio.lowlevel.current_clock()
        self._time_ns = surroundings.chance.time_ns

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that is confirmed, with all before it; -1 if there is none."""
        return self._confirmations.confirmed

    @property
    def unconfirmed(self) -> range:
        """The ids that were pushed and are not confirmed."""
        return range(self.last_add_confirmed + 1, self.last_add_pushed + 1)

    @property
    def _gathered_bytes(self) -> int:
        """Pushed and not sent. What is paid for an entry is one sum, not two."""
        return self._confirmations.unconfirmed_bytes - self._confirmations.in_flight_bytes

    def _take_no_more(self) -> None:
        self._closing = True
        self._push_bytes_max = -1

    # -- sending --------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Gathers only, and sends nothing until `release`: the entries before these are not all confirmed (L2)."""
        self._held = True

    def release(self) -> None:
        """Sends what has gathered, and goes on as usual."""
        self._held = False
        self._drive()

    def _schedule_send(self) -> None:
        """Sends at once if nothing is in flight and entries come one by one: nothing is gained by waiting for more. Else
        soon."""
        self._is_pushed = True
        if not self._confirmations.in_flight and not self._held and not self._are_many:
            self._drive()
        else:
            self._schedule_turn()

    def _schedule_turn(self, *, after_woken: bool = False) -> None:
        self._send_scheduled = True
        self._turn += 1
        self._surroundings.turns.soon(partial(self._take_turn, self._turn), after_woken=after_woken)

    def _take_turn(self, turn: int) -> None:
        """Sends what has gathered, unless that was done without waiting for this turn: then it may be that of another one."""
        if turn == self._turn:
            self._send_gathered()

    def _send_gathered(self) -> None:
        self._send_scheduled = False
        self._turn += 1
        self._drive()

    def _may_send(self) -> bool:
        in_flight = self._confirmations.in_flight
        if in_flight >= self._depth or self._held:
            return False
        if in_flight and self._round_s < _FAR_ROUND_S and self._is_little():
            return False
        return self._unchecked_bytes < _LAG_CHECK_BYTES or self._keep_up()

    def _is_little(self) -> bool:
        """Whether much more is under way than has gathered: then it is worth waiting for that, on a fast disk. Whoever keeps
        a number of entries in flight would else have one large batch and one tiny one for ever, which cost as two large
        ones and overlap as none."""
        return self._gathered_bytes * 4 < self._confirmations.unconfirmed_bytes

    def _keep_up(self) -> bool:
        """Whether no bookie has fallen behind: the slowest one must not do so without bound."""
        if self._lagging():
            self._ticker.watch(self)  # it may be silent, and nothing else may be in flight
            return False
        self._unchecked_bytes = 0
        return True

    def _lagging(self) -> list[tuple[int, BookieChannel]]:
        """Who has fallen behind, by index. Those that failed, and could not be replaced, are not waited for."""
        found = []
        for index, bookie_id in enumerate(self._machine.ensemble()):
            channel = self._membership.channel(bookie_id)
            is_far_behind = channel is not None and channel.outstanding_bytes > _LAG_BYTES_MAX
            if channel is not None and is_far_behind and not self._machine.missing >> index & 1:
                found.append((index, channel))
        return found

    def _replace_silent(self) -> None:
        """Everybody waits for who has fallen behind: not for one that answers nothing, until all its adds have timed out."""
        if self._unchecked_bytes >= _LAG_CHECK_BYTES:
            for index, channel in self._lagging():
                if channel.silence_s >= self._options.lagging_bookie_timeout_s:
                    self._bookie_failed(index, channel.bookie_id)

    def _send_batch(self) -> None:
        payloads, size_bytes = self._take_batch()
        last = self.last_add_pushed - len(self._gathered)
        self._confirmations.sent(last, size_bytes, self._clock.current_time(), self.last_add_pushed)
        self._is_awaited = False
        machine = self._machine
        self._published = machine.last_add_confirmed  # the batch carries it
        machine.add(payloads, self._time_ns())
        self._send_adds(machine.take_effects())  # type: ignore[arg-type]
        # The requests are out: bookies work while the rest is put down. What answers that came at once lead to waits for it.
        self._unchecked_bytes += size_bytes
        self.batches_sent += 1
        self.entries_sent += len(payloads)
        self._are_many = len(payloads) > 1
        self._expected_bytes = 0
        self._ticker.watch(self)

    def _take_batch(self) -> tuple[list[bytes], int]:
        """As many of the gathered entries as fit into one batch for each rotation; at least one for each."""
        gathered = self._gathered
        if len(gathered) == 1:
            self._gathered = []
            return gathered, len(gathered[0])
        size_bytes = self._gathered_bytes
        stride, limit_bytes = self._machine.quorum.stride, self._batch_bytes_max()
        fits = size_bytes + _ENTRY_OVERHEAD_BYTES * len(gathered) <= limit_bytes
        if fits and len(gathered) <= _BATCH_ENTRIES_MAX:
            self._gathered = []
            return gathered, size_bytes
        fitting = len(gathered) * limit_bytes * stride // (size_bytes + _ENTRY_OVERHEAD_BYTES * len(gathered))
        batch = gathered[: max(1, min(_BATCH_ENTRIES_MAX, fitting))]
        while len(batch) > stride and self._largest_bytes(batch, stride) > limit_bytes:
            del batch[len(batch) // 2 :]  # their sizes differ much
        del gathered[: len(batch)]
        return batch, sum(map(len, batch))

    def _batch_bytes_max(self) -> int:
        """If nearly all that is unconfirmed has gathered, half of that: so that the bookies write one half while the client
        builds, and sends, the other. What a call awaits goes as a whole."""
        limit_bytes, gathered_bytes = self._options.batch_bytes_max, self._gathered_bytes
        is_nearly_all = gathered_bytes * 4 >= self._confirmations.unconfirmed_bytes * 3
        if not self._is_pushed or not is_nearly_all or gathered_bytes < _HALVED_BYTES_MIN:
            return limit_bytes
        stored_bytes = gathered_bytes + _ENTRY_OVERHEAD_BYTES * len(self._gathered)
        return min(limit_bytes, stored_bytes // (2 * self._machine.quorum.stride))

    def _largest_bytes(self, batch: list[bytes], stride: int) -> int:
        """The size of the largest batch that these entries make (W1)."""
        rotations = [batch[rotation::stride] for rotation in range(stride)]
        return max(sum(map(len, rotation)) + _ENTRY_OVERHEAD_BYTES * len(rotation) for rotation in rotations)

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
                for effect in effects:
                    self._perform(effect)
                if effects:
                    continue
                if not self._gathered or self._send_scheduled or not self._may_send():
                    return
                if self._are_many and self._are_more_expected():
                    return
                self._send_batch()
        finally:
            self._driving = False

    def _metastore_answered(self) -> None:
        if self._machine.metadata.fragments is not self._fragments:
            self._report_ensemble_change()
        self._drive()
        self._ask_who_is_left()

    def _report_ensemble_change(self) -> None:
        before, self._fragments = self._fragments[-1], self._machine.metadata.fragments
        after = self._fragments[-1]
        pairs = enumerate(zip(before.ensemble, after.ensemble, strict=True))
        replaced = {index: (old, new) for index, (old, new) in pairs if old != new}
        self._published = -1  # a bookie that is new does not know it
        self._ticker.watch(self)
        if replaced:  # else only the close dropped a fragment without entries
            self._observe(EnsembleChanged(self.ledger_id, after.first_entry_id, replaced))

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, Confirmed):
            self._confirmed(effect.last_add_confirmed)
        elif isinstance(effect, SendAdd):
            self._send_adds((effect,))  # again, to a bookie that is new or back
        elif isinstance(effect, SendLastAddConfirmed):
            self._send_last_add_confirmed(effect)
        elif isinstance(effect, Failed):
            self._fail(effect.error)
        elif isinstance(effect, Finished):
            self._closed.set()
        else:
            self._waiting_effects.put(effect)  # type: ignore[arg-type]

    def _send_adds(self, effects: Sequence[SendAdd]) -> None:
        """The bookies of a batch get the same request: a transport makes its bytes once."""
        channel_to, on_answer, timeout_s = self._membership.channel, self._add_answered, self._options.add_timeout_s
        request, last = None, effects[-1] if effects else None
        for effect in effects:
            channel = channel_to(effect.bookie_id)
            if channel is None:
                self._bookie_failed(effect.index, effect.bookie_id, effect.batch)
                continue
            batch, alone = effect.batch, self._alone and (effect is last or not channel.shares_thread)
            if request is None or request.batch is not batch or request.alone is not alone:
                request_id = channel.next_request_id()
                request = AddRequest(request_id, self.ledger_id, self._key, self._term, batch, False, b"", alone)
            channel.ask(request, on_answer, effect, timeout_s)

    def _add_answered(self, answer: Answer, effect: SendAdd) -> None:
        if isinstance(answer, Response) and answer.status is Status.OK:
            if answer.awaited:
                self._publish_soon()
            first_entry_id = effect.batch.first_entry_id
            if first_entry_id <= self._confirmations.confirmed and not self._gathered:
                return  # it is confirmed without this one, and nothing waits for who lags behind
            self._machine.add_confirmed(effect.index, effect.bookie_id, first_entry_id)
        elif isinstance(answer, Response) and answer.status is Status.FENCED:
            self._machine.add_fenced(answer.fence_term)
        else:
            self._refusals.heard(effect.bookie_id, answer)
            self._bookie_failed(effect.index, effect.bookie_id, effect.batch)
        self._drive()

    def _publish_soon(self) -> None:
        """A follower waits at a bookie: it is told as soon as nothing else would tell it. Who waited for what is confirmed now
        may append first, for that tells it too, and costs nothing (W5)."""
        if not self._is_awaited:
            self._is_awaited = True
            if not self._confirmations.in_flight:  # else when all is confirmed
                self._surroundings.turns.soon(self._publish_if_idle, after_woken=True)

    def _publish_if_idle(self) -> None:
        is_idle = not self._confirmations.in_flight and not self._gathered and not self._closed.is_set()
        if is_idle and self._is_awaited:
            self._publish()
            self._drive()

    def _publish(self) -> None:
        self._is_awaited = False
        if self._published < self.last_add_confirmed and not self._machine.is_changing:
            self._published = self.last_add_confirmed
            self._machine.publish()

    def _send_last_add_confirmed(self, effect: SendLastAddConfirmed) -> None:
        channel = self._membership.channel(effect.bookie_id)
        if channel is not None:
            request = WriteLastAddConfirmedRequest(
                channel.next_request_id(), self.ledger_id, self._key, self._term, effect.proof
            )
            channel.ask(request, self._last_add_confirmed_answered, None, self._options.add_timeout_s)

    def _last_add_confirmed_answered(self, answer: Answer, _context: object) -> None:
        if isinstance(answer, Response) and answer.status is Status.FENCED:
            self._machine.add_fenced(answer.fence_term)
            self._drive()

    def _bookie_failed(self, index: int, bookie_id: str, batch: Batch | None = None) -> None:
        self._membership.shun(bookie_id)
        self._machine.bookie_failed(index, bookie_id, batch)

    def _are_more_expected(self) -> bool:
        """Whether less has gathered than was just confirmed: whoever waited for that may be about to push as much again. So
        the event loop gets a turn first, once."""
        expected_bytes, self._expected_bytes = self._expected_bytes, 0
        if not self._are_many or self._gathered_bytes >= expected_bytes:
            return False
        self._schedule_turn(after_woken=True)
        return True

    def _confirmed(self, last_add_confirmed: int) -> None:
        unconfirmed_bytes = self._confirmations.unconfirmed_bytes
        sent_at = self._confirmations.advance(last_add_confirmed)
        self._expected_bytes += unconfirmed_bytes - self._confirmations.unconfirmed_bytes
        if self._gathered or self._confirmations.in_flight:  # a lone one says nothing of how many should fly
            self._round_s = self._clock.current_time() - sent_at
            slow_rounds = int(self._round_s / _SLOW_ROUND_S)
            self._depth = max(_DEPTH_MIN, min(self._options.batches_in_flight_max, _DEPTH_MIN + slow_rounds))
        if self._is_awaited and not self._gathered and not self._confirmations.in_flight:
            self._surroundings.turns.soon(self._publish_if_idle, after_woken=True)
        if self.on_progress is not None:
            self.on_progress()

    def _fail(self, error: ReplogError) -> None:
        unconfirmed = self.unconfirmed
        if isinstance(error, FencedError | AddTimeoutError | NotEnoughBookiesError):
            error.unconfirmed = unconfirmed
        self._error = error
        self._push_bytes_max = -1
        self._gathered = []
        self._confirmations.fail()
        self._closed.set()
        if self.on_progress is not None:
            self.on_progress()
        if isinstance(error, FencedError):
            self._observe(WriterFenced(self.ledger_id, unconfirmed))

    def abandon(self, error: ReplogError) -> None:
        """Fails the writer: whatever is unconfirmed has an unknown outcome. The ledger is left as it is."""
        self._machine.abandon(error)
        self._drive()

    # -- background -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """The writer's background task: changes of ensemble. Ends when it is closed."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._waiting_effects.run)
                if self._machine.missing:  # from the start
                    self._ticker.watch(self)
                await self._closed.wait()
                self._nursery.cancel_scope.cancel()
        finally:  # nobody drives it any more, be it closed or cancelled with its client: nobody may wait for it
            self._take_no_more()
            self._is_machine_closed = True
            self._gathered = []
            self._confirmations.fail()
            self._closed.set()

    def look(self) -> bool:
        """Looks after deadlines and silent bookies, and publishes when idle: the ticker calls it a few times a second
        while it returns True. False says that nothing is under way."""
        if self._closed.is_set():
            return False
        is_idle = not self._confirmations.in_flight and self._entries_at_look == self.entries_sent
        if is_idle:
            self._publish()
        self._entries_at_look = self.entries_sent
        if self._machine.missing != self._missing_at_look:
            self._missing_at_look = self._machine.missing
            self._retry_at = trio.current_time() + self._options.bookie_retry_after_s
        elif self._missing_at_look and trio.current_time() >= self._retry_at:
            self._missing_at_look = 0
            if self._nursery is not None:
                self._nursery.start_soon(self._look_for_replacements)
        self._replace_silent()
        self._check_deadline()
        self._drive()
        self._ask_who_is_left()
        is_waiting = bool(self._confirmations.in_flight or self._gathered)
        return is_waiting or self._published < self.last_add_confirmed or bool(self._machine.missing)

    async def _look_for_replacements(self) -> None:
        """Has what is missing replaced, or taken in again, if there is anybody to do it with. Nothing is confirmed while an
        ensemble changes (C1): so no change is begun for a bookie that is still away."""
        machine = self._machine
        there = {each for index, each in enumerate(machine.ensemble()) if not machine.missing >> index & 1}
        if await self._surroundings.is_anybody_there(there) and not self._closed.is_set():
            machine.bookies_changed()
            self._drive()

    def _ask_who_is_left(self) -> None:
        """Asks in the background whether the missing bookies refused for good; only while somebody waits for them."""
        is_stuck = self._machine.missing and self.unconfirmed and not self._machine.is_changing
        if is_stuck and not self._is_asking_who_is_left and self._nursery is not None and not self._closed.is_set():
            self._is_asking_who_is_left = True
            self._nursery.start_soon(self._fail_if_nobody_is_left)

    async def _fail_if_nobody_is_left(self) -> None:
        machine = self._machine
        error = await self._refusals.final_error(machine, self.unconfirmed)
        self._is_asking_who_is_left = False
        if error is not None and self.unconfirmed and not machine.is_changing and not self._closed.is_set():
            self.abandon(error)

    def _check_deadline(self) -> None:
        sent_at = self._confirmations.oldest_sent_at
        timeout_s = self._options.add_quorum_timeout_s
        if sent_at is None or trio.current_time() - sent_at < timeout_s:
            return
        self._machine.abandon(self._refusals.deadline_error(self._machine, self.unconfirmed, timeout_s))
