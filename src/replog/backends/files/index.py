"""Where each batch stands, and the marks of each ledger: what replay rebuilds and reads consult.

The index points at batches, never at entries: 48 bytes for each, found by bisecting first ids. Batches of one ledger
may overlap in range without sharing an entry (strides, W1) and may arrive in any order (recovery fills holes), so each
also knows how far the ones before it reach. Nothing here locks: the storage does.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from typing import NamedTuple

from replog.backends.ranges import LedgerRanges


class Location(NamedTuple):
    """Where the bytes of a batch stand: the file's number, where the batch begins in it, its size and checksum."""

    number: int
    offset: int
    size: int
    checksum: int


class BatchIndex:
    """The batches of one ledger and stamp, in the order of their first ids."""

    __slots__ = ("_checksums", "_firsts", "_lasts", "_numbers", "_offsets", "_reaches", "_sizes", "_strides")

    def __init__(self) -> None:
        self._firsts = array("q")
        self._lasts = array("q")
        self._reaches = array("q")  # the highest last id up to here
        self._strides = array("I")
        self._numbers = array("I")
        self._offsets = array("Q")
        self._sizes = array("I")
        self._checksums = array("I")

    def __len__(self) -> int:
        return len(self._firsts)

    def put(self, first: int, last: int, stride: int, location: Location) -> int:
        """Adds a batch. If the same one is known, the new place counts; returns the file number of the old one, or -1."""
        firsts = self._firsts
        if not firsts or first > firsts[-1]:
            self._reaches.append(max(last, self._reaches[-1]) if firsts else last)
            firsts.append(first)
            self._lasts.append(last)
            self._strides.append(stride)
            self._numbers.append(location.number)
            self._offsets.append(location.offset)
            self._sizes.append(location.size)
            self._checksums.append(location.checksum)
            return -1
        at = bisect_left(firsts, first)
        while at < len(firsts) and firsts[at] == first:
            if self._lasts[at] == last and self._strides[at] == stride:
                return self._move(at, location)
            at += 1
        self._insert(at, first, last, stride, location)
        return -1

    def _move(self, at: int, location: Location) -> int:
        old = self._numbers[at]
        self._numbers[at] = location.number
        self._offsets[at] = location.offset
        self._sizes[at] = location.size
        self._checksums[at] = location.checksum
        return old

    def _insert(self, at: int, first: int, last: int, stride: int, location: Location) -> None:
        reaches = self._reaches
        reaches.insert(at, max(last, reaches[at - 1]) if at else last)
        for later in range(at + 1, len(reaches)):
            if reaches[later] >= last:
                break
            reaches[later] = last
        self._firsts.insert(at, first)
        self._lasts.insert(at, last)
        self._strides.insert(at, stride)
        self._numbers.insert(at, location.number)
        self._offsets.insert(at, location.offset)
        self._sizes.insert(at, location.size)
        self._checksums.insert(at, location.checksum)

    def find(self, entry_id: int) -> int:
        """The position of the batch that holds the entry, or -1."""
        reaches, firsts, lasts = self._reaches, self._firsts, self._lasts
        at = bisect_right(firsts, entry_id) - 1
        while at >= 0 and reaches[at] >= entry_id:
            if entry_id <= lasts[at] and (entry_id - firsts[at]) % self._strides[at] == 0:
                return at
            at -= 1
        return -1

    def locate(self, entry_id: int, bytes_max: int) -> list[Location]:
        """The batch that holds the entry, and those that start after it while they fit; [] if there is none."""
        firsts = self._firsts
        at = bisect_right(firsts, entry_id) - 1
        if at < 0:
            return []
        if entry_id > self._lasts[at] or (entry_id - firsts[at]) % self._strides[at]:
            at = self.find(entry_id)  # not in the nearest one: strided ones before it may hold it
            if at < 0:
                return []
        size = self._sizes[at]
        found = [Location(self._numbers[at], self._offsets[at], size, self._checksums[at])]
        left = bytes_max - size
        if left <= 0:
            return found
        sizes = self._sizes
        after = bisect_right(firsts, firsts[at], at)
        while after < len(sizes) and sizes[after] <= left:
            left -= sizes[after]
            found.append(self._location(after))
            after += 1
        return found

    def _location(self, at: int) -> Location:
        return Location(self._numbers[at], self._offsets[at], self._sizes[at], self._checksums[at])

    def file_numbers(self) -> array[int]:
        """The file of each batch."""
        return self._numbers


