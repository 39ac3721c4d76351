"""The whole demonstration: a place for the files, the bookies, the acts, the tables, and leaving nothing behind."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import trio
from rich.console import Console
from rich.text import Text

from replog.api import connect
from replog.demo.appending import Quota
from replog.demo.bookies import serving_bookies
from replog.demo.deposing import act_three
from replog.demo.errors import DemoFailedError
from replog.demo.following import following
from replog.demo.input import SPOOLED_BYTES_MAX, Input, spool
from replog.demo.killing import act_one
from replog.demo.options import BOOKIES_MIN, SILENCE_MAX_S, client_options
from replog.demo.replacing import act_two
from replog.demo.results import Result
from replog.demo.stage import Stage
from replog.demo.summary import summary
from replog.demo.verifying import verify
from replog.demo.view import View
from replog.errors import ConfigError
from replog.runtime.nursery import open_service_nursery
from replog.runtime.temporary import temporary_directory

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@attrs.frozen
class Settings:
    """What was asked for. `input` is a path, "-" for standard input, or None for the standard library's sources;
    `keep` is a new or empty directory that stays."""

    quota: Quota
    input: str | None = None
    bookies: int = BOOKIES_MIN
    keep: Path | None = None


class InterruptedBySignal(Exception):
    """The demonstration was stopped by this signal; its processes and files are gone."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


async def run(settings: Settings, console: Console) -> Result:
    """Plays all acts and shows the tables. Raises `DemoFailedError`, `ConfigError`, `InterruptedBySignal`, and what replog
    raises; whatever happens, no process is left, and no file unless they are kept."""
    stopped: list[int] = []
    results: list[Result] = []
    async with open_service_nursery() as nursery:
        await nursery.start(_stop_at_signal, stopped.append, nursery.cancel_scope)
        results.append(await _play(settings, console))
    if stopped:
        raise InterruptedBySignal(stopped[0])
    return results[0]


async def _stop_at_signal(
    stopped: Callable[[int], None],
    scope: trio.CancelScope,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    with trio.open_signal_receiver(*_STOPPING) as signals:
        task_status.started()
        async for number in signals:
            stopped(number)
            scope.cancel()


async def _play(settings: Settings, console: Console) -> Result:
    async with _directory(settings) as directory, open_service_nursery() as nursery:
        with View(console) as view:
            # A terminal may never end: then the thread is left to itself, and ends with the process.
            source = await trio.to_thread.run_sync(_prepare, settings, directory, console, abandon_on_cancel=True)
            view.show(Text(f"the files are in {directory}; appended is {settings.input or source}"))
            view.show(Text(f"no append waits longer than {SILENCE_MAX_S:g} s for a silent bookie (add_timeout_s)"))
            nursery.start_soon(view.animate)
            result = await _act(settings, directory, source, view)
        console.print()
        console.print(summary(result, console.width))
        for fault in result.faults:
            console.print(Text(fault, style="red"), soft_wrap=True)
        if not result.faults:
            console.print(Text("Every confirmed entry is there: once, unchanged, in order.", style="green"))
        return result


async def _act(settings: Settings, directory: Path, source: Input, view: View) -> Result:
    """All processes begin and end in here."""
    view.step(f"{settings.bookies} bookies start, each a process")
    async with serving_bookies(directory, settings.bookies) as cluster:
        pids = ", ".join(str(each.pid) for each in cluster.bookies)
        view.done(f"{settings.bookies} bookies serve, each a process ({pids})")
        view.step("a follower starts, a process too")
        async with (
            following(cluster.metastore, directory) as follower,
            connect(cluster.metastore, options=client_options()) as bystander,
            AsyncExitStack() as leaders,
        ):
            view.done("a follower waits for the log, to read it along")
            stage = Stage(directory, cluster, follower, bystander, source, settings.quota, view)
            one, first, second = await act_one(stage, leaders)
            two = await act_two(stage, second)
            three, third = await act_three(stage, second, leaders)
            view.heading("The end: everything is read back")
            told = [*first.told, *second.told, *third.told]
            reading = await verify(cluster.metastore, source, told, follower, view)
        view.step("the bookies leave")
        await cluster.leave()
        view.done("the bookies left in order, but for the one that was killed")
    return Result([one, two, three], reading)


def _prepare(settings: Settings, directory: Path, console: Console) -> Input:
    """The input, copied if it is a file or a pipe: all who read it must read the same."""
    if settings.input is None:
        return Input()
    copy = directory / "input"
    if settings.input == "-":
        if sys.stdin is None:
            raise ConfigError("input -: there is no standard input; name a file with --input")
        is_whole = spool(sys.stdin.buffer, copy, "-")
    else:
        try:
            with open(settings.input, "rb") as file:
                is_whole = spool(file, copy, settings.input)
        except OSError as error:
            raise ConfigError(f"input {settings.input}: cannot be read: {error.strerror}") from error
    if not is_whole:
        console.print(Text(f"of {settings.input} only the first {SPOOLED_BYTES_MAX >> 20} MiB are taken"))
    return Input(copy, "standard input" if settings.input == "-" else settings.input)


@asynccontextmanager
async def _directory(settings: Settings) -> AsyncIterator[Path]:
    """A directory of our own: kept if it was named, removed otherwise."""
    if settings.keep is not None:
        try:
            settings.keep.mkdir(parents=True, exist_ok=True)
            is_empty = not any(settings.keep.iterdir())
        except OSError as error:
            raise ConfigError(f"--keep {settings.keep}: cannot be made or read: {error.strerror}") from error
        if not is_empty:
            raise ConfigError(f"--keep {settings.keep}: is not empty; name a new directory")
        yield settings.keep.absolute()
        return
    async with temporary_directory("replog-demo-", option="--keep", failed=DemoFailedError) as directory:
        yield directory
