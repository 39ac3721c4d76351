"""Seeds of `tests/simulator/repairs.py`, and what they must have met."""

from __future__ import annotations

import collections

import pytest

from tests.simulator.repairs import run


@pytest.mark.sized
def test_repairs_lose_and_falsify_nothing(is_long: bool) -> None:
    """F1-F6, B8a."""
    counts: collections.Counter[str] = collections.Counter()
    for seed in range(20_000 if is_long else 150):
        counts.update(run(seed))
    met = {
        "appended",
        "closed",
        "damaged",
        "dropped",
        "ensemble changed",
        "filler killed",
        "filling",
        "in recovery",
        "lost",
        "record changed",
        "recovered",
        "shortened",
    }
    assert met <= counts.keys()
