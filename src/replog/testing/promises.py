"""Shared by the conformance suites: assertions that name the broken part of a seam's contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio

Failure = TypeVar("Failure", bound=Exception)

WAIT_MAX_S = 30.0  # how long "soon" may take


def promise(kept: object, contract: str) -> None:
    """Raise `AssertionError` with the words of the contract if it is not kept."""
    if not kept:
        raise AssertionError(f"the contract is broken: {contract}")


@contextmanager
def promised_error(expected: type[Failure], contract: str) -> Iterator[list[Failure]]:
    """The block must raise this error, which is added to the list that the context yields."""
    raised: list[Failure] = []
    try:
        yield raised
    except expected as error:
        raised.append(error)
        return
    except ExceptionGroup as group:
        # A group is a fault of its own: a user's `except` of the promised error would not catch it.
        if group.subgroup(expected) is None:
            raise
        raise AssertionError(f"the contract is broken: {expected.__name__} came in a group: {contract}") from group
    raise AssertionError(f"the contract is broken: no {expected.__name__} was raised: {contract}")


@contextmanager
def plain_assertions() -> Iterator[None]:
    """Raise an `AssertionError` of the block as it is, not inside of a nursery's group."""
    try:
        yield
    except ExceptionGroup as group:
        raise _first_assertion(group) or group from None


def _first_assertion(error: BaseException) -> AssertionError | None:
    if isinstance(error, BaseExceptionGroup):
        return next((found for each in error.exceptions if (found := _first_assertion(each))), None)
    return error if isinstance(error, AssertionError) else None


@contextmanager
def soon(contract: str) -> Iterator[None]:
    """The block must end within `WAIT_MAX_S`."""
    with trio.move_on_after(WAIT_MAX_S) as scope:
        yield
    promise(not scope.cancelled_caught, f"{contract} (not within {WAIT_MAX_S:.0f} s)")
