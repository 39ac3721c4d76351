"""How many cases, seeds and examples of one test each lane runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import settings


def seeds(count: int, *, few: int | None = None, fast: int | None = None) -> Sequence[Any]:
    """`range(count)` to parametrize a test with; all but the first `few` are for the long lane, and of these all but the first
    `fast` are too slow for the fast one."""
    return some(range(count), few=few, fast=fast)


def some(cases: Iterable[Any], *, few: int | None = None, fast: int | None = None) -> Sequence[Any]:
    """As `seeds`, for cases of any kind; those that are tuples have several arguments."""
    return [_param(each, _marks(number, few, fast)) for number, each in enumerate(cases)]


def examples(times: int) -> settings:
    """That many times as many examples of Hypothesis as the lane draws for each test (`tests/conftest.py`)."""
    return settings(max_examples=times * settings().max_examples)


def _param(case: Any, marks: list[pytest.MarkDecorator]) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks)


def _marks(number: int, few: int | None, fast: int | None) -> list[pytest.MarkDecorator]:
    if few is not None and number >= few:
        return [pytest.mark.long(is_sampled=False)]
    return [pytest.mark.slow] if fast is not None and number >= fast else []
