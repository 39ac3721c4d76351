"""Recovery of a ledger: drives the recovery machine (R2-R9)."""

from __future__ import annotations

import trio

from replog.client.channel import Answer, BookieChannel
from replog.client.driving import EffectLoop, Surroundings, WaitingEffects
from replog.config import ClientOptions
from replog.errors import RecoveryUndecidedError, ReplogError, UnauthorizedError
from replog.protocol.effects import Effect, Failed, Finished, SendAdd, SendFence, SendRecoveryRead
from replog.protocol.messages import AddRequest, FenceRequest, RecoveryReadRequest, Response, Status
from replog.protocol.model import RECOVERY_TERM, LedgerMetadata
from replog.protocol.recovery import LedgerRecovery

_ASKS_MAX = 3  # of one bookie, before its silence counts
_PAUSE_S = 0.1


class RecoveringShell:
    """One attempt to recover one ledger."""

    def __init__(self, machine: LedgerRecovery, key: bytes, surroundings: Surroundings, options: ClientOptions) -> None:
        self._machine = machine
        self._ledger_id = machine.metadata.ledger_id
        self._key = key
        self._surroundings = surroundings
        self._membership = surroundings.membership
        self._options = options
        self._drive = EffectLoop(machine.take_effects, self._perform)
        self._waiting_effects = WaitingEffects(surroundings, machine, self._drive)
        self._done = trio.Event()
        self._metadata: LedgerMetadata | None = None
        self._error: ReplogError | None = None
        self._nursery: trio.Nursery | None = None

    async def run(self) -> LedgerMetadata:
        """Recovers, and returns the closed ledger's record. Raises what the machine failed with."""
        ensemble = self._machine.metadata.last_fragment.ensemble
        await self._membership.connect_most(ensemble, self._options.speculative_read_after_s)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._waiting_effects.run)
            try:
                with trio.move_on_after(self._options.recovery_timeout_s):
                    self._machine.start()
                    self._drive()
                    await self._done.wait()
            finally:  # also if it was cancelled: answers that come later must find a machine that is done
                if not self._done.is_set():
                    self._give_up()
            nursery.cancel_scope.cancel()
        if self._error is not None:
            raise self._error
        assert self._metadata is not None
        return self._metadata

    def _give_up(self) -> None:
        problem = f"its recovery took more than {self._options.recovery_timeout_s} s; it stays in recovery: retry"
        self._machine.abandon(RecoveryUndecidedError(self._ledger_id, problem))
        self._drive()

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, SendFence | SendRecoveryRead):
            self._ask_patiently(effect, 1)
        elif isinstance(effect, SendAdd):
            self._send_add(effect)
        elif isinstance(effect, Finished):
            self._metadata = effect.metadata
            self._done.set()
        elif isinstance(effect, Failed):
            self._error = effect.error
            self._done.set()
        else:
            self._waiting_effects.put(effect)  # type: ignore[arg-type]

    # -- fencing and reading: asked again while a bookie can't tell -------------------------------------------------

    def _ask_patiently(self, effect: SendFence | SendRecoveryRead, attempt: int) -> None:
        channel = self._membership.channel(effect.bookie_id)
        if channel is None:
            self._ask_later(effect, attempt)
            return
        request = self._request(effect, channel)
        channel.ask(request, self._answered, (effect, attempt), self._options.read_timeout_s)

    def _request(
        self, effect: SendFence | SendRecoveryRead, channel: BookieChannel
    ) -> FenceRequest | RecoveryReadRequest:
        request_id = channel.next_request_id()
        if isinstance(effect, SendFence):
            return FenceRequest(request_id, self._ledger_id, self._key, RECOVERY_TERM)
        return RecoveryReadRequest(request_id, self._ledger_id, self._key, RECOVERY_TERM, effect.entry_id, effect.stamp)

    def _answered(self, answer: Answer, context: tuple[SendFence | SendRecoveryRead, int]) -> None:
        effect, attempt = context
        if isinstance(answer, Response) and answer.status is Status.FENCED:
            self._machine.refused(answer.fence_term)
        elif isinstance(answer, Response) and answer.status is Status.UNAUTHORIZED:
            self._machine.abandon(UnauthorizedError(self._ledger_id, answer.detail))
        elif isinstance(effect, SendFence) and isinstance(answer, Response) and answer.status is Status.OK:
            self._machine.fence_confirmed(effect.index, answer.last_add_confirmed)
        elif isinstance(effect, SendRecoveryRead) and isinstance(answer, Response) and answer.status is Status.OK:
            self._machine.read_found(effect.index, effect.entry_id, answer.batches[0])
        elif isinstance(effect, SendRecoveryRead) and isinstance(answer, Response) and answer.status is Status.NO_ENTRY:
            self._machine.read_absent(effect.index, effect.entry_id)
        else:
            self._ask_later(effect, attempt)
        self._drive()

    def _ask_later(self, effect: SendFence | SendRecoveryRead, attempt: int) -> None:
        assert self._nursery is not None
        if self._machine.is_done:
            return
        self._nursery.start_soon(self._ask_again, effect, attempt)

    async def _ask_again(self, effect: SendFence | SendRecoveryRead, attempt: int) -> None:
        if attempt < _ASKS_MAX:
            await trio.sleep(_PAUSE_S * attempt)
            try:
                await self._membership.connect(effect.bookie_id)
            except ReplogError:
                await self._ask_again(effect, attempt + 1)
                return
            self._ask_patiently(effect, attempt + 1)
        elif isinstance(effect, SendFence):
            self._machine.fence_failed(effect.index)
        else:
            self._machine.read_unknown(effect.index, effect.entry_id)
        self._drive()

    # -- writing back -----------------------------------------------------------------------------------------------

    def _send_add(self, effect: SendAdd) -> None:
        channel = self._membership.channel(effect.bookie_id)
        if channel is None:
            self._bookie_failed(effect.index, effect.bookie_id)
            return
        request = AddRequest(
            channel.next_request_id(),
            self._ledger_id,
            self._key,
            RECOVERY_TERM,
            effect.batch,
            True,
            effect.last_add_confirmed,
        )
        context = (effect.index, effect.bookie_id, effect.batch.first_entry_id)
        channel.ask(request, self._add_answered, context, self._options.add_timeout_s)

    def _add_answered(self, answer: Answer, context: tuple[int, str, int]) -> None:
        index, bookie_id, first_entry_id = context
        if isinstance(answer, Response) and answer.status is Status.OK:
            self._machine.add_confirmed(index, bookie_id, first_entry_id)
        elif isinstance(answer, Response) and answer.status is Status.FENCED:
            self._machine.refused(answer.fence_term)
        else:
            self._bookie_failed(index, bookie_id)
        self._drive()

    def _bookie_failed(self, index: int, bookie_id: str) -> None:
        self._membership.shun(bookie_id)
        self._machine.bookie_failed(index, bookie_id)
