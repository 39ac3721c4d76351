"""The bookies of the demonstration: each is `replog bookie` as a user would run it, a process with a directory of its own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from replog.demo.errors import DemoFailedError
from replog.demo.options import metastore_url
from replog.demo.processes import SILENCE_S, Process, running
from replog.runtime.nursery import open_service_nursery


class Bookie:
    """One of them. `bookie_id` is known once it serves."""

    def __init__(self, name: str, process: Process, log: Path) -> None:
        self.name = name
        self.bookie_id = ""
        self.serves = trio.Event()
        self._is_heard_out = trio.Event()
        self._process = process
        self._log = log
        self._may_end = False

    async def listen(self) -> None:
        """Keeps what it logs, as long as it lives. Raises `DemoFailedError` if it ends and nobody asked it to."""
        with self._log.open("ab", buffering=0) as log:
            while (line := await self._process.next_line(None if self.bookie_id else SILENCE_S)) is not None:
                log.write(line + b"\n")
                if not self.bookie_id and _field(line, "event") == "serving":
                    self.bookie_id = _field(line, "bookie")
                    self.serves.set()
        self._is_heard_out.set()
        if not self._may_end:
            raise await self._process.ended_by_itself()

    async def kill(self) -> None:
        """SIGKILL. Returns when it is dead."""
        self._may_end = True
        self._process.kill()
        await self._process.wait()

    def ask_to_leave(self) -> None:
        """SIGTERM."""
        self._may_end = True
        self._process.ask_to_end()

    async def left(self) -> None:
        """Waits until it has left in order, and its last words are kept. Raises `DemoFailedError` if it does not leave so."""
        status = await self._process.wait()
        await self._is_heard_out.wait()
        if status != 0:
            raise await self._process.ended_by_itself()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.is_running

    @property
    def pid(self) -> int:
        """Its process's."""
        return self._process.pid


def _field(line: bytes, name: str) -> str:
    try:
        fields: Any = json.loads(line)
    except ValueError:  # last words of the interpreter, say
        return ""
    return str(fields.get(name, "")) if isinstance(fields, dict) else ""


class Cluster:
    """All of them, and where they announce themselves."""

    def __init__(self, metastore: str, bookies: list[Bookie]) -> None:
        self.metastore = metastore
        self.bookies = bookies

    def find(self, bookie_id: str) -> Bookie:
        """The one with this identity. Raises `DemoFailedError` if there is none."""
        for each in self.bookies:
            if each.bookie_id == bookie_id:
                return each
        raise DemoFailedError(f"an ensemble has the bookie {bookie_id}, which nobody started")

    async def leave(self) -> None:
        """Asks all that live to leave, and waits until they have. Raises `DemoFailedError` if one doesn't do it in order."""
        alive = [each for each in self.bookies if each.is_running]
        for each in alive:
            each.ask_to_leave()
        for each in alive:
            await each.left()


@asynccontextmanager
async def serving_bookies(directory: Path, count: int) -> AsyncIterator[Cluster]:
    """Starts them side by side, and yields when all of them serve; they are dead when the context is left.

    Raises `DemoFailedError` if one does not begin, or ends by itself; the latter also while the context lasts."""
    metastore = metastore_url(directory)
    async with open_service_nursery() as nursery:
        bookies = [await nursery.start(_serve, directory, number, metastore) for number in range(count)]
        for each in bookies:
            await each.serves.wait()
        yield Cluster(metastore, bookies)


async def _serve(
    directory: Path, number: int, metastore: str, task_status: trio.TaskStatus[Bookie] = trio.TASK_STATUS_IGNORED
) -> None:
    name = f"bookie {number}"
    log = directory / f"bookie-{number}.log"
    place = str(directory / f"bookie-{number}")
    command = ["replog.cli", "bookie", "--metastore", metastore, "--data", place, "--listen", "127.0.0.1:0"]
    async with running(name, [*command, "--log-format", "json"], log, tells_errors=True) as process:
        bookie = Bookie(name, process, log)
        task_status.started(bookie)
        await bookie.listen()
