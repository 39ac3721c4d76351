"""What disturbs a run: troubles of bookies, of the network, of the metastore, drawn from the seed.

All troubles pass. How often which of them comes, a run's strategy says; how many bookies are in trouble at a time, too.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio

from replog.protocol.messages import AddRequest, Request
from replog.testing.simulating.metastore import MetastoreServer
from replog.testing.simulating.network import METASTORE, Network
from replog.testing.simulating.processes import Clients, SimulatedBookie
from tests.simulator.shells.losses import Losses

BOOKIE_TROUBLES = ("crash", "leave", "stall", "hang", "slow", "fill", "fail_sync", "damage")
NETWORK_TROUBLES = ("cut", "isolate", "lossy", "delays", "break_connections")
CLIENT_TROUBLES = ("deadly", "orphan")
LOSSES = ("forget", "shorten", "refence", "burn")
METASTORE_TROUBLES = ("unreliable", "lose_session", "cut_off")

# How likely each trouble is to be the next one; and the pause between two of them, at most.
STRATEGIES: dict[str, tuple[dict[str, int], float]] = {
    "calm": ({"slow": 1, "delays": 1}, 3.0),
    "crashes": ({"crash": 6, "leave": 1, "fail_sync": 2, "break_connections": 1}, 0.8),
    "disks": ({"fill": 3, "fail_sync": 2, "damage": 6, "hang": 2, "crash": 1}, 0.7),
    "gray": ({"stall": 4, "hang": 3, "slow": 2, "delays": 1}, 0.8),
    "network": ({"cut": 4, "isolate": 2, "lossy": 2, "delays": 2, "break_connections": 3}, 0.5),
    "metastore": ({"unreliable": 4, "lose_session": 2, "cut_off": 2, "crash": 1}, 0.6),
    "half-done": ({"deadly": 4, "crash": 1, "unreliable": 1}, 0.5),
    "orphans": ({"orphan": 5, "slow": 1, "crash": 1}, 0.3),
    "forgetful": ({"forget": 2, "shorten": 4, "refence": 4, "slow": 1, "crash": 1, "cut": 1}, 0.4),
    "burning": ({"burn": 2, "crash": 3, "slow": 1, "cut": 1}, 0.5),
    "wild": (dict.fromkeys((*BOOKIE_TROUBLES, *NETWORK_TROUBLES, *METASTORE_TROUBLES, *CLIENT_TROUBLES), 1), 0.5),
}


def drawn_strategy(seed: int) -> str:
    """The strategy of a seed: of as many seeds in a row as there are strategies, each has another one."""
    names = list(STRATEGIES)
    block, place = divmod(seed, len(names))
    random.Random(f"strategies {block}").shuffle(names)
    return names[place]


def loses_disks(strategy: str) -> bool:
    """Whether a bookie loses what it acknowledged under this strategy: then all quorums must survive that."""
    return any(name in LOSSES for name in STRATEGIES[strategy][0])


async def _nobody(_ledger_id: int) -> None:
    """Recovers nothing."""


class Weather:
    """The troubles of one run."""

    def __init__(
        self,
        network: Network,
        metastore: MetastoreServer,
        bookies: list[SimulatedBookie],
        clients: Clients,
        strategy: str | None,
    ) -> None:
        self.world = network.world
        self.random: random.Random = self.world.stream("weather")
        self.strategy = strategy or drawn_strategy(self.world.seed)
        self._network = network
        self._metastore = metastore
        self._bookies = bookies
        self._clients = clients
        self.losses: Losses | None = None
        self.recover: Callable[[int], Awaitable[None]] = _nobody
        self._written: dict[str, tuple[int, dict[str, None]]] = {}  # by writer: its last ledger, and the bookies of it
        self.in_trouble: dict[str, None] = {}
        self._in_trouble_max = self.random.choice((1, 1, 2, 3))

    async def run(self, for_s: float) -> None:
        """Bad weather for so long; returns when all troubles have passed."""
        weights, pause_s = STRATEGIES[self.strategy]
        self.world.tell("weather", f"{self.strategy}, at most {self._in_trouble_max} bookies in trouble")
        end_s = self.world.now_s + for_s
        async with trio.open_nursery() as nursery:
            while self.world.now_s < end_s:
                await trio.sleep(self.random.random() * pause_s)
                name = self.random.choices(list(weights), list(weights.values()))[0]
                if name in LOSSES:
                    assert self.losses is not None
                    nursery.start_soon(getattr(self.losses, name))
                elif name in BOOKIE_TROUBLES:
                    nursery.start_soon(self._trouble_bookie, getattr(self, f"_{name}"))
                else:
                    nursery.start_soon(getattr(self, f"_{name}"))

    async def _trouble_bookie(self, trouble: Callable[[SimulatedBookie], Awaitable[None]]) -> None:
        well = [bookie for bookie in self._bookies if bookie.name not in self.in_trouble and bookie.served is not None]
        if not well or len(self.in_trouble) >= self._in_trouble_max:
            return
        bookie = self.random.choice(well)
        self.in_trouble[bookie.name] = None
        self.world.tell(bookie.process, f"trouble: {trouble.__name__.strip('_')}")
        try:
            await trouble(bookie)
            if bookie.has_failed:
                await trio.sleep(self.random.random())
                bookie.crash()
            await bookie.start()
        finally:
            del self.in_trouble[bookie.name]
        self.world.tell(bookie.process, "is well")

    def sent(self, client: str, process: str, request: Request) -> None:
        """A client sends this to a bookie: so it is known who writes what where."""
        if isinstance(request, AddRequest) and not request.recovery:
            ledger_id, bookies = self._written.get(client, (request.ledger_id, {}))
            if ledger_id != request.ledger_id:
                bookies = {}
            bookies[process] = None
            self._written[client] = request.ledger_id, bookies

    def _while_s(self, longest_s: float = 1.5) -> float:
        return 0.05 + self.random.random() * longest_s

    # -- bookies ----------------------------------------

    async def _crash(self, bookie: SimulatedBookie) -> None:
        bookie.crash()
        await trio.sleep(self._while_s())

    async def _leave(self, bookie: SimulatedBookie) -> None:
        await bookie.leave()
        await trio.sleep(self._while_s())

    async def _stall(self, bookie: SimulatedBookie) -> None:
        process = bookie.process
        self.world.pause(process)
        await trio.sleep(self._while_s(3.0))
        self._network.resume(process)

    async def _hang(self, bookie: SimulatedBookie) -> None:
        duration_s = self._while_s(2.0)
        bookie.disk.stalled_until_s = self.world.now_s + duration_s
        await trio.sleep(duration_s)

    async def _slow(self, bookie: SimulatedBookie) -> None:
        before_s, bookie.disk.commit_s = bookie.disk.commit_s, self.random.choice((0.02, 0.1, 0.4))
        await trio.sleep(self._while_s())
        bookie.disk.commit_s = before_s

    async def _fill(self, bookie: SimulatedBookie) -> None:
        bookie.disk.is_full = True
        bookie.disk.marks_full_rate = self.random.choice((0.0, 0.5, 1.0))
        await trio.sleep(self._while_s(3.0))
        bookie.disk.heal()

    async def _fail_sync(self, bookie: SimulatedBookie) -> None:
        bookie.disk.fails_next_sync = True
        await trio.sleep(self._while_s())
        bookie.disk.heal()

    async def _damage(self, bookie: SimulatedBookie) -> None:
        if self.random.random() < 0.5:
            bookie.disk.uncertain_rate = self.random.choice((0.2, 1.0))
        else:
            bookie.disk.lies_rate = self.random.choice((0.2, 1.0))
        await trio.sleep(self._while_s(2.5))
        bookie.disk.heal()

    # -- network ----------------------------------------

    async def _cut(self) -> None:
        """Between one client and one bookie, in one direction or both."""
        if not self._clients.alive:
            return
        client, bookie = self.random.choice(self._clients.alive), self.random.choice(self._bookies).process
        ways = [[(client, bookie)], [(bookie, client)], [(client, bookie), (bookie, client)]]
        await self._cut_ways(self.random.choice(ways))

    async def _isolate(self) -> None:
        """One client from everybody, in one direction or both."""
        if not self._clients.alive:
            return
        client = self.random.choice(self._clients.alive)
        others = [*(bookie.process for bookie in self._bookies), METASTORE]
        there, back = [(client, each) for each in others], [(each, client) for each in others]
        await self._cut_ways(self.random.choice((there, back, there + back)))

    async def _cut_off(self) -> None:
        """A process from the metastore: a client or a bookie."""
        processes = [*self._clients.alive, *(bookie.process for bookie in self._bookies)]
        process = self.random.choice(processes)
        ways = [[(process, METASTORE)], [(METASTORE, process)], [(process, METASTORE), (METASTORE, process)]]
        await self._cut_ways(self.random.choice(ways))

    async def _cut_ways(self, ways: list[tuple[str, str]]) -> None:
        self.world.count("partition" if len(ways) > 1 else "one-way partition")
        for source, target in ways:
            self._network.cut(source, target)
        await trio.sleep(self._while_s(2.5))
        for source, target in ways:
            self._network.mend(source, target)

    async def _lossy(self) -> None:
        self._network.rates.lost = self.random.choice((0.02, 0.1, 0.4))
        await trio.sleep(self._while_s())
        self._network.rates.lost = 0.0

    async def _delays(self) -> None:
        self._network.rates.slow = self.random.choice((0.05, 0.3))
        self._network.rates.slow_s = self.random.choice((0.05, 0.3, 1.0))
        await trio.sleep(self._while_s(2.0))
        self._network.rates.slow = 0.0

    async def _break_connections(self) -> None:
        await trio.lowlevel.checkpoint()
        connections = self._network.connections()
        for connection in self.random.sample(connections, min(len(connections), self.random.randint(1, 4))):
            self._network.cut_connection(connection)

    # -- clients ----------------------------------------

    async def _deadly(self) -> None:
        """Clients die right after a change to the metadata."""
        self._metastore.on_deadly = self._die
        self._metastore.deadly_rate = self.random.choice((0.05, 0.2, 0.5))
        await trio.sleep(self._while_s(2.0))
        self._metastore.deadly_rate = 0.0

    def _die(self, process: str) -> None:
        if process in self._clients.scopes:
            self.world.count("client died right after a change of the metadata")
            self._clients.kill(process)

    async def _orphan(self) -> None:
        """One bookie misses the last entries of a writer, which dies; another one that has them can't read, the rest is
        slow or down; and the ledger is recovered right then. What is unknown must not count as absent (R4)."""
        writers = [each for each in self._written if each in self._clients.scopes]
        if not writers:
            return
        writer = self.random.choice(writers)
        ledger_id, names = self._written[writer]
        bookies = [each for each in self._bookies if each.process in names and each.name not in self.in_trouble]
        if len(bookies) < 3:
            return
        self.random.shuffle(bookies)
        misses, blind, *slow = bookies
        self.in_trouble.update(dict.fromkeys((each.name for each in bookies), None))
        way = writer, misses.process
        self._network.cut(*way)
        await trio.sleep(0.05 + self.random.random() * 0.35)  # less than an add may take: nobody is replaced
        self._die_orphaning(writer)
        blind.disk.uncertain_rate = self.random.choice((0.5, 1.0))
        if self.random.random() < 0.5:
            for bookie in slow:
                bookie.crash()
        for bookie in slow:
            bookie.disk.stalled_until_s = self.world.now_s + self.random.choice((0.0, 0.1, 0.3))
        with trio.move_on_after(3.0):
            await self.recover(ledger_id)
        for bookie in bookies:
            bookie.disk.heal()
            await bookie.start()
            del self.in_trouble[bookie.name]
        self._network.mend(*way)

    def _die_orphaning(self, writer: str) -> None:
        if writer in self._clients.scopes:
            self.world.count("writer died while a bookie missed its last entries")
            self._clients.kill(writer)

    # -- metastore ----------------------------------------

    async def _unreliable(self) -> None:
        self._metastore.rate = self.random.choice((0.1, 0.3, 0.8))
        self._metastore.session_rate = 0.3
        await trio.sleep(self._while_s())
        self._metastore.rate = self._metastore.session_rate = 0.0

    async def _lose_session(self) -> None:
        processes = [process for process, session in self._metastore.sessions.items() if session]
        living = [process for process in processes if process not in self.world.dead]
        if living:
            await self._metastore.lose_session(self.random.choice(living), self._while_s())
