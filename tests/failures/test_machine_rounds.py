"""Members of a state machine that are killed, stopped and cut off; and the checker that judges them, on wrong histories."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.failures.machine_history import Transaction, violations
from tests.failures.machine_rounds import CAMPAIGN_ROUNDS, campaign

SAMPLED_ROUNDS = 8


@pytest.mark.long
@pytest.mark.crash
async def test_members_are_strictly_serializable_under_kills_and_cuts(tmp_path: Path, is_long: bool) -> None:
    rounds = CAMPAIGN_ROUNDS if is_long else SAMPLED_ROUNDS
    counts, wrong = await campaign(tmp_path, 1, rounds)
    assert not wrong, "\n".join(wrong)
    assert all(counts[fault] for fault in ("kill", "stop", "cut"))
    assert counts["transactions"] > 10 * rounds


def append(value: int, began_s: float, ended_s: float, **seen: tuple[int, ...]) -> Transaction:
    return Transaction(tuple(seen), value, began_s, ended_s, tuple(seen.values()))


def read(began_s: float, ended_s: float, **seen: tuple[int, ...]) -> Transaction:
    return Transaction(tuple(seen), None, began_s, ended_s, tuple(seen.values()))


def unknown(value: int, began_s: float, *keys: str) -> Transaction:
    return Transaction(keys, value, began_s)


ORDERLY = [append(1, 0, 1, a=(1,), b=(1,)), append(2, 0.5, 2, a=(1, 2)), read(3, 4, a=(1, 2), b=(1,))]


@pytest.mark.parametrize(
    ("transactions", "final"),
    [
        (ORDERLY, {"a": [1, 2], "b": [1]}),
        ([*ORDERLY, unknown(3, 3.5, "a")], {"a": [1, 2], "b": [1]}),
        ([*ORDERLY, unknown(3, 3.5, "a")], {"a": [1, 2, 3], "b": [1]}),
        ([append(1, 0, 9, a=(1,)), read(1, 2, a=(1,)), read(0.5, 1.5, a=())], {"a": [1]}),
    ],
    ids=["orderly", "unknown-gone", "unknown-applied", "overlapping"],
)
def test_checker_accepts_histories_with_an_order(transactions: list[Transaction], final: dict[str, list[int]]) -> None:
    assert violations(transactions, final) == []


@pytest.mark.parametrize(
    ("transactions", "final", "said"),
    [
        (ORDERLY, {"a": [1, 2, 1], "b": [1]}, "more than once"),
        (ORDERLY, {"a": [1], "b": [1]}, "is gone"),
        ([unknown(1, 0, "a", "b")], {"a": [1], "b": []}, "in some lists"),
        ([], {"a": [7]}, "nobody appended"),
        ([append(1, 0, 1, a=(1,)), append(2, 0, 1, a=(2,))], {"a": [1, 2]}, "does not begin with"),
        ([append(1, 0, 1, a=(1,)), read(2, 3, a=())], {"a": [1]}, "no order"),
        ([append(1, 0, 1, a=(1,)), unknown(2, 5, "a"), read(2, 3, a=(1, 2))], {"a": [1, 2]}, "no order"),
        ([append(2, 2, 3, a=(1, 2)), unknown(1, 4, "a")], {"a": [1, 2]}, "no order"),
        (
            [append(1, 0, 9, a=(1,)), append(2, 0, 9, b=(2,)), read(0, 9, a=(1,), b=()), read(0, 9, a=(), b=(2,))],
            {"a": [1], "b": [2]},
            "no order",
        ),
        (
            [append(1, 0, 9, a=(1,)), read(1, 2, a=(1,)), read(3, 4, a=())],
            {"a": [1]},
            "no order",
        ),
    ],
    ids=[
        "twice", "lost", "half", "stranger", "forked", "stale-read", "read-of-the-future", "append-of-the-future",
        "long-fork", "back-in-time",
    ],
)  # fmt: skip
def test_checker_finds_histories_without_an_order(
    transactions: list[Transaction], final: dict[str, list[int]], said: str
) -> None:
    found = violations(transactions, final)
    assert any(said in each for each in found), found
