"""A thread that is lent while its owner sends: who borrows it is called once, in order, and gives it back."""

from __future__ import annotations

import pytest

from replog.runtime.lent_thread import Borrower, LentThread, lent_thread


class Noting(Borrower):
    def __init__(self, name: str, told: list[str]) -> None:
        self._name = name
        self._told = told

    def commit_here(self) -> None:
        self._told.append(f"{self._name} here")

    def commit_beside(self) -> None:
        self._told.append(f"{self._name} beside")

    def look(self) -> None:
        self._told.append(f"{self._name} looks")


def test_the_last_one_commits_here_and_those_before_beside_it() -> None:
    told: list[str] = []
    lent = LentThread()
    borrowers = [Noting(name, told) for name in ("one", "two", "three")]

    def send() -> None:
        for each in (*borrowers, borrowers[0]):  # the first one gets two requests
            assert lent.borrow(each)
        told.append("sent")

    lent.lend(send)
    assert told == ["sent", "one beside", "two beside", "three here", "one looks", "two looks"]


def test_unlent_thread_is_not_borrowed() -> None:
    told: list[str] = []
    lent = LentThread()
    one = Noting("one", told)
    assert not lent.borrow(one)
    lent.lend(lambda: None)
    assert not lent.borrow(one)
    assert told == []


def test_lending_it_again_meanwhile_changes_nothing() -> None:
    told: list[str] = []
    lent = LentThread()

    def send() -> None:
        lent.lend(lambda: lent.borrow(Noting("inner", told)))
        told.append("inner sent")
        lent.borrow(Noting("outer", told))

    lent.lend(send)
    assert told == ["inner sent", "inner beside", "outer here", "inner looks"]


def test_borrowed_work_is_committed_when_sending_fails() -> None:
    told: list[str] = []
    lent = LentThread()

    def send() -> None:
        lent.borrow(Noting("one", told))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lent.lend(send)
    assert told == ["one here"]
    assert not lent.borrow(Noting("one", told)), "it was given back"


async def test_each_trio_run_has_one() -> None:
    assert lent_thread() is lent_thread()
