"""Everything fails, at random and for as long as one likes: `REPLOG_FAILURES_S=600 make test-long ARGS='-k random_failures'`.

At most two of five bookies are impaired at a time, so that an ensemble of three can always be had; and one writer at a time.
"""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from replog.testing import NetworkConditions, TcpProxy
from tests.failures.cluster import CONFIRMING_S, Bookie, Cluster, cluster
from tests.failures.options import RETURNING_S
from tests.failures.processes import Process

LENGTH_S = float(os.environ.get("REPLOG_FAILURES_S", "0"))  # 0: as long as the lane has time
SEED = int(os.environ.get("REPLOG_FAILURES_SEED", "1"))
IMPAIRED_MAX = 2
WRITER_FAILS = 0.2  # the chance that the next to fail is the writer

STORM = NetworkConditions(delay_s=0.01, jitter_s=0.03, loss=0.05)
NARROW = NetworkConditions(bytes_per_s=20_000.0)

Heal = Callable[[], Awaitable[None]]


class Nemesis:
    """Makes things fail, and puts them right again."""

    def __init__(self, cluster: Cluster, chance: random.Random, writer: Process) -> None:
        self._cluster = cluster
        self._chance = chance
        self._writer = writer
        self._writers = 1
        self._impaired: dict[int, Heal] = {}

    async def rage(self, length_s: float) -> None:
        """For so long."""
        with trio.move_on_after(length_s):
            while True:
                await trio.sleep(self._chance.expovariate(1.0))  # in s; now and then long enough for every timeout
                with trio.CancelScope(shield=True):  # each step is done wholly
                    if self._chance.random() < WRITER_FAILS:
                        await self._depose_writer()
                    elif len(self._impaired) < self._chance.randint(1, IMPAIRED_MAX):
                        await self._impair()
                    else:
                        await self._heal(self._chance.choice(list(self._impaired)))

    async def heal_all(self) -> None:
        """All is well again."""
        for number in list(self._impaired):
            await self._heal(number)

    async def _heal(self, number: int) -> None:
        self._cluster.note(f"bookie {number} is well again")
        await self._impaired.pop(number)()

    async def _impair(self) -> None:
        ensemble = [bookie for bookie in await self._cluster.ensemble() if bookie.number not in self._impaired]
        others = [bookie for bookie in self._cluster.bookies if bookie.number not in self._impaired]
        victim = self._chance.choice(ensemble or others)
        name, spoil = self._chance.choice(SPOILED)
        if self._chance.random() < 0.4:
            name, self._impaired[victim.number] = await self._fail_process(victim)
        else:
            assert victim.proxy is not None
            spoil(victim.proxy)
            self._impaired[victim.number] = self._mending(victim.proxy)
        self._cluster.note(f"bookie {victim.number}: {name}")

    async def _fail_process(self, victim: Bookie) -> tuple[str, Heal]:
        if self._chance.random() < 0.5:
            await victim.running.kill()

            async def restart() -> None:
                await self._cluster.start_bookie(victim)

            return "killed", restart
        victim.running.stop()

        async def wake() -> None:
            victim.running.wake()

        return "stopped", wake

    def _mending(self, proxy: TcpProxy) -> Heal:
        async def mend() -> None:
            proxy.mend()

        return mend

    async def _depose_writer(self) -> None:
        """The writer is killed, or stopped; the next one takes over; who was stopped wakes, and learns it."""
        deposed, is_killed = self._writer, self._chance.random() < 0.5
        self._cluster.note(f"{deposed.name} is {'killed' if is_killed else 'stopped'}")
        if is_killed:
            await deposed.kill()
        else:
            deposed.stop()
        self._writers += 1
        self._writer = await self._cluster.start_writer(f"writer-{self._writers}")
        if not is_killed:
            deposed.wake()
            await deposed.says("fenced")
            await deposed.ended()


SPOILED: list[tuple[str, Callable[[TcpProxy], None]]] = [
    ("a black hole", TcpProxy.swallow),
    ("answers vanish", lambda proxy: proxy.to_client.swallow()),
    ("requests vanish", lambda proxy: proxy.to_bookie.swallow()),
    ("cut off", TcpProxy.cut),
    ("reset", TcpProxy.reset),
    ("half closed", TcpProxy.half_close),
    ("a storm", lambda proxy: proxy.set_conditions(STORM)),
    ("a narrow path", lambda proxy: proxy.set_conditions(NARROW)),
]


@pytest.mark.long
@pytest.mark.crash
async def test_no_rule_is_broken_by_random_failures(tmp_path: Path, is_long: bool) -> None:
    async with cluster(tmp_path, proxies=True) as found:
        found.note(f"the seed is {SEED}")
        nemesis = Nemesis(found, random.Random(SEED), await found.start_writer("writer-1"))
        await found.start_reader("reader-1")
        await found.start_reader("reader-2")
        calm_p99_s = await found.calm_p99_s(100)
        await nemesis.rage(LENGTH_S or (300.0 if is_long else 20.0))
        await nemesis.heal_all()
        await found.p99_recovers(calm_p99_s, found.note("all is well"), 2 * RETURNING_S)
        await found.confirms(100, CONFIRMING_S)
        await found.judged(confirmed_min=200)
