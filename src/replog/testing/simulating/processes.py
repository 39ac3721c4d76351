"""The processes of a run: bookies, which crash and come back, and clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import trio

from replog.abc import Transport
from replog.api import Client, connect
from replog.bookie.serving import ServedBookie, Way, serving
from replog.config import BackendURL, BookieOptions, ClientOptions
from replog.errors import ReplogError, StorageIdentityError
from replog.hookspecs import Event
from replog.protocol.quorum import Quorum
from replog.registry import Registry
from replog.runtime.chance import use_chance
from replog.testing.simulating.disks import SimulatedDisk, SimulatedStorage
from replog.testing.simulating.metastore import MetastoreServer, SimulatedMetastore
from replog.testing.simulating.network import SCHEME, Network, SimulatedTransport
from replog.testing.simulating.world import World


class _ProcessRegistry(Registry):
    """The registry of one process: with its transport, and an observer that tells the trace.

    It takes what the plugins offer from another one: to look for them takes a large part of such a process's life."""

    def __init__(self, plugins: Registry, network: Network, process: str) -> None:
        self.__dict__.update(plugins.__dict__)
        self._network = network
        self._process = process

    def open_transport(self, url: str | BackendURL) -> Transport:
        """The way over the simulated network."""
        return SimulatedTransport(self._network, self._process)

    def observe(self, event: Event) -> None:
        """Tells the trace."""
        tell_event(self._network.world, self._process, event)


def tell_event(world: World, process: str, event: Event) -> None:
    """An observer in this process was told this."""
    fields = attrs.asdict(event, recurse=False)
    world.count(type(event).__name__)
    world.tell(process, f"{type(event).__name__} " + " ".join(f"{name}={fields[name]}" for name in fields))


class BookieHost:
    """One bookie: its disk survives its processes."""

    def __init__(self, number: int, network: Network, metastore: MetastoreServer, options: BookieOptions) -> None:
        self.name = f"b{number}"
        self.disk = SimulatedDisk(network.world, self.name, f"bookie-{number:02}")
        self.served: ServedBookie | None = None
        self.process = self.name
        self.is_gone = False  # for good
        self._incarnation = 0
        self._network = network
        self._world = network.world
        self._metastore = metastore
        self._options = options
        self._storage: SimulatedStorage | None = None
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    async def start(self) -> None:
        """Starts a process for it, if none runs, and tries until it serves."""
        while self.served is None and not self.is_gone:
            try:
                await self._world.nursery.start(self._serve)
            except ReplogError as error:  # it can't announce itself, or the disk fails
                self._world.tell(self.process, f"does not start: {error}")
                await trio.sleep(0.1)

    async def _serve(self, task_status: trio.TaskStatus[None]) -> None:
        self._incarnation += 1
        process = self.process = f"{self.name}.{self._incarnation}"
        storage = self._storage = SimulatedStorage(self.disk)
        metastore = SimulatedMetastore(self._metastore, process)
        ways = [Way(SCHEME, SimulatedTransport(self._network, process), storage.bookie_id)]

        def observe(event: Event) -> None:
            tell_event(self._world, process, event)

        ended = self._ended = trio.Event()
        try:
            with trio.CancelScope() as self._scope:
                async with serving(storage, metastore, ways, self._options, observe) as self.served:
                    task_status.started()
                    await trio.sleep_forever()
        finally:
            ended.set()

    def crash(self) -> None:
        """Its process ends at once: what is not durable is lost."""
        if self.served is None or self._storage is None:
            return
        self.served = None
        self._network.kill(self.process)
        self._storage.crash()
        self._world.spawn(self._metastore.expire, self.process)
        self._scope.cancel()

    def burn(self) -> None:
        """Its machine burns: it never comes back."""
        self.is_gone = True
        self.crash()
        self._world.tell(self.process, "is gone for good")
        self._world.count("bookie gone for good")

    async def is_refused(self) -> bool:
        """Whether a process for it does not start, for it was declared lost (B8a)."""
        try:
            await self._world.nursery.start(self._serve)
        except StorageIdentityError:
            return True
        return False

    async def leave(self) -> None:
        """Its process ends in order: what was accepted is made durable."""
        if self.served is None:
            return
        self._world.tell(self.process, "is left")
        self.served = None
        self._scope.cancel()
        await self._ended.wait()

    @property
    def has_failed(self) -> bool:
        """Whether it serves no more, though its process lives."""
        return self.served is not None and self.served.server.failure is not None


class Clients:
    """Makes clients, each a process of its own."""

    def __init__(
        self,
        network: Network,
        metastore: MetastoreServer,
        options: ClientOptions,
        quorum: Quorum,
        page_segments: int | None = None,
    ) -> None:
        self.network = network
        self.quorum = quorum
        self.alive: list[str] = []
        self.scopes: dict[str, trio.CancelScope] = {}  # of who runs in a process
        self._metastore = metastore
        self._options = options
        self._page_segments = page_segments  # of logs, if other than usual
        self._plugins = Registry(load_installed=False)
        self._made = 0

    @asynccontextmanager
    async def client(self, role: str) -> AsyncIterator[tuple[Client, str]]:
        """A client, and the name of its process."""
        self._made += 1
        process = f"{role}{self._made}"
        async with self.connected(process) as client:
            yield client, process

    def enter(self, process: str, call: Callable[[Callable[[], None]], None]) -> None:
        """A process of this name begins; `call` calls what messages cause in it."""
        self.network.callers[process] = call

    @asynccontextmanager
    async def connected(self, process: str) -> AsyncIterator[Client]:
        """The client of a process whose name nobody else has."""
        registry = _ProcessRegistry(self._plugins, self.network, process)
        metastore = SimulatedMetastore(self._metastore, process)
        world = self.network.world
        self.alive.append(process)
        use_chance(world.chance_of(process))
        try:
            async with connect(metastore, options=self._options, quorum=self.quorum, registry=registry) as client:
                if self._page_segments is not None:
                    client._logs.page_segments = self._page_segments
                yield client
        finally:
            self._forget(process)
            self.scopes.pop(process, None)
            if process in world.paused:
                self.network.resume(process)
            world.tell(process, "ends")

    def kill(self, process: str) -> None:
        """The process ends at once, and who runs in it is cancelled after that."""
        self.network.kill(process)
        self.scopes.pop(process, trio.CancelScope()).cancel()
        self.network.world.spawn(self._metastore.expire, process)

    def die(self, process: str) -> None:
        """The process ends at once; none of its tasks runs any more."""
        self._forget(process)
        self.kill(process)

    def _forget(self, process: str) -> None:
        if process in self.alive:
            self.alive.remove(process)
