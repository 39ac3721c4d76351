"""The shell of a simulated recovery: what the real one in `replog.client.recovering` does, done with events."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import attrs

from replog.errors import FencedError, LedgerDeletedError, LedgerFinishedError, RemoteProtocolError
from replog.protocol.batch import ENTRY_ID_MAX
from replog.protocol.effects import (
    AwaitSilentBookies,
    ChooseReplacements,
    Effect,
    Failed,
    Finished,
    SendAdd,
    SendFence,
    SendRecoveryRead,
)
from replog.protocol.messages import DENIALS, AddRequest, FenceRequest, RecoveryReadRequest, Response, Status
from replog.protocol.model import LedgerMetadata, LedgerState
from replog.protocol.recovery import LedgerRecovery
from tests.simulator.clients import RETRY, Client, LedgerShell
from tests.simulator.metastore import Outcome

_RECOVERY_DEADLINE = 12  # times the deadline of a request


class RecoveryShell(LedgerShell):
    """One recovery, tried again until the ledger is closed, or the attempts are used up."""

    machine: LedgerRecovery

    def __init__(
        self,
        client: Client,
        ledger_id: int,
        attempts: int,
        on_done: Callable[[LedgerMetadata | None], None],
        *,
        takes_over: bool = False,
    ) -> None:
        super().__init__(client, ledger_id)
        self._takes_over = takes_over
        self._attempts = attempts
        self._on_done = on_done
        self._attempt = 0
        self.is_missing = False
        self.is_reading = False

    def start(self) -> None:
        """Reads the metadata and begins."""
        self.client.metastore.get(self.client, self.ledger_id, self._metadata_found)

    def _metadata_found(self, outcome: Outcome, record: Any, version: int) -> None:
        if outcome is Outcome.UNCERTAIN:
            self.client.after(RETRY, self.start)
        elif outcome is Outcome.MISSING:
            self._miss()
        else:
            self.begin(record, version)

    def _miss(self) -> None:
        self.is_missing = self.is_done = True
        self._on_done(None)

    def begin(self, record: LedgerMetadata, version: int) -> None:
        """Begins an attempt with this metadata, which may be old."""
        self._attempt += 1
        self._uncertain = self.is_reading = self.is_proposing_end = False
        self.nonce = self.client.new_nonce()
        self.oracle.facts.sendings.starts[self.nonce] = ENTRY_ID_MAX  # until it writes something back
        self._negatives: dict[int, int] = {}
        self.machine = LedgerRecovery(record, version, self.digest, self.nonce, takes_over=self._takes_over)
        self.client.setting.recoveries.append(self)
        self.client.after(_RECOVERY_DEADLINE * self.world.rates.timeout, self._give_up, self.machine)
        self.machine.start()
        self.pump()

    def _give_up(self, machine: LedgerRecovery) -> None:
        if not machine.is_done:
            machine.give_up(30)
            self.pump()

    def _unreachable(self, machine: LedgerRecovery, index: int, bookie_id: str) -> None:
        """No answer: it is asked again after a while, until the deadline (R12), unless it was declared lost (B8a)."""
        if bookie_id in self.client.setting.declared_lost:
            self.world.count("recovery knew that a bookie is lost")
            machine.bookie_declared_lost(index, is_loss_accepted=False)
            return
        machine.bookie_unreachable(index)
        self.client.after(RETRY, self._reachable, machine, index)

    def _reachable(self, machine: LedgerRecovery, index: int) -> None:
        if not machine.is_done:
            machine.bookie_reachable(index)
            self.pump()

    def _silent_awaited(self, machine: LedgerRecovery) -> None:
        machine.silent_awaited()
        self.pump()

    def perform(self, effect: Effect) -> None:
        """Does one effect."""
        if isinstance(effect, SendFence):
            self._send_fence(effect)
        elif isinstance(effect, SendRecoveryRead):
            self._send_read(effect)
        elif isinstance(effect, SendAdd):
            self._send_add(effect)
        elif isinstance(effect, AwaitSilentBookies):
            self.client.after(self.world.rates.patience, self._silent_awaited, self.machine)
        elif isinstance(effect, ChooseReplacements):
            self.client.choose(effect, partial(self._chosen, self.machine))
        elif isinstance(effect, Finished | Failed):
            self._ended(effect)
        else:
            self.perform_metadata(self.machine, effect)

    def _send_fence(self, effect: SendFence) -> None:
        request = FenceRequest(0, self.ledger_id, self.key, self.machine.term)
        index, machine = effect.index, self.machine

        def answered(response: Response | None, in_time: bool) -> None:
            confirmed = None
            if response is not None and response.status is Status.OK:
                with suppress(RemoteProtocolError):  # then it has not answered (R11)
                    confirmed = machine.proven(response.proof)
            if confirmed is not None:
                machine.fence_confirmed(index, confirmed)
            elif response is not None and response.status is Status.FENCED:
                machine.refused(response.fence_term)
            elif in_time:
                self.client.suspect(effect.bookie_id)
                self._unreachable(machine, index, effect.bookie_id)
            self.pump()

        self.client.call(effect.bookie_id, "fence", self.subject(), request, answered)

    def _send_read(self, effect: SendRecoveryRead) -> None:
        request = RecoveryReadRequest(0, self.ledger_id, self.key, self.machine.term, effect.entry_id, effect.stamp)
        index, entry_id, machine = effect.index, effect.entry_id, self.machine
        self._note_reading()

        def answered(response: Response | None, in_time: bool) -> None:
            if response is not None and response.status is Status.OK:
                if any(bits >> index & 1 for each, bits in self._negatives.items() if each < entry_id):
                    self.world.count("who denied an entry has a later one")
                machine.read_found(index, entry_id, response.batches[0])
            elif response is not None and response.status in DENIALS:
                self._negatives[entry_id] = self._negatives.get(entry_id, 0) | 1 << index
                if response.status is not Status.NO_ENTRY:
                    self.world.count(f"weak denial: {response.status.name}")
                machine.read_absent(index, entry_id, DENIALS[response.status])
            elif response is not None and response.status is Status.FENCED:
                machine.refused(response.fence_term)
            elif response is not None:
                machine.read_unknown(index, entry_id)
                self.client.after(RETRY, self._ask_again, machine, effect)
            elif in_time:
                self._unreachable(machine, index, effect.bookie_id)
            self.pump()

        self.client.call(effect.bookie_id, "recovery-read", self.subject(entry_id), request, answered)

    def _ask_again(self, machine: LedgerRecovery, effect: SendRecoveryRead) -> None:
        """As the real driver, whom a bookie in doubt has told nothing."""
        if machine is self.machine and not machine.is_done and machine.is_wanted(effect):
            self.world.count("who could not tell was asked again")
            self._send_read(effect)
            self.pump()

    def _send_add(self, effect: SendAdd) -> None:
        assert effect.recovery
        request = AddRequest(0, self.ledger_id, self.key, self.machine.term, effect.batch, True, effect.proof)
        index, bookie_id, machine = effect.index, effect.bookie_id, self.machine
        first, nonce = effect.batch.first_entry_id, self.nonce
        self.oracle.facts.sendings.sent(nonce, bookie_id, effect.batch)
        self.oracle.facts.sendings.starts[nonce] = machine.frozen_last_add_confirmed

        def answered(response: Response | None, in_time: bool) -> None:
            if response is not None and response.status is Status.OK:
                machine.add_confirmed(index, bookie_id, first)
            elif response is not None and response.status is Status.FENCED:
                machine.refused(response.fence_term)
            elif in_time:
                self.client.suspect(bookie_id)
                if not self.is_proposing_end:
                    self.oracle.facts.sendings.failed(nonce, bookie_id, effect.batch)
                machine.bookie_failed(index, bookie_id, first)
            self.pump()

        self.client.call(bookie_id, "add", self.subject(first), request, answered)

    def _chosen(self, machine: LedgerRecovery, chosen: dict[int, str]) -> None:
        if chosen:
            self.world.count("recovery changed its private ensemble")
        machine.replacements_chosen(chosen)
        if machine.lacks_bookies:
            self.client.after(RETRY, self._retry_missing, machine)
        self.pump()

    def _retry_missing(self, machine: LedgerRecovery) -> None:
        if not machine.is_done and machine.lacks_bookies:
            machine.bookies_changed()
            self.pump()

    def _ended(self, effect: Finished | Failed) -> None:
        machine = self.machine
        if self.world.transcript is not None:
            what = str(effect.error) if isinstance(effect, Failed) else f"closed at {effect.metadata.last_entry_id}"
            self.world.tell(f"{self.client.name}: recovery of {self.ledger_id} ended: {what}")
        if isinstance(effect, Failed):
            self.error = effect.error
            self.world.count(f"recovery failed: {type(effect.error).__name__}")
            if isinstance(effect.error, LedgerDeletedError):
                # As the real driver: bookies were told so, even if a late request has created its record once more.
                self._miss()
                return
            # Another client writes or has ended the ledger: an application asks for its turn before it tries again (L5).
            is_over = isinstance(effect.error, LedgerFinishedError) or (
                machine.metadata.is_unbounded and isinstance(effect.error, FencedError)
            )
            if not is_over and (self._attempt < self._attempts or not self.world.faulty):
                self.client.after(RETRY, self.start)
            else:
                self.is_done = True
                self._on_done(None)
            return
        self.is_done = True
        if effect.metadata.state is LedgerState.OPEN:
            self._on_done(effect.metadata)
            return
        last = effect.metadata.last_entry_id
        quorum = effect.metadata.quorum
        negatives = self._negatives.get(-1 if last is None else last + 1, 0).bit_count()
        if negatives == quorum.negatives_needed < quorum.write:
            self.world.count("negatives at exactly the quorum")
        self._note_recovered(machine, effect)
        self._on_done(effect.metadata)

    @property
    def has_ended(self) -> bool:
        """Whether its machine is done."""
        return self.machine.is_done

    def _note_reading(self) -> None:
        """Counts whether others that recover the same ledger read, too."""
        if self.is_reading:
            return
        self.is_reading = True
        known = self.client.setting.recoveries
        others = [each for each in known if each is not self and each.ledger_id == self.ledger_id]
        if any(each.is_reading and not each.has_ended for each in others):
            self.world.count("concurrent recoveries both read")

    def _note_recovered(self, machine: LedgerRecovery, effect: Finished) -> None:
        """It ended well."""
        truth = self.oracle.facts.ledgers[self.ledger_id]
        ended = self.client.metastore.chunks.whole(effect.metadata)
        if truth.record.trim_to > ended.trim_to:
            # Somebody trimmed what this recovery closed before it heard of that.
            ended = attrs.evolve(ended.trimmed(truth.record.trim_to), token=truth.record.token)
        if not truth.deleted and ended != truth.record:
            self.oracle.fail("R6", f"{self.client.name} ended with {effect.metadata}, the truth is {truth.record}")
        own = effect.metadata.token.rpartition(".")[0] == self.nonce
        self.world.count("recovery closed the ledger" if own else "recovery adopted another's close")
        if own and machine.recovered_entries:
            base = "a confirmed entry" if machine.frozen_last_add_confirmed >= 0 else "nothing"
            self.world.count(f"recovery from {base} found entries")
            if self.oracle.bookies.reaches_past_end(self.ledger_id):
                self.world.count("recovery ended inside a batch")
