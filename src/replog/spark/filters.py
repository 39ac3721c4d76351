"""Filters that Spark pushes down, as far as they concern logs, positions and times.

They only narrow what is read: Spark evaluates all of them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

import attrs
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
from replog.spark.read_options import time_ns_of

_US = 1000  # Spark's timestamps are in microseconds: what is compared has lost the rest
_SAME = {name: name for name in ("position", "segment", "entry", "timestamp", "log")}


@attrs.frozen
class Narrowing:
    """The rows that a query can want: of segments from `first_segment` to `last_segment`, in each of them the entries from
    `first_entry` to `last_entry`, sent from `from_ns` to before `to_ns`, in ns since the epoch. None: no limit."""

    first_segment: int | None = None
    last_segment: int | None = None
    from_ns: int | None = None
    to_ns: int | None = None
    first_entry: int | None = None
    last_entry: int | None = None
    logs: frozenset[str] | None = None

    def wants_log(self, name: str) -> bool:
        """True if a row of this log may be wanted."""
        return self.logs is None or name in self.logs

    def of_entries(self, first: int, last: int) -> tuple[int, int]:
        """The part of these entries of a segment that is wanted: its first and last one; none if the last is before the first."""
        return _most(first, self.first_entry) or 0, _least(last, self.last_entry) or 0

    def wants_segment(self, number: int) -> bool:
        """True if a row of this segment may be wanted."""
        return (self.first_segment is None or self.first_segment <= number) and (
            self.last_segment is None or number <= self.last_segment
        )

    def wants_time(self, sent_ns: int) -> bool:
        """True if rows that were sent then are wanted."""
        return (self.from_ns is None or self.from_ns <= sent_ns) and (self.to_ns is None or sent_ns < self.to_ns)

    def both(self, other: Narrowing) -> Narrowing:
        """The rows that both want."""
        return Narrowing(
            _most(self.first_segment, other.first_segment),
            _least(self.last_segment, other.last_segment),
            _most(self.from_ns, other.from_ns),
            _least(self.to_ns, other.to_ns),
            _most(self.first_entry, other.first_entry),
            _least(self.last_entry, other.last_entry),
            self.logs if other.logs is None else other.logs if self.logs is None else self.logs & other.logs,
        )


def _most(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)


def _least(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)


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
