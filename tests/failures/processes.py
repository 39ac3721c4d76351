"""Real processes under test, which say things in lines of JSON: started, listened to, signalled, and never left behind."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from replog.runtime.children import Child, ChildFailedError, running_child
from replog.runtime.nursery import open_service_nursery
from tests.failures.actors import Config

ROOT = Path(__file__).parent.parent.parent
STARTING_S = 30.0  # on a busy machine
ENDING_S = 15.0


class Process:
    """A process that says things in lines of JSON, among others; all that it writes is kept in a file."""

    def __init__(self, name: str, child: Child, said: list[dict[str, Any]]) -> None:
        self.name = name
        self.child = child
        self.said = said
        self.is_stopped = False

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def is_running(self) -> bool:
        return self.child.is_running and not self.is_stopped

    async def says(self, word: str, within_s: float = STARTING_S, *, times: int = 1) -> dict[str, Any]:
        """Wait until it has said something with this word, so many times; return the last of these."""

        def found() -> dict[str, Any] | None:
            saying = [words for words in self.said if word in words]
            return saying[times - 1] if len(saying) >= times else None

        try:
            said = await self.child.until(found, f"it says {word!r}", within_s)
        except ChildFailedError as error:
            raise AssertionError(f"{error}; it said {self.said[-3:]} and wrote {self.child.tail}") from error
        assert said is not None
        return said

    async def kill(self) -> None:
        """Kill it (SIGKILL), and wait until it is dead."""
        await self.child.kill()

    def stop(self) -> None:
        """Stop it (SIGSTOP): its connections stay."""
        self.child.process.signal(signal.SIGSTOP)
        self.is_stopped = True

    def wake(self) -> None:
        """Let it go on (SIGCONT)."""
        self.child.wake()
        self.is_stopped = False

    async def leave(self) -> None:
        """Ask it to end (SIGTERM), and wait until it has ended in order."""
        self.child.terminate()
        await self.ended()

    async def ended(self) -> None:
        """Wait until it has ended in order."""
        try:
            status = await self.child.ended(ENDING_S)
        except ChildFailedError as error:
            raise AssertionError(f"{error}; it wrote {self.child.tail}") from error
        assert status == 0, f"{self.name}: status {status}: {self.child.tail}"


@attrs.frozen
class Starter:
    """Starts processes; they are killed when it is left."""

    directory: Path
    nursery: trio.Nursery
    processes: list[Process] = attrs.Factory(list)

    async def start(self, role: str, name: str, config: Config, prefix: Sequence[str] = ()) -> Process:
        """Start an actor of `tests.failures.actors`; `prefix` comes before its command."""
        words = {key: value for key, value in attrs.asdict(config).items() if value != ""}
        return await self.run(name, ["tests.failures.actors", role, json.dumps(words)], prefix)

    async def run(self, name: str, module: Sequence[str], prefix: Sequence[str] = ()) -> Process:
        """Start `python -m MODULE ARGUMENT...`. If it ends by itself, with another status than 0, the starter is cancelled."""
        # Not `python_module`, which would not find the tests in this directory.
        command = [*prefix, sys.executable, "-m", "replog.runtime.children", *module]
        process: Process = await self.nursery.start(self._keep, name, command)
        self.processes.append(process)
        return process

    async def _keep(
        self, name: str, command: Sequence[str], task_status: trio.TaskStatus[Process] = trio.TASK_STATUS_IGNORED
    ) -> None:
        heard: list[dict[str, Any]] = []
        log = self.directory / f"{name}.output"

        def hear(line: bytes) -> None:
            if line.startswith(b"{"):
                heard.append(json.loads(line))

        async with running_child(name, command, hear, may_end=True, log=log, directory=ROOT) as child:
            task_status.started(Process(name, child, heard))
            await trio.sleep_forever()


@asynccontextmanager
async def starting(directory: Path) -> AsyncIterator[Starter]:
    """Start processes as a context manager: no process outlives it, whatever happens."""
    async with open_service_nursery() as nursery:
        yield Starter(directory, nursery)


async def until(happened: Callable[[], bool], within_s: float, what: str) -> None:
    """Wait until this is so; AssertionError if it is not in time."""
    with trio.move_on_after(within_s):
        while not happened():  # noqa: ASYNC110 - other processes change it
            await trio.sleep(0.05)
        return
    raise AssertionError(f"not within {within_s:.1f} s: {what}")
