"""Ctrl-C ends a measurement, and takes nothing from what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Interruptible(Protocol):
    """Results that tell whether they are all that was asked for."""

    is_interrupted: bool


@contextmanager
def until_interrupted(results: Interruptible) -> Iterator[None]:
    """An interrupt inside, also one in the midst of trio, ends there and is noted; any other error goes on."""
    try:
        yield
    except KeyboardInterrupt:
        results.is_interrupted = True
    except BaseExceptionGroup as group:
        if not group.subgroup(KeyboardInterrupt):
            raise
        results.is_interrupted = True
