"""The follower, seen by the process that watches it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from replog.demo.errors import DemoFailedError
from replog.demo.processes import SILENCE_S, Process, running
from replog.demo.reports import Connected, Followed
from replog.runtime.nursery import open_service_nursery


class Follower:
    """Knows how far the follower is."""

    def __init__(self, process: Process) -> None:
        self.last: Followed | None = None
        self._process = process
        self._news = trio.Event()

    @property
    def entries(self) -> int:
        """How many it has read."""
        return self.last.entries if self.last is not None else 0

    async def listen(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Takes what it tells, until cancelled. Raises `DemoFailedError` if it ends."""
        await self._process.expect(Connected)
        task_status.started()
        while (report := await self._process.next_report(None)) is not None:
            if not isinstance(report, Followed):
                raise DemoFailedError(f"{self._process.name} told {report}")
            self.last = report
            self._news.set()
            self._news = trio.Event()
        raise await self._process.ended_by_itself()

    async def read_so_many(self, entries: int) -> Followed:
        """Waits until it has read so many, and returns what it told of them. Raises `DemoFailedError` if it comes no further."""
        while self.last is None or self.last.entries < entries:
            before = self.last
            with trio.move_on_after(SILENCE_S):
                await self._news.wait()
            if self.last is before:
                raise DemoFailedError(
                    f"{self._process.name} has read {self.entries:,} of {entries:,} entries, and nothing for {SILENCE_S:g} s"
                )
        return self.last


@asynccontextmanager
async def following(metastore: str, directory: Path) -> AsyncIterator[Follower]:
    """A follower's process, as a context, that reads along from when this is entered. Raises `DemoFailedError` if it fails."""
    async with (
        running("the follower", ["replog.demo.follower", metastore], directory / "follower.stderr") as process,
        open_service_nursery() as nursery,
    ):
        follower = Follower(process)
        await nursery.start(follower.listen)
        yield follower
