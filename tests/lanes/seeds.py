"""Seeds of one test: a few in each run, the others in the long lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def seeds(count: int, *, few: int) -> Sequence[Any]:
    """`range(count)` to parametrize a test with; all but the first `few` are for the long lane."""
    return [pytest.param(each, marks=_marks(each >= few)) for each in range(count)]


def _marks(is_long: bool) -> list[pytest.MarkDecorator]:
    return [pytest.mark.long(is_sampled=False)] if is_long else []
