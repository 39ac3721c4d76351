"""Workers begin to collect at different places, and all of them run the same tests in the same order."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lanes.order import pytest_collection_modifyitems, rotated, shuffle

FILES = ("tests/cli/test_b.py", "tests/client/test_a.py", "tests/spark/test_c.py", "tests/test_d.py")


def collected(files: list[str]) -> list[Any]:
    return [SimpleNamespace(nodeid=f"{file}::test_{name}", path=file) for file in files for name in "zay"]


def as_worker(number: int) -> SimpleNamespace:
    return SimpleNamespace(getoption=lambda name: None, workerinput={"workerid": f"gw{number}", "workercount": 3})


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_workers_begin_at_different_places_and_find_the_same(count: int) -> None:
    found = [rotated([*range(6)], number, count) for number in range(count)]
    assert len({each[0] for each in found}) == min(count, 6)
    assert all(sorted(each) == [*range(6)] for each in found)


def test_replaced_worker_begins_somewhere_too() -> None:
    assert sorted(rotated([*range(6)], 17, 3)) == [*range(6)]


def test_order_is_the_same_wherever_a_worker_began_to_collect() -> None:
    orders = []
    for number in range(3):
        items = collected(rotated([*FILES], number, 3))
        pytest_collection_modifyitems(as_worker(number), items)  # type: ignore[arg-type]
        orders.append([item.nodeid for item in items])
    assert orders[0] == orders[1] == orders[2]
    assert orders[0][0] == "tests/spark/test_c.py::test_z"
    assert [name[-1] for name in orders[0][:3]] == ["z", "a", "y"], "the tests of a file stay as they are written"


def test_shuffled_order_is_the_same_wherever_collecting_began() -> None:
    orders = []
    for number in range(3):
        items = collected(rotated([*FILES], number, 3))
        shuffle(items, random.Random(7))
        orders.append([item.nodeid for item in items])
    assert orders[0] == orders[1] == orders[2] != [item.nodeid for item in collected([*FILES])]
