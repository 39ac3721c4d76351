"""The whole demonstration: a place for the files, both acts, the table, and leaving nothing behind."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio
from rich.console import Console
from rich.text import Text

from replog.demo.appending import Quota
from replog.demo.deposing import act_two
from replog.demo.errors import DemoFailedError
from replog.demo.input import SPOOLED_BYTES_MAX, Input, spool
from replog.demo.killing import act_one
from replog.demo.results import ActResult
from replog.demo.stage import Stage
from replog.demo.summary import summary
from replog.demo.view import View
from replog.errors import ConfigError
from replog.nursery import open_service_nursery

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@attrs.frozen
class Settings:
    """What was asked for. `input` is a path, "-" for standard input, or None for the standard library's sources;
    `keep` is a new or empty directory that stays."""

    quota: Quota
    input: str | None = None
    bookies: int = 3
    keep: Path | None = None


class InterruptedBySignal(Exception):
    """The demonstration was stopped by this signal; its processes and files are gone."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


async def run(settings: Settings, console: Console) -> list[ActResult]:
    """Plays both acts and shows the table. Raises `DemoFailedError`, `ConfigError`, `InterruptedBySignal`, and what replog
    raises; whatever happens, no process is left, and no file unless they are kept."""
    stopped: list[int] = []
    results: list[ActResult] = []
    async with open_service_nursery() as nursery:
        await nursery.start(_stop_at_signal, stopped.append, nursery.cancel_scope)
        results = await _play(settings, console)
    if stopped:
        raise InterruptedBySignal(stopped[0])
    return results


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


async def _play(settings: Settings, console: Console) -> list[ActResult]:
    async with _directory(settings) as directory, open_service_nursery() as nursery:
        with View(console) as view:
            # A terminal may never end: then the thread is left to itself, and ends with the process.
            source = await trio.to_thread.run_sync(_prepare, settings, directory, console, abandon_on_cancel=True)
            view.show(
                Text(f"{settings.bookies} bookies with files in {directory}; appended is {settings.input or source}")
            )
            nursery.start_soon(view.animate)
            stage = Stage(directory, settings.bookies, source, settings.quota, view)
            results = [await act_one(stage), await act_two(stage)]
        console.print()
        console.print(summary(results))
        _conclude(results, console)
        return results


def _conclude(results: list[ActResult], console: Console) -> None:
    for result in results:
        for fault in result.faults:
            console.print(Text.assemble((f"{result.title}: ", "bold"), (fault, "red")), soft_wrap=True)
    if not any(result.faults for result in results):
        console.print(Text("Every confirmed entry is there: once, unchanged, in order.", style="green"))


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
    try:
        directory = Path(tempfile.mkdtemp(prefix="replog-demo-"))
    except OSError as error:
        raise ConfigError(f"no temporary directory can be made: {error}; name one with --keep") from error
    try:
        yield directory
    finally:
        with trio.CancelScope(shield=True):
            try:
                await trio.to_thread.run_sync(shutil.rmtree, directory)
            except OSError as error:
                raise DemoFailedError(f"{directory}: cannot be removed: {error}; remove it yourself") from error
