"""Act two: in one process, a second writer takes over while the first is still appending."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import trio

from replog.api import BookieConfig, Client, connect, serve_bookie
from replog.demo.appending import CLIENT_OPTIONS, LOG_NAME, Appender, Quota
from replog.demo.errors import DemoFailedError
from replog.demo.leader import replay
from replog.demo.observing import Observer
from replog.demo.reports import Confirmed
from replog.demo.results import ActResult, Rate, Takeover
from replog.demo.stage import Stage
from replog.errors import FencedError
from replog.log.writer import LogWriter
from replog.nursery import open_service_nursery
from replog.protocol.model import Position
from replog.protocol.quorum import Quorum
from replog.registry import Registry

TITLE = "Act two: a leader is deposed while it appends"
_LEARNS_WITHIN_S = 30.0


async def act_two(stage: Stage) -> ActResult:
    """Plays it and judges it. Raises `DemoFailedError` if it can't be played to its end."""
    stage.view.heading(TITLE)
    directory = stage.directory / "act-two"
    first = _Deposed(stage)
    second = _Successor(stage, first)
    async with _bookies(stage, directory) as metastore, open_service_nursery() as nursery:
        async with (
            _client(stage, metastore, Registry()) as first_client,
            _client(stage, metastore, second.observer.registry()) as second_client,
        ):
            stage.view.step("writer 1 creates the log, and appends")
            nursery.start_soon(first.run, first_client)
            await first.wait_for_quota()
            stage.view.done(f"writer 1 appends: {first.told[-1].entries:,} entries confirmed so far")
            await second.run(second_client)
            await first.wait_until_learnt()
        own_faults = first.faults()
    told = [*first.told, *second.told]
    confirmed = first.told[-1].entries
    learnt_s = first.learnt_after_s(second.started)
    stage.view.done(
        f"writer 1 knew after {learnt_s * 1000:,.0f} ms that it is fenced; confirmed for it since: "
        f"{first.confirmed_afterwards:,}",
        bad=bool(own_faults),
    )
    return ActResult(
        title=TITLE,
        confirmed_by_first=confirmed,
        in_flight=first.in_flight,
        survived=second.before - confirmed,
        takeover=second.takeover,
        first_rate=first.rate,
        second_rate=second.rate,
        findings=await stage.read_back(directory, told),
        learnt_s=learnt_s,
        confirmed_afterwards=first.confirmed_afterwards,
        own_faults=own_faults,
    )


class _Deposed:
    """The first writer: appends without end, until it is fenced."""

    def __init__(self, stage: Stage) -> None:
        self.told: list[Confirmed] = []
        self.in_flight = 0
        self.rate = Rate(0, 0.0)
        self._stage = stage
        self._log: LogWriter | None = None
        self._confirmed_at_takeover: Position | None = None
        self._quota_reached = trio.Event()
        self._learnt = trio.Event()
        self._learnt_at = 0.0
        self._started = 0.0

    async def run(self, client: Client) -> None:
        """Ends once it has learnt that it is fenced. Raises whatever else ends it."""
        appender: Appender | None = None
        try:
            async with client.write_log(LOG_NAME) as log:
                self._log = log
                appender = Appender(log, self._stage.source.lines(), 0, self._tell)
                await appender.run(Quota())
        except FencedError as error:
            if appender is None:
                raise
            self._fenced(appender, len(error.positions))

    async def _tell(self, confirmed: Confirmed) -> None:
        now = time.monotonic()
        self._started = self._started or now
        self.told.append(confirmed)
        self.rate = Rate(confirmed.entries - self.told[0].entries, now - self._started)
        if not self._quota_reached.is_set() and self._stage.show(confirmed, 0, self._started) >= 1:
            self._quota_reached.set()

    def _fenced(self, appender: Appender, in_doubt: int) -> None:
        """What is confirmed of all that was pushed is what the error doesn't name; that too is checked by reading back."""
        self._learnt_at = time.monotonic()
        self.in_flight = in_doubt
        last = self._last_confirmed()
        if last is not None:
            self.told.append(Confirmed(appender.pushed - in_doubt, last, appender.pushed))
        self._learnt.set()

    def taken_over(self) -> None:
        """The moment at which another took over: from now on nothing may be confirmed here (L5)."""
        self._confirmed_at_takeover = self._last_confirmed()

    def _last_confirmed(self) -> Position | None:
        return self._log.last_add_confirmed if self._log is not None else None

    async def wait_for_quota(self) -> None:
        """Returns when it has appended what it should, while it goes on."""
        deadline_s = _LEARNS_WITHIN_S + (self._stage.quota.seconds or 0.0)
        before = -1
        while not self._quota_reached.is_set():
            if len(self.told) == before:
                raise DemoFailedError(f"writer 1: nothing was confirmed for {deadline_s:.0f} s")
            before = len(self.told)
            with trio.move_on_after(deadline_s):
                await self._quota_reached.wait()

    async def wait_until_learnt(self) -> None:
        """Returns when it knows that it is fenced. Raises `DemoFailedError` if that takes too long."""
        with trio.move_on_after(_LEARNS_WITHIN_S):
            await self._learnt.wait()
        if not self._learnt.is_set():
            raise DemoFailedError(f"writer 1 did not learn within {_LEARNS_WITHIN_S:.0f} s that it is fenced")

    def learnt_after_s(self, takeover_began: float) -> float:
        """How long after the takeover began it knew."""
        return self._learnt_at - takeover_began

    @property
    def confirmed_afterwards(self) -> int:
        """Entries of its that were confirmed after the takeover was done; across a roll, at least so many."""
        before, now = self._confirmed_at_takeover, self._last_confirmed()
        if before == now or now is None:
            return 0
        return now.entry - before.entry if before is not None and before.segment == now.segment else now.entry + 1

    def faults(self) -> tuple[str, ...]:
        """What it did that it must not."""
        found = []
        if self.confirmed_afterwards:
            found.append(f"writer 1 had {self.confirmed_afterwards:,} entries confirmed after the takeover was done")
        if self.in_flight <= 0:
            found.append("writer 1 was fenced with nothing in flight: it was not appending any more")
        return tuple(found)


