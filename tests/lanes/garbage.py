"""Python looks for garbage less often: never while tests are collected, nor later among what was collected.

Each worker of pytest-xdist holds 400,000 objects by then, which are no garbage. To look through them again and again took an
eighth of the time to collect, and 0.3 s for each test that asks for `gc.collect()`, or whose forked child does. What tests make
and drop by the thousand was looked through every 700 objects, which took 7 % of their time, and takes 4 % every 10,000.
"""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest

YOUNG = 10_000


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(YOUNG)
        gc.enable()
