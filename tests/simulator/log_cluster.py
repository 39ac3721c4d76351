"""A simulated run of a log: leaders, followers, trims, deletions, and bookies that collect what was deleted."""

from __future__ import annotations

from functools import partial

from replog.protocol.dropping import LogDeleting, LogTrimming
from replog.protocol.model import LedgerState, PendingLedger
from tests.simulator.bookies import SimulatedBookie
from tests.simulator.clients import Client
from tests.simulator.cluster import HEALING_MAX, Cluster
from tests.simulator.dropping import PENDING_KEPT
from tests.simulator.followers import LogFollower
from tests.simulator.leaders import DroppingShell, LeaderShell
from tests.simulator.pages import LOG_NAME
from tests.simulator.plan import Op, Plan

_COLLECTIONS = 3
_LAST_LEADER = "l99"
_LAST_FOLLOWER = "f99"
_LAST_FINISHER = "t99"
_READ = 3  # the stage of the end in which all followers have read the log, and nothing but leftovers remains


class LogCluster(Cluster):
    """One log."""

    def __init__(self, plan: Plan, transcript: list[str] | None = None) -> None:
        super().__init__(plan, transcript)
        self.leaders: dict[str, LeaderShell] = {}  # by session
        self._current: dict[str, LeaderShell] = {}  # by client: its last session
        self._followers: dict[str, LogFollower] = {}
        self._trims: list[DroppingShell] = []  # and deletions
        self._finale = 0
        self._last_finish: DroppingShell | None = None
        self.oracle.records.on_deleted = self._deleted

    # -- operations --------------------------------------------------------------------------------------------------

    def op_lead(self, op: Op) -> None:
        """A client takes over the log."""
        client = self.client(op.node)
        session = self._current.get(op.node)
        if session is not None and not session.is_over:
            return
        owner = f"{op.node}.{len(self.leaders) + 1}"
        session = LeaderShell(client, owner, partial(self.finish_for, client))
        self.leaders[owner] = self._current[op.node] = session
        client.wake(session.start, ())

    def op_append(self, op: Op) -> None:
        """A leader appends; whoever doesn't lead doesn't."""
        session = self._current.get(op.node)
        if session is not None:
            session.client.wake(session.append, (int(op.arguments[0]),))

    def op_roll(self, op: Op) -> None:
        """A leader goes on in a new ledger."""
        session = self._current.get(op.node)
        if session is not None:
            session.client.wake(session.roll, ())

    def op_publish(self, op: Op) -> None:
        """A leader publishes its last add confirmed."""
        session = self._current.get(op.node)
        if session is not None and session.writer is not None:
            session.client.wake(session.writer.publish, ())

    def op_abandon(self, op: Op) -> None:
        """A leader's deadline passes."""
        session = self._current.get(op.node)
        if session is not None and session.writer is not None:
            session.client.wake(session.writer.abandon, ())

    def op_trim(self, op: Op) -> None:
        """Somebody trims: whole ledgers before the last one that has something confirmed, and as many more stay."""
        number, _ = self.oracle.facts.highest_position
        client = self.client(op.node)
        machine = LogTrimming(LOG_NAME, number - int(op.arguments[0]), client.new_nonce(), self.world.wall_ms)
        self._drop(DroppingShell(client, machine))

    def op_delete(self, op: Op) -> None:
        """Somebody deletes the log. Leaders make it anew."""
        client = self.client(op.node)
        machine = LogDeleting(LOG_NAME, client.new_nonce(), self.world.wall_ms)
        self._drop(DroppingShell(client, machine))

    def finish_for(self, client: Client) -> DroppingShell:
        """A client finishes what others left unfinished (L7)."""
        machine = LogTrimming(LOG_NAME, None, client.new_nonce(), self.world.wall_ms)
        self._drop(DroppingShell(client, machine))
        return self._trims[-1]

    def _drop(self, shell: DroppingShell) -> None:
        self._trims.append(shell)
        shell.client.wake(shell.start, ())

    def op_follow(self, op: Op) -> None:
        """A client reads the log from its beginning, and follows."""
        self._follow(op.node)

    def _follow(self, name: str) -> LogFollower:
        follower = self._followers.get(name)
        if follower is None:
            follower = self._followers[name] = LogFollower(self.client(name))
            follower.client.wake(follower.start, ())
        return follower

    # -- garbage collection ------------------------------------------------------------------------------------------

    def _deleted(self, ledger_id: int) -> None:
        for bookie in self.bookies.values():
            bits, _ = self.world.draw(bookie.number, bookie.number, "collect", ledger_id)
            for turn in range(_COLLECTIONS):
                self.world.at(5 + (bits >> 10 * turn) % 1000, self._collect, bookie, ledger_id)

    def _collect(self, bookie: SimulatedBookie, ledger_id: int) -> None:
        disk = bookie.disk.get(ledger_id)
        if bookie.alive and disk is not None and not disk.deleted:
            self.world.count("bookie dropped a deleted ledger")
            bookie.drop(ledger_id)

    # -- the end -------------------------------------------------------------------------------------------------------

    def pursue_goals(self) -> bool:
        """All that is under way ends; a last leader takes over, appends and closes; a last follower reads it all."""
        if self._finale == _READ:
            return self._is_finished()
        alive = [session for session in self.leaders.values() if session.client.alive]
        last = self._current.get(_LAST_LEADER)
        if last is None:
            if any(session.is_busy for session in alive) or any(
                trim.client.alive and not trim.is_done for trim in self._trims
            ):
                return False
            self.operate(Op(self.world.now, "lead", _LAST_LEADER))
            return False
        if last.writer is None or not self._depose(alive, last):
            return False
        return self._conclude(last)

    def _depose(self, alive: list[LeaderShell], last: LeaderShell) -> bool:
        """A leader that still believes to lead appends, and learns of its deposition (L5)."""
        others = [session for session in alive if session is not last and not session.is_over]
        if self._finale == 0:
            self._finale = 1
            last.append(2)
            for session in others:
                session.append(1)
        return not others

    def _conclude(self, last: LeaderShell) -> bool:
        assert last.writer is not None
        if self._finale == 1:
            self._finale = 2
            last.roll()
            last.append(3)
        last.finish()
        record = self.oracle.facts.ledgers[last.writer.ledger_id].record
        if record.state is not LedgerState.CLOSED or record.last_entry_id is None:
            return False
        end = self.oracle.facts.segments[last.writer.ledger_id], record.last_entry_id
        self._follow(_LAST_FOLLOWER)
        followers = [each for each in self._followers.values() if each.client.alive]
        if not all(follower.has_read(*end) for follower in followers):
            return False
        for follower in followers:
            follower.stop()
        self._finale = _READ
        return self._is_finished()

    def _is_finished(self) -> bool:
        """Somebody finishes what all others left, once no request is under way any more that could create something."""
        self.healing_max = HEALING_MAX + PENDING_KEPT  # all else is done
        if self._last_finish is None or (self._last_finish.is_done and _are_old(self._leftovers(), self.world.now)):
            self._last_finish = self.finish_for(self.client(_LAST_FINISHER))
        return self._last_finish.is_done and not self._leftovers()

    def _leftovers(self) -> list[PendingLedger]:
        return [each for each, _ in self.metastore.records.values() if isinstance(each, PendingLedger)]

    def unfinished(self) -> str:
        """The remaining work."""
        left = [f"{owner}{' busy' * session.is_busy}" for owner, session in self.leaders.items() if not session.is_over]
        left += [f"{name} at {each.number}" for name, each in self._followers.items() if not each.is_stopped]
        trims = sum(not trim.is_done for trim in self._trims)
        return f"{', '.join(left)}; {trims} trims; stage {self._finale}; pending: {self._leftovers()}"

    def check_end(self) -> None:
        """The log holds every confirmed record once, in order."""
        super().check_end()
        self.oracle.log.check_log()
        self.oracle.log.check_leaks([key for key in self.metastore.records if isinstance(key, int)])


def _are_old(pending: list[PendingLedger], now: int) -> bool:
    return bool(pending) and all(now >= each.created_at_ms + PENDING_KEPT for each in pending)
