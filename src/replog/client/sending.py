"""How a ledger's writer sends: drives the writing machine, and turns its effects into requests and calls.

Everything here runs in the trio thread. `drive` performs the machine's effects in whichever task or callback calls it; effects
that have to wait go to the background task (`replog.client.writer_background`). When and how much is sent is decided by
`replog.client.pacing` and `replog.client.batch_sizes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import attrs
import trio

from replog.client.backlog import Backlog
from replog.client.batch_sizes import BatchSizes
from replog.client.channel import Answer
from replog.client.late_adds import LateAdds
from replog.client.ledger_effects import ClientContext
from replog.client.observing import ObservedBacklog
from replog.client.pacing import Pacing, Stage, When
from replog.client.writer_background import LAG_CHECK_BYTES, Watching
from replog.config.client import ClientTuning
from replog.errors import (
    AddTimeoutError,
    FencedError,
    LedgerRecordLostError,
    MetastoreUncertainError,
    NotEnoughBookiesError,
    ReplogError,
)
from replog.hookspecs import Event, WriterFenced
from replog.protocol.batch import Batch, PackedPayloads
from replog.protocol.effects import (
    Confirmed,
    Effect,
    Failed,
    Finished,
    SendAdd,
    SendLastAddConfirmed,
)
from replog.protocol.messages import AddRequest, Response, Status, WriteLastAddConfirmedRequest
from replog.protocol.writing import LedgerWriting
from replog.runtime.ticker import Ticker


@attrs.frozen
class SizeLimit:
    """How far a writer may go before `reached` is called, after a confirmation: entries and payload bytes pushed so far."""

    entries: float
    size_bytes: float
    reached: Callable[[], None]

    def check(self, entries: int, size_bytes: int) -> None:
        """Calls `reached` if so many entries, or so many bytes, reach the limit."""
        if entries >= self.entries or size_bytes >= self.size_bytes:
            self.reached()


@attrs.frozen
class WriterIdentity:
    """The fields of one writer that each of its requests carries."""

    ledger_id: int
    key: bytes
    term: int


class BatchSender:
    """Sends one writer's backlog in batches, and tells the machine what bookies answer."""

    def __init__(
        self,
        machine: LedgerWriting,
        key: bytes,
        context: ClientContext,
        options: ClientTuning,
        observe: Callable[[Event], None],
        ticker: Ticker,
        check_usable: Callable[[], None],
    ) -> None:
        known = options.in_flight_bytes_max, machine.last_add_confirmed, check_usable
        if context.observe_batches is None:
            self.backlog, self._on_answer = Backlog(*known), self._add_answered
        else:
            observed = ObservedBacklog(*known, machine.metadata.ledger_id, context.observe_batches)
            self.backlog, self._on_answer = observed, partial(observed.answered, self._add_answered)
        self.pacing = Pacing(self.backlog, options.batches_in_flight_max, context.call_soon, self.drive)
        self._sizes = BatchSizes(self.backlog, options.batch_bytes_max, machine.quorum.stride)
        self.closed = trio.Event()  # the ledger is closed, or the writer has failed
        self.watching = Watching(
            machine,
            self.backlog,
            self.closed,
            context,
            options,
            observe,
            ticker,
            self.drive,
            self._bookie_failed,
            lambda: self.pacing.round_s,
        )
        self.error: ReplogError | None = None  # why the writer has failed
        self.batches_sent = 0
        self.limit: SizeLimit | None = None
        self.on_failure: Callable[[], None] | None = None
        self._machine = machine
        self._identity = WriterIdentity(machine.metadata.ledger_id, key, machine.metadata.term)
        self._context = context
        self._add_timeout_s = options.add_timeout_s
        self._time_ns = context.entropy.time_ns
        self._is_driving = False

    def date(self, timestamp_ns: int) -> None:
        """Gives this time to entries sent from now on (`EntryWriter.date`)."""
        self._time_ns = lambda: timestamp_ns

    async def run(self) -> None:
        """The writer's background task: deadlines, missing bookies, changes of the ensemble. Ends when `closed` is set."""
        await self.watching.run()

    # -- ending -----------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Waits until no change of the ensemble is under way, or the writer has failed."""
        while self._machine.is_changing and self.error is None:
            await self.watching.wait_settled()

    def late_adds(self) -> LateAdds:
        """The adds that were confirmed without these bookies, and that a close waits for a moment."""
        return LateAdds(self._context.connections.channels.values(), self._identity.ledger_id)

    async def leave_open(self, timeout_s: float, *, is_fixed: bool) -> None:
        """Publishes the last add confirmed to all bookies, so that readers find all entries without a writer (W5); with
        `is_fixed` in fragments that end, so that they can be filled (F2, W8). Fails if that takes too long."""
        machine, publishing = self._machine, self.watching.publishing
        with trio.move_on_after(timeout_s) as scope:
            await self.settle()
            if is_fixed:
                machine.roll()
                self.drive()
                await self.settle()
        if is_fixed and scope.cancelled_caught:
            words = "beginning a last fragment took too long; take it over to have all copies of what is before"
            machine.abandon(MetastoreUncertainError(f"ledger {machine.metadata.ledger_id}: {words} (W8)"))
            self.drive()
        machine.publish()
        self.drive()
        with trio.move_on_after(self._add_timeout_s):
            while publishing.unanswered and self.error is None:
                publishing.all_answered = trio.Event()
                await publishing.all_answered.wait()
        self.closed.set()

    # -- driving the machine ----------------------------------------------------------------------------------------

    def drive(self) -> None:
        """Performs the machine's effects and sends what has gathered, until there is nothing left to do.

        Answers may come before a request's `send` returns, in the frames below; they only tell the machine, and the loop that
        runs already does the rest."""
        if self._is_driving:
            return
        self._is_driving = True
        machine, backlog = self._machine, self.backlog
        try:
            while machine.effects or (backlog.gathered and self._send_next()):
                # Nearly always there are none after a batch was sent, or one after an answer.
                for effect in machine.take_effects() if machine.effects else ():
                    if effect.__class__ is Confirmed:
                        self._confirmed(effect.last_add_confirmed)
                    else:
                        self._perform(effect)
        finally:
            self._is_driving = False

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, SendAdd):
            self._send_adds((effect,))  # again, to a bookie that is new or back
        elif isinstance(effect, SendLastAddConfirmed):
            self._send_last_add_confirmed(effect)
        elif isinstance(effect, Failed):
            self._fail(effect.error)
        elif isinstance(effect, Finished):
            self.closed.set()
        else:
            self.watching.waiting_effects.put(effect)  # type: ignore[arg-type]

    def _confirmed(self, last_add_confirmed: int) -> None:
        backlog, pacing = self.backlog, self.pacing
        unconfirmed_bytes = backlog.unconfirmed_bytes
        sent_at = backlog.advance(last_add_confirmed)
        pacing.expected_bytes += unconfirmed_bytes - backlog.unconfirmed_bytes
        if backlog.gathered or backlog.in_flight:
            # A lone batch does not tell how many should be in flight.
            pacing.round_ended(sent_at)
        elif self.watching.publishing.awaited_sends:
            self.watching.publishing.publish_soon()
        limit = self.limit
        if limit is not None:
            entries = backlog.last_add_pushed + 1
            size_bytes = self._machine.length + backlog.unconfirmed_bytes - backlog.in_flight_bytes
            # As `check`: seldom, after so many confirmations.
            if entries >= limit.entries or size_bytes >= limit.size_bytes:
                limit.check(entries, size_bytes)

    def _fail(self, error: ReplogError) -> None:
        unconfirmed = self.backlog.unconfirmed
        if isinstance(error, FencedError | AddTimeoutError | NotEnoughBookiesError | LedgerRecordLostError):
            error.unconfirmed = unconfirmed
        self.error = error
        self.backlog.end()
        self.closed.set()
        self.watching.settled.set()
        if self.on_failure is not None:
            self.on_failure()
        if isinstance(error, FencedError):
            self.watching.observe(WriterFenced(self._identity.ledger_id, unconfirmed))

    # -- batches ----------------------------------------------------------------------------------------------------

    def _send_next(self) -> bool:
        """Sends a batch of gathered entries, if it is time. Returns whether it did."""
        pacing, watching = self.pacing, self.watching
        if pacing.when() is When.LATER:
            return False
        if watching.slow.unchecked_bytes >= LAG_CHECK_BYTES and not watching.slow.keep_up():
            # The slow bookie may be silent, and nothing else in flight.
            watching.want()
            return False
        if pacing.expected_bytes and pacing.waits_for_more():
            return False
        payloads, size_bytes = self._sizes.take(is_pushed=pacing.is_pushed)
        if self.backlog.has_envelopes:
            payloads, size_bytes = self._sizes.keep_one_kind(payloads, size_bytes)
        self._send_batch(payloads, size_bytes)
        return True

    def _send_batch(self, payloads: Sequence[bytes], size_bytes: int) -> None:
        """Sends these entries, which are the next ones after those sent before."""
        backlog, watching, machine = self.backlog, self.watching, self._machine
        backlog.sent(backlog.last_add_pushed - len(backlog.gathered), size_bytes)
        publishing = watching.publishing
        if publishing.awaited_sends:
            publishing.awaited_sends -= 1
        publishing.published = machine.last_add_confirmed  # the batch carries it
        machine.add(payloads, self._time_ns(), size_bytes)
        self._send_adds(machine.take_effects())  # type: ignore[arg-type]
        # The requests are out: bookies in other threads work while the rest is written down here.
        watching.slow.unchecked_bytes += size_bytes
        self.batches_sent += 1
        self._context.batches_sent += 1
        self.pacing.sent(len(payloads))
        if not watching.is_wanted:
            watching.want()

    def send_packed(self, packed: PackedPayloads) -> bool:
        """Sends entries that are in one piece as one batch, while none gather. False, and nothing has happened, if these must."""
        assert not self.backlog.gathered, "entries are sent in their order"
        if self.pacing.stage is Stage.HELD or self._machine.effects or not self._sizes.fits(packed):
            return False
        slow = self.watching.slow
        if slow.unchecked_bytes >= LAG_CHECK_BYTES and not slow.keep_up():
            return False
        self.backlog.count_on(packed, packed.size_bytes)
        self._is_driving = True  # answers that come at once only tell the machine
        try:
            self._send_batch(packed, packed.size_bytes)
        finally:
            self._is_driving = False
        self.drive()
        return True

    def _send_adds(self, effects: Sequence[SendAdd]) -> None:
        """Sends adds. The bookies of a batch get the same request, so that a transport encodes it once."""
        channels, identity = self._context.connections.channels, self._identity
        on_answer, timeout_s = self._on_answer, self._add_timeout_s
        request = None
        for effect in effects:
            channel = channels.get(effect.bookie_id)
            if channel is None or channel.error is not None:
                self._bookie_failed(effect.index, effect.bookie_id, effect.batch)
                continue
            # Each bookie of a write set gets the same object: a transport encodes its head once.
            if request is None or request.batch is not effect.batch:
                request = AddRequest(
                    next(channel.request_ids),
                    identity.ledger_id,
                    identity.key,
                    identity.term,
                    effect.batch,
                    False,
                    b"",
                    self._machine.metadata.revision,
                )
            channel.ask(request, on_answer, effect, timeout_s)

    def _add_answered(self, answer: Answer, effect: SendAdd) -> None:
        if isinstance(answer, Response) and answer.status is Status.OK:
            if answer.awaited:
                self.watching.publishing.awaited()
            first_entry_id = effect.batch.first_entry_id
            if first_entry_id <= self.backlog.confirmed and not self.backlog.gathered:
                # It was confirmed without this bookie, and nothing waits for it.
                return
            self._machine.add_confirmed(effect.index, effect.bookie_id, first_entry_id)
        elif isinstance(answer, Response) and answer.status is Status.FENCED:
            self._machine.add_fenced(answer.fence_term)
        elif isinstance(answer, Response) and answer.status is Status.CONFLICT:
            self.watching.add_refused(effect.bookie_id, answer)
            self._context.membership.shun(effect.bookie_id)
            self._machine.add_conflicting(effect.index, effect.bookie_id, effect.batch)
        else:
            self.watching.add_refused(effect.bookie_id, answer)
            self._bookie_failed(effect.index, effect.bookie_id, effect.batch)
        if not self._is_driving:
            self.drive()

    def _send_last_add_confirmed(self, effect: SendLastAddConfirmed) -> None:
        channel = self._context.connections.channel(effect.bookie_id)
        if channel is not None:
            identity = self._identity
            request = WriteLastAddConfirmedRequest(
                next(channel.request_ids), identity.ledger_id, identity.key, identity.term, effect.proof
            )
            self.watching.publishing.unanswered += 1
            channel.ask(request, self._last_add_confirmed_answered, None, self._add_timeout_s)

    def _last_add_confirmed_answered(self, answer: Answer, _context: object) -> None:
        self.watching.publishing.answered()
        if isinstance(answer, Response) and answer.status is Status.FENCED:
            self._machine.add_fenced(answer.fence_term)
            self.drive()

    def _bookie_failed(self, index: int, bookie_id: str, batch: Batch | None = None) -> None:
        self._context.membership.shun(bookie_id)
        self._machine.bookie_failed(index, bookie_id, batch)
