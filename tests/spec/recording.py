"""Writes down what machines say and hear while the simulator runs: the traces that `spec/LedgerTrace.tla` accepts.

An event is a tuple: its kind, then what `Step` in that module says. Clients are known by the nonces of their machines. Only what
a machine or a bookie does is recorded, never what the simulator's oracle thinks of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import attrs

from replog.protocol.batch import Batch
from replog.protocol.effects import Confirmed, Delivered, Effect, SendAdd, SendFence, WriteMetadata
from replog.protocol.fragments import Fragment
from replog.protocol.machine import LedgerMachine
from replog.protocol.messages import (
    AddRequest,
    Denial,
    FenceRequest,
    RecoveryReadRequest,
    Response,
    Status,
    WriteLastAddConfirmedRequest,
)
from replog.protocol.model import LedgerMetadata, LedgerState
from replog.protocol.proofs import claimed
from replog.protocol.reading import LedgerReading
from replog.protocol.recovery import LedgerRecovery
from replog.protocol.writing import LedgerWriting
from tests.simulator.bookie_checks import BookieChecks
from tests.simulator.clients import Client, LedgerShell, WriterShell
from tests.simulator.metastore import SimulatedMetastore
from tests.simulator.recoveries import RecoveryShell

Event = tuple[Any, ...]


@attrs.define
class Trace:
    """What happened to one ledger. With `is_cut` it ends where something began that the specification does not have."""

    ledger_id: int
    quorum: tuple[int, int, int]
    ensemble: tuple[str, ...]
    events: list[Event] = attrs.field(factory=list)
    is_cut: bool = False


class Recorder:
    """The traces of one run."""

    def __init__(self) -> None:
        self.traces: dict[int, Trace] = {}
        self.writers: set[str] = set()
        self._tags: dict[int, tuple[object, str, int]] = {}  # by identity of an add: the request, its client, the index
        self._sender: tuple[str, int] | None = None
        self._fencing: set[str] = set()

    def note(self, ledger_id: int, *event: object) -> None:
        """Adds an event to a ledger's trace."""
        trace = self.traces.get(ledger_id)
        if trace is not None and not trace.is_cut:
            trace.events.append(event)

    def cut(self, ledger_id: int) -> None:
        """What follows is not recorded."""
        if ledger_id in self.traces:
            self.traces[ledger_id].is_cut = True

    # -- clients ------------------------------------------------------------------------------------------------------

    def effects(self, machine: LedgerMachine, effects: Sequence[Effect]) -> None:
        """What a machine wants done."""
        name, ledger_id = machine._change._nonce, machine.metadata.ledger_id
        for effect in effects:
            if isinstance(effect, SendAdd):
                last = claimed(effect.proof) if effect.recovery else effect.batch.last_add_confirmed
                self.note(ledger_id, "send", name, effect.bookie_id, effect.index, _ids(effect.batch), last)
            elif isinstance(effect, Confirmed):
                self.note(ledger_id, "confirmed", name, effect.last_add_confirmed)
            elif isinstance(effect, SendFence) and isinstance(machine, LedgerRecovery):
                if name not in self._fencing:
                    self._fencing.add(name)
                    self.note(ledger_id, "fences", name, _fragment(machine._frozen))
            elif isinstance(effect, WriteMetadata):
                self._proposal(machine, name, effect.metadata)

    def _proposal(self, machine: LedgerMachine, name: str, record: object) -> None:
        assert isinstance(record, LedgerMetadata), "machines of ledgers write records of ledgers"
        if record.state is LedgerState.CLOSED:
            self.note(record.ledger_id, "proposes end", name, record.last_entry_id)
        elif record.state is LedgerState.OPEN:
            last = record.last_fragment
            self.note(record.ledger_id, "proposes ensemble", name, last.first_entry_id, last.ensemble)

    def denied(self, machine: LedgerRecovery, index: int, entry_id: int, denial: Denial) -> None:
        """A recovery hears that a bookie has no such entry."""
        if machine._is_asked(entry_id):
            ledger_id, name = machine.metadata.ledger_id, machine._change._nonce
            self.note(ledger_id, "heard denial", name, index, entry_id, denial is not Denial.PROVEN)

    def ended(self, machine: LedgerRecovery) -> None:
        """A recovery decided where the ledger ends."""
        absences = machine._absences
        excused = _indices(absences.unreachable | absences.given_up | machine._hearing.unknown, machine.quorum.ensemble)
        self.note(machine.metadata.ledger_id, "finds end", machine._change._nonce, machine._last_entry_id, excused)

    def took(self, machine: LedgerRecovery, index: int, batch: Batch) -> None:
        """A recovery found a batch."""
        name = machine._change._nonce
        self.note(machine.metadata.ledger_id, "takes batch", name, index, _ids(batch), machine._back.next_entry_id)

    def changed(self, machine: LedgerRecovery) -> None:
        """A recovery changed its private ensemble."""
        last = machine._back.fragments[-1]
        name = machine._change._nonce
        self.note(machine.metadata.ledger_id, "changes private", name, last.first_entry_id, last.ensemble)

    @contextmanager
    def sending(self, nonce: str, index: int) -> Iterator[None]:
        """Adds that are sent meanwhile are this client's."""
        self._sender = nonce, index
        yield
        self._sender = None

    def requested(self, request: object) -> None:
        """A request is sent."""
        if self._sender is not None and isinstance(request, AddRequest):
            self._tags[id(request)] = request, *self._sender

    # -- bookies and the metastore ---------------------------------------------------------------------------------------

    def answered(self, bookie: str, request: object, response: Response) -> None:
        """A bookie answers."""
        if response.status is Status.OK and isinstance(request, AddRequest) and id(request) in self._tags:
            _, name, index = self._tags[id(request)]
            self.note(request.ledger_id, "stored", bookie, name, index, _ids(request.batch))
        elif isinstance(request, RecoveryReadRequest) and response.status is Status.NO_ENTRY:
            self.note(request.ledger_id, "denied", bookie, request.entry_id)
        elif isinstance(request, FenceRequest | RecoveryReadRequest) and response.status in (Status.OK, Status.UNKNOWN):
            self.note(request.ledger_id, "fenced", bookie)
        elif isinstance(request, WriteLastAddConfirmedRequest) and response.status is Status.OK:
            self.note(request.ledger_id, "published", bookie, request.term, claimed(request.proof))

    def created(self, record: LedgerMetadata) -> None:
        """A ledger begins with this record. Unbounded ones are not recorded."""
        if record.ledger_id not in self.traces and not record.is_unbounded:
            quorum = record.quorum
            size = quorum.ensemble, quorum.write, quorum.ack
            self.traces[record.ledger_id] = Trace(record.ledger_id, size, record.last_fragment.ensemble)

    def wrote(self, key: object, record: object, *, is_new: bool) -> None:
        """The metastore applied a change."""
        if not isinstance(record, LedgerMetadata):
            return
        if is_new:
            self.created(record)
        else:
            name = record.token.rpartition(".")[0]
            fragments = tuple(_fragment(each) for each in record.fragments)
            last = -1 if record.last_entry_id is None else record.last_entry_id
            self.note(record.ledger_id, "wrote", name, record.state.name, fragments, last)


