"""Sentences that have to be read twice get fewer, and never more (`tests/words.py`)."""

from __future__ import annotations

from tests.words import SHOWN, habits


def test_habits_stay_within_their_limits() -> None:
    exceeded = [habit.report(SHOWN) for habit in habits() if len(habit.found) > habit.limit]
    assert not exceeded, "\n".join([*exceeded, "python -m tests.words --all names every one"])
