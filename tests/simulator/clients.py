"""The shells of a simulated client: what the real ones in `replog.client` do with sockets and tasks, done with events.

A shell does a machine's effects in order, answers each request to it exactly once in time (an answer, or a deadline),
and passes late and doubled acknowledgements on, because a machine must bear them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from replog.errors import AddTimeoutError, FencedError, LedgerClosedError, ReplogError
from replog.protocol.digest import Digest, DigestType, ledger_key
from replog.protocol.effects import (
    ChooseReplacements,
    Confirmed,
    Effect,
    Failed,
    Finished,
    ReadMetadata,
    SendAdd,
    SendLastAddConfirmed,
    WriteMetadata,
)
from replog.protocol.gaps import Gap
from replog.protocol.messages import (
    AddRequest,
    LedgerRequest,
    Response,
    Status,
    WriteLastAddConfirmedRequest,
)
from replog.protocol.model import Fragment, LedgerMetadata, LedgerState
from replog.protocol.recovery import LedgerRecovery
from replog.protocol.writing import LedgerWriting
from tests.simulator.calls import Call, describe_call
from tests.simulator.metastore import Outcome, SimulatedMetastore
from tests.simulator.plan import Plan, mix
from tests.simulator.setting import Setting
from tests.simulator.world import Node, World

PASSWORD = b"simulated"
RETRY = 150


@cache
def digest_and_key(ledger_id: int, digest_type: DigestType) -> tuple[Digest, bytes]:
    """The digest and the key of a simulated ledger."""
    return Digest(digest_type, ledger_id, PASSWORD), ledger_key(ledger_id, PASSWORD)


def new_ledger(plan: Plan, ensemble: tuple[str, ...], ledger_id: int) -> LedgerMetadata:
    """The record of a new ledger. Its creator may believe some bookies to be away, as many as may be (C7)."""
    quorum, first = plan.quorum, mix(plan.seed * 1000 + ledger_id)
    away: list[int] = []
    for count in range(1, min(plan.away + 1, quorum.ensemble)):
        indices = sorted((first + index) % quorum.ensemble for index in quorum.spread(count))
        away = indices if quorum.may_lack(sum(1 << index for index in indices)) else away
    gaps = tuple(Gap(index, 0) for index in away)
    return LedgerMetadata(ledger_id, quorum, plan.digest_type, "", (Fragment(0, ensemble),), token="created", gaps=gaps)


class Client(Node):
    """A process that uses the library. Killing it leaves what it sent on its way."""

    def __init__(self, world: World, name: str, setting: Setting) -> None:
        super().__init__(world, name)
        self.setting = setting
        self.suspects: dict[str, int] = {}  # by bookie: until when it is not chosen
        self._nonces = 0

    @property
    def metastore(self) -> SimulatedMetastore:
        """Where the records stand."""
        return self.setting.metastore

    def call(
        self,
        bookie_id: str,
        kind: str,
        subject: int,
        request: LedgerRequest,
        answered: Callable[[Response | None, bool], None],
    ) -> None:
        """Sends a request to a bookie."""
        bookie = self.setting.bookies[bookie_id]
        call = Call(self, bookie, kind, subject, request, answered)
        if self.world.transcript is not None and not call.is_idle_poll(None):
            self.world.tell(f"{self.name} > {bookie_id}: {describe_call(call)}")
        self.world.transmit(self, bookie, kind, subject, call.arrive)
        self.after(self.world.rates.timeout, call.time_out)

    def new_nonce(self) -> str:
        """A unique nonce: two recoveries by one client are two attempts (M1)."""
        self._nonces += 1
        return f"{self.name}.{self._nonces}"

    def suspect(self, bookie_id: str) -> None:
        """This bookie did not answer: it is not chosen for a while."""
        self.suspects[bookie_id] = self.world.now + 4 * self.world.rates.timeout

    def choose(self, effect: ChooseReplacements, answer: Callable[[dict[int, str]], None]) -> None:
        """Answers for the placement, after some time."""
        ledger_id = effect.metadata.ledger_id
        bits, _ = self.world.draw(self.number, self.number, "choose", ledger_id)
        now = self.world.now
        names = [name for name in self.setting.bookies if name not in effect.excluded]
        names = [name for name in names if name not in self.setting.declared_lost]
        names = [names.pop((bits >> 7 * turn) % len(names)) for turn in range(len(names))]
        rates = self.world.rates
        current = effect.metadata.last_fragment.ensemble
        fresh = [name for name in names if self.suspects.get(name, 0) <= now and name not in current]
        again = (bits >> 50) % 4 == 0 or not self.world.faulty
        nobody = self.world.fault("nobody", rates.nobody, self.number, self.number, "choose", ledger_id + 100)
        same = self.world.fault("same", rates.same, self.number, self.number, "choose", ledger_id + 200)
        chosen: dict[int, str] = {}
        if nobody is None:
            for index in effect.failed:
                if fresh and same is None:
                    chosen[index] = fresh.pop(0)
                elif same is not None or again:
                    chosen[index] = current[index]
        if self.world.transcript is not None:
            self.world.tell(f"{self.name}: for failed {effect.failed} of ledger {ledger_id} chose {chosen}")
        self.after(1 + (bits >> 56) % 16, answer, chosen)


class LedgerShell:
    """The common part of the shells of writer and recovery: one machine, and its effects."""

    machine: LedgerWriting | LedgerRecovery

    def __init__(self, client: Client, ledger_id: int) -> None:
        self.client = client
        self.world = client.world
        self.oracle = client.setting.oracle
        self.ledger_id = ledger_id
        self.digest, self.key = digest_and_key(ledger_id, self.world.plan.digest_type)
        self.is_done = False
        self.error: ReplogError | None = None
        self.nonce = ""
        self.is_proposing_end = False  # from here on nothing more comes into the record
        self._uncertain = False

    def pump(self) -> None:
        """Does what the machine wants done."""
        effects: Sequence[Effect] = self.machine.take_effects()
        while effects:
            for effect in effects:
                self.perform(effect)
            effects = self.machine.take_effects()

    def perform(self, effect: Effect) -> None:
        """Does one effect."""
        raise NotImplementedError

    def subject(self, entry_id: int = 0) -> int:
        """The name of messages about this entry."""
        return 1000 * self.ledger_id + entry_id

    def perform_metadata(self, machine: LedgerWriting | LedgerRecovery, effect: Effect) -> None:
        """Does the effects that concern the metastore. The answer is for the machine that asked, no later one."""
        metastore = self.client.metastore
        if isinstance(effect, WriteMetadata):
            self.is_proposing_end = effect.metadata.state is LedgerState.CLOSED
            written = partial(self._metadata_written, machine)
            metastore.cas(self.client, self.ledger_id, effect.expected, effect.metadata, written)
        elif isinstance(effect, ReadMetadata):
            metastore.get(self.client, self.ledger_id, partial(self._metadata_read, machine, effect.at), effect.at)

    def _metadata_written(
        self, machine: LedgerWriting | LedgerRecovery, outcome: Outcome, record: Any, version: int
    ) -> None:
        if outcome is Outcome.DONE:
            machine.metadata_written(version)
        elif outcome is Outcome.UNCERTAIN:
            self._uncertain = True
            machine.metadata_uncertain()
        else:
            machine.metadata_conflict()
        self.pump()

    def _metadata_read(
        self, machine: LedgerWriting | LedgerRecovery, at: int | None, outcome: Outcome, record: Any, version: int
    ) -> None:
        if machine.is_done:
            return
        if outcome is Outcome.UNCERTAIN:
            self.client.after(RETRY, self.perform_metadata, machine, ReadMetadata(self.ledger_id, at))
            return
        if outcome is Outcome.MISSING:
            machine.metadata_missing()
        else:
            if self._uncertain:
                won = record.token.rpartition(".")[0] == self.nonce
                self.world.count("CAS ambiguous and won" if won else "CAS ambiguous and lost")
                self._uncertain = False
            machine.metadata_read(record, version)
        self.pump()


class WriterShell(LedgerShell):
    """One ledger's writer."""

    machine: LedgerWriting

    def __init__(
        self, client: Client, metadata: LedgerMetadata, version: int, nonce: str, missing: int | None = None
    ) -> None:
        super().__init__(client, metadata.ledger_id)
        self.nonce = nonce
        self.term = metadata.term
        self.first = metadata.last_fragment.first_entry_id
        if missing is None:
            missing = sum(1 << gap.index for gap in metadata.gaps)
        self.oracle.facts.sendings.starts[nonce] = self.first - 1
        # Of some writers so little that what is confirmed during a change is dropped as a gap (C9).
        kept_bytes_max = (0, 15, 40, 1 << 20)[mix(self.world.plan.seed * 1000 + metadata.ledger_id + 7) % 4]
        self.machine = LedgerWriting(
            metadata, version, self.digest, nonce, missing=missing, kept_bytes_max=kept_bytes_max
        )
        if missing:
            self.world.count("ledger created without some of its bookies")
        self.submitted = 0
        self._retrying = False
        self._sent_through = -1
        self.is_closing = False
        self.on_changed: Callable[[], None] | None = None

    def append(self, payloads: list[bytes]) -> None:
        """Submits entries, as one gathering."""
        if self.machine.is_done or self.is_closing:
            return
        first = self.machine.last_add_pushed + 1
        self.oracle.clients.added(self.ledger_id, first, payloads, self.term)
        if self.machine.is_changing:
            self.world.count("added during an ensemble change")
        self._sent_through = first - 1
        self.machine.add(payloads, self.world.now)
        self.pump()
        self._sent_through = self.machine.last_add_pushed

    def close(self) -> None:
        """Closes at the last add confirmed."""
        if not self.is_closing and not self.machine.is_done:
            self.is_closing = True
            if self.machine.is_changing:
                self.world.count("closed during an ensemble change")
            self.machine.close()
            self.pump()

    def roll(self) -> None:
        """Begins a new fragment, if nothing else is under way."""
        if not self.machine.is_done:
            self.machine.roll()
            self.pump()

    def publish(self) -> None:
        """Tells the bookies how far it is confirmed."""
        self.machine.publish()
        self.pump()

    def abandon(self) -> None:
        """The deadline of an append has passed."""
        if not self.machine.is_done:
            self.world.count("writer gave up at its deadline")
            self.machine.abandon(AddTimeoutError(self.ledger_id, "simulated deadline", self.machine.unconfirmed))
            self.pump()

    def perform(self, effect: Effect) -> None:
        """Does one effect."""
        if isinstance(effect, SendAdd):
            self._send_add(effect)
        elif isinstance(effect, Confirmed):
            if self.world.transcript is not None:
                self.world.tell(f"{self.client.name}: confirmed {self.ledger_id}/{effect.last_add_confirmed}")
            self.oracle.clients.confirmed(self.ledger_id, effect.last_add_confirmed, self.term)
            if self.machine.is_changing:
                self._count_confirmed_in_change()
            if self.on_changed is not None:
                self.on_changed()
        elif isinstance(effect, ChooseReplacements):
            self.client.choose(effect, partial(self._chosen, self.machine))
        elif isinstance(effect, SendLastAddConfirmed):
            request = WriteLastAddConfirmedRequest(0, self.ledger_id, self.key, self.term, effect.proof)
            self.client.call(effect.bookie_id, "write-confirmed", self.subject(), request, self._published)
        elif isinstance(effect, Finished | Failed):
            self._ended(effect)
        else:
            self.perform_metadata(self.machine, effect)

    def pump(self) -> None:
        """Does what the machine wants done; what lacks a bookie is tried again later."""
        super().pump()
        if self.machine.missing and not self._retrying and not self.machine.is_done:
            self._retrying = True
            self.client.after(RETRY, self._retry_missing)

    def _count_confirmed_in_change(self) -> None:
        self.world.count("confirmed during an ensemble change")
        durable, _ = self.client.metastore.records[self.ledger_id]
        assert isinstance(durable, LedgerMetadata)
        if durable.last_fragment != self.machine.metadata.last_fragment:
            self.world.count("confirmed while the outcome of a change was unknown")

    def _send_add(self, effect: SendAdd) -> None:
        request = AddRequest(0, self.ledger_id, self.key, self.term, effect.batch)
        index, bookie_id, first = effect.index, effect.bookie_id, effect.batch.first_entry_id
        self.oracle.facts.sendings.sent(self.nonce, bookie_id, effect.batch)
        if first <= self._sent_through:
            self.world.count("resent to a replacement")
        if first <= self.machine.last_add_confirmed:
            self.world.count("confirmed copy sent to a replacement")

        def answered(response: Response | None, in_time: bool) -> None:
            machine = self.machine
            if response is None or response.status not in (Status.OK, Status.FENCED):
                if in_time:
                    self.client.suspect(bookie_id)
                    if not self.is_proposing_end:
                        self.oracle.facts.sendings.failed(self.nonce, bookie_id, effect.batch)
                    machine.bookie_failed(index, bookie_id, effect.batch)
            elif response.status is Status.FENCED:
                machine.add_fenced(response.fence_term)
            else:
                if machine.ensemble()[index] != bookie_id:
                    self.world.count("late acknowledgement of a replaced bookie")
                machine.add_confirmed(index, bookie_id, first)
            self.pump()

        self.client.call(bookie_id, "add", self.subject(first), request, answered)

    def _published(self, response: Response | None, in_time: bool) -> None:
        if response is not None and response.status is Status.FENCED:
            self.machine.add_fenced(response.fence_term)
            self.pump()

    def _chosen(self, machine: LedgerWriting, chosen: dict[int, str]) -> None:
        self.world.count("writer found replacements" if chosen else "degraded: no replacement")
        machine.replacements_chosen(chosen)
        self.pump()

    def _retry_missing(self) -> None:
        self._retrying = False
        if not self.machine.is_done:
            self.machine.bookies_changed()
            self.pump()

    def _ended(self, effect: Finished | Failed) -> None:
        self.is_done = True
        if isinstance(effect, Failed):
            self.error = effect.error
            if isinstance(effect.error, LedgerClosedError) and self.is_closing:
                self.world.count("closing writer met another's end of the ledger")
            if isinstance(effect.error, FencedError):
                self.world.count("writer fenced" + (" with unconfirmed entries" if effect.error.unconfirmed else ""))
                self.oracle.clients.writer_fenced(self.ledger_id, effect.error.unconfirmed, self.first, self.term)
        else:
            firsts = {each.first_entry_id for each in effect.metadata.fragments[1:]}
            if any(gap.first_entry_id in firsts for gap in effect.metadata.gaps):
                self.world.count("confirmed copies were dropped as a gap")
            self.oracle.clients.writer_closed(self.ledger_id, self.client.metastore.chunks.whole(effect.metadata))
        if self.world.transcript is not None:
            self.world.tell(f"{self.client.name}: writer of {self.ledger_id} ended: {self.error or 'closed'}")
        if self.on_changed is not None:
            self.on_changed()
