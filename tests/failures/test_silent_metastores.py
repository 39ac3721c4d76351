"""A bookie dies or hangs, and the metastore is silent as well: appends go on, because two of three bookies answer (C9).

`-s` prints the figures. How long appends take without a fault is measured first, because others may use the machine: what is
asked for is how much worse it may get."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import attrs
import pytest
import trio

import replog
from replog.testing.history import quantile
from tests.failures.cluster import Bookie, Cluster, cluster
from tests.servers.zookeeper import ZooKeeper

LOG = "orders"
DATA = bytes(1024)
PER_SECOND = 1000
TASKS = 100
CALM_S = 8.0
SILENT_S = 14.0  # longer than `metastore_timeout_s`
GAP_MAX_S = 0.1
WORSE_MAX_S = 0.05

pytestmark = [pytest.mark.long(is_sampled=False), pytest.mark.needs_zookeeper]


@attrs.frozen
class Appending:
    """Appends to one log: each with when it began and when it was confirmed, of the monotonic clock."""

    log: replog.LogWriter
    done: list[tuple[float, float]] = attrs.field(factory=list)

    async def append(self) -> None:
        began_s = time.monotonic()
        await self.log.append(DATA)
        self.done.append((began_s, time.monotonic()))

    async def paced(self, seconds: float) -> float:
        """So many a second, whatever becomes of those before; returns the longest time without a confirmation."""
        first, began_s = len(self.done), time.monotonic()
        async with trio.open_nursery() as nursery:
            for number in range(int(seconds * PER_SECOND)):
                due_s = began_s + number / PER_SECOND - time.monotonic()
                await trio.sleep(max(0.0, due_s))
                nursery.start_soon(self.append)
        moments = [began_s, *(confirmed_s for _, confirmed_s in self.done[first:])]
        return max(later - earlier for earlier, later in pairwise(moments))

    async def by_tasks(self, seconds: float) -> list[float]:
        """As fast as they can; returns what the appends took, ascending."""
        first, ends_s = len(self.done), time.monotonic() + seconds

        async def run() -> None:
            while time.monotonic() < ends_s:
                await self.append()

        async with trio.open_nursery() as nursery:
            for _ in range(TASKS):
                nursery.start_soon(run)
        return sorted(confirmed_s - began_s for began_s, confirmed_s in self.done[first:])


@asynccontextmanager
async def appending(found: Cluster) -> AsyncIterator[Appending]:
    """A client with the options that users have."""
    async with replog.connect(found.metastore) as client, client.write_log(LOG) as log:
        yield Appending(log)


async def victim(found: Cluster) -> Bookie:
    """A bookie that the log is written to."""
    client = found.client
    log = await client.log_metadata(LOG)
    ensemble = (await client.ledger_metadata(log.segments[-1].ledger_id)).last_fragment.ensemble
    return next(bookie for bookie in found.bookies if bookie.bookie_id == ensemble[1])


async def check_all_there(found: Cluster, appends: int) -> None:
    """Every confirmed entry can be read."""
    async with replog.connect(found.metastore) as client, client.read_log(LOG) as reader:
        records = [record.data async for record in reader]
    assert len(records) >= appends
    assert set(records) == {DATA}


@pytest.mark.parametrize("bookies", [3, 4])
async def test_c9_bookie_is_killed_while_zookeeper_is_stopped(
    tmp_path: Path, own_zookeeper: ZooKeeper, bookies: int
) -> None:
    async with cluster(tmp_path, bookies=bookies, metastore=own_zookeeper.url("/silent")) as found:
        async with appending(found) as work:
            calm_s = await work.paced(SILENT_S)
            chosen = await victim(found)
            own_zookeeper.freeze()
            async with trio.open_nursery() as nursery:

                async def kill() -> None:
                    await trio.sleep(1.0)
                    await chosen.running.kill()

                nursery.start_soon(kill)
                gap_s = await work.paced(SILENT_S)
            own_zookeeper.thaw()
            after_s = await work.paced(CALM_S / 2)
            print(
                f"\n{bookies} bookies, {PER_SECOND} appends/s: longest time without a confirmation {calm_s * 1000:.1f} ms calm, "
                f"{gap_s * 1000:.1f} ms with a bookie killed and ZooKeeper stopped for {SILENT_S:.0f} s, "
                f"{after_s * 1000:.1f} ms after that"
            )
            assert gap_s < GAP_MAX_S + calm_s
        await check_all_there(found, len(work.done))


@pytest.mark.parametrize("bookies", [3, 4])
async def test_c9_bookie_hangs_under_many_tasks(tmp_path: Path, own_zookeeper: ZooKeeper, bookies: int) -> None:
    async with cluster(tmp_path, bookies=bookies, metastore=own_zookeeper.url("/hanging")) as found:
        async with appending(found) as work:
            await work.by_tasks(CALM_S / 2)
            calm_s = await work.by_tasks(CALM_S)
            chosen = await victim(found)
            async with trio.open_nursery() as nursery:

                async def stop() -> None:
                    await trio.sleep(1.0)
                    chosen.running.stop()

                nursery.start_soon(stop)
                hung_s = await work.by_tasks(CALM_S)
            print(
                f"\n{bookies} bookies, {TASKS} tasks, p99.9 (longest): {quantile(calm_s, 0.999) * 1000:.1f} "
                f"({calm_s[-1] * 1000:.1f}) ms of {len(calm_s)} appends undisturbed, {quantile(hung_s, 0.999) * 1000:.1f} "
                f"({hung_s[-1] * 1000:.1f}) ms of {len(hung_s)} with a bookie stopped"
            )
            assert quantile(hung_s, 0.999) < quantile(calm_s, 0.999) + WORSE_MAX_S
        chosen.running.wake()
        await check_all_there(found, len(work.done))
