"""Filters that Spark pushes: what they narrow must hold all rows that they accept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import datasource as spark

from replog.spark.filters import narrowing
from replog.spark.narrowing import Narrowing

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
NOON_NS = int(NOON.timestamp()) * 1_000_000_000


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        (spark.EqualTo(("segment",), 4), Narrowing(4, 4)),
        (spark.GreaterThan(("segment",), 4), Narrowing(first_segment=5)),
        (spark.GreaterThanOrEqual(("segment",), 4), Narrowing(first_segment=4)),
        (spark.LessThan(("segment",), 4), Narrowing(last_segment=3)),
        (spark.LessThanOrEqual(("segment",), 4), Narrowing(last_segment=4)),
        (spark.In(("segment",), (7, 3, 5)), Narrowing(3, 7)),
        (spark.In(("segment",), (7, None)), Narrowing()),
        (spark.Not(spark.EqualTo(("segment",), 4)), Narrowing()),
        (spark.IsNotNull(("segment",)), Narrowing()),
        (spark.EqualTo(("position",), "4:17"), Narrowing(4, 4, first_entry=17, last_entry=17)),
        (spark.EqualTo(("position",), "nowhere"), Narrowing()),
        (spark.In(("position",), ("4:17", "10:2")), Narrowing(4, 10, first_entry=2, last_entry=17)),
        (spark.GreaterThan(("position",), "4:17"), Narrowing()),  # as texts: "10:0" is less
        (spark.GreaterThan(("timestamp",), NOON), Narrowing(from_ns=NOON_NS)),
        (spark.LessThan(("timestamp",), NOON), Narrowing(to_ns=NOON_NS + 1000)),
        (spark.EqualTo(("timestamp",), NOON), Narrowing(from_ns=NOON_NS, to_ns=NOON_NS + 1000)),
        (spark.EqualTo(("timestamp",), NOON.replace(tzinfo=None)), Narrowing()),
        (spark.EqualTo(("entry",), 4), Narrowing(first_entry=4, last_entry=4)),
        (spark.LessThan(("entry",), 4), Narrowing(last_entry=3)),
        (spark.EqualTo(("log",), "a"), Narrowing(logs=frozenset("a"))),
        (spark.In(("log",), ("a", "b")), Narrowing(logs=frozenset("ab"))),
        (spark.In(("log",), ("a", None)), Narrowing()),
        (spark.StringStartsWith(("log",), "a"), Narrowing()),
        (spark.EqualTo(("value", "segment"), 4), Narrowing()),
    ],
)
def test_one(condition: Any, wanted: Narrowing) -> None:
    assert narrowing([condition]) == wanted


def test_all_must_hold() -> None:
    conditions = [spark.GreaterThan(("segment",), 4), spark.LessThan(("segment",), 9), spark.EqualTo(("entry",), 1)]
    found = narrowing(conditions)
    assert found == Narrowing(5, 8, first_entry=1, last_entry=1)
    assert found.of_entries(0, 9) == (1, 1)
    assert Narrowing().of_entries(3, 9) == (3, 9)
    assert Narrowing(last_entry=2).of_entries(3, 9) == (3, 2), "none"
    assert [number for number in range(12) if found.wants_segment(number)] == [5, 6, 7, 8]
    assert found.both(Narrowing(first_segment=7, to_ns=5)) == Narrowing(7, 8, None, 5, 1, 1)
    one, other = Narrowing(logs=frozenset("ab")), Narrowing(logs=frozenset("bc"))
    assert (one.both(other), one.both(Narrowing()), Narrowing().both(one)) == (Narrowing(logs=frozenset("b")), one, one)
    assert [name for name in "abc" if one.wants_log(name)] == ["a", "b"]


def test_columns_of_the_rows_themselves_narrow_nothing() -> None:
    """A log with JSON may have a column `segment`, which says nothing of the log's segments."""
    places = {"_segment": "segment"}
    assert narrowing([spark.EqualTo(("segment",), 4)], places) == Narrowing()
    assert narrowing([spark.EqualTo(("_segment",), 4)], places) == Narrowing(4, 4)


def test_times() -> None:
    """A row's timestamp has lost what is below a microsecond: such rows are never left out."""
    found = narrowing([spark.LessThanOrEqual(("timestamp",), NOON)])
    assert found.wants_time(NOON_NS + 999)
    assert not found.wants_time(NOON_NS + 1000)
    found = narrowing([spark.GreaterThanOrEqual(("timestamp",), NOON + timedelta(microseconds=1))])
    assert not found.wants_time(NOON_NS + 999)
    assert found.wants_time(NOON_NS + 1000)
