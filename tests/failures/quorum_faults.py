"""Faults of members' processes, clocks and disks, and changes of who is a member. Each ends by itself."""

from __future__ import annotations

import errno
import random
import signal
from collections import Counter
from collections.abc import Mapping

import trio

from replog.errors import ConfigError, MetastoreUnavailableError, MetastoreUncertainError
from replog.metastores.quorum.questions import QuestionKind
from tests.failures.quorum_members import Members, busy, in_thread

_YEAR_S = 365 * 86400
_MEMBERS_MIN, _MEMBERS_MAX = 3, 5
_CHANGE_S = 8.0
_STOPS_S = (0.3, 2.0, 6.0)  # an election takes up to 6 s
_FULL = 1 << 20  # calls: as many as come


class ProcessFaults:
    """Processes are killed and stopped; their clocks jump, their disks fail."""

    def __init__(self, members: Members, choice: random.Random, counts: Counter[str]) -> None:
        self._members = members
        self._choice = choice
        self._counts = counts

    async def one(self) -> None:
        """One fault; sometimes none, if something is done to all members."""
        fault = self._choice.choices((self._kill, self._stop, self._jump, self._fail), (4, 4, 1, 2))[0]
        if self._members.idle:
            await fault()

    async def _kill(self) -> None:
        """One member, or all of them, is killed and started again."""
        idle = self._members.idle
        chosen = idle if self._choice.random() < 0.3 else [self._members.one_of(idle, self._choice)]
        self._counts["kill"] += len(chosen)
        with busy(*chosen):
            for each in chosen:
                each.signal(signal.SIGKILL)  # at one moment: none of them writes what the others have acknowledged
            for each in chosen:
                await in_thread(each.kill)
            await trio.sleep(self._choice.uniform(0, 0.5))
            for each in chosen:
                await in_thread(each.launch)

    async def _stop(self) -> None:
        """One member hangs for a while: longer than an election takes, sometimes."""
        chosen = self._members.one_of(self._members.idle, self._choice)
        self._counts["stop"] += 1
        with busy(chosen):
            await in_thread(chosen.hang)
            await trio.sleep(self._choice.choice(_STOPS_S))
            await in_thread(chosen.thaw)

    async def _jump(self) -> None:
        """The clock of one member is a year ahead, or behind, until it jumps again."""
        chosen = self._members.one_of(self._members.used, self._choice)
        self._counts["clock jump"] += 1
        chosen.set_clock(self._choice.choice((_YEAR_S, -_YEAR_S, 0)))

    async def _fail(self) -> None:
        """The disk of one member fails once, or is full for a while; the member has stopped then, and is started again."""
        chosen = self._members.one_of(self._members.idle, self._choice)
        error, count = self._choice.choice(((errno.EIO, 1), (errno.ENOSPC, 1), (errno.ENOSPC, _FULL)))
        self._counts[errno.errorcode[error]] += 1
        with busy(chosen):
            chosen.fail(error, count)
            await trio.sleep(self._choice.uniform(0.5, 2))
            await in_thread(chosen.kill)
            chosen.fail(0, 0)
            await in_thread(chosen.launch)


class Changes:
    """Members are added, removed and replaced, and lose their disks."""

    def __init__(self, members: Members, choice: random.Random, counts: Counter[str]) -> None:
        self._members = members
        self._choice = choice
        self._counts = counts

    async def one(self) -> None:
        """One change, or nothing if it may not be done now."""
        count = len(self._members.used)
        allowed = [self._lose_disk] * 2
        if self._members.spares:
            allowed += [self._replace] * 2 + [self._add] * 2 * (count < _MEMBERS_MAX)
        if count > _MEMBERS_MIN:
            allowed += [self._remove] * 2
        await self._choice.choice(allowed)()

    async def _add(self) -> None:
        new = self._members.spares[0]
        await self._members.begin(new)
        with busy(new):
            await self._ask(QuestionKind.ADD, {"address": new.address})

    async def _replace(self) -> None:
        new, old = self._members.spares[0], self._members.one_of(self._members.used, self._choice)
        await self._members.begin(new)
        with busy(new):
            is_done = await self._ask(QuestionKind.REPLACE, {"member": old.address, "address": new.address})
        if is_done and not old.is_busy:
            await self._members.end(old)

    async def _remove(self) -> None:
        said = await self._members.say()
        if said is None or len(said.members) <= _MEMBERS_MIN:
            return  # processes that were removed and go on are no members
        old = self._members.one_of(self._members.used, self._choice)
        if await self._ask(QuestionKind.REMOVE, {"member": old.address}) and not old.is_busy:
            await self._members.end(old)

    async def _ask(self, kind: QuestionKind, facts: Mapping[str, str]) -> bool:
        try:
            async with self._members.metastore() as metastore:
                await metastore.administer(kind, facts, _CHANGE_S)
        except (ConfigError, MetastoreUnavailableError, MetastoreUncertainError) as error:
            self._counts[f"{kind.name.lower()}: {type(error).__name__}"] += 1
            return False
        self._counts[f"{kind.name.lower()}: done"] += 1
        return True

    async def _lose_disk(self) -> None:
        """The disk of one member is emptied while another one lags, if all others still have theirs and are enough."""
        is_enough = len(self._members.used) >= _MEMBERS_MIN and len(self._members.idle) >= 2
        if not is_enough or not await self._members.is_whole():
            self._counts["lost disk: not now"] += 1
            return
        lost, lagging = self._choice.sample(self._members.idle, 2)
        self._counts["lost disk"] += 1
        with busy(lost, lagging):
            await in_thread(lagging.hang)
            await trio.sleep(self._choice.uniform(0.1, 1))
            await in_thread(lost.kill)
            await in_thread(lost.wipe)
            await in_thread(lost.launch)
            await trio.sleep(self._choice.uniform(0.5, 3))
            await in_thread(lagging.thaw)