def _ids(batch: Batch) -> tuple[int, ...]:
    return tuple(batch.entry_ids)


def _fragment(fragment: Fragment) -> tuple[int, tuple[str, ...]]:
    return fragment.first_entry_id, fragment.ensemble


def _indices(mask: int, count: int) -> tuple[int, ...]:
    return tuple(index for index in range(count) if mask >> index & 1)


@contextmanager
def recording() -> Iterator[Recorder]:
    """Records what machines do while the context lasts. The code itself is not changed."""
    recorder = Recorder()
    patches = [
        _around(LedgerMachine, "take_effects", lambda machine, done, *_: recorder.effects(machine, done)),
        _around(LedgerReading, "take_effects", lambda machine, done, *_: _delivered(recorder, machine, done)),
        _around(BookieChecks, "answered", lambda _self, _done, name, _disk, *rest: recorder.answered(name, *rest)),
        patch.object(LedgerRecovery, "fence_confirmed", _fence_heard(recorder)),
        patch.object(LedgerRecovery, "_decide", _decided(recorder)),
        patch.object(LedgerRecovery, "read_absent", _denial_heard(recorder)),
        patch.object(LedgerRecovery, "read_unknown", _doubt_heard(recorder)),
        patch.object(LedgerRecovery, "read_found", _batch_heard(recorder)),
        patch.object(LedgerRecovery, "replacements_chosen", _chosen(recorder)),
        patch.object(SimulatedMetastore, "_put", _put(recorder)),
        patch.object(SimulatedMetastore, "_delete", _deleted(recorder)),
        patch.object(WriterShell, "_send_add", _sending(recorder, WriterShell)),
        patch.object(RecoveryShell, "_send_add", _sending(recorder, RecoveryShell)),
        patch.object(Client, "call", _called(recorder)),
        patch.object(LedgerWriting, "__init__", _made(recorder)),
    ]
    for each in patches:
        each.start()
    try:
        yield recorder
    finally:
        for each in reversed(patches):
            each.stop()


