"""One unbounded ledger in the simulator: clients take it over, one after the other and at once; readers follow through all
terms."""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs

from replog.protocol.model import LedgerMetadata, LedgerState
from tests.simulator.clients import WriterShell
from tests.simulator.cluster import LEDGER_ID, LedgerCluster
from tests.simulator.metastore import Outcome
from tests.simulator.plan import Op, Plan
from tests.simulator.recoveries import RecoveryShell


class UnboundedCluster(LedgerCluster):
    """One ledger: the writers of its terms, clients that close it, readers."""

    def __init__(self, plan: Plan, transcript: list[str] | None = None) -> None:
        super().__init__(plan, transcript)
        self.writers = {"w1": self.writer}
        self._numbers: dict[str, int] = {}  # by writer: how many entries it submitted

    def first_record(self, record: LedgerMetadata) -> LedgerMetadata:
        """The record as its creator writes it."""
        return attrs.evolve(record, is_unbounded=True, owner="w1")

    def op_append(self, op: Op) -> None:
        """A client appends some entries, as one gathering, if it writes."""
        client = self.client(op.node)
        if client.alive:
            client.wake(self._append_as, (op.node, int(op.arguments[0])))

    def _append_as(self, name: str, count: int) -> None:
        writer = self.writers.get(name)
        if writer is not None and not writer.is_done and not writer.is_closing:
            first = self._numbers.get(name, 0)
            self._numbers[name] = first + count
            writer.append([b"%s:%d" % (name.encode(), number) for number in range(first, first + count)])

    def op_publish(self, op: Op) -> None:
        """A client publishes its last add confirmed, if it writes."""
        self._do(op.node, "publish")

    def op_roll(self, op: Op) -> None:
        """A client begins a new fragment, if it writes."""
        self._do(op.node, "roll")

    def op_close(self, op: Op) -> None:
        """A client finishes the ledger, without waiting for anything, if it writes."""
        self._do(op.node, "close")

    def op_abandon(self, op: Op) -> None:
        """A writer's deadline passes."""
        self._do(op.node, "abandon")

    def _do(self, name: str, verb: str) -> None:
        if name in self.writers:
            writer = self.writers[name]
            writer.client.wake(getattr(writer, verb), ())

    def op_takeover(self, op: Op) -> None:
        """A client takes the ledger over; `stale` with the metadata of its creation."""
        client = self.client(op.node)
        if op.node in self._recoveries or not client.alive:
            return
        opened = partial(self._opened, op.node)
        shell = RecoveryShell(client, LEDGER_ID, int(op.arguments[0]), opened, takes_over=True)
        self._recoveries[op.node] = shell
        if "stale" in op.arguments:
            client.wake(shell.begin, (self._first_record, 1))
        else:
            client.wake(shell.start, ())

    def _opened(self, name: str, metadata: LedgerMetadata | None) -> None:
        if metadata is None:
            return
        shell = self._recoveries[name]
        client, machine = shell.client, shell.machine
        if client.alive:
            self.writers[name] = WriterShell(client, metadata, machine.version, client.new_nonce(), machine.missing)

    def op_trim(self, op: Op) -> None:
        """A client trims the ledger before an entry, if nobody is faster."""
        client = self.client(op.node)
        client.wake(self.metastore.get, (client, LEDGER_ID, partial(self._trim, op), int(op.arguments[0])))

    def _trim(self, op: Op, outcome: Outcome, record: Any, version: int) -> None:
        if outcome is Outcome.DONE:
            client = self.client(op.node)
            # The oracle knows by the token who closed a ledger.
            token = record.token if record.state is LedgerState.CLOSED else client.new_nonce()
            trimmed = attrs.evolve(record.trimmed(int(op.arguments[0])).packed(version), token=token)
            if trimmed.trim_to != record.trim_to:
                self.metastore.cas(client, LEDGER_ID, version, trimmed, self._trimmed)

    def _trimmed(self, outcome: Outcome, record: Any, version: int) -> None:
        if outcome is Outcome.DONE:
            self.world.count("unbounded ledger was trimmed")

    def pursue_goals(self) -> bool:
        """When no takeover goes on, a client closes the ledger; then everybody reads it to its end."""
        if any(shell.client.alive and not shell.is_done for shell in self._recoveries.values()):
            return False
        if any(each.is_closing and each.client.alive and not each.is_done for each in self.writers.values()):
            return False
        if self._record().state is not LedgerState.CLOSED:
            self._recover(f"r{90 + len([name for name in self._recoveries if name.startswith('r9')])}", 1, False)
            return False
        self._read("d99", 0, False)
        return not any(shell.client.alive and not shell.is_done for shell in self._readers.values())
