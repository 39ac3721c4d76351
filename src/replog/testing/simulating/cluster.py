"""The world of a simulated app: its own processes, the bookies, clients, and the end of all faults."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from replog.api import Client
from replog.testing.simulating.disks import COMMIT_S
from replog.testing.simulating.faults import FaultDriver
from replog.testing.simulating.network import Network
from replog.testing.simulating.processes import BookieHost, Clients
from replog.testing.simulating.programs import Main, Programs
from replog.testing.simulating.troubles import BookieTroubles


class SimulatedBookie:
    """One bookie of a simulation. Its disk outlives its process.

    While the app has crashed or paused a bookie or filled its disk, faults leave that bookie alone."""

    def __init__(self, host: BookieHost, network: Network, troubles: BookieTroubles) -> None:
        self._host = host
        self._network = network
        self._troubles = troubles

    @property
    def bookie_id(self) -> str:
        """As it announces itself."""
        return self._host.disk.content.bookie_id

    @property
    def is_serving(self) -> bool:
        """True while its process runs and has announced itself; also while it is paused."""
        return self._host.served is not None

    def crash(self) -> None:
        """Kill its process. Everything that it acknowledged stays on its disk."""
        self._hold()
        self._host.crash()

    async def restart(self) -> None:
        """Kill its process if it runs, start another one, and wait until this one serves."""
        self._hold()
        self._host.crash()
        await self._host.start()
        self._let_go()

    def pause(self) -> None:
        """Stop it: nothing reaches it, and it sends nothing, until `resume`."""
        self._hold()
        self._network.world.pause(self._host.process)

    def resume(self) -> None:
        """Let it go on; it receives everything that was sent meanwhile."""
        self._network.resume(self._host.process)
        self._let_go()

    def fill_disk(self) -> None:
        """Its disk has no space for entries until `empty_disk`."""
        self._hold()
        self._host.disk.is_full = True

    def set_clock(self, ahead_s: float) -> None:
        """Set its wall clock: so much ahead of the time, or behind it if negative, also after a restart. At first it is right
        to a second. Its monotonic clock goes on."""
        self._network.world.set_clock(self._host.name, ahead_s)

    def empty_disk(self) -> None:
        """Its disk has space again. The bookie notices this a few seconds later."""
        self._host.disk.heal()
        self._let_go()

    async def repair(self) -> None:
        """End all its faults, and wait until it serves."""
        self._host.disk.heal()
        # `heal` leaves slowness alone: a slow disk is a trouble of its own, with its own end.
        self._host.disk.commit_s = COMMIT_S
        self._network.resume(self._host.process)
        if self._host.has_failed:
            self._host.crash()
        await self._host.start()
        self._let_go()

    def _hold(self) -> None:
        self._troubles.held[self._host.name] = None

    def _let_go(self) -> None:
        self._troubles.held.pop(self._host.name, None)


class SimulatedCluster:
    """The cluster that `simulate` gives to an app. Only the app's own function uses it; processes get a client.

    `random` is for choices of the app: it follows from the seed. `happened` counts how often each fault struck, by its
    name in `Faults`, and how often each event of `replog.hookspecs` was observed, by the name of its class."""

    def __init__(
        self,
        network: Network,
        hosts: list[BookieHost],
        clients: Clients,
        programs: Programs,
        troubles: BookieTroubles,
        faults: FaultDriver,
    ) -> None:
        self.random: random.Random = network.world.stream("app")
        self.happened: Counter[str] = network.world.coverage
        self.bookies = tuple(SimulatedBookie(each, network, troubles) for each in hosts)
        self._world = network.world
        self._programs = programs
        self._clients = clients
        self._clients_made = 0
        self._faults = faults

    # -- the app's processes ------------------------------------------------------------------------------------------

    def start(self, name: str, main: Main) -> None:
        """Start a process that runs `main(client)`, with a client of its own.

        An error of `main` ends the simulation, and `simulate` raises it. A process that is killed raises nothing.
        Raises `LocalProtocolError` if a process of this name runs already."""
        self._programs.start(name, main)

    def crash(self, name: str) -> None:
        """Kill a process, as SIGKILL does: none of its tasks takes another step, and no `finally` clause runs.

        Messages that it had sent may still arrive. Its session in the metastore ends about a second later. Its tasks
        are unwound when the simulation has ended, and reach nothing then. A process that does not run stays as it is."""
        self._programs[name].crash()

    def pause(self, name: str) -> None:
        """Stop a process, as SIGSTOP does: none of its tasks takes a step until `resume`, and its timeouts pass unnoticed.

        Its session in the metastore ends if this takes longer than a lease, which is a second."""
        self._programs[name].pause()

    def resume(self, name: str) -> None:
        """Let a paused process go on. It may have been deposed meanwhile."""
        self._programs[name].resume()

    def restart(self, name: str) -> None:
        """Kill a process if it runs, and run its `main` again from the beginning, with a new client."""
        self._programs[name].restart()

    def set_clock(self, name: str, ahead_s: float) -> None:
        """Set the wall clock of a process: so much ahead of the time, or behind it if negative, also after a restart. At first
        it is right to a second. Its monotonic clock goes on: no timeout passes earlier or later."""
        self._world.set_clock(name, ahead_s)

    def is_running(self, name: str) -> bool:
        """Return False if `main` has returned or the process was killed. A paused process is running."""
        return self._programs[name].is_running

    async def wait(self, name: str) -> Any:
        """Wait until `main` of this process has returned, through crashes and restarts, and return its result."""
        return await self._programs[name].wait()

    # -- the app itself -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A client for the app's own function, as a context manager. It never crashes, but faults of the network hit it."""
        self._clients_made += 1
        async with self._clients.connected(f"app.{self._clients_made}") as client:
            yield client

    def note(self, text: str) -> None:
        """Add a line of the app's own to the trace."""
        self._world.tell("app", text)

    async def calm(self) -> None:
        """End all faults permanently, and wait until every bookie serves again.

        Processes that faults have killed or paused are restarted or resumed; those that the app itself has killed or paused
        stay as they are. Clients may still avoid a bookie that failed, for up to a minute."""
        await self._faults.end()
        for bookie in self.bookies:
            await bookie.repair()
        self._world.tell("faults", "have ended")
