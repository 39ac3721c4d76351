"""The part of logs that a query can want, by positions and times."""

from __future__ import annotations

import attrs


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
        if self.first_entry is not None and first < self.first_entry:
            first = self.first_entry
        if self.last_entry is not None and self.last_entry < last:
            last = self.last_entry
        return first, last

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
