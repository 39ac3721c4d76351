"""One failure, raised to many."""

from __future__ import annotations

from typing import TypeVar

from replog.errors import ReplogError

Error = TypeVar("Error", bound=ReplogError)


def another(error: Error) -> Error:
    """An equal exception of its own, caused by this one: each task gets its own traceback."""
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error
    return copy
