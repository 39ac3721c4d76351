"""A simulated metastore: a map with CAS, linearizable at one moment of each call, whose answers may be late or lost.

A call whose answer does not come in time ends as uncertain; it may still be applied long after that. Each call is
answered exactly once.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Callable
from typing import Any

import attrs

from replog.protocol.model import LedgerMetadata, LogMetadata, LogPage, PendingLedger
from tests.simulator.chunked import Chunks
from tests.simulator.invariants import Oracle
from tests.simulator.plan import ANSWER_KINDS, METASTORE
from tests.simulator.world import Node, World

Record = LedgerMetadata | LogMetadata | LogPage | PendingLedger
LOG_SUBJECT = 999
_PAGES_SUBJECT = 998  # for a page, less its number
_PAGE_PREFIX = "page "
_PENDING_SUBJECT = 500  # for a pending ledger, plus its id
_PENDING_PREFIX = "pending "


def page_key(number: int) -> str:
    """The key of a page of the log."""
    return f"{_PAGE_PREFIX}{number}"


def pending_key(ledger_id: int) -> str:
    """The key of a ledger that is pending for the log."""
    return f"{_PENDING_PREFIX}{ledger_id}"


def _subject(key: int | str) -> int:
    if isinstance(key, int):
        return key
    if key.startswith(_PENDING_PREFIX):
        return _PENDING_SUBJECT + int(key.removeprefix(_PENDING_PREFIX))
    return _PAGES_SUBJECT - int(key.removeprefix(_PAGE_PREFIX)) if key.startswith(_PAGE_PREFIX) else LOG_SUBJECT


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
    """The one metastore. Ledgers stand under their ids, the log under its name, and its pages. Versions begin anew when a
    key is deleted and created again, as in ZooKeeper."""

    def __init__(self, world: World, oracle: Oracle) -> None:
        super().__init__(world, METASTORE)
        self.records: dict[int | str, tuple[Record, int]] = {}
        self.chunks = Chunks(oracle.facts)
        self._oracle = oracle
        self._next_ledger_id = 1
        self._seen: dict[tuple[str, int | str], int] = {}  # the highest version that a client has read or written
        self._past: dict[int | str, list[tuple[Record, int]]] = {}  # all that stood under a key, the newest last
        self._back = random.Random(f"replog simulation of a metastore that goes back {world.trace}")

    # -- what clients call -------------------------------------------------------------------------------------------

    def get(self, client: Node, key: int | str, answer: Answer, at: int | None = None) -> None:
        """Reads a record, a ledger's with the fragment of the entry `at`: DONE with it, MISSING, or UNCERTAIN."""
        self._call(client, "get", key, answer, self._get, client.name, key, at)

    def cas(self, client: Node, key: int | str, expected: int | None, record: Record, answer: Answer) -> None:
        """Replaces a record of the expected version, or creates it (None)."""
        self._call(client, "cas", key, answer, self._cas, client.name, key, expected, record)

    def new_ledger_id(self) -> int:
        """An id that nobody else has (M2). Taken at once: who has which id is not what is simulated."""
        self._next_ledger_id += 1
        return self._next_ledger_id - 1

    def create(self, client: Node, record: LedgerMetadata, answer: Answer) -> None:
        """Creates a ledger's record."""
        self._call(client, "create", LOG_SUBJECT, answer, self._create, record)

    def delete(self, client: Node, key: int | str, answer: Answer) -> None:
        """Deletes the record of a ledger or a page."""
        self._call(client, "delete", key, answer, self._delete, key)

    def list_pages(self, client: Node, answer: Answer) -> None:
        """Which pages there are: DONE with their numbers."""
        self._call(client, "get", page_key(0), answer, self._list_pages)

    def list_pending(self, client: Node, answer: Answer) -> None:
        """Which ledgers are pending for the log: DONE with what is known of them."""
        self._call(client, "get", pending_key(0), answer, self._list_pending)

    def _call(self, client: Node, kind: str, key: int | str, answer: Answer, action: Any, *arguments: Any) -> None:
        subject = _subject(key)
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
        if outcome is Outcome.DONE and call.kind != "get":
            call.client.changed_something()
        self.world.transmit(
            self, call.client, ANSWER_KINDS[call.kind], call.subject, self._answer, call, outcome, record, version
        )

    def _answer(self, call: _Call, outcome: Outcome, record: Record | None, version: int) -> None:
        if call.is_open:
            call.is_open = False
            call.answer(outcome, record, version)

    # -- what happens ------------------------------------------------------------------------------------------------

    def _get(self, client: str, key: int | str, at: int | None) -> tuple[Outcome, Record | None, int]:
        found = self.records.get(key)
        if found is None:
            return Outcome.MISSING, None, 0
        record, version = found
        back = self.world.rates.metastore_back
        if back and self.world.faulty and self._back.randrange(1024) < back:
            # As of a server that lags: never older than what this client has seen.
            known = self._seen.get((client, key), 0)
            record, version = self._back.choice(
                [each for each in self._past.get(key, [found]) if each[1] >= known] or [found]
            )
            if version != found[1]:
                self.world.count("reading found what the metastore had before")
        self._seen[client, key] = max(version, self._seen.get((client, key), 0))
        return Outcome.DONE, self.chunks.loaded(record, at) if isinstance(record, LedgerMetadata) else record, version

    def _cas(
        self, client: str, key: int | str, expected: int | None, record: Record
    ) -> tuple[Outcome, Record | None, int]:
        old = self.records.get(key)
        if old is None and expected is not None:
            return Outcome.MISSING, None, 0
        if old is not None and old[1] != expected:
            if expected is None and isinstance(record, LogMetadata):
                self._oracle.facts.world.count("two leaders made the log at once")
            return Outcome.CONFLICT, None, 0
        done = self._put(key, record)
        self._seen[client, key] = done[2]
        return done

    def _put(self, key: int | str, record: Record) -> tuple[Outcome, Record, int]:
        old = self.records.get(key)
        version = 1 if old is None else old[1] + 1
        stored = self.chunks.written(record) if isinstance(record, LedgerMetadata) else record
        self.records[key] = stored, version
        if self.world.rates.metastore_back:
            self._past.setdefault(key, []).append((stored, version))
        new = self.chunks.whole(stored) if isinstance(stored, LedgerMetadata) else stored
        self._oracle.records.record_changed(key, old[0] if old is not None else None, new)
        return Outcome.DONE, stored, version

    def _create(self, record: LedgerMetadata) -> tuple[Outcome, Record | None, int]:
        if record.ledger_id in self.records:
            return Outcome.CONFLICT, None, 0
        return self._put(record.ledger_id, record)

    def _delete(self, key: int | str) -> tuple[Outcome, Record | None, int]:
        found = self.records.pop(key, None)
        self._past.pop(key, None)  # ids are never used again (M2)
        if found is None:
            return Outcome.MISSING, None, 0
        if isinstance(key, int):
            self._oracle.records.ledger_deleted(key)
        elif not isinstance(found[0], PendingLedger):
            assert isinstance(found[0], LogPage), "a log's record is never deleted"
            self._oracle.log.page_deleted(found[0])
        return Outcome.DONE, None, 0

    def _list_pages(self) -> tuple[Outcome, list[int], int]:
        return Outcome.DONE, sorted(each.number for each, _ in self.records.values() if isinstance(each, LogPage)), 0

    def _list_pending(self) -> tuple[Outcome, list[PendingLedger], int]:
        return Outcome.DONE, [each for each, _ in self.records.values() if isinstance(each, PendingLedger)], 0


def describe(record: Record | list[int] | list[PendingLedger]) -> str:
    """A record in one line."""
    if isinstance(record, list):
        return f"[{' '.join(describe(each) if isinstance(each, PendingLedger) else str(each) for each in record)}]"
    if isinstance(record, PendingLedger):
        return f"pending {record.segment_number}:{record.ledger_id}"
    if isinstance(record, LogMetadata | LogPage):
        segments = "[" + " ".join(f"{each.number}:{each.ledger_id}" for each in record.segments) + "]"
        if isinstance(record, LogPage):
            return f"page {record.number} {segments}"
        return f"log {segments}" if record.segments else f"log deleted before {record.next_segment_number}"
    fragments = " ".join(f"{each.first_entry_id}:{','.join(each.ensemble)}" for each in record.fragments)
    last = "" if record.last_entry_id is None else f" last {record.last_entry_id}"
    return f"ledger {record.ledger_id} {record.state.value}{last} [{fragments}]"
