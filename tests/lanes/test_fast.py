"""The fast lane refuses what depends on the machine, and tests without a clock of their own run in virtual time."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest
import trio
import trio.testing

from tests.lanes.fast import IDLE_S, FastLaneError, first_cases

LONG_S = 3600.0


@pytest.mark.parametrize(
    "ask",
    [
        socket.socket,
        lambda: socket.create_connection(("127.0.0.1", 1)),
        lambda: subprocess.run([sys.executable, "-c", ""]),
        lambda: os.fork(),
        lambda: time.sleep(0),
    ],
    ids=["socket", "connection", "subprocess", "fork", "sleep"],
)
def test_fast_lane_refuses(ask: Callable[[], object], fast_lane: list[str]) -> None:
    with pytest.raises(FastLaneError, match="the fast lane has no"):
        ask()
    assert len(fast_lane) == 1, "the test would pass if the code under test caught the error"
    fast_lane.clear()


def test_fast_lane_notices_real_time(fast_lane: list[str]) -> None:
    trio.run(trio.sleep, 0.5)  # not less: on a busy machine it would be over before trio waits
    assert fast_lane == ["the fast lane has no real time: use autojump_clock, or patient_clock if a thread takes part"]
    fast_lane.clear()


async def test_fast_lane_sleeps_in_virtual_time() -> None:
    before = time.monotonic()
    await trio.sleep(LONG_S)
    assert time.monotonic() - before < LONG_S / 2


async def test_virtual_time_waits_for_busy_threads() -> None:
    """It needs longer than the clock is patient, and is busy all the time."""
    wanted, counted = 2_000_000, 0

    def count() -> None:
        nonlocal counted
        while counted < wanted:
            counted += 1

    with trio.fail_after(0.001):
        await trio.to_thread.run_sync(count)
    assert counted == wanted


async def test_virtual_time_is_patient_from_the_first_thread_on() -> None:
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    assert clock.autojump_threshold == 0
    await trio.to_thread.run_sync(lambda: None)
    await trio.sleep(LONG_S)
    assert clock.autojump_threshold == IDLE_S


async def test_virtual_time_passes_while_threads_wait() -> None:
    gate = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, lambda: gate.wait())
        await trio.sleep(LONG_S)
        gate.set()


def test_sample_has_one_case_of_every_third_test(request: pytest.FixtureRequest) -> None:
    chosen = Counter(each.nodeid.partition("[")[0] for each in first_cases(request.session.items))
    all_tests = {each.nodeid.partition("[")[0] for each in request.session.items}
    assert set(chosen) <= all_tests
    assert len(chosen) == -(-len(all_tests) // 3)
    assert set(chosen.values()) == {1}
    of_another_worker = sorted(request.session.items, key=lambda each: each.path, reverse=True)
    assert {each.nodeid for each in first_cases(of_another_worker)} == {
        each.nodeid for each in first_cases(request.session.items)
    }


@pytest.mark.slow
async def test_slow_tests_sleep_in_virtual_time_too() -> None:
    before = time.monotonic()
    await trio.sleep(LONG_S)
    assert time.monotonic() - before < LONG_S / 2
