"""The index: the place of each batch, and the marks of each ledger (B3, R4).

The index points at batches, never at entries. The batches of one ledger and stamp in one log file are a *section*; its
*page* has 44 bytes for each of them, in the order of their first ids, found by bisection. Pages of the journal files that
are not indexed on disk yet are always in memory: together they are the memory table. Those of all other files are read
from their index files when they are needed, and kept in the bounded ledger cache.

Batches of one ledger may overlap in range without sharing an entry (strides, W1) and may arrive in any order (recovery
fills holes), so pages and sections also know how far the ones before them reach. Nothing here locks: the storage does.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import accumulate

from replog.backends.dropped import DroppedEntries, DroppedRange
from replog.backends.files.catalog import pack_ledger
from replog.backends.files.index_page import PAGE_BATCHES, IndexPage
from replog.backends.files.log_file import Location, Place, Section
from replog.backends.files.record import RecordType, unpack_drop, unpack_drop_entries, unpack_marks
from replog.backends.ranges import LedgerRanges
from replog.protocol.mutations import DELETED_TERM, Marks
from replog.protocol.proofs import better_proof


class PageMissing(Exception):
    """A page that is needed is not in memory: load it and ask again."""

    def __init__(self, section: Section) -> None:
        super().__init__(section)
        self.section = section


class SectionGone(Exception):
    """The section was rewritten, or its ledger deleted, before its page could be read."""


Pages = Mapping[Section, IndexPage]
IsGone = Callable[[int, int, int], bool]


class StampSections:
    """All sections of one ledger and stamp, in the order of their lowest first ids."""

    __slots__ = ("firsts", "growing", "reaches", "sections")

    def __init__(self) -> None:
        self.sections: list[Section] = []
        self.growing: Section | None = None  # the one of the current journal file
        self.firsts = array("q")
        self.reaches = array("q")

    def add(self, section: Section) -> None:
        """Adds a section that has its range."""
        assert section.first <= section.last_first <= section.last, "a section holds at least one batch"
        # Ids go upwards, so a section is nearly always the last one: then nothing is sorted.
        if self.sections and section.first < self.firsts[-1]:
            self.replace((), (section,))
            return
        self.reaches.append(max(section.last, self.reaches[-1]) if self.sections else section.last)
        self.firsts.append(section.first)
        self.sections.append(section)

    def widen(self, section: Section, first: int, last: int) -> None:
        """Notes that a batch of this range was added to the section."""
        if first > section.last_first:
            section.last_first = first
        if last > section.last:
            section.last = last
        if first < section.first or section is not self.sections[-1]:
            section.first = min(first, section.first)
            self.replace((), ())
        elif last > self.reaches[-1]:
            self.reaches[-1] = last

    def replace(self, old: tuple[Section, ...] | list[Section], new: tuple[Section, ...] | list[Section]) -> None:
        """Swaps sections."""
        gone = set(old)
        if self.growing in gone:
            self.growing = None
        kept = [section for section in self.sections if section not in gone]
        self.sections = sorted([*kept, *new], key=lambda section: section.first)
        self.firsts = array("q", (section.first for section in self.sections))
        self.reaches = array("q", accumulate((section.last for section in self.sections), max))
        assert len(self.sections) == len(set(self.sections)), "a section is listed once"

    def locate(self, entry_id: int, bytes_max: int, loaded: Pages, is_gone: IsGone | None = None) -> list[Location]:
        """The batch that holds the entry, and those that start after it while they fit; [] if there is none.

        `is_gone` tells from a batch's first and last id and stride whether it was dropped. Raises `PageMissing`; `loaded` has
        pages that were missing before."""
        place = bisect_right(self.firsts, entry_id) - 1
        if place < 0 or self.reaches[place] < entry_id:
            return []  # without a look at any page
        # Nearly always only one section can hold the entry: ids go upwards from file to file.
        if place == 0 or self.reaches[place - 1] < entry_id:
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
        while place >= 0 and self.reaches[place] >= entry_id:
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
        firsts, reaches, sections = self.firsts, self.reaches, self.sections
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
    page = section.page
    if page is None:
        page = loaded.get(section)
        if page is None:
            raise PageMissing(section)
    section.is_touched = True
    return page


class LedgerIndex:
    """One ledger: its marks, and its batches by stamp."""

    __slots__ = ("_packed", "dropped", "fence_term", "key", "last_add_confirmed", "last_entry_id", "proof", "stamps")

    def __init__(self) -> None:
        self.key: bytes | None = None
        self.fence_term = 0
        self.last_add_confirmed = -1
        self.last_entry_id = -1
        self.proof = b""
        self.stamps: dict[int, StampSections] = {}
        self.dropped: DroppedEntries | None = None  # of which no file may bring a batch back
        self._packed: bytes | None = None  # the marks, if they haven't changed since

    def note_batch(self, last: int, last_add_confirmed: int) -> None:
        """Raises the marks for a stored batch with this last entry id and last add confirmed."""
        if last_add_confirmed > self.last_add_confirmed:
            self.last_add_confirmed = last_add_confirmed
        if last > self.last_entry_id:
            self.last_entry_id = last
        self._packed = None

    def raise_marks(self, marks: Marks) -> None:
        """Marks only rise; a key never changes."""
        self.key = marks.key if self.key is None else self.key
        self.fence_term = max(self.fence_term, marks.fence_term)
        self.last_add_confirmed = max(self.last_add_confirmed, marks.last_add_confirmed)
        self.last_entry_id = max(self.last_entry_id, marks.last_entry_id)
        assert self.fence_term >= marks.fence_term, "a fence never falls"
        self.proof = better_proof(self.proof, marks.proof)
        self._packed = None

    def marks(self) -> Marks:
        """The ledger's marks."""
        return Marks(self.key, self.fence_term, self.last_add_confirmed, self.last_entry_id, self.proof)

    def pack(self, ledger_id: int) -> bytes:
        """The marks, packed for a catalog."""
        if self._packed is None:
            assert self.fence_term <= DELETED_TERM, "a term has 63 bits"  # a client may fence with the largest one
            self._packed = pack_ledger(ledger_id, self.marks())
        return self._packed