class LedgerIndex:
    """One ledger. `marks_number` is the file with its newest MARKS record, or 0."""

    __slots__ = ("fence_term", "key", "last_add_confirmed", "last_entry_id", "marks_number", "stamps")

    def __init__(self) -> None:
        self.key: bytes | None = None
        self.fence_term = 0
        self.last_add_confirmed = -1
        self.last_entry_id = -1
        self.marks_number = 0
        self.stamps: dict[int, BatchIndex] = {}


class Index:
    """All ledgers, the deleted ones, and how much of each journal file is still needed."""

    def __init__(self) -> None:
        self.ledgers: dict[int, LedgerIndex] = {}
        self.deleted = LedgerRanges()
        self.live_batches: dict[int, int] = {}  # by file number, none if no batch in it is needed
        self.marked: dict[int, set[int]] = {}  # by file number: the ledgers whose newest MARKS record is there

    def put_batch(
        self,
        ledger_id: int,
        stamp: int,
        first: int,
        last: int,
        stride: int,
        last_add_confirmed: int,
        location: Location,
    ) -> None:
        """A batch stands at this place."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            if ledger_id in self.deleted:
                return
            ledger = self.ledgers[ledger_id] = LedgerIndex()
        batches = ledger.stamps.get(stamp)
        if batches is None:
            batches = ledger.stamps[stamp] = BatchIndex()
        if last_add_confirmed > ledger.last_add_confirmed:
            ledger.last_add_confirmed = last_add_confirmed
        if last > ledger.last_entry_id:
            ledger.last_entry_id = last
        live = self.live_batches
        live[location.number] = live.get(location.number, 0) + 1
        replaced = batches.put(first, last, stride, location)
        if replaced >= 0:
            self._let_go(replaced, 1)

    def put_marks(self, ledger_id: int, key: bytes | None, fence_term: int, confirmed: int, number: int) -> None:
        """A MARKS record stands in this file."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            if ledger_id in self.deleted:
                return
            ledger = self.ledgers[ledger_id] = LedgerIndex()
        ledger.key = key if ledger.key is None else ledger.key
        ledger.fence_term = max(ledger.fence_term, fence_term)
        ledger.last_add_confirmed = max(ledger.last_add_confirmed, confirmed)
        self._unmark(ledger_id, ledger)
        ledger.marks_number = number
        self.marked.setdefault(number, set()).add(ledger_id)

    def drop(self, ledger_id: int) -> None:
        """The ledger was deleted, for ever."""
        self.deleted.add(ledger_id)
        ledger = self.ledgers.pop(ledger_id, None)
        if ledger is None:
            return
        self._unmark(ledger_id, ledger)
        for batches in ledger.stamps.values():
            for number, count in Counter(batches.file_numbers()).items():
                self._let_go(number, count)

    def drop_ranges(self, ranges: list[tuple[int, int]]) -> None:
        """All these ledgers were deleted."""
        for first, last in ranges:
            self.deleted.add(first, last)
        for ledger_id in [ledger_id for ledger_id in self.ledgers if ledger_id in self.deleted]:
            self.drop(ledger_id)

    def _let_go(self, number: int, count: int) -> None:
        left = self.live_batches[number] - count
        if left:
            self.live_batches[number] = left
        else:
            del self.live_batches[number]

    def _unmark(self, ledger_id: int, ledger: LedgerIndex) -> None:
        if ledger.marks_number:
            self.marked[ledger.marks_number].discard(ledger_id)
            if not self.marked[ledger.marks_number]:
                del self.marked[ledger.marks_number]

    def locate(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Location]:
        """Where the batch with this entry stands, and those after it that fit; [] if it isn't stored."""
        ledger = self.ledgers.get(ledger_id)
        batches = ledger.stamps.get(stamp) if ledger else None
        return batches.locate(entry_id, bytes_max) if batches else []
