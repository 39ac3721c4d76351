"""Recovery of a ledger: drives the recovery machine (R2-R12).

Every bookie of the last fragment is asked until the machine has what it needs, or the deadline passes (R12). A bookie that could
not answer the question is asked again after a pause; one that cannot be reached, as soon as a connection to it succeeds. For a
silent one the machine waits a while (R10).
"""

from __future__ import annotations

import trio

from replog.client.channel import Answer, BookieChannel
from replog.client.ledger_effects import ClientContext, EffectLoop, WaitingEffects
from replog.client.refusals import refusal_of
from replog.config.client import ClientTuning
from replog.errors import MetastoreError, RecoveryUndecidedError, RemoteProtocolError, ReplogError, StorageFailedError
from replog.protocol.effects import AwaitSilentBookies, Effect, Failed, Finished, SendAdd, SendFence, SendRecoveryRead
from replog.protocol.messages import (
    DENIALS,
    AddRequest,
    FenceRequest,
    RecoveryReadRequest,
    Response,
    Status,
)
from replog.protocol.model import LedgerMetadata
from replog.protocol.recovery import LedgerRecovery

_PAUSE_S = 0.1  # before a bookie is asked or connected to again; twice as long each time
_PAUSE_MAX_S = 1.0
_REPLACE_EVERY_S = 0.5  # while recovered entries can't be written back for want of bookies

Question = SendFence | SendRecoveryRead


class RecordOutdatedError(RecoveryUndecidedError):
    """A bookie knows a later change of the ledger's record than the one that the recovery began with (M5). Retry: with the record
    as it is then; if that is no newer, once the right metastore is back. Outcome: unknown, and no entry was cut off."""


