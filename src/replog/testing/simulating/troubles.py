"""Faults of bookies, of the network and of the metastore. Every trouble ends after a while.

Each method is one trouble: it begins at once, lasts for a random time, and returns when everything works again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import trio

from replog.metastores.memory import MemoryMetastore
from replog.testing.simulating.metastore import MetastoreServer
from replog.testing.simulating.network import METASTORE, Network
from replog.testing.simulating.processes import BookieHost


def drawn_s(chance: random.Random, longest_s: float = 1.5) -> float:
    """Draw how long a trouble lasts, in seconds."""
    return 0.05 + chance.random() * longest_s


class BookieTroubles:
    """Troubles of single bookies. At most `at_once_max` bookies are in trouble at the same time."""

    def __init__(
        self, network: Network, bookies: Sequence[BookieHost], chance: random.Random, at_once_max: int
    ) -> None:
        self.in_trouble: dict[str, None] = {}
        self.held: dict[str, None] = {}  # bookies that the app broke: left alone until it repairs them
        self.at_once_max = at_once_max
        self._network = network
        self._world = network.world
        self._bookies = bookies
        self._random = chance

    @property
    def may_strike(self) -> bool:
        """False while too many bookies are in trouble."""
        return bool(self._well()) and len({**self.in_trouble, **self.held}) < self.at_once_max

    def _well(self) -> list[BookieHost]:
        known = {**self.in_trouble, **self.held}
        return [bookie for bookie in self._bookies if bookie.name not in known and bookie.served is not None]

    async def strike(self, name: str) -> None:
        """Begin the trouble of this name at some bookie that is well; do nothing if too many are in trouble."""
        if not self.may_strike:
            return
        bookie = self._random.choice(self._well())
        self.in_trouble[bookie.name] = None
        self._world.tell(bookie.process, f"trouble: {name}")
        try:
            await getattr(self, name)(bookie)
            if bookie.has_failed:
                await trio.sleep(self._random.random())
                bookie.crash()
            # What the app has broken meanwhile is the app's to repair.
            if bookie.name not in self.held:
                await bookie.start()
        finally:
            del self.in_trouble[bookie.name]
        self._world.tell(bookie.process, "is well")

    async def crash(self, bookie: BookieHost) -> None:
        """Its process dies."""
        bookie.crash()
        await trio.sleep(drawn_s(self._random))

    async def leave(self, bookie: BookieHost) -> None:
        """Its process ends in order."""
        await bookie.leave()
        await trio.sleep(drawn_s(self._random))

    async def stall(self, bookie: BookieHost) -> None:
        """It neither receives nor sends, as if its process were stopped."""
        process = bookie.process
        self._world.pause(process)
        await trio.sleep(drawn_s(self._random, 3.0))
        self._network.resume(process)

    async def hang(self, bookie: BookieHost) -> None:
        """Its disk does not answer for a while."""
        duration_s = drawn_s(self._random, 2.0)
        bookie.disk.stalled_until_s = self._world.now_s + duration_s
        await trio.sleep(duration_s)

    async def slow(self, bookie: BookieHost) -> None:
        """Its disk takes much longer than usual."""
        before_s, bookie.disk.commit_s = bookie.disk.commit_s, self._random.choice((0.02, 0.1, 0.4))
        await trio.sleep(drawn_s(self._random))
        bookie.disk.commit_s = before_s

    async def fill(self, bookie: BookieHost) -> None:
        """Its disk is full."""
        bookie.disk.is_full = True
        bookie.disk.marks_full_rate = self._random.choice((0.0, 0.5, 1.0))
        await trio.sleep(drawn_s(self._random, 3.0))
        bookie.disk.heal()

    async def fail_sync(self, bookie: BookieHost) -> None:
        """The next commit to its disk fails."""
        bookie.disk.fails_next_sync = True
        await trio.sleep(drawn_s(self._random))
        bookie.disk.heal()

    async def damage(self, bookie: BookieHost) -> None:
        """Reads from its disk fail, or give damaged bytes."""
        if self._random.random() < 0.5:
            bookie.disk.reads.uncertain_rate = self._random.choice((0.2, 1.0))
        else:
            bookie.disk.reads.lies_rate = self._random.choice((0.2, 1.0))
        await trio.sleep(drawn_s(self._random, 2.5))
        bookie.disk.heal()


class NetworkTroubles:
    """Troubles between processes. `clients` returns the names of the client processes that run now."""

    def __init__(
        self,
        network: Network,
        bookies: Sequence[BookieHost],
        clients: Callable[[], Sequence[str]],
        chance: random.Random,
    ) -> None:
        self._network = network
        self._world = network.world
        self._bookies = bookies
        self._clients = clients
        self._random = chance

    async def cut(self) -> None:
        """One client and one bookie cannot reach each other, in one direction or both."""
        clients = self._clients()
        if not clients:
            return
        client, bookie = self._random.choice(clients), self._random.choice(self._bookies).process
        ways = [[(client, bookie)], [(bookie, client)], [(client, bookie), (bookie, client)]]
        await self._cut_ways(self._random.choice(ways))

    async def isolate(self) -> None:
        """One client cannot send to anybody, or receives from nobody, or both."""
        clients = self._clients()
        if not clients:
            return
        client = self._random.choice(clients)
        others = [*(bookie.process for bookie in self._bookies), METASTORE]
        there, back = [(client, each) for each in others], [(each, client) for each in others]
        await self._cut_ways(self._random.choice((there, back, there + back)))

    async def cut_off(self) -> None:
        """A client or a bookie cannot reach the metastore, in one direction or both."""
        processes = [*self._clients(), *(bookie.process for bookie in self._bookies)]
        process = self._random.choice(processes)
        ways = [[(process, METASTORE)], [(METASTORE, process)], [(process, METASTORE), (METASTORE, process)]]
        await self._cut_ways(self._random.choice(ways))

    async def _cut_ways(self, ways: list[tuple[str, str]]) -> None:
        self._world.count("partition" if len(ways) > 1 else "one-way partition")
        for source, target in ways:
            self._network.cut(source, target)
        try:
            await trio.sleep(drawn_s(self._random, 2.5))
        finally:
            for source, target in ways:
                self._network.mend(source, target)

    async def lossy(self) -> None:
        """Requests and answers between clients and bookies are lost."""
        self._network.rates.lost = self._random.choice((0.02, 0.1, 0.4))
        try:
            await trio.sleep(drawn_s(self._random))
        finally:
            self._network.rates.lost = 0.0

    async def delays(self) -> None:
        """Some messages take much longer than others."""
        self._network.rates.slow = self._random.choice((0.05, 0.3))
        self._network.rates.slow_s = self._random.choice((0.05, 0.3, 1.0))
        try:
            await trio.sleep(drawn_s(self._random, 2.0))
        finally:
            self._network.rates.slow = 0.0

    async def break_connections(self) -> None:
        """Some connections break; each end notices it by itself, sooner or later."""
        await trio.lowlevel.checkpoint()
        connections = self._network.connections()
        for connection in self._random.sample(connections, min(len(connections), self._random.randint(1, 4))):
            self._network.cut_connection(connection)


class MetastoreTroubles:
    """Troubles of the metastore and of its sessions."""

    def __init__(self, metastore: MetastoreServer, chance: random.Random) -> None:
        self._metastore = metastore
        self._random = chance

    async def unreliable(self) -> None:
        """Calls fail, arrive late, or lose their answers; waits fail or end early."""
        self._metastore.rate = self._random.choice((0.1, 0.3, 0.8))
        self._metastore.session_rate = 0.3
        try:
            await trio.sleep(drawn_s(self._random))
        finally:
            self._metastore.rate = self._metastore.session_rate = 0.0

    async def go_back(self) -> None:
        """Bookies find the metastore empty, or as it was some seconds ago, while clients can't reach it (B6a)."""
        if self._random.random() < 0.3:
            past = MemoryMetastore()
        else:
            past = self._metastore.copy()
            await trio.sleep(drawn_s(self._random))
        await self._metastore.go_back(past, drawn_s(self._random))

    async def lose_session(self) -> None:
        """One process loses its session for a while: what it announced is gone, though it runs."""
        processes = [process for process, session in self._metastore.sessions.items() if session]
        living = [process for process in processes if process not in self._metastore.world.dead]
        if living:
            await self._metastore.lose_session(self._random.choice(living), drawn_s(self._random))