def _around(owner: type, name: str, then: Callable[..., None]) -> Any:
    original = getattr(owner, name)

    def wrapped(self: Any, *arguments: Any) -> Any:
        done = original(self, *arguments)
        then(self, done, *arguments)
        return done

    return patch.object(owner, name, wrapped)


def _delivered(recorder: Recorder, machine: LedgerReading, effects: Sequence[Effect]) -> None:
    for effect in effects:
        if isinstance(effect, Delivered):
            recorder.note(machine.metadata.ledger_id, "read", effect.last_entry_id)


def _made(recorder: Recorder) -> Callable[..., None]:
    original = LedgerWriting.__init__

    def made(self: LedgerWriting, metadata: Any, version: int, digest: Any, nonce: str, *, missing: int = 0) -> None:
        recorder.writers.add(nonce)
        recorder.created(metadata)
        original(self, metadata, version, digest, nonce, missing=missing)

    return made


def _fence_heard(recorder: Recorder) -> Callable[..., None]:
    original = LedgerRecovery.fence_confirmed

    def heard(self: LedgerRecovery, index: int, last_add_confirmed: int) -> None:
        recorder.note(self.metadata.ledger_id, "heard fence", self._change._nonce, index, last_add_confirmed)
        original(self, index, last_add_confirmed)

    return heard


def _denial_heard(recorder: Recorder) -> Callable[..., None]:
    original = LedgerRecovery.read_absent

    def heard(self: LedgerRecovery, index: int, entry_id: int, denial: Denial = Denial.PROVEN) -> None:
        recorder.denied(self, index, entry_id, denial)
        original(self, index, entry_id, denial)

    return heard


def _decided(recorder: Recorder) -> Callable[..., None]:
    original = LedgerRecovery._decide

    def decide(self: LedgerRecovery) -> None:
        was_open = self._last_entry_id is None
        original(self)
        if was_open and self._last_entry_id is not None:
            recorder.ended(self)

    return decide


def _doubt_heard(recorder: Recorder) -> Callable[..., None]:
    original = LedgerRecovery.read_unknown

    def heard(self: LedgerRecovery, index: int, entry_id: int) -> None:
        if self._is_asked(entry_id):
            recorder.note(self.metadata.ledger_id, "heard doubt", self._change._nonce, index, entry_id)
        original(self, index, entry_id)

    return heard


def _batch_heard(recorder: Recorder) -> Callable[..., None]:
    original = LedgerRecovery.read_found

    def heard(self: LedgerRecovery, index: int, entry_id: int, batch: Batch) -> None:
        before = self._back.next_entry_id
        original(self, index, entry_id, batch)
        if self._back.next_entry_id != before:
            recorder.took(self, index, batch)

    return heard


def _chosen(recorder: Recorder) -> Callable[..., None]:
    original = LedgerRecovery.replacements_chosen

    def chosen_(self: LedgerRecovery, chosen: Any) -> None:
        was_choosing = self._back.members.choosing
        original(self, chosen)
        if was_choosing and chosen and self._back.fragments:
            recorder.changed(self)

    return chosen_


def _put(recorder: Recorder) -> Callable[..., Any]:
    original = SimulatedMetastore._put

    def put(self: SimulatedMetastore, key: Any, record: Any) -> Any:
        recorder.wrote(key, record, is_new=key not in self.records)
        return original(self, key, record)

    return put


def _deleted(recorder: Recorder) -> Callable[..., Any]:
    original = SimulatedMetastore._delete

    def delete(self: SimulatedMetastore, key: Any) -> Any:
        if isinstance(key, int):
            recorder.cut(key)
        return original(self, key)

    return delete


def _sending(recorder: Recorder, owner: type[LedgerShell]) -> Callable[..., None]:
    original = vars(owner)["_send_add"]

    def send(self: LedgerShell, effect: SendAdd) -> None:
        with recorder.sending(self.nonce, effect.index):
            original(self, effect)

    return send


def _called(recorder: Recorder) -> Callable[..., None]:
    original = Client.call

    def call(self: Client, bookie_id: str, kind: str, subject: int, request: Any, answered: Any) -> None:
        recorder.requested(request)
        original(self, bookie_id, kind, subject, request, answered)

    return call
