"""Connections to bookies are delayed, swallowed, reset and half closed, by proxies before each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from replog.testing import NetworkConditions, TcpProxy
from replog.testing.history import latencies_s
from tests.failures.cluster import CONFIRMING_S, READER_LAGS_S, Bookie, Cluster, cluster, reading_pauses_s
from tests.failures.options import CLIENT, NOTICING_S, REPLACING_S, RETURNING_S, TAKING_OVER_S
from tests.failures.processes import Process

STORM = NetworkConditions(delay_s=0.005, jitter_s=0.01, loss=0.02)


def proxy_of(bookie: Bookie) -> TcpProxy:
    assert bookie.proxy is not None
    return bookie.proxy


FAULTS: list[tuple[str, Callable[[TcpProxy], None], float]] = [
    ("a black hole", TcpProxy.swallow, REPLACING_S),
    ("answers vanish", lambda proxy: proxy.to_client.swallow(), REPLACING_S),
    ("requests vanish", lambda proxy: proxy.to_bookie.swallow(), REPLACING_S),
    ("resets", TcpProxy.cut, NOTICING_S),
    ("half closed", TcpProxy.half_close, NOTICING_S),
]


async def die_with_the_only_copy(cluster: Cluster, writer: Process) -> None:
    """Entries reach one bookie of three, which dies with the writer: so they may not have been confirmed (W2)."""
    ahead, *behind = await cluster.ensemble()
    cluster.note(f"entries reach bookie {ahead.number} alone; it and the writer are killed")
    for bookie in behind:
        proxy_of(bookie).to_bookie.swallow()
    await trio.sleep(
        CLIENT.add_timeout_s / 3
    )  # for a writer that would confirm them, and not until it changes the ensemble
    await writer.kill()
    await ahead.running.kill()
    for bookie in behind:
        proxy_of(bookie).reset()  # what was swallowed never arrives
        proxy_of(bookie).mend()


@pytest.mark.long(is_sampled=False)  # test_long.py spoils networks at random
async def test_bookies_behind_a_bad_network_are_replaced_then_used(tmp_path: Path) -> None:
    async with cluster(tmp_path, proxies=True) as found:
        writer = await found.start_writer("writer")
        await found.start_reader("reader")
        calm_p99_s = await found.calm_p99_s()
        mended: list[Bookie] = []
        for name, spoil, within_s in FAULTS:
            victim = (await found.ensemble())[0]
            since_s = found.note(f"{name}: bookie {victim.number}")
            spoil(proxy_of(victim))
            await found.replaced([victim], within_s)
            await found.p99_recovers(calm_p99_s, since_s, within_s + 1)
            for each in mended:
                proxy_of(each).mend()
            mended = [victim]  # it stays as it is while the next one fails: two of five
        for bookie in found.bookies:
            proxy_of(bookie).mend()

        found.note("delays, jitter and loss everywhere")
        for bookie in found.bookies:
            proxy_of(bookie).set_conditions(STORM)
        await found.confirms(100, 2 * CONFIRMING_S)
        since_s = found.note("fine weather")
        for bookie in found.bookies:
            proxy_of(bookie).mend()
        await found.p99_recovers(calm_p99_s, since_s, RETURNING_S)

        assert reading_pauses_s(found.events())[-1] < READER_LAGS_S
        victim = (await found.ensemble())[2]
        found.note(f"a black hole: bookie {victim.number}; the writer is killed, and another one takes over")
        proxy_of(victim).swallow()
        await writer.kill()
        successor = await found.start_writer("successor")
        await found.confirms(100, CONFIRMING_S)
        assert found.takeover_s("successor.1") < TAKING_OVER_S
        proxy_of(victim).mend()
        await die_with_the_only_copy(found, successor)
        await found.start_writer("last")
        await found.confirms(100, CONFIRMING_S)

        events = await found.judged()
        assert [event for event in events if event.kind == "unknown"] == [], "networks fail, the writer does not"
        assert latencies_s(events)[-1] < RETURNING_S