class Index:
    """All ledgers, and the deleted ones."""

    def __init__(self) -> None:
        self.ledgers: dict[int, LedgerIndex] = {}
        self.deleted = LedgerRanges()

    def ledger(self, ledger_id: int) -> LedgerIndex | None:
        """The ledger, made if it is new; None if it was deleted."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None and ledger_id not in self.deleted:
            ledger = self.ledgers[ledger_id] = LedgerIndex()
        return ledger

    def put_batch(
        self,
        ledger_id: int,
        stamp: int,
        first: int,
        last: int,
        stride: int,
        last_add_confirmed: int,
        place: Place,
    ) -> None:
        """Adds a batch at this place, in a file that is being written or replayed."""
        ledger = self.ledgers.get(ledger_id) or self.ledger(ledger_id)
        if ledger is None:
            return
        ledger.note_batch(last, last_add_confirmed)
        if ledger.dropped is not None:
            ledger.dropped.stored(stamp, first, last, stride)
        stamps = ledger.stamps.get(stamp)
        if stamps is None:
            stamps = ledger.stamps[stamp] = StampSections()
        file, offset, size, checksum = place
        section = stamps.growing
        # A full section is closed only when the ids go on upwards: a batch that fills a hole belongs among the others.
        if (
            section is None
            or section.file is not file
            or (section.count >= PAGE_BATCHES and first > section.last_first)
        ):
            section = stamps.growing = Section(file, ledger_id, stamp, first, last, first)
            section.page = IndexPage()
            file.sections.add(section)
            stamps.add(section)
        else:
            stamps.widen(section, first, last)
        assert section.page is not None
        if section.page.put(first, last, stride, offset, size, checksum):
            section.count += 1
            section.data_bytes += size
            file.batch_bytes += size
            file.live_bytes += size
        # Compaction puts files with many such switches in the order of their ledgers.
        if file.last_ledger_id != ledger_id:
            file.last_ledger_id = ledger_id
            file.switches += 1

    def put_section(self, section: Section) -> None:
        """Adds a section that an index file has. A section of a deleted ledger is not kept."""
        assert section.file.is_indexed, "an index file has this section"
        section.file.batch_bytes += section.data_bytes
        ledger = self.ledger(section.ledger_id)
        if ledger is None:
            return
        # The marks count even if the entries were dropped: they never fall.
        ledger.note_batch(section.last, -1)
        dropped = ledger.dropped
        if dropped is not None and dropped.covers(section.stamp, section.first, section.last):
            return
        ledger.stamps.setdefault(section.stamp, StampSections()).add(section)
        section.file.sections.add(section)
        section.file.live_bytes += section.data_bytes
        if dropped is not None:
            note_dead(section, dropped)

    def put_marks(self, ledger_id: int, key: bytes | None, fence_term: int, confirmed: int, proof: bytes) -> None:
        """Raises the marks of the ledger to these."""
        assert fence_term >= 0, "as `pack_marks` asserted"
        ledger = self.ledger(ledger_id)
        if ledger is not None:
            ledger.raise_marks(Marks(key, fence_term, confirmed, -1, proof))

    def put_record(self, record_type: int, content: bytes | memoryview) -> None:
        """Applies a MARKS or DROP record of the journal. An EPOCH changes no ledger."""
        assert record_type != RecordType.BATCH, "a batch comes with its place, by put_batch"
        if record_type == RecordType.MARKS:
            self.put_marks(*unpack_marks(content))
        elif record_type == RecordType.DROP:
            self.drop(unpack_drop(content))
        elif record_type == RecordType.DROP_ENTRIES:
            self.drop_entries(*unpack_drop_entries(content))

    def put_catalog(
        self,
        deleted: Iterable[tuple[int, int]],
        ledgers: Iterable[tuple[int, Marks]],
        dropped: Iterable[tuple[int, DroppedRange]] = (),
    ) -> None:
        """Applies what a catalog says of ledgers."""
        for first, last in deleted:
            assert first <= last, "a range of deleted ledgers holds one"
            self.deleted.add(first, last)
        for ledger_id in [ledger_id for ledger_id in self.ledgers if ledger_id in self.deleted]:
            self.drop(ledger_id)
        for ledger_id, marks in ledgers:
            ledger = self.ledger(ledger_id)
            if ledger is not None:
                ledger.raise_marks(marks)
        by_ledger: dict[int, list[DroppedRange]] = {}
        for ledger_id, entries in dropped:
            by_ledger.setdefault(ledger_id, []).append(entries)
        for ledger_id, ranges in by_ledger.items():
            ledger = self.ledger(ledger_id)
            if ledger is not None:
                ledger.dropped = DroppedEntries(ranges)

    def drop_entries(self, ledger_id: int, stamp: int, first: int, last: int) -> list[Section]:
        """Drops entries (F5). Returns the sections of which nothing is left."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            return []
        dropped = ledger.dropped = ledger.dropped or DroppedEntries()
        dropped.add(stamp, first, last)
        stamps = ledger.stamps.get(stamp)
        if stamps is None:
            return []
        gone = [section for section in stamps.sections if dropped.covers(stamp, section.first, section.last)]
        if gone:
            stamps.replace(gone, ())
        for section in gone:
            _remove(section)
        for section in stamps.sections:
            note_dead(section, dropped)
        return gone

    def drop(self, ledger_id: int) -> list[Section]:
        """Deletes a ledger, permanently. Returns the sections that are not needed any more."""
        self.deleted.add(ledger_id)
        ledger = self.ledgers.pop(ledger_id, None)
        gone = [section for stamps in ledger.stamps.values() for section in stamps.sections] if ledger else []
        for section in gone:
            _remove(section)
        assert ledger_id not in self.ledgers, "a deleted ledger comes back"
        return gone

    def locate_lone(self, ledger_id: int, entry_id: int, stamp: int) -> Place | None:
        """The only batch that can hold the entry, by two bisections. None if it isn't that simple: then use `locate`."""
        ledger = self.ledgers.get(ledger_id)
        # Where something was dropped, `locate` looks at each batch.
        stamps = ledger.stamps.get(stamp) if ledger is not None and ledger.dropped is None else None
        if stamps is None:
            return None
        place = bisect_right(stamps.firsts, entry_id) - 1
        if place < 0 or (place and stamps.reaches[place - 1] >= entry_id):
            return None
        section = stamps.sections[place]
        page = section.page
        if page is None:
            return None
        section.is_touched = True
        at = bisect_right(page.firsts, entry_id) - 1
        if at < 0 or page.lasts[at] < entry_id or page.strides[at] != 1 or (at and page.reaches[at - 1] >= entry_id):
            return None
        return section.file, page.offsets[at], page.sizes[at], page.checksums[at]

    def locate(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int, loaded: Pages) -> list[Location]:
        """As `StampSections.locate`. Raises `EntryDroppedError` if the entry was dropped (F5)."""
        ledger = self.ledgers.get(ledger_id)
        stamps = ledger.stamps.get(stamp) if ledger else None
        dropped = ledger.dropped if ledger is not None else None
        if dropped is None:
            return stamps.locate(entry_id, bytes_max, loaded) if stamps else []
        found = stamps.locate(entry_id, bytes_max, loaded, partial(dropped.covers, stamp)) if stamps else []
        if not found:
            dropped.check(ledger_id, entry_id, stamp)
        return found


def _remove(section: Section) -> None:
    section.file.sections.discard(section)
    section.file.live_bytes -= section.data_bytes - section.dead_bytes
    assert section.file.live_bytes >= 0, "more was deleted from a file than it held"


def note_dead(section: Section, dropped: DroppedEntries) -> None:
    """Estimates how much of a section was dropped, so that compaction finds files of which little is needed."""
    dead_bytes = int(section.data_bytes * dropped.share(section.stamp, section.first, section.last))
    section.file.live_bytes += section.dead_bytes - dead_bytes
    section.dead_bytes = dead_bytes
