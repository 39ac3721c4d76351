"""The long lane: what takes minutes. `make test-long` runs it whole, the gate a sample of it.

A test marked `long` runs only if it is asked for, by its marker or by `-m crash`; with `long(is_sampled=False)` it is not in the
sample. One marked `sized` runs in both lanes, and takes the fixture `is_long`: few rounds among all tests, many in the long lane.

--long            the long lane: tests marked `long`, and those marked `sized` with many rounds
--sample          all tests, and those marked `long` with few rounds: what the gate runs
--long --sample   only those that `--sample` adds
--fast --sample   the first case of every third test of the fast lane: `tests/lanes/fast.py`
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the long lane, which takes many minutes")
    parser.addoption(
        "--sample",
        action="store_true",
        help="add a few minutes of the long lane; with --long: only those; with --fast: one case of every third test",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("long"):
        wanted = "long" if config.getoption("sample") else "(long or sized)"
        config.option.markexpr = " and ".join(filter(None, [wanted, config.option.markexpr]))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests of Hypothesis are sized: `tests/conftest.py` says how many examples each lane draws."""
    if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        item.add_marker(pytest.mark.sized)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    is_sample = config.getoption("sample")
    is_asked_for = not {"long", "crash"}.isdisjoint(config.option.markexpr.replace("(", " ").split())
    if is_asked_for and not is_sample:
        return
    left_out = [item for item in items if is_left_out(item, is_sample=is_sample)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


def is_left_out(item: pytest.Item, *, is_sample: bool) -> bool:
    marker = item.get_closest_marker("long")
    return marker is not None and not (is_sample and marker.kwargs.get("is_sampled", True))


@pytest.fixture(scope="session")
def is_long(pytestconfig: pytest.Config) -> bool:
    """True if a test may take minutes: in the long lane, and with `make crash`."""
    if pytestconfig.getoption("sample"):
        return False
    return bool(pytestconfig.getoption("long") or pytestconfig.option.markexpr == "crash")
