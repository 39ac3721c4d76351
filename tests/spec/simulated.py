"""Records what happens in the simulator: its machines, bookies and metastore, never what its oracle thinks of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from replog.protocol.effects import SendAdd
from replog.protocol.model import LedgerMetadata
from tests.simulator.bookie_checks import BookieChecks
from tests.simulator.clients import Client, LedgerShell, WriterShell
from tests.simulator.metastore import SimulatedMetastore
from tests.simulator.recoveries import RecoveryShell
from tests.spec.recording import Recorder, applied, around, recording_machines


@contextmanager
def recording() -> Iterator[Recorder]:
    """Records what machines do while the context lasts."""
    recorder = Recorder()
    patches = applied(
        around(BookieChecks, "answered", lambda _self, _done, name, _disk, *rest: recorder.answered(name, *rest)),
        patch.object(SimulatedMetastore, "_put", _put(recorder)),
        patch.object(SimulatedMetastore, "_delete", _deleted(recorder)),
        patch.object(WriterShell, "_send_add", _sending(recorder, WriterShell)),
        patch.object(RecoveryShell, "_send_add", _sending(recorder, RecoveryShell)),
        patch.object(Client, "call", _called(recorder)),
    )
    with recording_machines(recorder), patches:
        yield recorder


def _put(recorder: Recorder) -> Callable[..., Any]:
    original = SimulatedMetastore._put

    def put(self: SimulatedMetastore, key: Any, record: Any) -> Any:
        if isinstance(record, LedgerMetadata):
            before = self.records[key][0] if key in self.records else None
            assert before is None or isinstance(before, LedgerMetadata), "a ledger's key has its record"
            recorder.wrote(before, record)
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
