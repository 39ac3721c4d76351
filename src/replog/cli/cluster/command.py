"""`replog cluster`: its flags, where its data is, and how it ends."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import attrs
import trio
import typer

import replog
from replog.cli.cluster.bookie_processes import Members, Plan
from replog.cli.cluster.peers import ClusterFailedError, peers_of
from replog.cli.cluster.views import JSONView, LineView, LiveView, Load, View
from replog.cli.ending import InterruptedBySignal
from replog.cli.output import AsJSON, OutputClosed, console
from replog.client.administration import BookieStatistics, RemoteBookie
from replog.config import BackendURL
from replog.config.client import ClientTuning
from replog.errors import ConfigError, ReplogError
from replog.runtime.disk_errors import names_like
from replog.runtime.latencies import LatencyHistogram
from replog.runtime.nursery import open_service_nursery
from replog.runtime.temporary import temporary_directory

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_S = 1.0
_STATISTICS_TIMEOUT_S = 2.0
_DEFAULT_BOOKIES = 3
_BOOKIES_MAX = 100


def cluster(
    bookies: Annotated[
        int | None,
        typer.Argument(
            metavar="N", min=1, max=_BOOKIES_MAX, help="How many bookies. Default: 3, or those that --dir has."
        ),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", metavar="DIR", help="Keep the data there. Default: a temporary directory, removed at the end."
        ),
    ] = None,
    storage: Annotated[str, typer.Option(metavar="KIND", help="The bookies' storage: files or lmdb.")] = "files",
    restarts: Annotated[
        bool,
        typer.Option(
            "--restart/--no-restart", help="Start a bookie again that died. [default: restart]", show_default=False
        ),
    ] = True,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="TABLE.OPTION=VALUE", help="An option of all bookies, as for `replog bookie`."),
    ] = None,
    for_programs: AsJSON = False,
) -> None:
    """Run a cluster of N bookie processes on this machine, for development, until Ctrl-C.

    Prints the metastore to connect to. With --dir the data stays, and the next cluster there goes on with it.
    """
    if BackendURL.parse(storage).rest:
        raise ConfigError(f"--storage {storage}: names a place; that is for --dir")
    if directory is not None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--dir {directory}: cannot be made: {error.strerror}") from error
        directory = directory.absolute()
    trio.run(_run, bookies, directory, storage, restarts, tuple(assignments or ()), for_programs)


async def _run(
    bookies: int | None,
    directory: Path | None,
    storage: str,
    restarts: bool,
    assignments: tuple[str, ...],
    for_programs: bool,
) -> None:
    async with _place(directory) as place:
        count = _count(place, bookies)
        plan = Plan(place, count, storage, restarts, assignments, peers=peers_of(place, count))
        out = console()
        view: View
        if for_programs:
            view = JSONView(plan)
        elif out.is_terminal and not out.is_dumb_terminal:
            view = LiveView(plan, out)
        else:
            view = LineView(plan)
        await _Cluster(plan, view).run()


class _Cluster:
    """The bookies and their view. The first signal asks the bookies to leave, the second kills them."""

    def __init__(self, plan: Plan, view: View) -> None:
        self.plan = plan
        self.view = view
        self.members = Members(plan, lambda member: self.show(lambda: view.changed(member)))
        self._scope = trio.CancelScope()
        self._signals: list[int] = []
        self._closed: OutputClosed | None = None

    async def run(self) -> None:
        with self.view:
            async with open_service_nursery() as nursery:
                await nursery.start(self._watch)
                nursery.start_soon(self._look)
                with self._scope:
                    await self.members.run()
        if self._closed is not None:
            raise self._closed
        if len(self._signals) > 1:
            raise InterruptedBySignal(self._signals[-1])

    def show(self, action: Callable[[], None]) -> None:
        """Show something. The cluster ends if its output is not read any more."""
        if self._closed is None:
            try:
                action()
            except OutputClosed as error:
                self._closed = error
                self.members.leave()

    async def _watch(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.open_signal_receiver(*_STOPPING) as received:
            task_status.started()
            async for number in received:
                self._signals.append(number)
                self.members.leave()
                if len(self._signals) > 1:
                    self._scope.cancel()

    async def _look(self) -> None:
        """Show what the bookies do, even before they serve."""
        loads: dict[str, Load] = {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._draw, loads)
            await self.members.served()
            self.show(self.view.ready)
            if self.view.wants_loads:
                await _measure(self.plan, loads)

    async def _draw(self, loads: Mapping[str, Load]) -> None:
        while True:
            self.show(lambda: self.view.loads(self.members.members, loads))
            await trio.sleep(_LOOK_S / 2)


# -- what they do ---------------------------------------------------------------------------------------------------


async def _measure(plan: Plan, loads: dict[str, Load]) -> None:
    options = ClientTuning(connect_timeout_s=_STATISTICS_TIMEOUT_S, metastore_timeout_s=_STATISTICS_TIMEOUT_S)
    before: dict[str, BookieStatistics] = {}
    while True:
        try:
            async with replog.connect(plan.metastore, options=options) as client:
                while True:
                    bookies = await client.admin.bookies()
                    async with trio.open_nursery() as nursery:
                        for each in bookies:
                            nursery.start_soon(_ask, each, before, loads)
                    await trio.sleep(_LOOK_S)
        except ReplogError:
            # What is wrong is shown as the bookies' states; try again.
            loads.clear()
            await trio.sleep(_LOOK_S)


async def _ask(bookie: RemoteBookie, before: dict[str, BookieStatistics], loads: dict[str, Load]) -> None:
    try:
        now = await bookie.statistics(timeout_s=_STATISTICS_TIMEOUT_S)
    except ReplogError:
        loads.pop(bookie.bookie_id, None)  # a bookie that does not answer has no figures
        before.pop(bookie.bookie_id, None)
        return
    loads[bookie.bookie_id] = load_between(before.get(bookie.bookie_id), now)
    before[bookie.bookie_id] = now


def load_between(before: BookieStatistics | None, now: BookieStatistics) -> Load:
    """A bookie's work between two looks. If it was started in between, its counters say all of it."""
    load = Load(queued_bytes=now.numbers.get("queued_bytes", 0), ledgers=now.numbers.get("ledgers", 0))
    if before is None:
        return load
    uptime_s = now.numbers.get("uptime_s", 0)
    passed_s = uptime_s - before.numbers.get("uptime_s", 0)
    # After a restart counters begin at 0: differences to the ones before would be negative.
    earlier: Mapping[str, float] = before.numbers if passed_s > 0 else {}
    passed_s = passed_s if passed_s > 0 else uptime_s
    if passed_s <= 0:
        return load
    commits = now.latencies.get("commit", LatencyHistogram())
    past = before.latencies.get("commit", LatencyHistogram()) if earlier else LatencyHistogram()
    return attrs.evolve(
        load,
        entries_per_s=(now.numbers.get("added_entries", 0) - earlier.get("added_entries", 0)) / passed_s,
        bytes_per_s=(now.numbers.get("added_bytes", 0) - earlier.get("added_bytes", 0)) / passed_s,
        commit_p99_s=commits.since(past).quantile(0.99),
    )


# -- where the data is ----------------------------------------------------------------------------------------------


def _count(directory: Path, wanted: int | None) -> int:
    existing = len(names_like(directory, "bookie-[0-9]*"))
    if wanted is None:
        return existing or _DEFAULT_BOOKIES
    if existing > wanted:
        raise ConfigError(
            f"{directory} has {existing} bookies, and {wanted} were asked for: their ledgers need them all"
        )
    return wanted


@asynccontextmanager
async def _place(directory: Path | None) -> AsyncIterator[Path]:
    if directory is not None:
        yield directory
        return
    async with temporary_directory("replog-cluster-", option="--dir", failed=ClusterFailedError) as made:
        yield made
