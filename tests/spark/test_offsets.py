"""What a stream's checkpoint holds, and how a limit is shared among logs."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from replog.errors import ConfigError
from replog.protocol.model import Position
from replog.spark.limits import shares
from replog.spark.offsets import Place, as_offset, places_in
from replog.spark.selection import Selection

ONE = Selection(("a",))
MANY = Selection.parse("a,b*")
OF_ONE = {"log": "a", "position": "2:5", "deletions": 1}


def test_the_offset_of_one_log_is_as_it_was() -> None:
    """Spark compares texts: a checkpoint of an older replog must not differ from the same place."""
    stored = json.dumps({**OF_ONE, "lost": "1:0 to 2:0"})
    assert json.dumps(as_offset(places_in(json.loads(stored), ONE), ONE)) == stored


def test_an_offset_of_many_logs_comes_back() -> None:
    places = {"b2": Place(Position(1, 3), 0, begin=Position(1, 0)), "a": Place(Position(2, 5), 1, lost="1:0 to 2:0")}
    offset = as_offset(places, MANY)
    assert offset["logs"]["b2"] == {"position": "1:3", "deletions": 0, "begin": "1:0"}
    assert places_in(json.loads(json.dumps(offset)), MANY) == places
    assert list(offset["logs"]) == ["a", "b2"], "in one order always"


def test_many_logs_go_on_from_the_checkpoint_of_one() -> None:
    assert places_in(OF_ONE, MANY) == {"a": Place(Position(2, 5), 1)}
    assert places_in({"logs": {}}, MANY) == {}


@pytest.mark.parametrize(
    ("offset", "selection", "told"),
    [
        ({"0": 17}, MANY, "none of this format"),
        ({"logs": 17}, MANY, "none of this format"),
        ({"logs": {"a": {"position": "x"}}}, MANY, "none of this format"),
        (OF_ONE, Selection.parse("b,c"), "the checkpoint is of log 'a', and the query reads 'b', 'c'"),
        ({**OF_ONE, "log": "other"}, ONE, "the checkpoint is of log 'other', and the query reads 'a'"),
        (
            as_offset({"a": Place(Position(1, 0), 0)}, MANY),
            ONE,
            "the checkpoint is of log 'a', and the query reads 'a'",
        ),
    ],
)
def test_offsets_of_other_queries_are_refused(offset: dict[str, Any], selection: Selection, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        places_in(offset, selection)


@pytest.mark.parametrize(
    ("limit", "wanted", "got"),
    [
        (10, [], []),
        (10, [100], [10]),
        (10, [3, 4], [3, 4]),
        (10, [100, 1], [9, 1]),
        (10, [0, 100, 100], [0, 5, 5]),
        (2, [5, 5, 5], [1, 1, 0]),
        (0, [5], [0]),
    ],
)
def test_shares_of_a_limit(limit: int, wanted: list[int], got: list[int]) -> None:
    assert shares(limit, wanted) == got


@pytest.mark.parametrize("seed", range(20))
def test_shares_use_a_limit_up_and_are_fair(seed: int) -> None:
    chance = random.Random(seed)
    wanted = [chance.choice([0, 1, chance.randrange(1000)]) for _ in range(chance.randrange(1, 20))]
    limit = chance.randrange(2000)
    got = shares(limit, wanted)
    assert sum(got) == min(limit, sum(wanted))
    assert all(given <= want for given, want in zip(got, wanted, strict=True))
    cut = [given for given, want in zip(got, wanted, strict=True) if given < want]
    assert not cut or max(got) - min(cut) <= 1, "nobody gets more than one who wanted more"
