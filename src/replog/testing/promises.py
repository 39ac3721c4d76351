"""What the exams share: saying which promise of a seam was broken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio

Failure = TypeVar("Failure", bound=Exception)

WAIT_MAX_S = 30.0  # for what must happen "soon"


def promise(kept: object, contract: str) -> None:
    """Raises AssertionError with the words of the contract unless it is kept."""
    if not kept:
        raise AssertionError(f"the contract is broken: {contract}")


@contextmanager
def promised_error(expected: type[Failure], contract: str) -> Iterator[list[Failure]]:
    """The block must raise this error; it is put into the list that is given."""
    raised: list[Failure] = []
    try:
        yield raised
    except expected as error:
        raised.append(error)
        return
    except ExceptionGroup as group:
        if group.subgroup(expected) is None:
            raise
        raise AssertionError(f"the contract is broken: {expected.__name__} came in a group: {contract}") from group
    raise AssertionError(f"the contract is broken: no {expected.__name__} was raised: {contract}")


@contextmanager
def plain_assertions() -> Iterator[None]:
    """An AssertionError leaves the block by itself, not in the group of a nursery."""
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
    """The block must end within 30 s."""
    with trio.move_on_after(WAIT_MAX_S) as scope:
        yield
    promise(not scope.cancelled_caught, f"{contract} (not within {WAIT_MAX_S:.0f} s)")
