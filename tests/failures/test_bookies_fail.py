"""Bookies die, hang and come back while a log is written and read: nothing confirmed is lost, and appends go on.

Five bookies, three of them in an ensemble, two acknowledgements. What is asked of each fault: the ensemble changes within what
the options allow, latency is soon what it was, the writer never fails; and in the end the judge has nothing to say.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from replog.testing.history import latencies_s
from tests.failures.cluster import CONFIRMING_S, Bookie, Cluster, cluster
from tests.failures.options import NOTICING_S, REPLACING_S, RETURNING_S


async def kill_one(cluster: Cluster, calm_p99_s: float) -> Bookie:
    """kill -9 of a bookie of the ensemble."""
    victim = (await cluster.ensemble())[0]
    since_s = cluster.note(f"bookie {victim.number} is killed")
    await victim.running.kill()
    await cluster.replaced([victim], NOTICING_S)
    await cluster.p99_recovers(calm_p99_s, since_s, NOTICING_S + 1)
    return victim


async def stop_one(cluster: Cluster, calm_p99_s: float) -> Bookie:
    """SIGSTOP of a bookie of the ensemble: its connections stay, and it does nothing."""
    victim = (await cluster.ensemble())[1]
    since_s = cluster.note(f"bookie {victim.number} is stopped")
    victim.running.stop()
    await cluster.replaced([victim], REPLACING_S)
    await cluster.p99_recovers(calm_p99_s, since_s, REPLACING_S + 1)
    return victim


@pytest.mark.long(is_sampled=False)  # test_long.py kills and stops bookies at random
async def test_dead_and_hanging_bookies_are_replaced_and_used_again(tmp_path: Path) -> None:
    async with cluster(tmp_path) as found:
        await found.start_writer("writer")
        await found.start_reader("reader")
        calm_p99_s = await found.calm_p99_s()

        killed = await kill_one(found, calm_p99_s)
        await found.start_bookie(killed)
        stopped = await stop_one(found, calm_p99_s)
        # With these two gone besides, there are as many as an ensemble has: whoever came back must be used.
        first, second, third = await found.ensemble()
        found.note(f"bookie {stopped.number} wakes, {first.number} and {second.number} are killed at once")
        stopped.running.wake()
        await first.running.kill()
        await second.running.kill()
        await found.replaced([first, second], RETURNING_S)
        assert set(map(id, await found.ensemble())) == set(map(id, (third, *await others(found, first, second, third))))
        await found.p99_recovers(calm_p99_s, found.note("there are three"), RETURNING_S)

        await found.start_bookie(first)
        await found.confirms(100, CONFIRMING_S)
        events = await found.judged()
        assert [event for event in events if event.kind == "unknown"] == [], "bookies fail, the writer does not"
        assert latencies_s(events)[-1] < RETURNING_S


async def others(cluster: Cluster, *bookies: Bookie) -> list[Bookie]:
    return [each for each in cluster.bookies if all(each is not bookie for bookie in bookies)]
