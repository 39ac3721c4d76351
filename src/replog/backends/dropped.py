"""The entries of one ledger that a storage dropped, and does not hold again: it must not deny them (F5)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from replog.errors import StorageUncertainError
from replog.protocol.entry_ranges import EntryRanges
from replog.protocol.quorum import ENSEMBLE_MAX

DroppedRange = tuple[int, int, int, int]  # stamp, first entry, last entry, stride


class EntryDroppedError(StorageUncertainError):
    """The entry may have been stored: its range was dropped, and not stored again."""

    def __init__(self, ledger_id: int, entry_id: int, stamp: int) -> None:
        super().__init__(
            f"ledger {ledger_id}, entry {entry_id} of stamp {stamp}: its range was dropped here, so its absence proves nothing",
            "Ask the bookies that the ledger's record names for this entry",
        )


class DroppedEntries:
    """Which entries were dropped, by stamp. A batch counts as dropped if all its entries are here."""

    __slots__ = ("_by_stamp",)

    def __init__(self, ranges: Iterable[DroppedRange] = ()) -> None:
        self._by_stamp: dict[int, EntryRanges] = {}
        for stamp, first, last, stride in ranges:
            self._by_stamp.setdefault(stamp, EntryRanges(stride)).add(first, last)

    def __iter__(self) -> Iterator[DroppedRange]:
        """All ranges, by stamp and first entry."""
        for stamp in sorted(self._by_stamp):
            held = self._by_stamp[stamp]
            for first, last in held:
                yield stamp, first, last, held.stride

    def __bool__(self) -> bool:
        return any(self._by_stamp.values())

    def copy(self) -> DroppedEntries:
        """The same set, apart from this one."""
        copied = DroppedEntries()
        copied._by_stamp = {stamp: held.copy() for stamp, held in self._by_stamp.items()}
        return copied

    def add(self, stamp: int, first: int, last: int, stride: int = 1) -> None:
        """The entries from the first to the last, or each `stride`-th of them, were dropped."""
        assert first <= last, "a range has entries"
        held = self._with_rotations(stamp, self._by_stamp.setdefault(stamp, EntryRanges(1)), stride)
        for start, end in _as_ranges(held.stride, first, last, stride):
            held.add(start, end)

    def _with_rotations(self, stamp: int, held: EntryRanges, stride: int) -> EntryRanges:
        """The ranges of this stamp, in which each rotation of this stride has its own, if it is one that ensembles have."""
        wanted = math.lcm(held.stride, stride)
        if wanted != held.stride and wanted <= ENSEMBLE_MAX:
            held = self._by_stamp[stamp] = _with_stride(held, wanted)
        return held

    def stored(self, stamp: int, first: int, last: int, stride: int) -> None:
        """A batch with these entries is stored: it is no longer dropped."""
        held = self._by_stamp.get(stamp)
        if held is None:
            return
        held = self._with_rotations(stamp, held, stride)
        for start, end in _as_ranges(held.stride, first, last, stride):
            held.discard(start, end)
        if not held:
            del self._by_stamp[stamp]

    def holds(self, stamp: int, entry_id: int) -> bool:
        """True if this entry was dropped."""
        held = self._by_stamp.get(stamp)
        return held is not None and held.holds(entry_id)

    def covers(self, stamp: int, first: int, last: int, stride: int = 1) -> bool:
        """True if all these entries were dropped."""
        held = self._by_stamp.get(stamp)
        if held is None:
            return False
        starts = range(first, min(first + math.lcm(held.stride, stride), last + 1), stride)
        return not any(held.missing(start, last) for start in starts[: held.stride])

    def share(self, stamp: int, first: int, last: int) -> float:
        """Which part of these entries was dropped, of 1."""
        held = self._by_stamp.get(stamp)
        if held is None:
            return 0.0
        missing = sum(
            (end - start) // held.stride + 1
            for rotation in range(first, min(first + held.stride, last + 1))
            for start, end in held.missing(rotation, last)
        )
        return (last + 1 - first - missing) / (last + 1 - first)

    def check(self, ledger_id: int, entry_id: int, stamp: int) -> None:
        """Raises `EntryDroppedError` if this entry was dropped."""
        if self.holds(stamp, entry_id):
            raise EntryDroppedError(ledger_id, entry_id, stamp)


def _as_ranges(held_stride: int, first: int, last: int, stride: int) -> Iterator[tuple[int, int]]:
    """Each `stride`-th entry from the first to the last, as ranges that have the stride of what is held."""
    if held_stride % stride:
        # Of a stride that no ensemble has: few entries, each for itself.
        yield from ((entry_id, entry_id) for entry_id in range(first, last + 1, stride))
    else:
        for start in range(first, min(first + held_stride, last + 1), stride):
            yield start, last - (last - start) % held_stride


def _with_stride(held: EntryRanges, stride: int) -> EntryRanges:
    """The same entries, in ranges of this stride."""
    found = EntryRanges(stride)
    for first, last in held:
        for start in range(first, min(first + stride, last + 1), held.stride):
            found.add(start, last - (last - start) % stride)
    return found
