"""Filters that Spark pushes down, as far as they concern segments and times.

They only narrow what is read: Spark evaluates all of them again.
"""

from __future__ import annotations

from collections.abc import Iterable
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


@attrs.frozen
class Narrowing:
    """The rows that a query can want: of segments from `first_segment` to `last_segment`, and sent from `from_ns` to before
    `to_ns`, in ns since the epoch. None: no limit."""

    first_segment: int | None = None
    last_segment: int | None = None
    from_ns: int | None = None
    to_ns: int | None = None

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
        )


def _most(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)


def _least(one: int | None, other: int | None) -> int | None:
    return min((each for each in (one, other) if each is not None), default=None)


def narrowing(filters: Iterable[Filter]) -> Narrowing:
    """The rows that pass these filters, as far as is known here. Filters on other columns pass any row."""
    found = Narrowing()
    for each in filters:
        name = getattr(each, "attribute", ())
        if name == ("segment",):
            found = found.both(_of_segment(each))
        elif name == ("position",):
            found = found.both(_of_position(each))
        elif name == ("timestamp",):
            found = found.both(_of_time(each))
    return found


def _of_segment(condition: Filter) -> Narrowing:
    match condition:
        case EqualTo(value=int(number)):
            return Narrowing(number, number)
        case GreaterThan(value=int(number)):
            return Narrowing(first_segment=number + 1)
        case GreaterThanOrEqual(value=int(number)):
            return Narrowing(first_segment=number)
        case LessThan(value=int(number)):
            return Narrowing(last_segment=number - 1)
        case LessThanOrEqual(value=int(number)):
            return Narrowing(last_segment=number)
        # Spark puts null among the values of `in`: then nothing is narrowed.
        case In(value=values):
            numbers = [each for each in values if isinstance(each, int)]
            if len(numbers) == len(values) and numbers:
                return Narrowing(min(numbers), max(numbers))
    return Narrowing()


def _of_position(condition: Filter) -> Narrowing:
    """Positions are compared as texts, which have another order: only equality narrows anything."""
    match condition:
        case EqualTo(value=str(text)):
            texts = [text]
        case In(value=values) if values and all(isinstance(each, str) for each in values):
            texts = list(values)
        case _:
            return Narrowing()
    try:
        segments = [Position.parse(text).segment for text in texts]
    except PositionError:
        return Narrowing()  # Spark finds no such row
    return Narrowing(min(segments), max(segments))


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
