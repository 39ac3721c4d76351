"""`--shuffle SEED` runs files in a random order, and the tests of each file, too. The same seed gives the same order."""

from __future__ import annotations

import random

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the tests in the random order of this number")


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.getoption("shuffle")
    return None if seed is None else f"order of tests: --shuffle {seed}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("shuffle")
    if seed is not None:
        shuffle(items, random.Random(seed))


def shuffle(items: list[pytest.Item], choices: random.Random) -> None:
    """In place. The tests of a file stay together, so that its fixtures are made once."""
    by_file: dict[str, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(item.nodeid.partition("::")[0], []).append(item)
    files = list(by_file.values())
    choices.shuffle(files)
    for each in files:
        choices.shuffle(each)
    items[:] = [item for each in files for item in each]
