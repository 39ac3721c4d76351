"""What the adapters share: how a load is to be understood, and what is counted of its latencies."""

from __future__ import annotations

import pytest

from benchmarks.peers import system
from benchmarks.peers.system import Latencies, Load


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What time it is, as its only element."""
    now = [100.0]
    monkeypatch.setattr(system, "clock", lambda: now[0])
    return now


def test_warm_up_takes_a_fifth_of_the_load_and_at_most_a_second() -> None:
    assert Load(100, 1, 1.0).warm_up_s == pytest.approx(0.2)
    assert Load(100, 1, 15.0).warm_up_s == 1.0


def test_latencies_are_those_of_each_entry(clock: list[float]) -> None:
    latencies = Latencies()
    latencies.sent(900)
    clock[0] += 0.001
    latencies.sent(100)
    latencies.confirmed(899)
    clock[0] += 0.001
    latencies.confirmed(101)

    found = latencies.figures()

    assert {name: round(value) for name, value in found.items()} == {"p50_us": 1000, "p99_us": 1000, "p999_us": 2000}


def _confirm(latencies: Latencies, clock: list[float], *counts: int) -> None:
    """So many in each of the next seconds, in the middle of it."""
    for count in counts:
        clock[0] += 0.5
        if count:
            latencies.sent(count)
            latencies.confirmed(count)
        clock[0] += 0.5


def test_the_worst_second_is_the_one_with_the_fewest_entries(clock: list[float]) -> None:
    latencies = Latencies()
    _confirm(latencies, clock, 1)  # the warm-up
    clock[0] += 0.7
    latencies.forget()
    _confirm(latencies, clock, 50, 30, 40)
    clock[0] += 0.9  # a second that has not ended is none

    assert latencies.lowest_per_s() == {"lowest_per_s": 30.0}


def test_a_second_without_an_entry_is_the_worst(clock: list[float]) -> None:
    latencies = Latencies()
    _confirm(latencies, clock, 50, 0, 40)

    assert latencies.lowest_per_s() == {"lowest_per_s": 0.0}


def test_a_load_of_one_second_has_no_worst_one(clock: list[float]) -> None:
    latencies = Latencies()
    _confirm(latencies, clock, 50)
    clock[0] += 0.9

    assert latencies.lowest_per_s() == {}
