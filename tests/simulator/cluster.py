"""One simulated run: a cluster, the operations of a plan done to it, the healing, and what must be true at the end."""

from __future__ import annotations

from typing import Any

import attrs

from replog.protocol.model import LedgerMetadata, LedgerState
from tests.simulator.bookies import SimulatedBookie
from tests.simulator.clients import Client, WriterShell, new_ledger
from tests.simulator.facts import Violation
from tests.simulator.healing import HealingPass
from tests.simulator.intruders import intrude
from tests.simulator.invariants import Oracle
from tests.simulator.metastore import SimulatedMetastore
from tests.simulator.plan import Op, Plan, node_number
from tests.simulator.quorums import check_confirmed, check_write_quorums
from tests.simulator.readers import ReaderShell
from tests.simulator.recoveries import RecoveryShell
from tests.simulator.setting import Setting
from tests.simulator.world import Node, World

LEDGER_ID = 1
_GOALS_EVERY = 97
HEALING_MAX = 40_000
_STEPS_MAX = 200_000
_BUGS = (AssertionError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@attrs.frozen
class Result:
    """How a run ended."""

    plan: Plan
    violation: Violation | None
    trace: int
    steps: int
    world: World

    @property
    def rule(self) -> str:
        """The broken rule, or ""."""
        return self.violation.rule if self.violation is not None else ""


class Cluster:
    """The nodes of a run. Subclasses know what clients there are."""

    def __init__(self, plan: Plan, transcript: list[str] | None = None) -> None:
        self.plan = plan
        self.world = World(plan, transcript)
        self.oracle = Oracle(self.world)
        self.metastore = SimulatedMetastore(self.world, self.oracle)
        names = [f"b{number}" for number in range(1, plan.bookies + 1)]
        self.bookies = {name: SimulatedBookie(self.world, name, self.oracle.bookies) for name in names}
        self.oracle.facts.disks = {name: bookie.disk for name, bookie in self.bookies.items()}
        self.setting = Setting(self.oracle, self.metastore, self.bookies)
        self.clients: dict[str, Client] = {}
        self.healing_max = HEALING_MAX
        self.world.count(f"strategy {plan.strategy}")
        self.world.count(f"digest {plan.digest_type.name}")
        if plan.bookies == plan.quorum.ensemble:
            self.world.count("as many bookies as an ensemble has")
        for op in plan.ops:
            if op.verb == "shorten":
                self.bookies[op.node].history = []
        for op in plan.ops:
            self.world.at(op.time, self.operate, op)
        self.world.at(plan.heal_at, self.heal)

    # -- running ---------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        """Runs the plan to its end, or to the first violation."""
        violation = None
        world = self.world
        try:
            while world.step():
                if world.steps > _STEPS_MAX:
                    self.oracle.fail("liveness", f"{_STEPS_MAX} steps, and no end")
            self.check_end()
        except Violation as error:
            violation = error
            world.tell(f"violation: {error}")
        except _BUGS as error:
            violation = Violation("bug", f"{type(error).__name__}: {error} ({_where(error)})")
            world.tell(f"violation: {violation}")
        return Result(self.plan, violation, world.trace, world.steps, world)

    def heal(self) -> None:
        """Ends the faults: from here on everything must finish within bounded time."""
        world = self.world
        world.faulty = False
        world.tell("-- healed --")
        for bookie in self.bookies.values():
            bookie.slow = 0
            if not bookie.alive:
                bookie.restart()
        for node in self.clients.values():
            node.resume()
        self._pursue()

    def _pursue(self) -> None:
        if self.pursue_goals():
            return
        if self.world.now > self.plan.heal_at + self.healing_max:
            self.oracle.fail("liveness", f"{self.healing_max} after the faults ended: {self.unfinished()}")
        self.world.at(_GOALS_EVERY, self._pursue)

    def pursue_goals(self) -> bool:
        """Does what must still be done. True when nothing is left to do."""
        raise NotImplementedError

    def unfinished(self) -> str:
        """The remaining work, for people."""
        raise NotImplementedError

    def check_end(self) -> None:
        """The invariants when the heap is empty."""
        for truth in self.oracle.facts.ledgers.values():
            check_confirmed(self.oracle.facts, truth, 0)
            check_write_quorums(self.oracle.facts, truth)
        for bookie in self.bookies.values():
            if not bookie.is_idle:
                self.oracle.fail("liveness", f"{bookie.name} still has something to sync")
            self._check_named(bookie)

    def _check_named(self, bookie: SimulatedBookie) -> None:
        """Each ledger on a bookie's disk exists, or was deleted, so that garbage collection may drop it (L7, B6)."""
        for ledger_id, disk in bookie.disk.items():
            truth = self.oracle.facts.ledgers.get(ledger_id)
            if disk.deleted or ledger_id in self.metastore.records:
                continue
            if truth is None or not truth.deleted:
                self.oracle.fail("L7", f"{bookie.name} stores ledger {ledger_id}, which no metadata has ever named")
            self.world.count("a bookie still stores a deleted ledger")

    # -- operations --------------------------------------------------------------------------------------------------

    def operate(self, op: Op) -> None:
        """Does an operation of the plan."""
        self.world.tell(f"-- {op.verb} {' '.join((op.node, *op.arguments))} --")
        getattr(self, f"op_{op.verb}")(op)

    def node(self, name: str) -> Node | None:
        """A node by its name; None if there is no such client (yet)."""
        if name == self.metastore.name:
            return self.metastore
        return self.bookies.get(name) or self.clients.get(name)

    def client(self, name: str) -> Client:
        """A client by its name, made when it is first spoken of."""
        client = self.clients.get(name)
        if client is None:
            client = self.clients[name] = Client(self.world, name, self.setting)
        return client

    def op_crash(self, op: Op) -> None:
        """A bookie loses power, and comes back."""
        bookie = self.bookies[op.node]
        if self.world.faulty:
            bookie.crash(int(op.arguments[0]))

    def op_shorten(self, op: Op) -> None:
        """A bookie loses power, and its disk the last groups; it comes back, and finds this or that trace of it."""
        bookie = self.bookies[op.node]
        groups, duration, trace = op.arguments
        if self.world.faulty and bookie.alive:
            bookie.crash(int(duration))
            bookie.forget(int(groups), trace)

    def op_heal(self, op: Op) -> None:
        """A bookie in doubt looks which ledgers it can vouch for again (B8)."""
        bookie = self.bookies[op.node]
        if bookie.alive and bookie.doubt.doubted_below:
            HealingPass(bookie, self.metastore).begin()

    def op_burn(self, op: Op) -> None:
        """A bookie is gone for good."""
        if self.world.faulty:
            self.bookies[op.node].leave_for_good()

    def op_declare(self, op: Op) -> None:
        """An operator declares lost what is gone for good (B8a)."""
        if self.bookies[op.node].is_gone:
            self.setting.declared_lost[op.node] = None

    def op_slow(self, op: Op) -> None:
        """A bookie's disk is slow from now on, or no more."""
        self.bookies[op.node].slow = int(op.arguments[0]) if self.world.faulty else 0

    def op_pause(self, op: Op) -> None:
        """A process is stopped for a while."""
        node = self.node(op.node)
        if node is not None and self.world.faulty:
            node.pause(int(op.arguments[0]))

    def op_kill(self, op: Op) -> None:
        """A client dies."""
        node = self.clients.get(op.node)
        if node is not None:
            node.alive = False

    def op_doom(self, op: Op) -> None:
        """A client dies right after so many of its changes were made to the metadata."""
        self.client(op.node).changes_left = int(op.arguments[0])

    def op_intrude(self, op: Op) -> None:
        """Somebody who doesn't know the password of the newest ledger tries everything with it."""
        client = self.client(op.node)
        if self.oracle.facts.ledgers and self.world.faulty:
            client.wake(intrude, (client, self.oracle.facts.ledgers[max(self.oracle.facts.ledgers)]))

    def op_cut(self, op: Op) -> None:
        """Nothing passes from one node to another, for a while."""
        self.world.cut(node_number(op.node), node_number(op.arguments[0]), int(op.arguments[1]))


def _where(error: Exception) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "?" if trace is None else f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"


class LedgerCluster(Cluster):
    """One ledger: a writer, recoveries, readers."""

    def __init__(self, plan: Plan, transcript: list[str] | None = None) -> None:
        super().__init__(plan, transcript)
        ensemble = tuple(self.bookies)[: plan.quorum.ensemble]
        self._first_record = self.first_record(new_ledger(plan, ensemble, LEDGER_ID))
        self.metastore.records[LEDGER_ID] = self._first_record, 1
        self.oracle.records.record_changed(LEDGER_ID, None, self._first_record)
        self.writer = WriterShell(self.client("w1"), self._first_record, 1, "w1")
        self._submitted = 0
        self._recoveries: dict[str, RecoveryShell] = {}
        self._readers: dict[str, ReaderShell] = {}

    def first_record(self, record: LedgerMetadata) -> LedgerMetadata:
        """The record as its creator writes it."""
        return record

    def op_append(self, op: Op) -> None:
        """The writer appends some entries, as one gathering."""
        if self.writer.client.alive:
            self.writer.client.wake(self._append, (int(op.arguments[0]),))

    def _append(self, count: int) -> None:
        if not self.writer.is_closing and not self.writer.is_done:
            payloads = [b"w1:%d" % number for number in range(self._submitted, self._submitted + count)]
            self._submitted += count
            self.writer.append(payloads)

    def op_publish(self, op: Op) -> None:
        """The writer publishes its last add confirmed."""
        self.writer.client.wake(self.writer.publish, ())

    def op_close(self, op: Op) -> None:
        """The writer closes, without waiting for anything."""
        self.writer.client.wake(self.writer.close, ())

    def op_abandon(self, op: Op) -> None:
        """The writer's deadline passes."""
        self.writer.client.wake(self.writer.abandon, ())

    def op_recover(self, op: Op) -> None:
        """A client recovers the ledger; `stale` with the metadata of its creation."""
        self._recover(op.node, int(op.arguments[0]), "stale" in op.arguments)

    def _recover(self, name: str, attempts: int, stale: bool) -> None:
        if name in self._recoveries:
            return
        client = self.client(name)
        shell = self._recoveries[name] = RecoveryShell(client, LEDGER_ID, attempts, _ignore)
        if stale:
            client.wake(shell.begin, (self._first_record, 1))
        else:
            client.wake(shell.start, ())

    def op_read(self, op: Op) -> None:
        """A client reads from an entry on, and follows; `stale` with the metadata of the ledger's creation."""
        self._read(op.node, int(op.arguments[0]), "stale" in op.arguments)

    def _read(self, name: str, first: int, stale: bool) -> None:
        if name in self._readers:
            return
        client = self.client(name)
        shell = self._readers[name] = ReaderShell(client, LEDGER_ID, first, _ignore)
        if stale:
            client.wake(shell.begin, (self._first_record,))
        else:
            client.wake(shell.start, ())

    # -- the end -------------------------------------------------------------------------------------------------------

    def pursue_goals(self) -> bool:
        """The writer or a recovery closes the ledger; then everybody reads it to its end."""
        writer = self.writer
        if writer.client.alive and not writer.is_done:
            if not writer.machine.unconfirmed:
                writer.close()
            return False
        if any(shell.client.alive and not shell.is_done for shell in self._recoveries.values()):
            return False
        if self._record().state is not LedgerState.CLOSED:
            self._recover("r99", 1, False)
            return False
        self._read("d99", 0, False)
        return not any(shell.client.alive and not shell.is_done for shell in self._readers.values())

    def _record(self) -> LedgerMetadata:
        return self.oracle.facts.ledgers[LEDGER_ID].record

    def unfinished(self) -> str:
        """The remaining work."""
        writer = self.writer
        left = [f"the writer ({writer.machine.unconfirmed})"] if writer.client.alive and not writer.is_done else []
        left += [name for name, shell in self._recoveries.items() if shell.client.alive and not shell.is_done]
        left += [name for name, shell in self._readers.items() if shell.client.alive and not shell.is_done]
        return ", ".join(left) or f"nobody, the ledger is {self._record().state.value}"

    def check_end(self) -> None:
        """The ledger is closed, and was read to its end."""
        super().check_end()
        last = self._record().last_entry_id
        is_empty = last is not None and last < self._record().trim_to
        if last is None or (not is_empty and self.oracle.facts.ledgers[LEDGER_ID].read_through < last):
            self.oracle.fail("liveness", f"the ledger ends at {last}, which nobody read")


def _ignore(_: Any) -> None:
    """Nobody waits for this end."""