class _Successor:
    """The second writer: takes over, replays, appends its quota and closes the log."""

    def __init__(self, stage: Stage, first: _Deposed) -> None:
        self.observer = Observer(first.taken_over)
        self.told: list[Confirmed] = []
        self.started = 0.0
        self.before = 0
        self.takeover = Takeover(0.0, 0.0, 0.0, 0.0, 0)
        self.rate = Rate(0, 0.0)
        self._stage = stage
        self._replayed_at = 0.0
        self._replay_s = 0.0
        self._appending_since = 0.0

    async def run(self, client: Client) -> None:
        """Returns when it has closed the log. Raises what taking over and appending raise."""
        self._stage.view.step("writer 2 takes over")
        self.started = time.monotonic()
        async with client.write_log(LOG_NAME) as log:
            served_at = time.monotonic()
            self.before = await replay(client)
            lines = self._stage.source.lines(self.before)
            self._replayed_at = time.monotonic()
            self._replay_s = self._replayed_at - served_at
            appender = Appender(log, lines, self.before, self._tell)
            await appender.run(self._stage.quota)
        self._stage.view.done(f"writer 2 appended {appender.confirmed - self.before:,} entries and closed the log")

    async def _tell(self, confirmed: Confirmed) -> None:
        now = time.monotonic()
        if not self.told:
            self._appending_since = now
            event = self.observer.taken_over()
            append_s = now - self._replayed_at
            self.takeover = Takeover(0.0, event.duration_s, self._replay_s, append_s, len(event.recovered))
            self._stage.taken_over("writer 2", self.takeover)
            self._stage.view.step("writer 2 appends from there on")
        self.told.append(confirmed)
        self.rate = Rate(confirmed.entries - self.told[0].entries, now - self._appending_since)
        self._stage.show(confirmed, self.before, self._appending_since)


@asynccontextmanager
async def _bookies(stage: Stage, directory: Path) -> AsyncIterator[str]:
    """Serves bookies in this process, laid out as `embed` does it; the metastore's URL."""
    metastore = f"lmdb:{quote(str(directory / 'metadata'))}"
    await trio.Path(directory).mkdir()
    async with open_service_nursery() as nursery:
        for number in range(stage.bookies):
            await nursery.start(
                serve_bookie, BookieConfig(directory=str(directory / f"bookie-{number}"), metastore=metastore)
            )
        yield metastore


def _client(stage: Stage, metastore: str, registry: Registry) -> AbstractAsyncContextManager[Client]:
    few = stage.bookies
    quorum = Quorum() if few >= Quorum().ensemble else Quorum(few, few, few)
    return connect(metastore, options=CLIENT_OPTIONS, quorum=quorum, registry=registry)
