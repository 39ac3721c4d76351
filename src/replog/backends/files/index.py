"""The index: the place of each batch, and the marks of each ledger (B3, R4).

The index points at batches, never at entries. The batches of one ledger and stamp in one log file are a *section*; its
*page* has 44 bytes for each of them, in the order of their first ids, found by bisection. Pages of the journal files
that are not indexed on disk yet are always in memory: together they are the memory table. Pages of all other files are
read from their index files when they are needed, and kept in the bounded ledger cache.

Batches of one ledger may overlap in range without sharing an entry (strides, W1) and may arrive in any order (recovery
fills holes), so pages and sections also know how far the ones before them reach. Nothing here locks: the storage does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import partial

from replog.backends.dropped import DroppedEntries, DroppedRange
from replog.backends.files.catalog import pack_ledger
from replog.backends.files.index_page import PAGE_BATCHES, IndexPage
from replog.backends.files.log_file import Location, Place, Section
from replog.backends.files.record import RecordType, unpack_drop, unpack_drop_entries, unpack_marks
from replog.backends.files.stamp_sections import Pages, StampSections
from replog.backends.ranges import LedgerRanges
from replog.protocol.mutations import DELETED_TERM, Marks
from replog.protocol.proofs import better_proof


class SectionGone(Exception):
    """The section was rewritten, or its ledger deleted, before its page could be read."""


class LedgerIndex:
    """One ledger: its marks, and its batches by stamp."""

    __slots__ = (
        "_others",
        "_packed",
        "dropped",
        "fence_term",
        "key",
        "last_add_confirmed",
        "last_entry_id",
        "newest",
        "proof",
        "revision",
    )

    def __init__(self) -> None:
        self.key: bytes | None = None
        self.fence_term = 0
        self.last_add_confirmed = -1
        self.last_entry_id = -1
        self.proof = b""
        self.revision = 0
        self.newest: StampSections | None = None  # the only one of nearly every ledger
        self._others: dict[int, StampSections] | None = None  # by stamp; an empty one would take as much as the object
        self.dropped: DroppedEntries | None = None  # of which no file may bring a batch back
        self._packed: bytes | None = None  # the marks, if they haven't changed since

    @property
    def stamps(self) -> Sequence[StampSections]:
        """The sections of each stamp."""
        others = tuple(self._others.values()) if self._others else ()
        return others if self.newest is None else (*others, self.newest)

    def stamp(self, stamp: int) -> StampSections | None:
        """The sections of this stamp, or None."""
        newest = self.newest
        if newest is not None and newest.stamp == stamp:
            return newest
        return self._others.get(stamp) if self._others else None

    def add_stamp(self, stamp: int) -> StampSections:
        """The sections of this stamp, made if there are none."""
        found = self.stamp(stamp)
        if found is None:
            found = StampSections(stamp)
            if self.newest is not None:
                self._others = self._others or {}
                self._others[self.newest.stamp] = self.newest
            self.newest = found
        assert found.stamp == stamp, "each stamp has sections of its own"
        return found

    def note_batch(self, last: int, last_add_confirmed: int) -> None:
        """Raises the marks for a stored batch with this last entry id and last add confirmed."""
        if last_add_confirmed > self.last_add_confirmed:
            self.last_add_confirmed = last_add_confirmed
        if last > self.last_entry_id:
            self.last_entry_id = last
        self._packed = None

    def raise_marks(
        self,
        key: bytes | None,
        fence_term: int,
        last_add_confirmed: int,
        last_entry_id: int,
        proof: bytes,
        revision: int,
    ) -> None:
        """Marks only rise; a key never changes."""
        # A start calls this up to twice for each ledger, so it compares instead of calling `max`.
        if self.key is None:
            self.key = key
        if fence_term > self.fence_term:
            self.fence_term = fence_term
        if last_add_confirmed > self.last_add_confirmed:
            self.last_add_confirmed = last_add_confirmed
        if last_entry_id > self.last_entry_id:
            self.last_entry_id = last_entry_id
        if proof != self.proof:
            self.proof = better_proof(self.proof, proof)
        if revision > self.revision:
            self.revision = revision
        self._packed = None

    def marks(self) -> Marks:
        """The ledger's marks."""
        numbers = self.fence_term, self.last_add_confirmed, self.last_entry_id
        return Marks(self.key, *numbers, self.proof, self.revision)

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
        if ledger is None and (not self.deleted or ledger_id not in self.deleted):
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
        stamps = ledger.newest
        if stamps is None or stamps.stamp != stamp:
            stamps = ledger.add_stamp(stamp)
        file, offset, size, checksum = place
        section = stamps.growing
        # A full section is closed only when the ids go on upwards: a batch that fills a hole belongs among the others.
        if (
            section is None
            or section.file is not file
            or (section.count >= PAGE_BATCHES and first > section.last_first)
        ):
            section = stamps.growing = Section(file, ledger_id, stamp, first, last, first)
            is_new = section.put(first, last, stride, offset, size, checksum)
            file.sections.add(section)
            stamps.add(section)
        else:
            held = section.held
            page = held if type(held) is IndexPage else section
            is_new = page.put(first, last, stride, offset, size, checksum)
            stamps.widen(section, first, last)
        if is_new:
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
        ledger.add_stamp(section.stamp).add(section)
        section.file.sections.add(section)
        section.file.live_bytes += section.data_bytes
        if dropped is not None:
            note_dead(section, dropped)

    def put_marks(
        self, ledger_id: int, key: bytes | None, fence_term: int, confirmed: int, proof: bytes, revision: int
    ) -> None:
        """Raises the marks of the ledger to these."""
        assert fence_term >= 0, "as `pack_marks` asserted"
        ledger = self.ledger(ledger_id)
        if ledger is not None:
            ledger.raise_marks(key, fence_term, confirmed, -1, proof, revision)

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
                numbers = marks.fence_term, marks.last_add_confirmed, marks.last_entry_id
                ledger.raise_marks(marks.key, *numbers, marks.proof, marks.revision)
        by_ledger: dict[int, list[DroppedRange]] = {}
        for ledger_id, entries in dropped:
            by_ledger.setdefault(ledger_id, []).append(entries)
        for ledger_id, ranges in by_ledger.items():
            ledger = self.ledger(ledger_id)
            if ledger is not None:
                ledger.dropped = DroppedEntries(ranges)

    def drop_entries(self, ledger_id: int, stamp: int, first: int, last: int, stride: int = 1) -> list[Section]:
        """Drops entries (F5). Returns the sections of which nothing is left."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            return []
        dropped = ledger.dropped = ledger.dropped or DroppedEntries()
        dropped.add(stamp, first, last, stride)
        stamps = ledger.stamp(stamp)
        if stamps is None:
            return []
        gone = [section for section in stamps.sections if dropped.covers(stamp, section.first, section.last)]
        if gone:
            stamps.replace(gone, ())
        assert stamps.growing not in gone, "nothing is added to sections that were dropped"
        for section in gone:
            remove(section)
        for section in stamps.sections:
            note_dead(section, dropped)
        return gone

    def drop(self, ledger_id: int) -> list[Section]:
        """Deletes a ledger, permanently. Returns the sections that are not needed any more."""
        self.deleted.add(ledger_id)
        ledger = self.ledgers.pop(ledger_id, None)
        gone = [section for stamps in ledger.stamps for section in stamps.sections] if ledger else []
        for section in gone:
            remove(section)
        assert ledger_id not in self.ledgers, "a deleted ledger comes back"
        return gone

    def locate_lone(self, ledger_id: int, entry_id: int, stamp: int) -> Place | None:
        """The only batch that can hold the entry, by two bisections. None if it isn't that simple: then use `locate`."""
        ledger = self.ledgers.get(ledger_id)
        # Where something was dropped, `locate` looks at each batch.
        if ledger is None or ledger.dropped is not None:
            return None
        stamps = ledger.newest
        if stamps is None or stamps.stamp != stamp:
            stamps = ledger.stamp(stamp)
            if stamps is None:
                return None
        place = 0
        if stamps.bounds is not None:
            firsts, reaches = stamps.bounds
            place = bisect_right(firsts, entry_id) - 1
            if place < 0 or (place and reaches[place - 1] >= entry_id):
                return None
        elif not stamps.sections:
            return None
        section = stamps.sections[place]
        page = section.held
        if type(page) is not IndexPage:
            page = section.page
            if page is None:
                return None
        section.is_touched = True
        at = bisect_right(page.firsts, entry_id) - 1
        if at < 0 or page.lasts[at] < entry_id or page.strides[at] != 1 or (at and page.reaches[at - 1] >= entry_id):
            return None
        return section.file, page.offsets[at], page.sizes[at], page.checksums[at]

    def locate(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int, loaded: Pages) -> list[Location]:
        """The places of the entry's batch and of those behind it, up to so many bytes (`StampSections.locate`). Raises
        `EntryDroppedError` if the entry was dropped (F5)."""
        ledger = self.ledgers.get(ledger_id)
        stamps = ledger.newest if ledger else None
        if ledger and (stamps is None or stamps.stamp != stamp):
            stamps = ledger.stamp(stamp)
        dropped = ledger.dropped if ledger is not None else None
        if dropped is None:
            return stamps.locate(entry_id, bytes_max, loaded) if stamps else []
        found = stamps.locate(entry_id, bytes_max, loaded, partial(dropped.covers, stamp)) if stamps else []
        if not found:
            dropped.check(ledger_id, entry_id, stamp)
        return found


def remove(section: Section) -> None:
    """Takes a section out of its file, whose batches it needs no more. The caller takes it out of its ledger."""
    section.file.sections.discard(section)
    section.file.live_bytes -= section.data_bytes - section.dead_bytes
    assert section.file.live_bytes >= 0, "more was deleted from a file than it held"


def note_dead(section: Section, dropped: DroppedEntries) -> None:
    """Estimates how much of a section was dropped, so that compaction finds files of which little is needed."""
    dead_bytes = int(section.data_bytes * dropped.share(section.stamp, section.first, section.last))
    assert 0 <= dead_bytes <= section.data_bytes, "no more can be dropped than there is"
    section.file.live_bytes += section.dead_bytes - dead_bytes
    section.dead_bytes = dead_bytes
