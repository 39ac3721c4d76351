"""A simulated metastore: a map with CAS, linearizable at one moment of each call, whose answers may be late or lost.

A call whose answer does not come in time ends as uncertain; it may still be applied long after that. Each call is
answered exactly once.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

from replog.protocol.model import LedgerMetadata, LogMetadata
from replog.testing.simulation.plan import METASTORE
from replog.testing.simulation.world import Node, World

if TYPE_CHECKING:
    from replog.testing.simulation.invariants import Oracle

Record = LedgerMetadata | LogMetadata
LOG_SUBJECT = 999


class Outcome(enum.Enum):
    """How a call ended."""

    DONE = "done"
    CONFLICT = "conflict"
    MISSING = "missing"
    UNCERTAIN = "uncertain"


Answer = Callable[[Outcome, Any, int], None]


@attrs.define
class _Call:
    client: Node
    kind: str
    subject: int
    answer: Answer
    is_open: bool = True


class SimulatedMetastore(Node):
    """The one metastore. Ledgers stand under their ids, the log under its name."""

    def __init__(self, world: World, oracle: Oracle) -> None:
        super().__init__(world, METASTORE)
        self.records: dict[int | str, tuple[Record, int]] = {}
        self._oracle = oracle
        self._next_ledger_id = 1
        self._next_version = 1  # versions never repeat, not even over a deletion

    # -- what clients call -------------------------------------------------------------------------------------------

    def get(self, client: Node, key: int | str, answer: Answer) -> None:
        """Reads a record: DONE with it, MISSING, or UNCERTAIN."""
        self._call(client, "get", key, answer, self._get, key)

    def cas(self, client: Node, key: int | str, expected: int | None, record: Record, answer: Answer) -> None:
        """Replaces a record of the expected version, or creates it (None)."""
        self._call(client, "cas", key, answer, self._cas, key, expected, record)

    def create(self, client: Node, record: LedgerMetadata, answer: Answer) -> None:
        """Creates a ledger's record under a new id: DONE with the record as it stands."""
        self._call(client, "create", LOG_SUBJECT, answer, self._create, record)

    def delete(self, client: Node, ledger_id: int, answer: Answer) -> None:
        """Deletes a ledger's record."""
        self._call(client, "delete", ledger_id, answer, self._delete, ledger_id)

    def _call(self, client: Node, kind: str, key: int | str, answer: Answer, action: Any, *arguments: Any) -> None:
        subject = key if isinstance(key, int) else LOG_SUBJECT
        call = _Call(client, kind, subject, answer)
        self.world.transmit(client, self, kind, subject, self._apply, call, action, arguments)
        client.after(self.world.rates.timeout, self._time_out, call)

    def _time_out(self, call: _Call) -> None:
        if call.is_open:
            call.is_open = False
            if self.world.transcript is not None:
                self.world.tell(f"{call.client.name}: no answer to {call.kind} {call.subject}")
            call.answer(Outcome.UNCERTAIN, None, 0)

    def _apply(self, call: _Call, action: Any, arguments: tuple[Any, ...]) -> None:
        outcome, record, version = action(*arguments)
        if outcome is Outcome.DONE and not call.is_open and call.kind == "cas":
            self.world.count("CAS applied after its client had given up")
        if self.world.transcript is not None:
            what = f" {describe(record)} v{version}" if record is not None else ""
            self.world.tell(f"m: {call.kind} of {call.client.name}: {outcome.value}{what}")
        self.world.transmit(
            self, call.client, f"{call.kind}:answer", call.subject, self._answer, call, outcome, record, version
        )

    def _answer(self, call: _Call, outcome: Outcome, record: Record | None, version: int) -> None:
        if call.is_open:
            call.is_open = False
            call.answer(outcome, record, version)

    # -- what happens ------------------------------------------------------------------------------------------------

    def _get(self, key: int | str) -> tuple[Outcome, Record | None, int]:
        found = self.records.get(key)
        return (Outcome.DONE, *found) if found is not None else (Outcome.MISSING, None, 0)

    def _cas(self, key: int | str, expected: int | None, record: Record) -> tuple[Outcome, Record | None, int]:
        old = self.records.get(key)
        if old is None and expected is not None:
            return Outcome.MISSING, None, 0
        if old is not None and old[1] != expected:
            return Outcome.CONFLICT, None, 0
        return self._put(key, record)

    def _put(self, key: int | str, record: Record) -> tuple[Outcome, Record, int]:
        old = self.records.get(key)
        version = self._next_version if old is None else old[1] + 1
        self._next_version = max(self._next_version, version) + 1
        self.records[key] = record, version
        self._oracle.record_changed(key, old[0] if old is not None else None, record)
        return Outcome.DONE, record, version

    def _create(self, record: LedgerMetadata) -> tuple[Outcome, Record, int]:
        ledger_id, self._next_ledger_id = self._next_ledger_id, self._next_ledger_id + 1
        return self._put(ledger_id, attrs.evolve(record, ledger_id=ledger_id))

    def _delete(self, ledger_id: int) -> tuple[Outcome, Record | None, int]:
        found = self.records.pop(ledger_id, None)
        if found is None:
            return Outcome.MISSING, None, 0
        self._oracle.ledger_deleted(ledger_id)
        return Outcome.DONE, None, 0


def describe(record: Record) -> str:
    """A record in one line."""
    if isinstance(record, LogMetadata):
        return "log [" + " ".join(f"{each.number}:{each.ledger_id}" for each in record.segments) + "]"
    fragments = " ".join(f"{each.first_entry_id}:{','.join(each.ensemble)}" for each in record.fragments)
    last = "" if record.last_entry_id is None else f" last {record.last_entry_id}"
    return f"ledger {record.ledger_id} {record.state.value}{last} [{fragments}]"
