"""Writes down what machines say and hear: the traces that `spec/LedgerTrace.tla` accepts.

An event is a tuple: its kind, then what `Step` in that module says. Clients are known by the nonces of their machines. What
machines do is recorded here, in the simulator (`simulated`) and in real processes (`processes`) alike. The code is not changed:
its methods are wrapped while the recording lasts, so it costs nothing at other times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import attrs

from replog.protocol.batch import Batch
from replog.protocol.effects import Confirmed, Delivered, Effect, SendAdd, SendFence, WriteMetadata
from replog.protocol.fragments import Fragment
from replog.protocol.machine import LedgerMachine
from replog.protocol.messages import (
    DENIALS,
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

Event = tuple[Any, ...]
CREATOR = "creator"


@attrs.define
class Trace:
    """What happened to one ledger. With `is_cut` it ends where something began that the specification does not have."""

    ledger_id: int
    quorum: tuple[int, int, int]
    ensemble: tuple[str, ...]
    events: list[Event] = attrs.field(factory=list)
    is_cut: bool = False
    is_unbounded: bool = False


class Recorder:
    """The traces of one run."""

    def __init__(self) -> None:
        self.traces: dict[int, Trace] = {}
        self._writers: dict[str, str] = {}  # by the nonce of a writer: whose term it writes in
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

    def began(self, record: LedgerMetadata) -> None:
        """A ledger begins with this record."""
        if record.ledger_id not in self.traces:
            self.traces[record.ledger_id] = trace_of(record)

    def made(self, nonce: str, record: LedgerMetadata) -> None:
        """A writer is made: of the first term, or of the term that a takeover claimed."""
        self._writers[nonce] = record.owner if record.is_unbounded and record.open_term > 1 else CREATOR

    def named(self, nonce: str) -> str:
        """The nonce of the takeover that a writer goes on from, or `CREATOR`."""
        return self._writers.get(nonce, nonce)

    # -- clients ------------------------------------------------------------------------------------------------------

    def effects(self, machine: LedgerMachine, effects: Sequence[Effect]) -> None:
        """What a machine wants done."""
        name, ledger_id = self.named(machine._change._nonce), machine.metadata.ledger_id
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
        if isinstance(machine, LedgerRecovery) and record.state is not LedgerState.IN_RECOVERY:
            self.note(record.ledger_id, "proposes end", name, machine._last_entry_id)
        elif record.state is LedgerState.CLOSED:
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
        self._sender = self.named(nonce), index
        yield
        self._sender = None

    def requested(self, request: object) -> None:
        """A request is sent."""
        if self._sender is not None and isinstance(request, AddRequest):
            self._tags[id(request)] = request, *self._sender

    # -- bookies and the metastore ---------------------------------------------------------------------------------------

    def sender(self, bookie: str, request: AddRequest) -> tuple[object, ...] | None:
        """The client of an add and the index that it is for, if they are known."""
        tag = self._tags.get(id(request))
        return None if tag is None else tag[1:]

    def answered(self, bookie: str, request: object, response: Response) -> None:
        """A bookie answers."""
        if isinstance(request, AddRequest):
            sender = self.sender(bookie, request)
            if response.status is Status.OK and sender is not None:
                self.note(request.ledger_id, "stored", bookie, *sender, _ids(request.batch))
        elif isinstance(request, RecoveryReadRequest) and response.status in DENIALS:
            self.note(request.ledger_id, "denied", bookie, request.term, request.entry_id, request.stamp)
        elif isinstance(request, FenceRequest | RecoveryReadRequest) and response.status in (Status.OK, Status.UNKNOWN):
            self.note(request.ledger_id, "fenced", bookie, request.term)
        elif isinstance(request, WriteLastAddConfirmedRequest) and response.status is Status.OK:
            self.note(request.ledger_id, "published", bookie, request.term, claimed(request.proof))

    def wrote(self, before: LedgerMetadata | None, record: LedgerMetadata) -> None:
        """The metastore applied a change."""
        if before is None:
            self.began(record)
        else:
            self.note(record.ledger_id, *self.change(before, record))

    def change(self, before: LedgerMetadata, record: LedgerMetadata) -> Event:
        """The event of a changed record."""
        fragments = tuple(_fragment(each) for each in record.fragments)
        if before.trim_to != record.trim_to:
            return ("trimmed", fragments)
        last = -1 if record.last_entry_id is None else record.last_entry_id
        return ("wrote", self.named(record.token.rpartition(".")[0]), record.state.name, fragments, last)


def trace_of(record: LedgerMetadata) -> Trace:
    """An empty trace of the ledger with this first record."""
    quorum = record.quorum
    size = quorum.ensemble, quorum.write, quorum.ack
    return Trace(record.ledger_id, size, record.last_fragment.ensemble, is_unbounded=record.is_unbounded)


def _ids(batch: Batch) -> tuple[int, ...]:
    return tuple(batch.entry_ids)


def _fragment(fragment: Fragment) -> tuple[int, tuple[str, ...], int]:
    return fragment.first_entry_id, fragment.ensemble, fragment.term


def _indices(mask: int, count: int) -> tuple[int, ...]:
    return tuple(index for index in range(count) if mask >> index & 1)


@contextmanager
def recording_machines(recorder: Recorder) -> Iterator[None]:
    """Records what machines of clients do while the context lasts."""
    with applied(
        around(LedgerMachine, "take_effects", lambda machine, done, *_: recorder.effects(machine, done)),
        around(LedgerReading, "take_effects", lambda machine, done, *_: _delivered(recorder, machine, done)),
        patch.object(LedgerRecovery, "fence_confirmed", _fence_heard(recorder)),
        patch.object(LedgerRecovery, "_decide", _decided(recorder)),
        patch.object(LedgerRecovery, "read_absent", _denial_heard(recorder)),
        patch.object(LedgerRecovery, "read_unknown", _doubt_heard(recorder)),
        patch.object(LedgerRecovery, "read_found", _batch_heard(recorder)),
        patch.object(LedgerRecovery, "replacements_chosen", _chosen(recorder)),
        patch.object(LedgerWriting, "__init__", _made(recorder)),
    ):
        yield


@contextmanager
def applied(*patches: Any) -> Iterator[None]:
    """Applies patches in their order, and takes them back in the other one."""
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield


def around(owner: type, name: str, then: Callable[..., None]) -> Any:
    """A patch: `then` is called behind the method, with its object, what it returned, and its arguments."""
    original = getattr(owner, name)

    def wrapped(self: Any, *arguments: Any, **options: Any) -> Any:
        done = original(self, *arguments, **options)
        then(self, done, *arguments)
        return done

    return patch.object(owner, name, wrapped)


def _delivered(recorder: Recorder, machine: LedgerReading, effects: Sequence[Effect]) -> None:
    for effect in effects:
        if isinstance(effect, Delivered):
            recorder.note(machine.metadata.ledger_id, "read", effect.last_entry_id)


def _made(recorder: Recorder) -> Callable[..., None]:
    original = LedgerWriting.__init__

    def made(
        self: LedgerWriting, metadata: LedgerMetadata, version: int, digest: Any, nonce: str, **options: Any
    ) -> None:
        recorder.made(nonce, metadata)
        if metadata.open_term == 1:
            recorder.began(metadata)
        original(self, metadata, version, digest, nonce, **options)

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
