"""Real processes under test: started, listened to, signalled, and never left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from replog.runtime.nursery import open_service_nursery
from tests.failures.actors import Config

ROOT = Path(__file__).parent.parent.parent
STARTING_S = 30.0  # on a busy machine
ENDING_S = 15.0


class Process:
    """A process that says things in lines of JSON, among others; all that it says is kept in a file."""

    def __init__(self, name: str, process: trio.Process, output: Path) -> None:
        self.name = name
        self.said: list[dict[str, Any]] = []
        self.is_stopped = False
        self._process = process
        self._output = output
        self._news = trio.Event()
        self._may_end = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None and not self.is_stopped

    async def listen(self) -> None:
        """Takes what it says until it ends. Raises AssertionError if nobody asked it to end."""
        rest = b""
        assert self._process.stdout is not None
        async for data in self._process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            self.said += [json.loads(line) for line in lines if line.startswith(b"{")]
            with self._output.open("ab") as log:
                log.writelines(line + b"\n" for line in lines)
            self._tell()
        status = await self._process.wait()
        self._tell()
        if not self._may_end and status != 0:
            raise AssertionError(f"{self.name} ended by itself, status {status}: {self.output()}")

    def _tell(self) -> None:
        self._news.set()
        self._news = trio.Event()

    def output(self) -> str:
        """The last of all that it said."""
        return self._output.read_text(errors="replace")[-4000:]

    async def says(self, word: str, within_s: float = STARTING_S, *, times: int = 1) -> dict[str, Any]:
        """What it says with this word, for the so-manieth time."""
        with trio.move_on_after(within_s):
            while True:
                news = self._news
                found = [words for words in self.said if word in words]
                if len(found) >= times:
                    return found[times - 1]
                await news.wait()
        raise AssertionError(f"{self.name} did not say {word!r} in {within_s} s, but {self.said[-3:]}: {self.output()}")

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            os.kill(self.pid, number)

    async def kill(self) -> None:
        """SIGKILL, and waits for its death."""
        self._may_end = True
        self._signal(signal.SIGKILL)
        with trio.CancelScope(shield=True):
            await self._process.wait()

    def stop(self) -> None:
        """SIGSTOP: it keeps its connections, and does nothing."""
        self._signal(signal.SIGSTOP)
        self.is_stopped = True

    def wake(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)
        self.is_stopped = False

    async def leave(self) -> None:
        """SIGTERM, and waits until it has ended in peace."""
        self._signal(signal.SIGTERM)
        await self.ended()

    async def ended(self) -> None:
        """Waits until it has ended in peace."""
        with trio.move_on_after(ENDING_S):
            status = await self._process.wait()
            assert status == 0, f"{self.name}: status {status}: {self.output()}"
            return
        raise AssertionError(f"{self.name} did not end in {ENDING_S} s: {self.output()}")


@attrs.frozen
class Starter:
    """Starts processes; they are killed when their nursery ends."""

    directory: Path
    nursery: trio.Nursery
    processes: list[Process] = attrs.Factory(list)

    async def start(self, role: str, name: str, config: Config, prefix: Sequence[str] = ()) -> Process:
        """An actor of `tests.failures.actors`; `prefix` is what comes before its command."""
        words = {key: value for key, value in attrs.asdict(config).items() if value != ""}
        return await self.run(name, ["tests.failures.actors", role, json.dumps(words)], prefix)

    async def run(self, name: str, module: Sequence[str], prefix: Sequence[str] = ()) -> Process:
        """`python -m MODULE ARGUMENT...`, which ends with this process, however that ends."""
        command = [*prefix, sys.executable, "-m", "replog.runtime.children", *module]
        process = await trio.lowlevel.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT
        )
        started = Process(name, process, self.directory / f"{name}.output")
        self.processes.append(started)
        self.nursery.start_soon(started.listen)
        return started


@asynccontextmanager
async def starting(directory: Path) -> AsyncIterator[Starter]:
    """Whatever happens, no process outlives it."""
    starter: Starter | None = None
    try:
        async with open_service_nursery() as nursery:
            starter = Starter(directory, nursery)
            try:
                yield starter
            finally:
                for process in starter.processes:
                    await process.kill()
    finally:
        assert starter is None or not any(each.is_running for each in starter.processes)


async def until(happened: Callable[[], bool], within_s: float, what: str) -> None:
    """Waits until this is so; AssertionError if it is not in time."""
    with trio.move_on_after(within_s):
        while not happened():  # noqa: ASYNC110 - other processes change it
            await trio.sleep(0.05)
        return
    raise AssertionError(f"not within {within_s:.1f} s: {what}")
