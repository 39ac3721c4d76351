"""A machine among crashes, pauses and lost messages: its calls are linearizable, and each is applied once."""

from __future__ import annotations

from functools import cache

import pytest

from replog.machine import core, sessions
from tests.machine.simulated import Seen, check, run

pytestmark = pytest.mark.slow  # a second each
SEEDS_LONG = 500


@cache
def traced(seed: int) -> tuple[str, list[str]]:
    trace: list[str] = []
    return run(seed, trace=trace), trace


def test_no_seed_breaks_linearizability() -> None:
    assert "answered" in traced(0)[0]


def test_no_seed_breaks_linearizability_of_full_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids are given up all the time, and commands wait for room: each is applied once all the same."""
    monkeypatch.setattr(core, "RESULTS_MAX", 1)
    monkeypatch.setattr(sessions, "IDS_MAX", 2)
    monkeypatch.setattr(sessions, "_ANSWERED_IDS_KEPT", 1)
    assert "answered" in run(1)


@pytest.mark.long(is_sampled=False)  # that simulations repeat is seen in tests/testing/simulating
def test_a_seed_has_one_trace() -> None:
    again: list[str] = []
    run(0, trace=again)
    assert again == traced(0)[1]


@pytest.mark.long(is_sampled=False)
def test_no_seed_of_many_breaks_linearizability() -> None:
    for seed in range(1, SEEDS_LONG):
        assert "answered" in run(seed)


APPEND = Seen("a", 0, 1, 1)
LATER = Seen("b", 2, 3, 2)


@pytest.mark.parametrize(
    ("seen", "entries"),
    [
        ([APPEND], ()),
        ([APPEND], ("b", "a")),
        ([APPEND], ("a", "a")),
        ([APPEND, Seen("b", 2, 3, 1)], ("b", "a")),
        ([APPEND, LATER], ("b", "a")),
        ([APPEND, Seen("", 2, 3, 0)], ("a",)),
        ([LATER, Seen("", 0, 1, 1, ("b",))], ("b",)),
        ([Seen("", 0, 1, 1, ("a",)), Seen("", 2, 3, 0)], ("a",)),
        ([Seen("", 0, 1, 1, ("b",))], ("a", "b")),
    ],
)
def test_checker_finds_nonlinearizable_histories(seen: list[Seen], entries: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError):
        check(seen, entries)


def test_checker_accepts_linearizable_histories() -> None:
    unknown = Seen("c", 0)
    overlapping = [Seen("", 0.5, 2.5, 2, ("a", "b")), Seen("", 0.5, 2.5, 0)]
    for entries in (("a", "b"), ("a", "b", "c")):
        check([APPEND, LATER, unknown, *overlapping], entries)
