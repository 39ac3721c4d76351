"""The processes of a run: bookies, which can crash and restart, and clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import trio

from replog.abc import Transport
from replog.api import Client, connect
from replog.bookie.serving import ServedBookie, Way, serving
from replog.config import BackendURL, BookieOptions, ClientOptions, parse_labels
from replog.errors import ReplogError, StorageIdentityError
from replog.hookspecs import Event
from replog.protocol.quorum import Quorum
from replog.registry import Registry
from replog.runtime.entropy import use_entropy
from replog.testing.simulating.disks import SimulatedDisk, SimulatedStorage
from replog.testing.simulating.metastore import MetastoreServer, SimulatedMetastore
from replog.testing.simulating.network import SCHEME, Network, SimulatedTransport
from replog.testing.simulating.world import World


class _ProcessRegistry(Registry):
    """The registry of one process: has its transport, and adds observed events to the trace.

    Plugins are taken from a registry that all processes share, because looking for them takes long."""

    def __init__(self, plugins: Registry, network: Network, process: str) -> None:
        self.__dict__.update(plugins.__dict__)
        self._network = network
        self._process = process

    def open_transport(self, url: str | BackendURL) -> Transport:
        """The transport over the simulated network."""
        return SimulatedTransport(self._network, self._process)

    def observe(self, event: Event) -> None:
        """Add an event to the trace."""
        tell_event(self._network.world, self._process, event)


def tell_event(world: World, process: str, event: Event) -> None:
    """Add an event that was observed in this process to the trace, and count it."""
    fields = attrs.asdict(event, recurse=False)
    world.count(type(event).__name__)
    world.tell(process, f"{type(event).__name__} " + " ".join(f"{name}={fields[name]}" for name in fields))


class BookieHost:
    """One bookie. Its disk outlives its processes."""

    def __init__(self, number: int, network: Network, metastore: MetastoreServer, options: BookieOptions) -> None:
        self.name = f"b{number}"
        self.disk = SimulatedDisk(network.world, self.name, f"bookie-{number:02}")
        self.served: ServedBookie | None = None
        self.process = self.name
        self.is_gone = False  # True: never starts again
        self._incarnation = 0
        self._network = network
        self._world = network.world
        self._metastore = metastore
        metastore.bookies.add(self.name)
        self._options = options
        self._storage: SimulatedStorage | None = None
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    async def start(self) -> None:
        """Start a process if none runs, and try again until it serves."""
        while self.served is None and not self.is_gone:
            try:
                await self._world.nursery.start(self._serve)
            except ReplogError as error:  # it cannot announce itself, or its disk fails
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

        use_entropy(self._world.entropy_of(self.name))
        ended = self._ended = trio.Event()
        try:
            with trio.CancelScope() as self._scope:
                labels = parse_labels(self._options.labels)
                async with serving(storage, metastore, ways, self._options, observe, labels=labels) as self.served:
                    task_status.started()
                    if self.is_gone:  # it burned while it was starting
                        self.crash()
                    await trio.sleep_forever()
        finally:
            ended.set()

    def crash(self) -> None:
        """Kill its process: all state that is not durable is lost."""
        if self.served is None or self._storage is None:
            return
        self.served = None
        # First of all: messages that its tasks send while they are unwound reach no other process.
        self._network.kill(self.process)
        self._storage.crash()
        self._world.spawn(self._metastore.expire, self.process)
        self._scope.cancel()

    def burn(self) -> None:
        """Kill its process, and never start another one."""
        self.is_gone = True
        self.crash()
        self._world.tell(self.process, "is gone for good")
        self._world.count("bookie gone for good")

    async def is_refused(self) -> bool:
        """True if no process can start because the bookie was declared lost (B8a)."""
        try:
            await self._world.nursery.start(self._serve)
        except StorageIdentityError:
            return True
        return False

    async def leave(self) -> None:
        """End its process in order: it makes durable what it has accepted."""
        if self.served is None:
            return
        self._world.tell(self.process, "is left")
        self.served = None
        self._scope.cancel()
        await self._ended.wait()

    @property
    def has_failed(self) -> bool:
        """True if its process runs and does not serve any more."""
        return self.served is not None and self.served.failure is not None


class Clients:
    """Opens clients, each as a process of its own."""

    def __init__(
        self,
        network: Network,
        metastore: MetastoreServer,
        options: ClientOptions,
        quorum: Quorum,
        page_segments: int | None = None,
        placement: str = "random",
    ) -> None:
        self.network = network
        self.quorum = quorum
        self.alive: list[str] = []
        self.scopes: dict[str, trio.CancelScope] = {}  # of the task that runs in each process
        self._metastore = metastore
        self._options = options
        self._page_segments = page_segments  # of logs; None: the usual number
        self._placement = placement
        self._plugins = Registry(load_installed=False)
        self._made = 0

    @asynccontextmanager
    async def client(self, role: str) -> AsyncIterator[tuple[Client, str]]:
        """Open a client, as a context manager; yields it and the name of its process."""
        self._made += 1
        process = f"{role}{self._made}"
        async with self.connected(process) as client:
            yield client, process

    def enter(self, process: str, call: Callable[[Callable[[], None]], None]) -> None:
        """Announce a new process; `call` calls in its context what messages cause in it."""
        self.network.callers[process] = call

    @asynccontextmanager
    async def connected(self, process: str) -> AsyncIterator[Client]:
        """Open the client of a process, as a context manager. No other process may have had this name."""
        registry = _ProcessRegistry(self._plugins, self.network, process)
        metastore = SimulatedMetastore(self._metastore, process)
        world = self.network.world
        self.alive.append(process)
        # For this task and all that it starts: the client's clock and tokens follow from the seed, too.
        use_entropy(world.entropy_of(process))
        try:
            async with connect(
                metastore,
                options=self._options,
                quorum=self.quorum,
                placement=self._placement,
                registry=registry,
            ) as client:
                if self._page_segments is not None:
                    client._opened.logs.page_segments = self._page_segments
                yield client
        finally:
            self._forget(process)
            self.scopes.pop(process, None)
            if process in world.paused:
                self.network.resume(process)
            world.tell(process, "ends")

    def kill(self, process: str) -> None:
        """Kill a process, then cancel its tasks: they run to their ends without effect."""
        self.network.kill(process)
        # After the kill: cleanups that run now reach no other process.
        self.scopes.pop(process, trio.CancelScope()).cancel()
        self.network.world.spawn(self._metastore.expire, process)

    def die(self, process: str) -> None:
        """Kill a process whose tasks are frozen."""
        self._forget(process)
        self.kill(process)

    def _forget(self, process: str) -> None:
        if process in self.alive:
            self.alive.remove(process)
