"""`simulate`: one run of an app on virtual time, from its seed to its result or to the error that it ends with."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import outcome
import trio

import replog
from replog.config import BookieOptions, ClientOptions, check_number, check_types
from replog.errors import ConfigError, ReplogError
from replog.protocol.quorum import Quorum
from replog.runtime.threads import use_threads
from replog.testing.simulating.cluster import SimulatedCluster
from replog.testing.simulating.faults import FaultDriver, Faults
from replog.testing.simulating.freezing import Freezer, subtasks
from replog.testing.simulating.lockstep import lockstep
from replog.testing.simulating.metastore import MetastoreServer
from replog.testing.simulating.network import Network
from replog.testing.simulating.processes import BookieHost, Clients
from replog.testing.simulating.programs import Programs
from replog.testing.simulating.scheduling import Livelock, run
from replog.testing.simulating.troubles import BookieTroubles, MetastoreTroubles, NetworkTroubles
from replog.testing.simulating.world import World

Result = TypeVar("Result")
App = Callable[[SimulatedCluster], Awaitable[Result]]

_STEPS_NOW_MAX = 200_000  # of tasks, while no virtual time passes
_UNWINDING_S = 10.0  # how long cleanups may take before their shields are removed
_UNWINDINGS_MAX = 100


def _directories(*modules: ModuleType) -> tuple[str, ...]:
    return tuple(f"{Path(str(each.__file__)).parent}{os.sep}" for each in modules)


_OF_REPLOG_AND_TRIO = _directories(replog, trio)
_OF_HELPERS = (*_directories(outcome), str(contextlib.__file__))


class SimulationTimeoutError(ReplogError):
    """A simulated app did not end in its virtual time, or its tasks went on while no time passed.

    Retry: no, the same seed gives the same result. `waiting` has one line for each task of the app: where it waits."""

    def __init__(self, message: str, waiting: list[str]) -> None:
        super().__init__("\n".join([message, *(f"  {each}" for each in waiting)]))
        self.waiting = waiting


class _Simulation:
    """One run."""

    def __init__(self, app: App[Any], seed: int, faults: Faults, within_s: float, trace: list[str] | None) -> None:
        self.ended: outcome.Outcome[Any] | None = None
        self.error: BaseException | None = None  # of a process, or of the deadline
        self.where = "in the app"
        self.now_s = 0.0
        self._app = app
        self._seed = seed
        self._faults = faults
        self._within_s = within_s
        self._trace = trace
        self._scope = trio.CancelScope()  # of the app
        self._root: trio.lowlevel.Task | None = None

    async def main(self, bookies: int, quorum: Quorum, options: ClientOptions) -> None:
        """The whole run."""
        livelock = Livelock(self._scope, _STEPS_NOW_MAX, self._found_livelock)
        trio.lowlevel.add_instrument(livelock)
        trio.lowlevel.add_instrument(Freezer())
        async with lockstep() as threads:
            use_threads(threads)
            async with trio.open_nursery() as nursery:
                world = World(self._seed, nursery, threads, self._trace)
                nursery.start_soon(world.run)
                await self._simulate(world, bookies, quorum, options)
                nursery.cancel_scope.cancel()

    async def _simulate(self, world: World, bookies: int, quorum: Quorum, options: ClientOptions) -> None:
        network = Network(world)
        metastore = MetastoreServer(network)
        bookie_options = BookieOptions(storage="memory")
        hosts = [BookieHost(number, network, metastore, bookie_options) for number in range(bookies)]
        clients = Clients(network, metastore, options, quorum)
        chance = world.stream("troubles")
        troubles = BookieTroubles(network, hosts, chance, self._faults.bookies_at_once_max)
        for host in hosts:
            await host.start()
        async with trio.open_nursery() as nursery:
            programs = Programs(clients, metastore, nursery)
            programs.on_failure = self._scope.cancel
            driver = FaultDriver(
                world,
                self._faults,
                troubles,
                NetworkTroubles(network, hosts, lambda: clients.alive, chance),
                MetastoreTroubles(metastore, chance),
                programs,
            )
            cluster = SimulatedCluster(network, hosts, clients, programs, troubles, driver)
            world.spawn(driver.run)
            world.spawn(self._watch_deadline, programs)
            async with trio.open_nursery() as app_nursery:
                app_nursery.start_soon(self._run_app, world, cluster)
            if programs.failure is not None:
                self.error, self.where = programs.failure, f"in process {programs.failed_process}"
            # A cleanup that waits for a bookie under a shield would never end: everybody is dead now.
            world.spawn(_unshield_late, programs)
            programs.end()
        for host in hosts:
            host.crash()

    async def _run_app(self, world: World, cluster: SimulatedCluster) -> None:
        self._root = trio.lowlevel.current_task()
        with self._scope:
            self.ended = await outcome.acapture(self._app, cluster)
        self.now_s = world.now_s

    def _found_livelock(self, task: trio.lowlevel.Task) -> None:
        if self.error is None:
            now_s = trio.current_time()
            message = f"tasks go on, and virtual time stands still at {now_s:.3f} s. The task that ran last:"
            self.error = SimulationTimeoutError(message, [_place(task)])

    async def _watch_deadline(self, programs: Programs) -> None:
        await trio.sleep(self._within_s)
        if self.ended is None and programs.failure is None:
            tasks = {"app": self._root, **programs.roots()}
            waiting = [
                f"{name}: {_place(task)}" for name, root in tasks.items() for task in subtasks(root) if _place(task)
            ]
            self.error = SimulationTimeoutError(
                f"the app did not end within {self._within_s:g} s of virtual time. Where its tasks wait:", waiting
            )
            self._scope.cancel()


async def _unshield_late(programs: Programs) -> None:
    # Again and again: what a cleanup awaits next may have a shield of its own.
    for _ in range(_UNWINDINGS_MAX):
        await trio.sleep(_UNWINDING_S)
        programs.unshield()


def _place(task: trio.lowlevel.Task) -> str:
    """Where a task waits: the lines of the app's own code, and what the innermost of them called. Empty if there are none."""
    found: list[str] = []
    called = ""
    for frame, line in task.iter_await_frames():
        path, name = frame.f_code.co_filename, frame.f_code.co_qualname
        if not path.startswith((*_OF_REPLOG_AND_TRIO, *_OF_HELPERS)):
            found.append(f"{name} ({Path(path).name}:{line})")
            called = ""
        elif not called and not path.startswith(_OF_HELPERS):
            called = name
    return f"{' > '.join(found)}, in {called}" if found else ""


