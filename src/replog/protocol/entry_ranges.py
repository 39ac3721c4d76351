"""Sets of entries as ranges: stored, taken or missing ones."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator


class EntryRanges:
    """Entries in as few ranges as possible. The entries of one range have the distance `stride`, as those of a batch do (W1)."""

    __slots__ = ("_by_rotation", "stride")

    def __init__(self, stride: int, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self.stride = stride
        self._by_rotation: dict[int, list[tuple[int, int]]] = {}  # ascending, and never touching one another
        for first, last in ranges:
            self.add(first, last)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """First and last entry of each range, ascending."""
        return iter(sorted(each for ranges in self._by_rotation.values() for each in ranges))

    def __bool__(self) -> bool:
        return any(self._by_rotation.values())

    def __len__(self) -> int:
        """How many entries."""
        return sum((last - first) // self.stride + 1 for first, last in self)

    def add(self, first_entry_id: int, last_entry_id: int) -> None:
        """Adds a range, or a batch."""
        first, last, stride = first_entry_id, last_entry_id, self.stride
        assert first <= last, "a range has entries"
        assert not (last - first) % stride, "a batch has the entries of one rotation"
        ranges = self._by_rotation.setdefault(first % stride, [])
        # The common case: batches come in their order.
        if not ranges or first > ranges[-1][1] + stride:
            ranges.append((first, last))
            return
        start = stop = bisect_left(ranges, first - stride, key=_last)
        while stop < len(ranges) and ranges[stop][0] <= last + stride:
            first, last = min(first, ranges[stop][0]), max(last, ranges[stop][1])
            stop += 1
        ranges[start:stop] = [(first, last)]

    def remove(self, first_entry_id: int, last_entry_id: int) -> None:
        """Removes all entries from the first to the last, of every rotation."""
        assert first_entry_id <= last_entry_id, "a range has entries"
        for rotation, ranges in self._by_rotation.items():
            below = first_entry_id - 1 - (first_entry_id - 1 - rotation) % self.stride
            above = last_entry_id + 1 + (rotation - last_entry_id - 1) % self.stride
            kept: list[tuple[int, int]] = []
            for first, last in ranges:
                parts = ((first, min(last, below)), (max(first, above), last))
                kept += [part for part in parts if part[0] <= part[1]]
            self._by_rotation[rotation] = kept

    def discard(self, first_entry_id: int, last_entry_id: int) -> None:
        """Removes a batch: the entries from the first to the last of the first one's rotation."""
        assert first_entry_id <= last_entry_id, "a batch has entries"
        rotation, stride = first_entry_id % self.stride, self.stride
        ranges = self._by_rotation.get(rotation, [])
        below, above = first_entry_id - stride, last_entry_id + stride
        start = stop = bisect_left(ranges, first_entry_id, key=_last)
        kept: list[tuple[int, int]] = []
        while stop < len(ranges) and ranges[stop][0] <= last_entry_id:
            first, last = ranges[stop]
            kept += [part for part in ((first, min(last, below)), (max(first, above), last)) if part[0] <= part[1]]
            stop += 1
        ranges[start:stop] = kept

    def copy(self) -> EntryRanges:
        """The same set, apart from this one."""
        copied = EntryRanges(self.stride)
        copied._by_rotation = {rotation: ranges[:] for rotation, ranges in self._by_rotation.items()}
        return copied

    def holds(self, entry_id: int) -> bool:
        """True if the entry is in the set."""
        ranges = self._by_rotation.get(entry_id % self.stride, ())
        at = bisect_left(ranges, entry_id, key=_last)
        return at < len(ranges) and ranges[at][0] <= entry_id

    def missing(self, first_entry_id: int, last_entry_id: int) -> list[tuple[int, int]]:
        """The missing entries of the first entry's rotation, up to the last entry: first and last of each range."""
        found, next_id = [], first_entry_id
        ranges = self._by_rotation.get(first_entry_id % self.stride, ())
        for first, last in ranges[bisect_left(ranges, first_entry_id, key=_last) :]:
            if first > last_entry_id:
                break
            if next_id < first:
                found.append((next_id, first - self.stride))
            next_id = max(next_id, last + self.stride)
        assert next_id % self.stride == first_entry_id % self.stride, "ranges are of one rotation"
        if next_id <= last_entry_id:
            found.append((next_id, last_entry_id - (last_entry_id - next_id) % self.stride))
        return found


def _last(entries: tuple[int, int]) -> int:
    return entries[1]
