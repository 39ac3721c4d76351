"""A leader's process, seen by the process that watches it: how it takes over, what is confirmed to it, how it ends."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import trio

from replog.demo.errors import DemoFailedError
from replog.demo.leader import LeaderConfig
from replog.demo.processes import Process, running
from replog.demo.reports import BookieReplaced, Closed, Confirmed, Connected, Fenced, Replayed, Report, TakenOver
from replog.demo.results import Rate, Takeover

Kind = TypeVar("Kind", bound=Report)


class LeaderProcess:
    """A running leader. `before` is behind how many entries it began, `told` all that was confirmed to it."""

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self.process = process
        self.before = 0
        self.told: list[Confirmed] = []
        self._replaced: list[BookieReplaced] = []

    @property
    def first(self) -> Confirmed:
        """Its first confirmed append."""
        return self.told[0]

    @property
    def last(self) -> Confirmed:
        """The last that was confirmed to it."""
        return self.told[-1]

    @property
    def rate(self) -> Rate:
        """How fast it got entries confirmed, from the first to the last of its reports."""
        return Rate(self.last.entries - self.first.entries, self.last.at_s - self.first.at_s)

    def longest_pause_s(self, since_s: float) -> float:
        """How long at most nothing was confirmed to it, from this moment on."""
        moments = [since_s, *(each.at_s for each in self.told if each.at_s > since_s)]
        return max((after - before for before, after in pairwise(moments)), default=0.0)

    # -- listening ----------------------------------------------------------------------------------------------------

    async def take_over(self) -> Takeover:
        """Its way to its first confirmed append, and how long each part of it took. Raises `DemoFailedError`."""
        await self._expect(Connected)
        connected_s = time.monotonic()
        taken_over = await self._expect(TakenOver)
        served_s = time.monotonic()
        self.before = (await self._expect(Replayed)).entries
        replayed_s = time.monotonic()
        await self.next_confirmed()
        return Takeover(
            start_s=connected_s - self.process.started_s,
            recovery_s=taken_over.duration_s,
            replay_s=replayed_s - served_s,
            append_s=time.monotonic() - replayed_s,
            ledgers_recovered=len(taken_over.recovered),
        )

    async def next_confirmed(self) -> Confirmed:
        """The next that is confirmed to it. Raises `DemoFailedError`."""
        confirmed = await self._expect(Confirmed)
        self.told.append(confirmed)
        return confirmed

    async def until_replaced(self, bookie_id: str, within_s: float, show: Callable[[], object]) -> BookieReplaced:
        """Waits until it has replaced this bookie; it appends meanwhile, and `show` is called. Raises `DemoFailedError`."""
        with trio.move_on_after(within_s):
            while True:
                for each in self._replaced:
                    if each.old == bookie_id:
                        return each
                await self.next_confirmed()
                show()
        raise DemoFailedError(f"{self.name} did not replace the bookie {bookie_id} within {within_s:g} s")

    async def until_fenced(self, within_s: float) -> Fenced:
        """Waits until it learns that it is deposed, and ends for that. Raises `DemoFailedError`."""
        with trio.move_on_after(within_s):
            while isinstance(report := await self._next(), Confirmed):
                self.told.append(report)
            if not isinstance(report, Fenced) or await self.process.wait() != 0:
                raise await self.process.ended_by_itself()
            return report
        raise DemoFailedError(f"{self.name} did not learn within {within_s:g} s that it is fenced")

    async def until_killed(self) -> None:
        """Kills it, and takes what it wrote before it died. Raises `DemoFailedError` if it had ended by itself."""
        self.process.kill()
        while (report := await self._next()) is not None:
            if isinstance(report, Confirmed):
                self.told.append(report)
        if await self.process.wait() != -signal.SIGKILL:
            raise await self.process.ended_by_itself()

    async def until_closed(self, show: Callable[[], object]) -> None:
        """Waits until it has reached its quota and closed the log. Raises `DemoFailedError`."""
        while isinstance(report := await self._next(), Confirmed):
            self.told.append(report)
            show()
        if not isinstance(report, Closed) or await self.process.wait() != 0:
            raise await self.process.ended_by_itself()
        if report.entries != self.last.entries:
            raise DemoFailedError(
                f"{self.name} closed behind {report.entries} entries, and told of {self.last.entries}"
            )

    async def _next(self) -> Report | None:
        while isinstance(report := await self.process.next_report(), BookieReplaced):
            self._replaced.append(report)
        return report

    async def _expect(self, kind: type[Kind]) -> Kind:
        report = await self._next()
        if report is None:
            raise await self.process.ended_by_itself()
        if not isinstance(report, kind):
            raise DemoFailedError(f"{self.process.name} told {report} where {kind.__name__} was due")
        return report


def takeover_faults(leader: LeaderProcess, successor: LeaderProcess, named: int | None = None) -> tuple[str, ...]:
    """What is wrong with what the successor found: less than was confirmed to the leader, or more than that and the entries
    whose fate the leader did not know, as it named so many of them."""
    survived = successor.before - leader.last.entries
    found = []
    if survived < 0:
        found.append(
            f"missing: {leader.last.entries:,} entries were confirmed to {leader.name}, "
            f"and {successor.name} found {successor.before:,}"
        )
    if named is not None and survived > named:
        found.append(
            f"{survived:,} unconfirmed entries of {leader.name} are in the log, and it named {named:,} in doubt"
        )
    return tuple(found)


@asynccontextmanager
async def leading(name: str, config: LeaderConfig, errors: Path) -> AsyncIterator[LeaderProcess]:
    """A leader's process, as a context: whatever happens, it is dead when the context is left."""
    async with running(name, ["replog.demo.leader", config.encode()], errors) as process:
        yield LeaderProcess(name, process)
