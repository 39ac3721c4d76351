"""Processes that begin a cluster, under loss, doubles, late messages, crashes and wiped disks (Q16).

No two clusters may have a majority at a time, and none may begin while a disk of one is left that was in use. A member counts
for a cluster if its disk says so, under a name that this cluster counts. At the end all messages arrive, and every process must
belong to a cluster. Messages of a disk that is wiped are lost with it: a disk takes longer to exchange than a message lives.
"""

from __future__ import annotations

import random

import attrs

from replog.protocol.consensus import founding
from replog.protocol.consensus.founding import (
    Began,
    Founding,
    FoundingMessage,
    decode_founding,
    encode_founding,
)
from replog.protocol.consensus.groups import Membership
from tests.simulator.council.violation import Violation

_STEPS = 120
_ROUNDS_MAX = 30


@attrs.define
class Host:
    """One address: its disk (a name, promises, and a cluster or ""), and the process there, if it runs and has no cluster."""

    address: str
    name: str
    offers: tuple[str, ...] = ()
    cluster: str = ""
    founding: Founding | None = None
    runs: bool = False


@attrs.frozen
class Sent:
    """A message under way."""

    address: str
    name: str
    target: str
    data: bytes


class World:
    """Hosts with the same list of peers."""

    def __init__(self, seed: int, size: int) -> None:
        self.choice = random.Random(seed)
        self.peers = tuple(f"a{number}" for number in range(size))
        self.hosts = {address: Host(address, f"{address}-0") for address in self.peers}
        self.clusters: dict[str, Membership] = {}
        self.under_way: list[Sent] = []
        self._used: set[str] = set()  # clusters that had a majority once: they may have data
        self.was_wiped = False
        self._number = 0

    def run(self) -> None:
        """Random steps, then a healed network."""
        for _ in range(_STEPS):
            self._step()
        self._heal()

    def _step(self) -> None:
        host = self.hosts[self.choice.choice(self.peers)]
        dice = self.choice.random()
        if self.under_way and dice < 0.55:
            self._deliver(self.under_way[self.choice.randrange(len(self.under_way))], is_kept=dice < 0.1)
        elif self.under_way and dice < 0.6:
            del self.under_way[self.choice.randrange(len(self.under_way))]
        elif dice < 0.8:
            if not host.runs:
                self._start(host)
            elif host.founding is not None:
                host.founding.tick()
                self._carry_out(host)
        elif dice < 0.9:
            self._crash(host)
        elif dice < 0.93:
            self._wipe(host)

    def _start(self, host: Host) -> None:
        host.runs = True
        if not host.cluster:
            self._number += 1
            host.founding = Founding(host.address, host.name, self.peers, host.offers, f"c{self._number}")

    def _crash(self, host: Host) -> None:
        host.runs, host.founding = False, None

    def _rename(self, host: Host) -> None:
        self._number += 1
        host.name = f"{host.address}-{self._number}"

    def _wipe(self, host: Host) -> None:
        self.was_wiped = True
        self._rename(host)
        host.offers = ()
        host.runs, host.founding, host.cluster = False, None, ""
        self.under_way = [each for each in self.under_way if each.address != host.address]

    def _deliver(self, sent: Sent, *, is_kept: bool) -> None:
        if not is_kept:
            self.under_way.remove(sent)
        host = self.hosts[sent.target]
        message = decode_founding(sent.data)
        if not host.runs:
            return
        if host.founding is not None:
            host.founding.receive(sent.address, sent.name, message)
            self._carry_out(host)
        elif (said := founding.answer_of_member(host.cluster, self.peers, message)) is not None:
            self._send(host, sent.address, said)

    def _carry_out(self, host: Host) -> None:
        machine = host.founding
        assert machine is not None, "it has no cluster"
        if machine.offers != host.offers and self.choice.random() < 0.3:
            self._crash(host)
            return
        host.offers = machine.offers
        machine.written(host.offers)
        for target, message in machine.sent:
            self._send(host, target, message)
        machine.sent = []
        if machine.result is None:
            return
        if isinstance(machine.result, Began):
            self._begin(machine.result.cluster, machine.result.members)
        elif not machine.result.keeps_name:
            self._rename(host)
        host.founding, host.cluster = None, machine.result.cluster
        self._check()

    def _send(self, host: Host, target: str, message: FoundingMessage) -> None:
        self.under_way.append(Sent(host.address, host.name, target, encode_founding(message)))

    def _check(self) -> None:
        self._used |= {cluster for cluster in self.clusters if self._is_usable(cluster)}
        usable = [cluster for cluster in self.clusters if self._is_usable(cluster)]
        if len(usable) > 1:
            raise Violation("Q16", f"{usable} both have a majority")

    def _is_usable(self, cluster: str) -> bool:
        there = [host.name for host in self.hosts.values() if host.cluster == cluster]
        return self.clusters[cluster].agree(there)

    def _begin(self, cluster: str, members: Membership) -> None:
        """A new cluster beside a disk of one that was in use: what that has is overwritten (etcd #12227)."""
        for host in self.hosts.values():
            if host.cluster in self._used and host.name in self.clusters[host.cluster].names:
                raise Violation("Q16", f"{cluster} begins while {host.name} has what {host.cluster} had decided")
        self.clusters[cluster] = members

    def _heal(self) -> None:
        for _ in range(_ROUNDS_MAX):
            for host in self.hosts.values():
                if not host.runs:
                    self._start(host)
                if host.founding is not None:
                    host.founding.tick()
                    self._carry_out(host)
            while self.under_way:
                self._deliver(self.under_way[0], is_kept=False)
            if all(host.cluster for host in self.hosts.values()):
                self._check_one()
                return
        raise Violation("Q17", f"no cluster after {_ROUNDS_MAX} rounds in which all messages arrived")

    def _check_one(self) -> None:
        """Without a lost disk, all are in one cluster, which counts them. After one, new names are let in (Q11)."""
        clusters = {host.cluster for host in self.hosts.values()}
        if not self.was_wiped and (len(clusters) > 1 or not all(map(self._is_usable, clusters))):
            raise Violation("Q17", f"all have come, and are in {clusters}: {self.clusters}, {self.hosts}")


def broken_by(seed: int) -> str:
    """What a schedule breaks; "" for nothing."""
    try:
        World(seed, 1 + seed % 5).run()
    except Violation as error:
        return str(error)
    return ""
