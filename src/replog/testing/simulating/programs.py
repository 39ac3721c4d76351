"""The processes of a simulated app: each runs the app's own code on a client of its own, and may crash or be paused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import outcome
import trio

from replog.api import Client
from replog.errors import LocalProtocolError
from replog.testing.simulating.freezing import Tasks
from replog.testing.simulating.metastore import LEASE_S, MetastoreServer
from replog.testing.simulating.processes import Clients

Main = Callable[[Client], Awaitable[Any]]


class Program:
    """One process of the app, through all its restarts. `incarnation` counts them, from 1."""

    def __init__(self, name: str, main: Main, owner: Programs) -> None:
        self.name = name
        self.incarnation = 0
        self.result: Any = None
        self._ended = trio.Event()
        self._main = main
        self._owner = owner
        self._tasks = Tasks()
        self._is_dead = False
        self._has_lost_session = False

    @property
    def process(self) -> str:
        """The name of the process that runs now, or ran last, as it appears in the trace."""
        return f"{self.name}.{self.incarnation}"

    @property
    def root(self) -> trio.lowlevel.Task | None:
        """Its first task."""
        return self._tasks.root

    @property
    def is_running(self) -> bool:
        """True until `main` has returned or the process was killed; also while it is paused."""
        return not self._is_dead and not self._ended.is_set()

    @property
    def is_crashed(self) -> bool:
        """True from the crash until the restart."""
        return self._is_dead

    @property
    def is_paused(self) -> bool:
        """True while it is stopped."""
        return self.is_running and self._tasks.is_frozen

    def start(self) -> None:
        """Start a process that runs `main` with a new client."""
        self.incarnation += 1
        self._is_dead = self._has_lost_session = False
        if self._ended.is_set():
            self._ended = trio.Event()
        self._tasks = self._owner.new_tasks()
        self._owner.clients.enter(self.process, self._tasks.call)
        self._tasks.start(self._owner.nursery, self._run, self.incarnation)

    async def wait(self) -> Any:
        """Wait until `main` has returned, through crashes and restarts, and return its result."""
        await self._ended.wait()
        return self.result

    async def _run(self, incarnation: int) -> None:
        ended = await outcome.acapture(self._run_main, self.process)
        if incarnation != self.incarnation or self._is_dead or self._owner.is_over:
            return  # messages after its death are dropped
        if isinstance(ended, outcome.Error):
            self._owner.fail(self.process, ended.error)
            return
        self.result = ended.value
        self._ended.set()

    async def _run_main(self, process: str) -> Any:
        async with self._owner.clients.connected(process) as client:
            return await self._main(client)

    def crash(self) -> None:
        """Kill the process: none of its tasks takes another step, and what it had sent may still arrive."""
        if not self.is_running:
            return
        self._is_dead = True
        self._tasks.freeze()
        self._owner.clients.die(self.process)

    def restart(self) -> None:
        """Kill the process if it runs, and start another one with the same `main`."""
        self.crash()
        self.start()

    def pause(self) -> None:
        """Stop the process. Its session in the metastore ends if this takes longer than a lease."""
        if self.is_running and not self._tasks.is_frozen:
            self._tasks.freeze()
            self._owner.clients.network.world.pause(self.process)
            self._owner.clients.network.world.spawn(self._lose_session, self._tasks)

    async def _lose_session(self, tasks: Tasks) -> None:
        await trio.sleep(LEASE_S)
        # It may have gone on, or been restarted, within the lease.
        if tasks is self._tasks and self.is_paused and not self._has_lost_session:
            self._has_lost_session = True
            await self._owner.metastore.withdraw(self.process)

    def resume(self) -> None:
        """Let a paused process go on from where it was stopped."""
        if self.is_paused:
            self._tasks.thaw()
            self._owner.clients.network.resume(self.process)
            if self._has_lost_session:
                self._has_lost_session = False
                self._owner.clients.network.world.spawn(self._owner.metastore.restore, self.process)


class Programs:
    """All processes of the app, by their names."""

    def __init__(self, clients: Clients, metastore: MetastoreServer, nursery: trio.Nursery) -> None:
        self.clients = clients
        self.metastore = metastore
        self.nursery = nursery
        self.is_over = False  # true once the app has ended
        self.failure: BaseException | None = None
        self.failed_process = ""
        self.on_failure: Callable[[], None] = lambda: None
        self._programs: dict[str, Program] = {}
        self._all_tasks: list[Tasks] = []

    def __getitem__(self, name: str) -> Program:
        if name not in self._programs:
            raise LocalProtocolError(f"no process {name!r} was started; known: {', '.join(self._programs) or 'none'}")
        return self._programs[name]

    def start(self, name: str, main: Main) -> None:
        """Start a process of this name, which must not run."""
        found = self._programs.get(name)
        if found is not None and found.is_running:
            raise LocalProtocolError(f"process {name!r} runs already: crash it, or wait until it has ended")
        program = Program(name, main, self)
        if found is not None:
            # Counted on: no two processes of a run may have the same name in the trace and in the metastore.
            program.incarnation = found.incarnation
        self._programs[name] = program
        program.start()

    def running(self) -> list[str]:
        """The names of all processes that run and are not paused, in the order in which they were started first."""
        return [name for name, each in self._programs.items() if each.is_running and not each.is_paused]

    def roots(self) -> dict[str, trio.lowlevel.Task | None]:
        """The first task of each process that runs."""
        return {each.process: each.root for each in self._programs.values() if each.is_running}

    def new_tasks(self) -> Tasks:
        """The tasks of a process that is about to start."""
        self._all_tasks.append(Tasks())
        return self._all_tasks[-1]

    def fail(self, process: str, error: BaseException) -> None:
        """The code of a process raised this: the simulation ends with it."""
        if self.failure is None:
            self.failure, self.failed_process = error, process
            self.on_failure()

    def end(self) -> None:
        """Kill all processes, and let their tasks go on to their ends: nothing that they do has any effect."""
        self.is_over = True
        for program in self._programs.values():
            program.crash()
        for tasks in self._all_tasks:
            # They are only unwound: their processes are dead, so nothing that they do is heard.
            tasks.thaw()
        self.nursery.cancel_scope.cancel()

    def unshield(self) -> None:
        """Remove the shields of cleanups that have not ended."""
        for tasks in self._all_tasks:
            tasks.unshield()
