"""The time inside a machine (L12): what jumps of the leader's wall clock, and takeovers, do to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

import replog
from replog.machine.clock import MachineClock
from replog.runtime.entropy import Entropy, use_entropy
from tests.kit import ONE, Cluster, cluster
from tests.machine.counters import OPTIONS

SECOND, DAY = 10**9, 86_400 * 10**9
BEGAN_NS = 2 * 10**18


class Wall:
    """A wall clock that runs with the virtual time, and jumps on demand."""

    def __init__(self) -> None:
        self.ahead_ns = 0
        self._began_s = trio.current_time()

    def time_ns(self) -> int:
        return BEGAN_NS + self.ahead_ns + round((trio.current_time() - self._began_s) * SECOND)


@asynccontextmanager
async def lock_member(made: Cluster, name: str = "lock") -> AsyncIterator[replog.RunningMachine[replog.ReplicatedLock]]:
    async with made.client(None, ONE) as client:
        async with client.run_machine(name, replog.ReplicatedLock, listen=(), options=OPTIONS) as running:
            yield running


async def until_free(lock: replog.RunningMachine[replog.ReplicatedLock], limit_s: float) -> float:
    """Returns after how many seconds somebody else gets the lock; infinity if not within the limit."""
    began_s = trio.current_time()
    while trio.current_time() - began_s < limit_s:
        if await lock.acquire("other", 1.0) is not None:
            return trio.current_time() - began_s
        await trio.sleep(0.05)
    return float("inf")


# -- the clock alone ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log_ns", "ahead_ns", "passed_ns"),
    [
        (0, 0, 100 * SECOND),  # an empty log starts at the wall clock
        (BEGAN_NS, 0, 100 * SECOND),
        (BEGAN_NS, DAY, 105 * SECOND),
        (BEGAN_NS, 30 * SECOND, 105 * SECOND),  # also by less than a minute
        (BEGAN_NS, 2 * SECOND, 102 * SECOND),  # it catches up, and goes no further
        (BEGAN_NS, -DAY, 100 * SECOND),
        (BEGAN_NS + DAY, 0, 100 * SECOND),  # the clock of an earlier leader was ahead
        (BEGAN_NS - DAY, 0, 105 * SECOND),  # nobody has led for a day
    ],
)
async def test_l12_machine_time_runs_with_the_monotonic_clock(log_ns: int, ahead_ns: int, passed_ns: int) -> None:
    wall = Wall()
    clock = MachineClock(lambda: log_ns, Entropy(time_ns=wall.time_ns))
    clock.start()
    began_ns = clock.now_ns()
    assert began_ns == (log_ns or BEGAN_NS)
    wall.ahead_ns = ahead_ns
    for _ in range(1000):
        await trio.sleep(0.1)
        clock.now_ns()
    assert clock.now_ns() - began_ns == pytest.approx(passed_ns, abs=SECOND // 100)


async def test_l12_machine_time_never_goes_back_when_the_clock_jumps() -> None:
    wall = Wall()
    clock = MachineClock(lambda: 0, Entropy(time_ns=wall.time_ns))
    times = []
    for place in range(300):
        wall.ahead_ns = (0, DAY, -DAY, 20 * SECOND, -SECOND)[place % 5]
        await trio.sleep(0.1)
        times.append(clock.now_ns())
    assert times == sorted(times)
    assert 29 * SECOND < times[-1] - times[0] < 32 * SECOND


# -- a lock in a machine ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_ns", [DAY, 30 * SECOND, 3650 * DAY, -DAY])
async def test_l12_lock_ends_in_time_when_a_clock_jumped_for_a_moment(ahead_ns: int) -> None:
    wall = Wall()
    use_entropy(Entropy(time_ns=wall.time_ns))
    async with cluster(1) as made, lock_member(made) as lock:
        await lock.acquire("first", 1.0)
        wall.ahead_ns = ahead_ns
        await lock.release(await lock.acquire("first", 0.0) or 1)
        await lock.acquire("holder", 1.0)
        wall.ahead_ns = 0
        assert 0.9 < await until_free(lock, 60.0) < 1.2


async def test_l12_lock_is_kept_when_the_clock_stays_ahead() -> None:
    wall = Wall()
    use_entropy(Entropy(time_ns=wall.time_ns))
    async with cluster(1) as made, lock_member(made) as lock:
        await lock.acquire("holder", 60.0)
        wall.ahead_ns = 365 * DAY
        assert 57.0 <= await until_free(lock, 100.0) < 60.0


@pytest.mark.parametrize("ahead_ns", [DAY, -DAY, 3650 * DAY])
async def test_l12_next_leader_goes_on_with_the_time_of_the_log(ahead_ns: int) -> None:
    """The clocks of two members differ by years: a lock lasts as long as if it were one."""
    wall = Wall()
    use_entropy(Entropy(time_ns=wall.time_ns))
    async with cluster(1) as made:
        async with lock_member(made) as lock:
            await lock.acquire("holder", 10.0)
            held_ns = await lock.read(lambda state: state.expires_ns)
        wall.ahead_ns = ahead_ns
        async with lock_member(made) as lock:
            assert 8.0 < await until_free(lock, 60.0) < 11.0
            assert 0 < lock.status.time_ns - held_ns < 10 * SECOND


async def test_l12_time_passes_in_an_idle_leader() -> None:
    wall = Wall()
    use_entropy(Entropy(time_ns=wall.time_ns))
    async with cluster(1) as made:
        async with lock_member(made) as lock:
            await lock.acquire("holder", 10.0)
        wall.ahead_ns = -DAY
        async with lock_member(made) as lock:
            await trio.sleep(10.5)
            assert await lock.acquire("other", 1.0) is not None
