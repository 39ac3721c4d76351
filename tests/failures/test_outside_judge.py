"""Porcupine as it is called: what it lets pass, and what it finds that a judge of single registers does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.failures.outside_judge import NoJudgeError, judge, verdict, write_history
from tests.failures.register_history import CONFLICT, EXISTS, MISSING, Call, by_register, violation

_A, _B = "r/a", "r/b"
_CREATED = (Call("create", 0, 1, b"1", answer=1, key=_A), Call("create", 2, 3, b"2", answer=2, key=_B))


@pytest.fixture(autouse=True)
def _judge() -> None:
    try:
        judge()
    except NoJudgeError as error:
        pytest.skip(str(error))


def listing(begun_s: float, ended_s: float, *words: str) -> Call:
    return Call("children", begun_s, ended_s, answer=0, key=_A, words=words)


def judged(directory: Path, *calls: Call) -> str:
    history = directory / "history.jsonl"
    write_history(calls, history)
    return verdict(history)


def test_right_answers_pass(tmp_path: Path) -> None:
    calls = [
        *_CREATED,
        listing(4, 5, "a", "b"),
        Call("create", 4, 5, b"x", answer=EXISTS, key=_A),
        Call("put", 6, 7, b"3", expected=1, answer=3, key=_A),
        Call("put", 8, 9, b"4", expected=1, answer=CONFLICT, key=_A),
        Call("get", 8, 9, b"3", answer=3, key=_A),
        Call("delete", 10, 20, expected=2, answer=0, key=_B),
        listing(11, 12, "a"),
        Call("get", 13, 14, answer=MISSING, key=_B),
    ]
    assert judged(tmp_path, *calls) == "ok"


@pytest.mark.parametrize("seen", [Call("get", 8, 9, b"2", answer=2, key=_B), Call("get", 8, 9, b"5", answer=4, key=_B)])
def test_write_without_an_answer_passes_if_it_happened_or_not(tmp_path: Path, seen: Call) -> None:
    assert judged(tmp_path, *_CREATED, Call("put", 4, 5, b"5", expected=2, key=_B), seen) == "ok"


@pytest.mark.parametrize(
    "late",
    [
        Call("get", 8, 9, answer=MISSING, key=_A),
        Call("get", 8, 9, b"0", answer=1, key=_A),
        Call("put", 8, 9, b"x", expected=2, answer=3, key=_A),
        Call("put", 8, 9, b"x", expected=1, answer=CONFLICT, key=_A),
        Call("create", 8, 9, b"x", answer=3, key=_A),
        listing(8, 9, "a"),
    ],
)
def test_wrong_answer_is_found(tmp_path: Path, late: Call) -> None:
    assert judged(tmp_path, *_CREATED, late) == "violation"
    assert any(violation(calls) for calls in by_register([*_CREATED, late], [_A, _B]).values())


def test_listing_of_two_moments_is_found(tmp_path: Path) -> None:
    """`b` was created after `a` was deleted, so no moment has both."""
    calls = [
        _CREATED[0],
        listing(2, 9, "a", "b"),
        Call("delete", 3, 4, expected=1, answer=0, key=_A),
        Call("create", 5, 6, b"2", answer=2, key=_B),
    ]
    assert judged(tmp_path, *calls) == "violation"
    assert not any(violation(each) for each in by_register(calls, [_A, _B]).values())
