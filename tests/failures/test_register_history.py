"""The judge of register histories: what it lets pass, and what it finds."""

from __future__ import annotations

import pytest

from tests.failures.register_history import CONFLICT, EXISTS, MISSING, Call, violation


def test_calls_one_behind_the_other() -> None:
    calls = [
        Call("get", 0, 1, answer=MISSING),
        Call("create", 2, 3, b"a", answer=1),
        Call("create", 4, 5, b"b", answer=EXISTS),
        Call("put", 6, 7, b"c", expected=1, answer=2),
        Call("put", 8, 9, b"d", expected=1, answer=CONFLICT),
        Call("get", 10, 11, b"c", answer=2),
        Call("delete", 12, 13, expected=2, answer=0),
        Call("get", 14, 15, answer=MISSING),
    ]
    assert not violation(calls)


def test_calls_at_a_time_may_have_either_order() -> None:
    for seen in (b"a", b"c"):
        version = 1 if seen == b"a" else 2
        assert not violation(
            [
                Call("create", 0, 1, b"a", answer=1),
                Call("put", 2, 9, b"c", expected=1, answer=2),
                Call("get", 3, 4, seen, answer=version),
            ]
        )


@pytest.mark.parametrize("has_happened", [False, True])
def test_unknown_call_happened_or_not(has_happened: bool) -> None:
    calls = [Call("create", 0, 1, b"a", answer=1), Call("put", 2, 3, b"b", expected=1)]
    seen = (b"b", 2) if has_happened else (b"a", 1)
    assert not violation([*calls, Call("get", 8, 9, *seen[:1], answer=seen[1])])
    assert violation([*calls, Call("get", 8, 9, b"b", answer=2), Call("get", 10, 11, b"a", answer=1)])


@pytest.mark.parametrize(
    "late",
    [
        Call("get", 8, 9, answer=MISSING),  # an answered write is gone
        Call("get", 8, 9, b"a", answer=1),  # a stale read
        Call("put", 8, 9, b"x", expected=1, answer=3),  # two writes of one version
        Call("create", 8, 9, b"x", answer=3),
        Call("put", 8, 9, b"x", expected=2, answer=CONFLICT),  # a conflict with oneself
    ],
)
def test_wrong_answers_are_found(late: Call) -> None:
    assert violation([Call("create", 0, 1, b"a", answer=1), Call("put", 2, 3, b"b", expected=1, answer=2), late])
