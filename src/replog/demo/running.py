"""The whole demonstration: a directory for its files, the bookies, the acts, the verdict, and leaving nothing behind."""

from __future__ import annotations

import signal
import sys
import sysconfig
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import trio
from rich.console import Console

from replog.api import connect
from replog.cli.cluster.bookie_processes import Plan, local_cluster
from replog.cli.cluster.peers import peers_of
from replog.cli.ending import InterruptedBySignal
from replog.demo.acts import SILENCE_S, DemoFailedError, Stage, acting, kill_bookie, kill_leader, stop_leader
from replog.demo.processes import CLIENT, LOG_NAME, SILENCE_MAX_S, Task, as_payload
from replog.demo.results import Act, Evidence, Result
from replog.demo.view import View, show_result
from replog.errors import ConfigError
from replog.protocol.model import Position
from replog.runtime.nursery import open_service_nursery
from replog.runtime.temporary import temporary_directory
from replog.testing import check_history, read_histories

ENTRIES_MAX = 50_000  # before each accident: the checker has all of them in memory
INPUT_BYTES_MAX = 16 << 20
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@attrs.frozen
class Settings:
    """The options of a run. `input` is a path, "-" for standard input, or None for the standard library's sources;
    `keep` is a new or empty directory that stays."""

    entries: int
    seconds: float | None
    bookies: int
    input: str | None = None
    keep: Path | None = None


async def run(settings: Settings, console: Console) -> Result:
    """Play all acts and show the tables. No process outlives it, and no file unless they are kept.

    Raises `DemoFailedError`, `ChildFailedError`, `ConfigError`, `InterruptedBySignal`, and what replog raises."""
    stopped: list[int] = []

    async def stop_at_signal(task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(*_STOPPING) as signals:
            task_status.started()
            async for number in signals:
                stopped.append(number)
                nursery.cancel_scope.cancel()

    result: Result | None = None
    async with open_service_nursery() as nursery:
        await nursery.start(stop_at_signal)
        async with _directory(settings) as directory:
            view = View(console)
            with view.status:
                result = await _play(settings, directory, view)
            show_result(console, result)
    # Here, outside of the nursery: by now all processes have ended and the files are removed.
    if stopped or result is None:
        raise InterruptedBySignal(stopped[0])
    return result


async def _play(settings: Settings, directory: Path, view: View) -> Result:
    # A terminal may never end: then the thread is left to itself, and ends with the process.
    source = await trio.to_thread.run_sync(_prepare_input, settings.input, directory, abandon_on_cancel=True)
    view.note(f"the files are in {directory}; appended is {settings.input or 'the source of the standard library'}")
    view.note(f"no append waits longer than {SILENCE_MAX_S:g} s for a silent bookie (add_timeout_s)")
    view.step(f"{settings.bookies} bookies start, each a process")
    plan = Plan(directory, settings.bookies, needs_all=True, peers=peers_of(directory, settings.bookies))
    task = Task("the follower", plan.metastore, str(directory / "follower.history"))
    async with (
        local_cluster(plan) as members,
        acting("follower", task) as follower,
        connect(plan.metastore, options=CLIENT) as client,
        AsyncExitStack() as leaders,
    ):
        pids = ", ".join(str(each.pid) for each in members.members)
        view.done(f"{settings.bookies} bookies serve, each a process ({pids})")
        view.step("a follower starts, a process too")
        await follower.until("connected")
        view.done(f"a follower (process {follower.child.pid}) waits for the log, to read it along")
        stage = Stage(directory, members, follower, client, leaders, view, source, settings.entries, settings.seconds)
        one, second = await kill_leader(stage)
        two = await kill_bookie(stage, second)
        three = await stop_leader(stage, second)
        view.heading("The end: everything is read back")
        view.step("reading everything back through a fresh client, and to the follower's end")
        # Through a new client, which knows nothing of the run: what it finds is what is stored.
        final = await read_back(plan.metastore)
        await follower.child.until(lambda: follower.entries >= len(final), "it has read the whole log", SILENCE_S)
        view.step("the checker compares what was read with what each process wrote down")
        result = await trio.to_thread.run_sync(_judge, directory, (one, two, three), final, abandon_on_cancel=True)
        verdict = "WRONG" if result.log_faults else "each confirmed one, in order"
        view.done(f"read back {len(final):,} entries: {verdict}", is_bad=bool(result.log_faults))
        await follower.child.kill()
        view.step("the bookies leave")
    view.done("the bookies left in order, except the one that was killed")
    return result


async def read_back(metastore: str) -> list[tuple[Position, str]]:
    """All entries of the log, in order, through a client of its own. Raises as `LogReader` does."""
    async with connect(metastore, options=CLIENT) as client, client.read_log(LOG_NAME) as reader:
        return [(record.position, as_payload(record.data)) async for record in reader]


def _judge(directory: Path, acts: tuple[Act, ...], final: list[tuple[Position, str]]) -> Result:
    events = read_histories(sorted(directory.glob("*.history")))
    return Result(acts, Evidence(events, final), check_history(events, final))


def _prepare_input(source: str | None, directory: Path) -> Path:
    """A file with what is appended: a copy, since all leaders must find it. Raises `ConfigError` if it is empty or unreadable."""
    name = source or "standard library"
    if source == "-" and sys.stdin is None:
        raise ConfigError("input -: there is no standard input; name a file with --input")
    try:
        if source is None:
            data = b"".join(path.read_bytes() for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")))
        else:
            with sys.stdin.buffer if source == "-" else open(source, "rb") as file:
                data = file.read(INPUT_BYTES_MAX)
        (directory / "input").write_bytes(data[:INPUT_BYTES_MAX])
    except OSError as error:
        raise ConfigError(f"input {name}: cannot be read: {error.strerror}") from error
    if not data:
        raise ConfigError(f"input {name}: is empty; name another one with --input")
    return directory / "input"


@asynccontextmanager
async def _directory(settings: Settings) -> AsyncIterator[Path]:
    """The directory for all files: kept if it was named, removed otherwise."""
    if settings.keep is None:
        async with temporary_directory("replog-demo-", option="--keep", failed=DemoFailedError) as directory:
            yield directory
        return
    try:
        settings.keep.mkdir(parents=True, exist_ok=True)
        is_empty = not any(settings.keep.iterdir())
    except OSError as error:
        raise ConfigError(f"--keep {settings.keep}: cannot be made or read: {error.strerror}") from error
    if not is_empty:
        raise ConfigError(f"--keep {settings.keep}: is not empty; name a new directory")
    yield settings.keep.absolute()
