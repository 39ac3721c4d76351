"""Seeded schedules of a cluster that keeps a metastore (Q1-Q14, Q17).

A seed decides which message arrives, twice, late or never; whose disk is slow; who crashes and loses what was not synced; whose
disk is wiped or shortened; what operators and clients ask for.

Checked after each step, and at the end: one leader a term; committed entries never change; a leader has all that is committed;
answers are those of one order of commands, each applied once, and that order agrees with real time; a healed cluster goes on.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Callable
from functools import partial

import attrs

from replog.protocol.consensus.commands import Command, Outcome, Status, What
from replog.protocol.consensus.groups import Membership
from replog.protocol.consensus.log import Kind, LogEntry
from replog.protocol.consensus.messages import Message
from tests.simulator.council.calls import KEYS, Call, Client, judge, token_of
from tests.simulator.council.process import Disk, Process, founded
from tests.simulator.council.violation import Violation

_NETWORK_MAX = 200
_HEALED_ROUNDS = 600


@attrs.frozen
class Envelope:
    """A message on its way between members."""

    sender: str
    target: str
    message: Message


class World:
    """A cluster, its clients and its operators, run by one seed."""

    def __init__(self, seed: int, steps: int = 650) -> None:
        self.random = r = random.Random(seed)
        self.steps = steps
        self.now = 0
        size = r.choice((3, 3, 3, 3, 3, 1, 1, 2, 4, 5))
        self.hosts = size + r.choice((0, 1, 1, 2))
        self.together = r.choice((1, 1, 2, 4))  # entries in one message
        self.begin(size)
        self.clients = [Client() for _ in range(r.choice((2, 3)))]
        self._draw_faults(seed)

    def begin(self, size: int) -> None:
        """Processes of a cluster of this size, and of hosts that may join it."""
        names = tuple(f"{host}.0" for host in range(size))
        self.lives = dict.fromkeys(range(self.hosts), 0)
        self.names = {host: f"{host}.0" for host in range(self.hosts)}
        self.where = {name: host for host, name in self.names.items()}
        self.processes: dict[str, Process] = {}
        self.disks: dict[str, list[Disk]] = {}  # of each name, the last ones, oldest first
        self.log = [LogEntry(1, Kind.NOOP)]  # what is committed, from index 1 on
        self.committed_in = [1]  # the term of the leader that committed it
        self.leaders: dict[int, str] = {}
        self.members = Membership((names,))  # as the last committed entry about them says
        self.network: list[Envelope | Callable[[], None]] = []
        self.late: list[Envelope] = []
        self.blocked: set[tuple[int, int]] = set()
        self.copied: dict[tuple[str, int, int], dict[bytes, bytes]] = {}
        self.calls: dict[int, Call] = {}
        self.loss = self.double = self.disorder = self.lateness = 0.0
        for host in range(self.hosts):
            self.start(host, founded(names) if host < size else Disk())

    # -- which faults a schedule has ----------------------------------------------------------------------------------

    def _draw_faults(self, seed: int) -> None:
        r = self.random

        def some(chance: float, low: float, high: float) -> float:
            return r.uniform(low, high) if r.random() < chance else 0.0

        self.loss, self.double = some(0.7, 0.0, 0.3), some(0.5, 0.0, 0.2)
        self.disorder = r.choice((0.0, 0.1, 0.3, 0.6, 1.0))
        self.lateness = some(0.6, 0.02, 0.3)
        slow = r.choice((1.0, 1.0, 0.5, 0.2))  # disks
        weights = {
            "deliver": r.uniform(12, 40),
            "begin write": r.uniform(6, 16) * slow,
            "end write": r.uniform(6, 16) * slow,
            "timeout": r.uniform(1, 4),
            "beat": r.uniform(1, 4),
            "call": r.uniform(2, 7),
            "again": some(0.7, 0.3, 2),
            "crash": some(0.7, 0.05, 0.4),
            "restart": r.uniform(0.5, 3),
            "wipe": some(0.35, 0.02, 0.12),
            "shorten": some(0.35, 0.02, 0.12),
            "admit": r.uniform(0.5, 2),
            "reconfigure": some(0.5, 0.1, 0.8),
            "compact": some(0.3, 1, 6) or some(0.6, 0.1, 0.8),
            "partition": some(0.5, 0.05, 0.3),
            "resend": some(0.5, 0.3, 2),
            "late": r.uniform(0.2, 2),
            "isolate": some(0.4, 0.1, 0.6),
        }
        if r.random() < 0.2:  # leaders come and go: entries of many terms are left in logs
            weights.update({"timeout": 8, "beat": r.uniform(0.2, 1), "restart": 4, "crash": r.uniform(0.4, 1.5)})
            weights["deliver"] /= 2
        self._focus(seed % 6, weights)
        self._kinds = list(weights)
        self._cumulative = [sum(list(weights.values())[: place + 1]) for place in range(len(weights))]

    def _focus(self, which: int, weights: dict[str, float]) -> None:
        """Of six schedules three are about one thing each: logs that part, members, copies; one is about reads."""
        r = self.random
        calm = ("wipe", "shorten", "reconfigure")
        if which == 1:  # leaders are cut off with entries of their own, come back, and messages come late and twice
            weights.update(dict.fromkeys((*calm, "compact", "admit"), 0.0))
            weights.update({"isolate": r.uniform(0.5, 2), "partition": r.uniform(0, 0.5), "timeout": 6})
            weights["resend"] = r.uniform(0, 4)
            self.double, self.loss, self.together = r.uniform(0, 0.4), r.uniform(0, 0.3), r.choice((1, 1, 1, 2))
        elif which == 2:
            weights.update({"reconfigure": r.uniform(2, 8), "isolate": r.uniform(0, 0.8), "timeout": 5, "restart": 4})
        elif which == 3:
            weights.update(
                {"compact": r.uniform(2, 8), "isolate": r.uniform(0.2, 1), "crash": r.uniform(0.1, 0.8), "timeout": 5}
            )
            self.double, self.together = r.uniform(0, 0.4), r.choice((1, 2, 4))
        elif which == 4:
            weights.update({"isolate": r.uniform(0.3, 1.2), "timeout": 5, "call": 12, "crash": r.uniform(0, 0.2)})
            weights.update(dict.fromkeys(calm, 0.0))

    # -- what processes tell ------------------------------------------------------------------------------------------

    def elected(self, process: Process) -> None:
        member = process.member
        other = self.leaders.setdefault(member.term, process.name)
        if other != process.name:
            raise Violation("Q1", f"term {member.term} has two leaders, {process.name} and {other}")
        end = bisect.bisect_left(self.committed_in, member.term)  # a newer leader may have committed more
        if member.log.base.index < end and member.log.term_at(end) != self.log[end - 1].term:
            raise Violation("Q3", f"leader {process.name} of term {member.term} lacks entry {end}, which is committed")

    def committed(self, process: Process, index: int, entry: LogEntry) -> None:
        if index <= len(self.log):
            if self.log[index - 1] != entry:
                problem = f"{process.name} commits {entry} as entry {index}, others {self.log[index - 1]}"
                raise Violation("Q5", problem)
            return
        if index > len(self.log) + 1:
            raise Violation("Q7", f"{process.name} commits entry {index} before {len(self.log) + 1}")
        self.log.append(entry)
        self.committed_in.append(process.member.term)
        if entry.members is not None:
            self.members = entry.members

    def answered(self, call: int, outcome: Outcome | None, index: int) -> None:
        """A change was answered; None: by a leader that steps down, which does not know."""
        if outcome is not None:
            self.network.append(partial(self._finish_change, call, outcome, index))

    def read(self, call: int, version: int, index: int) -> None:
        """A read was answered."""
        self.network.append(partial(self._finish_read, call, version, index))

    # -- clients ------------------------------------------------------------------------------------------------------

    def _call(self, client: Client) -> None:
        r = self.random
        if client.call is not None:
            if r.random() < 0.08:
                self.give_up(client)
            return
        key, number = r.choice(KEYS), len(self.calls) + 1
        command = None
        if r.random() >= 0.4:
            expected = client.versions.get(key, 0)
            what = What.PUT if expected else What.CREATE
            command = Command(token_of(number), client.known, what, key, b"%d" % number, expected)
        self.calls[number] = Call(self.clients.index(client), key, command, self.now)
        client.call = number
        self.network.append(partial(self.ask, number, self._target()))

    def ask(self, number: int, host: int) -> None:
        """A client's call arrives at this host. One that does not lead says so, and nothing has happened."""
        process, call = self.processes.get(self.names[host]), self.calls[number]
        if process is not None:
            if call.command is None:
                process.read(number, call.key)
            else:
                process.change(number, call.command)
            self.carry(process)

    def _repeat(self, client: Client) -> None:
        number = client.call
        if number is not None and self.calls[number].tries < 4:
            self.calls[number].tries += 1
            self.network.append(partial(self.ask, number, self._target()))

    def _target(self) -> int:
        leaders = self._leading()
        if leaders and self.random.random() < 0.8:
            return self.where[self.random.choice(leaders).name]
        return self.random.randrange(self.hosts)

    def _finish_change(self, number: int, outcome: Outcome, index: int) -> None:
        call = self.calls[number]
        client = self.clients[call.client]
        client.known = max(client.known, index)  # for commands that are sent later
        if client.call != number or (outcome.status is Status.UNKNOWN and call.tries < 4):
            return
        client.call, call.end, call.outcome = None, self.now, outcome
        if outcome.status is not Status.UNKNOWN:
            client.versions[call.key] = outcome.version

    def _finish_read(self, number: int, version: int, index: int) -> None:
        call = self.calls[number]
        client = self.clients[call.client]
        client.known = max(client.known, index)
        if client.call == number:
            client.call, call.end, call.version = None, self.now, version
            client.versions[call.key] = version

    def give_up(self, client: Client) -> None:
        """The client waits no longer: it does not know the outcome."""
        client.call = None

    # -- the network --------------------------------------------------------------------------------------------------

    def carry(self, process: Process) -> None:
        """Performs what the machine says, and takes its messages on their way."""
        process.perform()
        while sent := process.member.outbox.take_sent():
            for target, message in sent:
                envelope = Envelope(process.name, target, message)
                if target == process.name:
                    process.receive(target, message)
                elif self.random.random() < self.lateness:
                    self.late.append(envelope)
                else:
                    self.network.append(envelope)
            process.perform()

    def deliver(self, sent: Envelope | Callable[[], None], *, is_lossy: bool = True) -> None:
        r = self.random
        if is_lossy:
            if r.random() < self.loss:
                return
            if r.random() < self.double and len(self.network) < _NETWORK_MAX:
                self.network.append(sent)
        if not isinstance(sent, Envelope):
            sent()
            return
        process = self.processes.get(sent.target)
        is_blocked = (self.where[sent.sender], self.where[sent.target]) in self.blocked
        if process is not None and not is_blocked:
            process.receive(sent.sender, sent.message)
            self.carry(process)

    # -- faults -------------------------------------------------------------------------------------------------------

    def start(self, host: int, disk: Disk) -> None:
        name = self.names[host]
        self.processes[name] = Process(name, disk, self)
        self.disks.setdefault(name, []).append(disk)

    def crash(self, host: int) -> None:
        process = self.processes.pop(self.names[host], None)
        if process is not None:
            # A write under way may or may not have happened.
            if process.writing is not None and self.random.random() < 0.5:
                self.disks[process.name].append(process.disk.after(*process.writing))
            else:
                self.disks[process.name].append(process.disk)

    def rename(self, host: int) -> None:
        """A disk that lost anything is a new member (Q11)."""
        self.lives[host] += 1
        self.names[host] = f"{host}.{self.lives[host]}"
        self.where[self.names[host]] = host

    def wipe(self, host: int) -> None:
        self.crash(host)
        self.rename(host)
        self.start(host, Disk())

    def shorten(self, host: int) -> None:
        """The disk has an earlier state, and the program notices: it keeps the data, under a new name."""
        name = self.names[host]
        if name not in self.processes:
            return
        self.crash(host)
        earlier = self.random.choice(self.disks[name][-6:])
        self.rename(host)
        self.start(host, attrs.evolve(earlier, voted_for=None if self.names[host] != name else earlier.voted_for))

    def end_write(self, process: Process) -> None:
        if process.writing is not None:
            process.end_write()
            kept = self.disks[process.name]
            kept.append(process.disk)
            del kept[:-8]
            self.carry(process)

    # -- operators ----------------------------------------------------------------------------------------------------

    def _leading(self) -> list[Process]:
        return [each for each in self.processes.values() if each.member.leading is not None]

    def leader(self) -> Process | None:
        """The leader of the highest term."""
        return max(self._leading(), key=lambda each: each.member.term, default=None)

    def change_members(self, process: Process, group: tuple[str, ...]) -> bool:
        if process.member.why_no_change(group):
            return False
        process.member.change_members(group, {})
        return True

    def _admit(self) -> None:
        """A leader lets a new name in, in the place of the one whose disk forgot."""
        leaders = self._leading()
        if not leaders:
            return
        leader = self.random.choice(leaders)
        group = leader.member.members.newest
        stale = [name for name in group if self.names[self.where[name]] != name]
        if stale:
            name = self.random.choice(stale)
            successor = self.names[self.where[name]]
            leader.member.learn(successor)
            self.change_members(leader, tuple(sorted({successor if each == name else each for each in group})))
            self.carry(leader)

    def _reconfigure(self) -> None:
        leaders = self._leading()
        if not leaders:
            return
        r = self.random
        leader = r.choice(leaders)
        group = leader.member.members.newest
        others = [name for name in self.names.values() if name not in group]
        for name in others:
            leader.member.learn(name)
        new = set(group)
        if r.random() < 0.4:  # another group altogether
            new = {name for name in (*group, *others) if r.random() < 0.5}
        else:
            followers = leader.member.leading.followers if leader.member.leading is not None else {}
            ready = [name for name in others if name in followers and followers[name].matched >= leader.member.commit]
            if ready and r.random() < 0.7:
                new.add(r.choice(ready))
            for chance in (0.6, 0.2):
                if len(new) > 1 and r.random() < chance:
                    new.discard(r.choice(sorted(new)))
        self.change_members(leader, tuple(sorted(new)))
        if r.random() < 0.2:
            self.change_members(leader, tuple(sorted({*group, *new})))
        self.carry(leader)

    def isolate(self, leader: Process) -> None:
        cut = self.where[leader.name]
        ways = self.random.choice(("both", "both", "out", "in"))
        others = [host for host in range(self.hosts) if host != cut]
        self.blocked = {(cut, host) for host in others if ways != "in"} | {
            (host, cut) for host in others if ways != "out"
        }

    def _partition(self) -> None:
        r = self.random
        if self.blocked and r.random() < 0.75:
            self.blocked = set()
            return
        cut = {host for host in range(self.hosts) if r.random() < 0.4}
        self.blocked = {(one, other) for one in cut for other in range(self.hosts) if other not in cut}
        if r.random() >= 0.2:
            self.blocked |= {(other, one) for one, other in self.blocked}

    # -- the schedule -------------------------------------------------------------------------------------------------

    def step(self) -> None:
        r = self.random
        self.now += 1
        kind = "deliver"
        while kind == "deliver":
            kind = self._kinds[bisect.bisect_right(self._cumulative, r.random() * self._cumulative[-1] * (1 - 1e-12))]
            if self.network:
                break
        acts: dict[str, Callable[[], None]] = {
            "deliver": self._deliver_any,
            "begin write": self._begin_write,
            "end write": self._end_write,
            "call": lambda: self._call(r.choice(self.clients)),
            "again": lambda: self._repeat(r.choice(self.clients)),
            "late": self._deliver_late,
            "restart": self._restart,
            "admit": self._admit,
            "reconfigure": self._reconfigure,
            "partition": self._partition,
            "isolate": self._isolate_leader,
        }
        act = acts.get(kind)
        if act is not None:
            act()
        else:
            self._strike(kind, r.randrange(self.hosts))

    def _deliver_any(self) -> None:
        r = self.random
        at = r.randrange(len(self.network)) if r.random() < self.disorder else 0
        self.deliver(self.network.pop(at))

    def _deliver_late(self) -> None:
        if self.late:
            self.network.append(self.late.pop(self.random.randrange(len(self.late))))

    def _restart(self) -> None:
        down = [host for host, name in self.names.items() if name not in self.processes]
        if down:
            host = self.random.choice(down)
            self.start(host, self.disks[self.names[host]][-1])

    def _isolate_leader(self) -> None:
        if leaders := self._leading():
            self.isolate(self.random.choice(leaders))

    def _begin_write(self) -> None:
        processes = self.processes.values()
        ready = [each for each in processes if each.writing is None and each.member.outbox.is_dirty]
        if ready:
            self.random.choice(ready).begin_write()

    def _end_write(self) -> None:
        writing = [each for each in self.processes.values() if each.writing is not None]
        if writing:
            self.end_write(self.random.choice(writing))

    def _strike(self, kind: str, host: int) -> None:
        process = self.processes.get(self.names[host])
        if process is None:
            return
        member = process.member
        if kind == "timeout":
            member.election_timeout()
            self.carry(process)
        elif kind == "beat":
            member.heartbeat_due()
            self.carry(process)
        elif kind == "resend":
            if member.leading is not None and member.log.last > member.log.base.index:
                # A leader may send any part of its log, at any time.
                name = self.random.choice([*member.leading.followers] or [""])
                if name:
                    follower = member.leading.followers[name]
                    kept, follower.next = (
                        follower.next,
                        self.random.randrange(member.log.base.index + 1, member.log.last + 2),
                    )
                    member._send(name, follower)
                    follower.next = kept
                    self.carry(process)
        elif kind == "compact":
            process.compact()
        elif kind == "crash":
            self.crash(host)
        elif kind == "wipe":
            self.wipe(host)
        elif kind == "shorten":
            self.shorten(host)

    # -- the end ------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """No more faults: the cluster must go on if a majority of each group that may still matter is there."""
        self.blocked, self.network, self.late = set(), [*self.network, *self.late], []
        self.lateness = 0.0
        for host, name in self.names.items():
            if name not in self.processes:
                self.start(host, self.disks[name][-1])
        if not self._has_majorities():
            return
        done = len(self.log)
        for turn in range(_HEALED_ROUNDS):
            self._calm()
            leader = self.leader()
            if leader is not None and leader.member.is_ready:
                if len(self.log) > done and not any(client.call for client in self.clients):
                    return
                self._press_on(leader, turn, done)
            self.now += 1
            if leader is not None and turn % 3:
                leader.member.heartbeat_due()
                self.carry(leader)
            else:
                self._time_passes()
        # A message that arrived meanwhile may have had a change to a group that has lost its majority.
        if self._has_majorities():
            raise Violation("Q17", f"no progress within {_HEALED_ROUNDS} rounds although every group has its majority")

    def _has_majorities(self) -> bool:
        """True if a majority of each group that may still matter is there."""
        present = set(self.names.values())
        views = [self.members, *(each.member.members for each in self.processes.values())]
        return all(view.agree(present) for view in views if view.groups)

    def _calm(self) -> None:
        """Messages arrive and disks are quick."""
        for _ in range(400):
            if not self.network:
                break
            self.now += 1
            self.deliver(self.network.pop(0), is_lossy=False)
            self._sync_all()
        self._sync_all()

    def _sync_all(self) -> None:
        for process in list(self.processes.values()):
            if process.writing is not None or process.begin_write():
                self.end_write(process)

    def _press_on(self, leader: Process, turn: int, done: int) -> None:
        if len(self.log) == done:
            leader.member.append(LogEntry(leader.member.term, Kind.NOOP))
            self.carry(leader)
        for client in self.clients:
            if client.call is not None:
                if turn % 5 == 4:
                    self.give_up(client)
                else:
                    self.calls[client.call].tries = 3
                    self.network.append(partial(self.ask, client.call, self.where[leader.name]))

    def _time_passes(self) -> None:
        process = self.random.choice(list(self.processes.values()))
        for _ in range(2 if process.member.leading is None else 1):
            process.member.election_timeout()
            self.carry(process)
        for other in self.processes.values():
            # One that is no candidate lets others ask.
            if other.member.leader is None or other is process:
                other.member.has_heard = False

    def run(self) -> None:
        """Raises `Violation`."""
        for _ in range(self.steps):
            self.step()
        self.heal()
        judge(self.log, self.calls)


def broken_by(seed: int, steps: int = 650) -> str:
    """The violation of this seed; "" if there is none."""
    try:
        World(seed, steps).run()
    except Violation as violation:
        return str(violation)
    except AssertionError as error:
        return f"assertion: {error}"
    return ""
