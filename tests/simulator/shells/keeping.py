"""A log whose leaders drop what is old, while wall clocks jump: those of leaders, and of one bookie (L3a).

Invariant: no entry goes before its age, even if any clock is wrong, and jumps at any time. Once all clocks are right,
all that is old goes; what stays is named, with the segment that an operator may drop.

The storm takes seconds. An age is far longer, and clocks may differ by a minute: so nothing may go before the calm.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import trio

from replog.api import Client
from replog.errors import ClockMismatchError, LogNotFoundError
from replog.log.log_options import LogOptions, Retention
from replog.protocol.model import Position
from replog.testing.simulating.processes import BookieHost
from tests.simulator.shells.world import Act, JudgedWorld

CLOCKS = "clocks"  # the strategy
KEPT_LOG = "kept"
_AGE = timedelta(seconds=100)
_DAY_S = 86_400.0
# No bookie is ever wrong by as much as a leader. Two clocks that are wrong by the same amount confirm each other.
_WRONG_LEADER_S = (0.0, 0.0, 0.0, 180.0, _DAY_S, 365 * _DAY_S, 3650 * _DAY_S, -3650 * _DAY_S)
_WRONG_BOOKIE_S = (0.0, 400.0, -400.0, 30 * _DAY_S, -30 * _DAY_S)
_JUMPS_EVERY_S = 0.4


class Keeping:
    """The actors on that log, and the known facts about it."""

    def __init__(self, world: JudgedWorld, bookies: list[BookieHost], is_stopping: Callable[[], bool]) -> None:
        self.world = world
        self._is_stopping = is_stopping
        self._bookies = bookies
        self._confirmed: list[Position] = []
        self._wrong: dict[str, None] = {}  # processes whose clocks were set
        self._victim = world.stream("clocks").choice(bookies).name

    @property
    def acts(self) -> list[tuple[str, Act]]:
        """The acts, by role."""
        return [("keeper", self.lead), ("keeper", self.lead), ("clocks", self.jump)]

    # -- acting ---------------------------------------------------------------------------------------------------

    async def lead(self, client: Client, process: str) -> None:
        """Leads the log for a while, with a retention of its own, and asks for it by hand; rolls often."""
        chance = self.world.stream("keeping")
        self._wrong[process] = None
        self._set(process, chance.choice(_WRONG_LEADER_S))
        custom = {"process": process}
        async with client.write_log(KEPT_LOG, options=LogOptions(custom=custom, retention=Retention(age=_AGE))) as log:
            until_s = self.world.now_s + 0.5 + chance.random() * 3
            while not self._is_stopping() and self.world.now_s < until_s:
                self._confirmed.append(await log.append(b"%d" % len(self._confirmed)))
                self.world.count("entry to be kept confirmed")
                if chance.random() < 0.5:
                    await log.roll()
                if chance.random() < 0.5:
                    await self._retain(client)
                await trio.sleep(chance.random() * 0.3)

    async def jump(self, client: Client, _process: str) -> None:
        """Sets clocks, those of running leaders and that of one bookie, and looks what is left of the log."""
        chance = self.world.stream("clocks")
        while not self._is_stopping():
            await trio.sleep(chance.random() * _JUMPS_EVERY_S)
            self._set(self._victim, chance.choice(_WRONG_BOOKIE_S))
            if self._wrong:
                self._set(chance.choice(list(self._wrong)), chance.choice(_WRONG_LEADER_S))
            await self._look(client)

    def _set(self, name: str, ahead_s: float) -> None:
        self.world.set_clock(name, ahead_s)
        self.world.count("clock jumped" if ahead_s else "clock set right")

    async def _retain(self, client: Client) -> None:
        try:
            await client.retain_log(KEPT_LOG, age=_AGE)
        except ClockMismatchError:
            self.world.count("clocks named by retention")

    async def _look(self, client: Client) -> None:
        try:
            head = await client.log_metadata(KEPT_LOG)
        except LogNotFoundError:
            return
        gone = [each for each in self._confirmed if each < head.begins_at]
        if gone:
            self.world.violated("L3a", f"{gone[0]} is gone within seconds: the age of entries is {_AGE}")

    # -- judging --------------------------------------------------------------------------------------------------

    async def judge(self, client: Client) -> None:
        """With right clocks, entries that are old go, and what stays can be dropped by what the error says."""
        if not self._confirmed:
            return
        for name in (*self._wrong, *(bookie.name for bookie in self._bookies)):
            self.world.set_clock(name, 0.0)
        await self._look(client)
        async with client.write_log(KEPT_LOG) as log:
            last = await log.append(b"end")
            await log.roll()
        await trio.sleep(_AGE.total_seconds() + 1)
        begin = await self._drop_old(client)
        async with client.read_log(KEPT_LOG) as reader:
            found = [record.position async for record in reader]
        self.world.count("old entries dropped" if begin > self._confirmed[0] else "old entries kept")
        expected = {each for each in (*self._confirmed, last) if each >= begin}
        if not expected.issubset(found):
            self.world.violated("W2", f"{min(expected.difference(found))} of the kept log was confirmed, and is lost")

    async def _drop_old(self, client: Client) -> Position:
        """Drops what is old, and each segment that an error names, as an operator does; returns where the log begins."""
        while True:
            try:
                return await client.retain_log(KEPT_LOG, age=_AGE)
            except ClockMismatchError as error:
                if error.segment is None:
                    self.world.violated("L3a", f"all clocks are right: {error}")
                    return (await client.log_metadata(KEPT_LOG)).begins_at
                self.world.count("segment in doubt named by retention")
                await client.trim_log(KEPT_LOG, before=Position(error.segment + 1, 0))
