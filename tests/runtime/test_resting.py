"""Resting beside others: only while there are any, and no longer than they need."""

import pytest
import trio
import trio.testing

from replog.runtime.resting import Rests


async def rest_s(rests: Rests, work_s: float) -> float:
    began_s = trio.current_time()
    await trio.sleep(work_s)
    ended_s = trio.current_time()
    await rests.after(began_s)
    return trio.current_time() - ended_s


async def test_work_without_traffic_does_not_rest(autojump_clock: trio.testing.MockClock) -> None:
    rests = Rests(lambda: 7)
    assert [await rest_s(rests, 0.01) for _ in range(3)] == [0.0] * 3


async def test_rests_are_three_times_the_work_while_entries_are_added(
    autojump_clock: trio.testing.MockClock,
) -> None:
    added = 0
    rests = Rests(lambda: added)
    added += 1
    assert await rest_s(rests, 0.001) == pytest.approx(0.003)
    assert await rest_s(rests, 0.01) == pytest.approx(0.03)  # and none was added since: maybe it waits for its turn
    await trio.sleep(0.1)
    assert await rest_s(rests, 0.001) == 0.0
    added += 1
    assert await rest_s(rests, 10.0) == pytest.approx(0.05)  # it waited for others, or had nothing to do
