"""Filters that Spark pushes down, as far as they concern logs, positions and times.

They only narrow the range that is read: Spark evaluates all of them again. PySpark has them from 4.1 on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from replog.errors import PositionError
from replog.protocol.model import Position
from replog.spark.narrowing import Narrowing
from replog.spark.read_options import time_ns_of

_US = 1000  # Spark's timestamps are in microseconds: compared values have lost the rest
_SAME = {name: name for name in ("position", "segment", "entry", "timestamp", "log")}


def narrowing(filters: Iterable[Filter], places: Mapping[str, str] = _SAME) -> Narrowing:
    """The rows that pass these filters, as far as is known here. `places` says which columns have a row's place: `position`,
    `segment`, `entry`, `timestamp` or `log`. Filters on other columns pass any row."""
    found = Narrowing()
    for each in filters:
        name: tuple[str, ...] = getattr(each, "attribute", ())
        kind = places.get(name[0]) if len(name) == 1 else None
        if kind is not None:
            found = found.both(_NARROWINGS[kind](each))
    return found


def _of_segment(condition: Filter) -> Narrowing:
    low, high = _range(condition)
    return Narrowing(low, high)


def _of_entry(condition: Filter) -> Narrowing:
    low, high = _range(condition)
    return Narrowing(first_entry=low, last_entry=high)


def _of_log(condition: Filter) -> Narrowing:
    return Narrowing(logs=_texts(condition))


def _range(condition: Filter) -> tuple[int | None, int | None]:
    """The lowest and the highest number that passes."""
    match condition:
        case EqualTo(value=int(number)):
            return number, number
        case GreaterThan(value=int(number)):
            return number + 1, None
        case GreaterThanOrEqual(value=int(number)):
            return number, None
        case LessThan(value=int(number)):
            return None, number - 1
        case LessThanOrEqual(value=int(number)):
            return None, number
        # Spark puts null among the values of `in`: then nothing is narrowed.
        case In(value=values):
            numbers = [each for each in values if isinstance(each, int)]
            if len(numbers) == len(values) and numbers:
                return min(numbers), max(numbers)
    return None, None


def _texts(condition: Filter) -> frozenset[str] | None:
    """The texts that pass; None if that is not known."""
    match condition:
        case EqualTo(value=str(text)):
            return frozenset([text])
        case In(value=values) if values and all(isinstance(each, str) for each in values):
            return frozenset(values)
    return None


def _of_position(condition: Filter) -> Narrowing:
    """Positions are compared as texts, which have another order: only equality narrows anything."""
    texts = _texts(condition)
    if texts is None:
        return Narrowing()
    try:
        positions = [Position.parse(text) for text in texts]
    except PositionError:
        return Narrowing()  # Spark finds no such row
    segments, entries = [each.segment for each in positions], [each.entry for each in positions]
    return Narrowing(min(segments), max(segments), first_entry=min(entries), last_entry=max(entries))


def _of_time(condition: Filter) -> Narrowing:
    value = getattr(condition, "value", None)
    if not isinstance(value, datetime) or value.tzinfo is None:
        return Narrowing()
    time_ns = time_ns_of(value)
    match condition:
        case EqualTo():
            return Narrowing(from_ns=time_ns, to_ns=time_ns + _US)
        # Taken as "at least", too: within its microsecond an entry may be later than the value says.
        case GreaterThan() | GreaterThanOrEqual():
            return Narrowing(from_ns=time_ns)
        case LessThan() | LessThanOrEqual():
            return Narrowing(to_ns=time_ns + _US)
    return Narrowing()


_NARROWINGS: dict[str, Callable[[Filter], Narrowing]] = {
    "position": _of_position,
    "segment": _of_segment,
    "entry": _of_entry,
    "timestamp": _of_time,
    "log": _of_log,
}
