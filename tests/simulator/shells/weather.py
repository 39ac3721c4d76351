"""The disturbances of a run: troubles of bookies, of the network, of the metastore, drawn from the seed.

All troubles pass. How often which of them comes, a run's strategy says; how many bookies are in trouble at a time, too.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio

from replog.errors import MetastoreDoubtedError
from replog.protocol.messages import AddRequest, Request
from replog.testing.simulating.metastore import MetastoreServer
from replog.testing.simulating.network import METASTORE, Network
from replog.testing.simulating.processes import BookieHost, Clients
from replog.testing.simulating.troubles import BookieTroubles, MetastoreTroubles, NetworkTroubles, drawn_s
from tests.simulator.shells.keeping import CLOCKS
from tests.simulator.shells.losses import Losses
from tests.simulator.shells.repairs import REPAIRS
from tests.simulator.shells.repeats import REPEATS
from tests.simulator.shells.requests import REQUESTS
from tests.simulator.shells.terms import TERMS

BOOKIE_TROUBLES = ("crash", "leave", "stall", "hang", "slow", "fill", "fail_sync", "damage")
NETWORK_TROUBLES = ("cut", "isolate", "cut_off", "lossy", "delays", "break_connections")
CLIENT_TROUBLES = ("deadly", "orphan", "unanswered")
LOSSES = ("forget", "shorten", "refence", "bury", "burn")
METASTORE_TROUBLES = ("unreliable", "lose_session", "go_back")

_WILD = (
    "cut",
    "isolate",
    "lossy",
    "delays",
    "break_connections",
    "unreliable",
    "lose_session",
    "cut_off",
    "deadly",
    "orphan",
)

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
    "forgetful": ({"forget": 2, "shorten": 4, "refence": 4, "bury": 3, "slow": 1, "crash": 1, "cut": 1}, 0.4),
    "burning": ({"burn": 2, "crash": 3, "slow": 1, "cut": 1}, 0.5),
    "wild": (dict.fromkeys((*BOOKIE_TROUBLES, *_WILD), 1), 0.5),
}

# Not drawn, only asked for. Under `full` all ledgers have a guaranteed write quorum (W8).
FULL = "full"
UNANSWERED = "unanswered"
WENT_BACK = "went-back"
ALL_STRATEGIES = {
    **STRATEGIES,
    FULL: ({"crash": 4, "leave": 1, "slow": 2, "cut": 1, "deadly": 3, "break_connections": 1, "unreliable": 1}, 0.5),
    REPAIRS: (
        {"burn": 1, "forget": 2, "crash": 4, "leave": 1, "slow": 1, "cut": 2, "deadly": 2, "lossy": 1, "damage": 2},
        0.4,
    ),
    WENT_BACK: ({"go_back": 4, "crash": 3, "leave": 1, "slow": 1, "deadly": 1, "cut": 1}, 0.6),
    REPEATS: ({"crash": 2, "slow": 1, "cut": 2, "isolate": 1, "deadly": 3, "unreliable": 4, "orphan": 1}, 0.5),
    UNANSWERED: ({"unanswered": 5, "crash": 1, "slow": 1, "break_connections": 1}, 0.4),
    REQUESTS: ({"slow": 1, "delays": 1, "lose_session": 1, "unreliable": 1, "deadly": 1}, 1.0),
    CLOCKS: ({"crash": 2, "slow": 1, "cut": 1, "deadly": 2, "unreliable": 1, "stall": 1}, 0.6),
    TERMS: ({"crash": 2, "slow": 1, "cut": 2, "deadly": 3, "lossy": 1, "unreliable": 2, "orphan": 1}, 0.6),
}
BURNING = ("burning", REPAIRS)  # a bookie is lost for good


def drawn_strategy(seed: int) -> str:
    """The strategy of a seed: of as many seeds in a row as there are strategies, each has another one."""
    names = list(STRATEGIES)
    block, place = divmod(seed, len(names))
    random.Random(f"strategies {block}").shuffle(names)
    return names[place]


def loses_disks(strategy: str) -> bool:
    """Whether a bookie loses what it acknowledged under this strategy: then all quorums must survive that."""
    return any(name in LOSSES for name in ALL_STRATEGIES[strategy][0])


async def _nobody(_ledger_id: int) -> None:
    """Recovers nothing."""


class Weather:
    """The troubles of one run."""

    def __init__(
        self,
        network: Network,
        metastore: MetastoreServer,
        bookies: list[BookieHost],
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
        self._of_bookies = BookieTroubles(network, bookies, self.random, self.random.choice((1, 1, 2, 3)))
        self._of_network = NetworkTroubles(network, bookies, lambda: clients.alive, self.random)
        self._of_metastore = MetastoreTroubles(metastore, self.random)

    async def run(self, for_s: float) -> None:
        """Bad weather for so long; returns when all troubles have passed."""
        weights, pause_s = ALL_STRATEGIES[self.strategy]
        self.world.tell("weather", f"{self.strategy}, at most {self._of_bookies.at_once_max} bookies in trouble")
        end_s = self.world.now_s + for_s
        async with trio.open_nursery() as nursery:
            while self.world.now_s < end_s:
                await trio.sleep(self.random.random() * pause_s)
                name = self.random.choices(list(weights), list(weights.values()))[0]
                if name in BOOKIE_TROUBLES:
                    nursery.start_soon(self._of_bookies.strike, name)
                else:
                    nursery.start_soon(getattr(self._owner_of(name), name))

        if self.strategy == WENT_BACK:
            await self._confirm_metastore()

    async def _confirm_metastore(self) -> None:
        """The operator confirms the right metastore to bookies that raised their counters in an older one (B6a)."""
        for bookie in self._bookies:
            await bookie.start()
            assert bookie.served is not None, "nothing troubles it any more"
            try:
                await bookie.served._server.guard.check()
            except MetastoreDoubtedError:
                self.world.count("bookie doubts the right metastore")
                await bookie.served.confirm_metastore()

    def _owner_of(self, name: str) -> object:
        """The object whose method this trouble is."""
        if name in LOSSES:
            assert self.losses is not None
            return self.losses
        if name in METASTORE_TROUBLES:
            return self._of_metastore
        return self._of_network if name in NETWORK_TROUBLES else self

    @property
    def in_trouble(self) -> dict[str, None]:
        """The names of bookies in trouble, to be added to by whoever troubles one."""
        return self._of_bookies.in_trouble

    def sent(self, client: str, process: str, request: Request) -> None:
        """A client sends this to a bookie: so it is known who writes what where."""
        if isinstance(request, AddRequest) and not request.recovery:
            ledger_id, bookies = self._written.get(client, (request.ledger_id, {}))
            if ledger_id != request.ledger_id:
                bookies = {}
            bookies[process] = None
            self._written[client] = request.ledger_id, bookies

    # -- clients ----------------------------------------

    async def deadly(self) -> None:
        """Clients die right after a change to the metadata."""
        self._metastore.on_deadly = self._die
        self._metastore.deadly_rate = self.random.choice((0.05, 0.2, 0.5))
        await trio.sleep(drawn_s(self.random, 2.0))
        self._metastore.deadly_rate = 0.0

    def deafen(self, process: str) -> None:
        """One process hears the metastore's answers late: what it has changed is true before it knows (L10). A caller
        that waits for something meanwhile may lose its session."""
        self.world.spawn(self._deafen, process)

    async def _deafen(self, process: str) -> None:
        way = METASTORE, process
        self._network.cut(*way)
        lasts_s, self._metastore.session_rate = self.random.choice(((0.0, 0.0), (0.1, 0.0), (0.4, 0.0), (1.0, 1.0)))
        await trio.sleep(lasts_s)
        self._metastore.session_rate = 0.0
        self._network.mend(*way)

    def _die(self, process: str) -> None:
        if process in self._clients.scopes:
            self.world.count("client died right after a change of the metadata")
            self._clients.kill(process)

    async def unanswered(self) -> None:
        """A bookie of a writer is late, so that the ensemble changes; the metastore does it, and the writer hears nothing of that
        for a while. Then the bookie answers, and another one is late: what is confirmed by which record (C9)?"""
        writers = [each for each in self._written if each in self._clients.scopes]
        if not writers or self._metastore.deadly_rate:
            return
        writer = self.random.choice(writers)
        _, names = self._written[writer]
        bookies = [each for each in self._bookies if each.process in names and each.name not in self.in_trouble]
        if len(bookies) < 3:
            return
        replaced, late = self.random.sample(bookies, 2)
        self.in_trouble.update(dict.fromkeys((replaced.name, late.name), None))
        way = METASTORE, writer
        changed = trio.Event()

        def hears_nothing(process: str) -> None:
            if process == writer and not changed.is_set():
                self._network.cut(*way)
                changed.set()

        self._metastore.on_deadly, self._metastore.deadly_rate = hears_nothing, 1.0
        replaced.disk.stalled_until_s = self.world.now_s + 0.55 + self.random.random() * 0.2
        with trio.move_on_after(1.0):
            await changed.wait()
        self._metastore.deadly_rate = 0.0
        if changed.is_set():
            self.world.count("a writer did not hear of its change of the ensemble")
            late.disk.stalled_until_s = self.world.now_s + self.random.choice((0.0, 0.2, 0.4))
            await trio.sleep(self.random.choice((0.2, 0.5, 1.0, 3.0)))
            if self.random.random() < 0.2 and writer in self._clients.scopes:
                self._clients.kill(writer)
            self._network.mend(*way)
        for bookie in (replaced, late):
            bookie.disk.heal()
            del self.in_trouble[bookie.name]

    async def orphan(self) -> None:
        """One bookie misses the last entries of a writer, which dies; another one that has them can't read, the rest is
        slow or down; and the ledger is recovered right then. Unknown entries must not count as absent (R4)."""
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
        blind.disk.reads.uncertain_rate = self.random.choice((0.5, 1.0))
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