def simulate(
    app: App[Result],
    *,
    seed: int,
    faults: Faults | None = None,
    bookies: int = 5,
    within_s: float = 600.0,
    quorum: Quorum | None = None,
    options: ClientOptions | None = None,
    trace: list[str] | None = None,
) -> Result:
    """Run `await app(cluster)` on virtual time among faults that follow from the seed, and return its result.

    `faults` are those of `Faults()` unless given. `quorum` and `options` are those of all clients; the quorum is by default
    three bookies of which two acknowledge, or all bookies if they are fewer. `trace` is a list to which each thing that
    happens adds one line; two runs of a seed add the same lines.

    Raises what the app or one of its processes raises, with a note that names the seed; `SimulationTimeoutError` if the app
    does not end within `within_s` seconds of virtual time; `ConfigError` for impossible arguments. Must not be called inside
    of a trio run."""
    check_types("simulate", faults=(faults, Faults), quorum=(quorum, Quorum), options=(options, ClientOptions))
    check_number("seed", seed)
    check_number("bookies", bookies, 1)
    if not within_s > 0:
        raise ConfigError(f"within_s={within_s!r}: must be more than 0")
    wanted = quorum or Quorum(min(bookies, 3), min(bookies, 3), min(bookies, 2))
    one = _Simulation(app, seed, Faults() if faults is None else faults, within_s, trace)

    async def main() -> None:
        await one.main(bookies, wanted, options or ClientOptions())

    try:
        run(seed, main)
    except BaseException as error:
        # Also for errors of the simulation itself: without the seed they could not be repeated.
        error.add_note(f"simulate(..., seed={seed})")
        raise
    assert one.ended is not None
    ended = one.ended if one.error is None else outcome.Error(one.error)
    if isinstance(ended, outcome.Error):
        ended.error.add_note(f"simulate(..., seed={seed}): {one.where}, after {one.now_s:.3f} s of virtual time")
    result: Result = ended.unwrap()
    return result
