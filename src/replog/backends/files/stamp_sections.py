"""The sections of one ledger and stamp: which batch of which file holds an entry, and which ones follow it.

Batches may overlap in range without sharing an entry (strides, W1) and may arrive in any order (recovery fills holes), and
compaction leaves two copies of a batch for a while: of these the one in the newer file counts. Nothing here locks.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

from replog.backends.files.index_page import IndexPage
from replog.backends.files.log_file import Location, Section


class PageMissing(Exception):
    """A page that is needed is not in memory: load it and ask again."""

    def __init__(self, section: Section) -> None:
        super().__init__(section)
        self.section = section


Pages = Mapping[Section, IndexPage]
IsGone = Callable[[int, int, int], bool]


class StampSections:
    """All sections of one ledger and stamp, in the order of their lowest first ids."""

    __slots__ = ("bounds", "growing", "sections", "stamp")

    def __init__(self, stamp: int) -> None:
        self.stamp = stamp
        self.sections: list[Section] = []
        self.growing: Section | None = None  # the one of the current journal file
        # Of each section the lowest first id, and how far it and those before it reach; None for fewer than two sections.
        self.bounds: tuple[array[int], array[int]] | None = None

    def _reach(self) -> tuple[Sequence[int], Sequence[int]]:
        return self.bounds or ([each.first for each in self.sections], [each.last for each in self.sections])

    def add(self, section: Section) -> None:
        """Adds a section that has its range."""
        assert section.first <= section.last_first <= section.last, "a section holds at least one batch"
        if not self.sections:
            self.sections = [section]
            return
        # Ids go upwards, so a section is nearly always the last one: then nothing is sorted.
        if self.bounds is None or section.first < self.bounds[0][-1]:
            self.replace((), (section,))
            return
        firsts, reaches = self.bounds
        reaches.append(max(section.last, reaches[-1]))
        firsts.append(section.first)
        self.sections.append(section)

    def widen(self, section: Section, first: int, last: int) -> None:
        """Notes that a batch of this range was added to the section."""
        if first > section.last_first:
            section.last_first = first
        if last > section.last:
            section.last = last
        if first < section.first:
            section.first = first
        if self.bounds is None:
            return
        firsts, reaches = self.bounds
        if section.first != firsts[-1] or section is not self.sections[-1]:
            self.replace((), ())
        elif last > reaches[-1]:
            reaches[-1] = last

    def replace(self, old: tuple[Section, ...] | list[Section], new: tuple[Section, ...] | list[Section]) -> None:
        """Swaps sections."""
        gone = set(old)
        if self.growing in gone:
            self.growing = None
        kept = [section for section in self.sections if section not in gone]
        self.sections = sorted([*kept, *new], key=lambda section: section.first)
        self.bounds = None
        if len(self.sections) > 1:
            firsts = array("q", (section.first for section in self.sections))
            self.bounds = firsts, array("q", accumulate((section.last for section in self.sections), max))
        assert len(self.sections) == len(set(self.sections)), "a section is listed once"

    def locate(self, entry_id: int, bytes_max: int, loaded: Pages, is_gone: IsGone | None = None) -> list[Location]:
        """The batch that holds the entry, and those that start after it while they fit; [] if there is none.

        `is_gone` tells from a batch's first and last id and stride whether it was dropped. Raises `PageMissing`; `loaded` has
        pages that were missing before."""
        firsts, reaches = self.bounds or self._reach()
        place = bisect_right(firsts, entry_id) - 1
        if place < 0 or reaches[place] < entry_id:
            return []  # without a look at any page
        # Nearly always only one section can hold the entry: ids go upwards from file to file.
        if place == 0 or reaches[place - 1] < entry_id:
            section = self.sections[place]
            page = _page_of(section, loaded)
            at = page.find(entry_id)
            if at < 0:
                return []
        else:
            holder = self._holder(entry_id, place, loaded)
            if holder is None:
                return []
            section, page, at = holder
        if is_gone is not None and is_gone(*page.identity(at)):
            return []
        location = section.location(page, at)
        left = bytes_max - location.size
        if left <= 0:
            return [location]
        found = [location]
        for later, later_page, place in self._after(page.firsts[at], loaded):
            if is_gone is not None and is_gone(*later_page.identity(place)):
                continue
            location = later.location(later_page, place)
            left -= location.size
            if left < 0:
                break
            found.append(location)
        return found

    def _holder(self, entry_id: int, place: int, loaded: Pages) -> tuple[Section, IndexPage, int] | None:
        """The copy of the batch that counts. Newer files come first: if they have it, no older page need be loaded."""
        candidates = []
        _, reaches = self._reach()
        while place >= 0 and reaches[place] >= entry_id:
            if self.sections[place].last >= entry_id:
                candidates.append(self.sections[place])
            place -= 1
        assert all(section.first <= entry_id <= section.last for section in candidates), "only these can hold it"
        candidates.sort(key=lambda section: section.file.age, reverse=True)
        best: tuple[Section, IndexPage, int] | None = None
        for section in candidates:
            if best is not None and section.file.age < best[0].file.age:
                break
            page = _page_of(section, loaded)
            at = page.find(entry_id)
            if at >= 0 and (best is None or _rank(section, page, at) < _rank(*best)):
                best = section, page, at
        return best

    def _after(self, first: int, loaded: Pages) -> Iterator[tuple[Section, IndexPage, int]]:
        """The batches that start after this id, in order, each once: of two copies the newer one."""
        sections = self.sections
        firsts, reaches = self._reach()
        # next first id, rank, place of the section, page, position
        heap: list[tuple[int, tuple[int, int], int, IndexPage, int]] = []
        due = bisect_right(firsts, first)  # sections from here on have not begun
        place = due - 1
        while place >= 0 and reaches[place] > first:
            if sections[place].last_first > first:
                page = _page_of(sections[place], loaded)
                at = bisect_right(page.firsts, first)
                heap.append((page.firsts[at], _rank(sections[place], page, at), place, page, at))
            place -= 1
        heapq.heapify(heap)
        seen: set[tuple[int, int, int]] = set()  # of the last first id
        while heap or due < len(sections):
            while due < len(sections) and (not heap or firsts[due] <= heap[0][0]):
                page = _page_of(sections[due], loaded)
                heapq.heappush(heap, (page.firsts[0], _rank(sections[due], page, 0), due, page, 0))
                due += 1
            start, _, place, page, at = heapq.heappop(heap)
            assert start >= first, "batches come in the order of their first ids"
            if start != first:
                seen.clear()
            # Up to the next id that another page may have, this page goes on alone: the heap is used
            # once for a run of batches, and not for each.
            limit = min(heap[0][0] if heap else _NEVER, firsts[due] if due < len(sections) else _NEVER)
            stop = max(bisect_left(page.firsts, limit, at), at + 1)
            while at < stop:
                if page.firsts[at] != first:
                    seen.clear()
                first = page.firsts[at]
                if page.identity(at) not in seen:
                    seen.add(page.identity(at))
                    yield sections[place], page, at
                at += 1
            if at < len(page):
                heapq.heappush(heap, (page.firsts[at], _rank(sections[place], page, at), place, page, at))


def _rank(section: Section, page: IndexPage, at: int) -> tuple[int, int]:
    """Of two copies of a batch the one of the lower rank counts: in the newer file, or later in the same."""
    return -section.file.age, -page.offset(at)


_NEVER = 1 << 63


def _page_of(section: Section, loaded: Pages) -> IndexPage:
    page = section.held
    if type(page) is not IndexPage:
        page = section.page or loaded.get(section)
        if page is None:
            raise PageMissing(section)
    section.is_touched = True
    return page
