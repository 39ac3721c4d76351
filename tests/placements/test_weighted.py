"""Placement by free space."""

from __future__ import annotations

import random
from collections import Counter

from replog.abc import Candidate
from replog.placements.weighted import WeightedPlacement
from replog.protocol.quorum import Quorum

PLACEMENT = WeightedPlacement()
ONE = Quorum(1, 1, 1)


def drawn(candidates: list[Candidate], times: int = 3000) -> Counter[str]:
    source = random.Random(7)
    return Counter(PLACEMENT.choose_ensemble(ONE, candidates, source)[0] for _ in range(times))


def test_a_bookie_with_twice_the_space_is_chosen_twice_as_often() -> None:
    found = drawn([Candidate("small", free_bytes=1 << 30), Candidate("large", free_bytes=2 << 30)])
    assert 1.8 < found["large"] / found["small"] < 2.2, found


def test_bookie_without_a_report_counts_as_the_mean() -> None:
    found = drawn([Candidate("a", free_bytes=10), Candidate("b", free_bytes=30), Candidate("c")])
    assert 0.28 < found["c"] / 3000 < 0.39, found


def test_a_full_bookie_is_chosen_only_if_it_must() -> None:
    candidates = [
        Candidate("full", free_bytes=0),
        Candidate("x", free_bytes=1 << 40),
        Candidate("y", free_bytes=1 << 40),
    ]
    source = random.Random(7)
    for _ in range(100):
        assert set(PLACEMENT.choose_ensemble(Quorum(2, 2, 2), candidates, source)) == {"x", "y"}
    assert len(PLACEMENT.choose_ensemble(Quorum(3, 3, 2), candidates, source)) == 3