class RecoveringShell:
    """One attempt to recover one ledger. With `is_extended` each entry that is found begins the deadline anew: where each is
    found by itself, a long tail takes longer than any deadline, and another attempt would begin where this one did (R5)."""

    def __init__(
        self,
        machine: LedgerRecovery,
        key: bytes,
        context: ClientContext,
        options: ClientTuning,
        *,
        is_extended: bool = False,
    ) -> None:
        self._machine = machine
        self._ledger_id = machine.metadata.ledger_id
        self._key = key
        self._context = context
        self._options = options
        self._drive = EffectLoop(machine.take_effects, self._perform)
        self._waiting_effects = WaitingEffects(context, machine, self._drive)
        self._done = trio.Event()
        self._extended = trio.CancelScope() if is_extended else None  # whose deadline ends the wait for the machine
        self._metadata: LedgerMetadata | None = None
        self._error: ReplogError | None = None
        self._nursery: trio.Nursery | None = None
        self._started_s = 0.0
        self._stopped: dict[str, StorageFailedError] = {}  # by bookie: how it reported that its storage failed
        self._reaching: set[int] = set()  # indices that a connection is being made to
        # By bookie: what it said instead of an answer, or why it can't be reached
        self._complaints: dict[str, str] = {}

    async def run(self) -> LedgerMetadata:
        """Recovers, and returns the record of the ledger that is closed, or open for its new term. Raises what the machine failed
        with."""
        ensemble = self._machine.metadata.last_fragment.ensemble
        self._started_s = trio.current_time()
        # A silent bookie is not waited for here: recovery begins with the bookies that are connected.
        await self._context.connections.connect_most(ensemble, self._options.speculative_read_after_s)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._waiting_effects.run)
            nursery.start_soon(self._replace_missing)
            try:
                scope = trio.CancelScope() if self._extended is None else self._extended
                scope.deadline = trio.current_time() + self._options.recovery_timeout_s
                with scope:
                    self._machine.start()
                    self._drive()
                    await self._done.wait()
            finally:
                # Even if it was cancelled, because answers that come later must find a machine that is done.
                if not self._done.is_set():
                    self._machine.give_up(self._options.recovery_timeout_s)
                    self._drive()
            nursery.cancel_scope.cancel()
        if self._error is not None:
            for bookie_id, complaint in sorted(self._complaints.items()):
                self._error.add_note(f"bookie {bookie_id}: {complaint}")
            raise self._error
        assert self._metadata is not None
        return self._metadata

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, SendFence | SendRecoveryRead):
            self._ask(effect, _PAUSE_S)
        elif isinstance(effect, SendAdd):
            self._send_add(effect)
        elif isinstance(effect, AwaitSilentBookies):
            self._start(self._await_silent, trio.current_time() if effect.has_answered else self._started_s)
        elif isinstance(effect, Finished):
            self._metadata = effect.metadata
            self._done.set()
        elif isinstance(effect, Failed):
            self._error = effect.error
            self._done.set()
        else:
            self._waiting_effects.put(effect)  # type: ignore[arg-type]

    def _start(self, task: object, *arguments: object) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(task, *arguments)  # type: ignore[arg-type]

    # -- fencing and reading ----------------------------------------------------------------------------------------

    def _ask(self, effect: Question, pause_s: float) -> None:
        channel = self._context.connections.channel(effect.bookie_id)
        if channel is None:
            self._reach(effect.index, effect.bookie_id)
            return
        request = self._request(effect, channel)
        channel.ask(request, self._answered, (effect, pause_s), self._options.read_timeout_s)

    def _request(self, effect: Question, channel: BookieChannel) -> FenceRequest | RecoveryReadRequest:
        shared = next(channel.request_ids), self._ledger_id, self._key, self._machine.term
        revision = self._machine.metadata.revision
        if isinstance(effect, SendFence):
            return FenceRequest(*shared, revision)
        return RecoveryReadRequest(*shared, effect.entry_id, effect.stamp, revision)

    def _answered(self, answer: Answer, context: tuple[Question, float]) -> None:
        effect, pause_s = context
        if self._machine.is_done:
            return
        if not isinstance(answer, Response):
            self._complaints[effect.bookie_id] = str(answer)
            self._ask_again_later(effect, pause_s)
        elif answer.status is Status.FENCED:
            self._machine.refused(answer.fence_term)
        elif answer.status is Status.RECORD_OUTDATED:
            self._record_is_outdated(effect.bookie_id, answer)
        elif problem := self._problem_with(effect, answer):
            self._complaints[effect.bookie_id] = problem
            if isinstance(effect, SendFence):
                self._fail_if_stopped(effect.bookie_id, answer)
            # A bookie that is too busy has not looked for the entry: that is silence, and not doubt.
            if isinstance(effect, SendRecoveryRead) and answer.status is not Status.TOO_BUSY:
                self._machine.read_unknown(effect.index, effect.entry_id)
            self._ask_again_later(effect, pause_s)
        self._drive()

    def _record_is_outdated(self, bookie_id: str, answer: Response) -> None:
        """By this record the ledger might be closed too early: another client has changed it since, or the metastore
        went back (M5)."""
        problem = f"nothing was cut, as bookie {bookie_id} knows a newer record: {answer.detail}"
        self._machine.abandon(RecordOutdatedError(self._ledger_id, problem, [bookie_id]))

    def _fail_if_stopped(self, bookie_id: str, answer: Response) -> None:
        """Fails at once if so many bookies reported a failed storage that the ledger can't be fenced without them (R2, B10)."""
        refusal = refusal_of(self._ledger_id, bookie_id, answer)
        if isinstance(refusal, StorageFailedError):
            self._stopped[bookie_id] = refusal
        metadata = self._machine.metadata
        quorum, ensemble = metadata.quorum, metadata.last_fragment.ensemble
        alive = sum(1 << index for index, each in enumerate(ensemble) if each not in self._stopped)
        masks = [quorum.write_mask(rotation) for rotation in range(quorum.ensemble)]
        if any((mask & alive).bit_count() < quorum.write - quorum.ack + 1 for mask in masks):
            words = "; ".join(str(self._stopped[each]) for each in sorted(self._stopped))
            problem = f"it could not be fenced, and nothing was cut: {words}"
            error = RecoveryUndecidedError(self._ledger_id, problem, sorted(self._stopped))
            error.__cause__ = self._stopped[min(self._stopped)]
            self._machine.abandon(error)

    def _problem_with(self, effect: Question, answer: Response) -> str:
        """Tells the machine the answer and returns "", or returns why it does not answer the question."""
        no_answer = f"{answer.status.name.lower()} {answer.detail}".strip()
        if isinstance(effect, SendFence):
            if answer.status is not Status.OK:
                return no_answer
            try:
                confirmed = self._machine.proven(answer.proof)
            except RemoteProtocolError as error:
                # A number without a proof decides nothing (R11).
                return str(error)
            self._machine.fence_confirmed(effect.index, confirmed)
        elif answer.status is Status.OK and answer.batches:
            if self._extended is not None:
                self._extended.deadline = trio.current_time() + self._options.recovery_timeout_s
            self._machine.read_found(effect.index, effect.entry_id, answer.batches[0])
        elif answer.status in DENIALS:
            self._machine.read_absent(effect.index, effect.entry_id, DENIALS[answer.status])
        else:
            return no_answer
        return ""

    def _ask_again_later(self, effect: Question, pause_s: float) -> None:
        if self._machine.is_wanted(effect):
            self._start(self._ask_again, effect, pause_s)

    async def _ask_again(self, effect: Question, pause_s: float) -> None:
        await trio.sleep(pause_s)
        if self._machine.is_wanted(effect):
            self._ask(effect, min(2 * pause_s, _PAUSE_MAX_S))
            self._drive()

    async def _await_silent(self, since_s: float) -> None:
        await trio.sleep_until(since_s + self._options.absence_wait_s)
        self._machine.silent_awaited()
        self._drive()

    # -- bookies that are away (R12, B8a) -----------------------------------------------------------------------------

    def _reach(self, index: int, bookie_id: str) -> None:
        if index not in self._reaching:
            self._reaching.add(index)
            self._start(self._connect_sometime, index, bookie_id)

    async def _connect_sometime(self, index: int, bookie_id: str) -> None:
        """Connects as soon as that succeeds. Until then the machine does not wait for this bookie."""
        pause_s = _PAUSE_S
        while not self._machine.is_done:
            try:
                await self._context.connections.connect(bookie_id)
            except ReplogError as error:
                self._complaints[bookie_id] = str(error)
                self._machine.bookie_unreachable(index)
                # Only of a bookie that can't be reached: one that is announced can't be declared lost (B8a).
                await self._look_whether_lost(index, bookie_id)
                self._drive()
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            else:
                self._reaching.discard(index)
                self._complaints.pop(bookie_id, None)
                self._machine.bookie_reachable(index)
                self._drive()
                return

    async def _look_whether_lost(self, index: int, bookie_id: str) -> None:
        try:
            cookie = await self._context.membership.cookie(bookie_id)
        except MetastoreError as error:
            self._complaints[bookie_id] += f"; whether it was declared lost can't be read: {error}"
            return
        if cookie is not None and cookie.is_lost:
            self._complaints[bookie_id] = "it was declared lost"
            self._machine.bookie_declared_lost(index, is_loss_accepted=cookie.is_loss_accepted)

    # -- writing back -----------------------------------------------------------------------------------------------

    async def _replace_missing(self) -> None:
        """Looks for bookies while too few are left to write to (R12)."""
        while True:
            await trio.sleep(_REPLACE_EVERY_S)
            if self._machine.lacks_bookies:
                self._machine.bookies_changed()
                self._drive()

    def _send_add(self, effect: SendAdd) -> None:
        channel = self._context.connections.channel(effect.bookie_id)
        if channel is None:
            self._bookie_failed(effect.index, effect.bookie_id, effect.batch.first_entry_id)
            return
        request = AddRequest(
            next(channel.request_ids),
            self._ledger_id,
            self._key,
            self._machine.term,
            effect.batch,
            True,
            effect.proof,
            revision=self._machine.metadata.revision,
        )
        context = (effect.index, effect.bookie_id, effect.batch.first_entry_id)
        channel.ask(request, self._add_answered, context, self._options.add_timeout_s)

    def _add_answered(self, answer: Answer, context: tuple[int, str, int]) -> None:
        index, bookie_id, first_entry_id = context
        if isinstance(answer, Response) and answer.status is Status.OK:
            self._machine.add_confirmed(index, bookie_id, first_entry_id)
        elif isinstance(answer, Response) and answer.status is Status.FENCED:
            self._machine.refused(answer.fence_term)
        elif isinstance(answer, Response) and answer.status is Status.RECORD_OUTDATED:
            self._record_is_outdated(bookie_id, answer)
        else:
            self._bookie_failed(index, bookie_id, first_entry_id)
        self._drive()

    def _bookie_failed(self, index: int, bookie_id: str, first_entry_id: int) -> None:
        self._context.membership.shun(bookie_id)
        self._machine.bookie_failed(index, bookie_id, first_entry_id)
