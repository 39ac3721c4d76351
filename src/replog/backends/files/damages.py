"""The damage that reads, compaction and scrubbing found since the start, until the batches are stored again (R4)."""

from __future__ import annotations

import threading
from collections.abc import Callable

from replog.abc import Damage
from replog.backends.disk import Disk
from replog.backends.dropped import EntryDroppedError
from replog.backends.files.fetching import DamagedBatch
from replog.backends.files.index import Index, SectionGone
from replog.backends.files.index_page import IndexPage
from replog.backends.files.indexing import read_page
from replog.backends.files.log_file import LogFile, Section
from replog.backends.files.stamp_sections import PageMissing
from replog.errors import StorageError, StorageUncertainError
from replog.protocol.batch import Batch

_Identity = tuple[int, int, int, int]  # ledger, stamp, first id, last id


class Damages:
    """`changed` is the storage's lock, which guards everything here; `load_page` is that of its contents."""

    def __init__(
        self,
        disk: Disk,
        changed: threading.Condition,
        index: Index,
        load_page: Callable[[Section], IndexPage],
    ) -> None:
        self._disk = disk
        self._changed = changed
        self._index = index
        self._load_page = load_page
        self.known: dict[_Identity, Damage] = {}
        self.unreadable_indexes: set[LogFile] = set()  # to be written again

    def stored(self, batch: Batch) -> None:
        """Forgets the damage of a batch that was stored again: from now on reads find this copy. Called with the lock."""
        self.known.pop((batch.ledger_id, batch.stamp, batch.first_entry_id, batch.last_entry_id), None)

    def dropped(self, ledger_id: int) -> None:
        """Forgets the damage of a ledger that was deleted. Called with the lock."""
        for identity in [each for each in self.known if each[0] == ledger_id]:
            del self.known[identity]

    def dropped_entries(self, ledger_id: int, stamp: int) -> None:
        """Forgets the damage of batches that were dropped. Called with the lock."""
        ledger = self._index.ledgers.get(ledger_id)
        for identity in [each for each in self.known if each[:2] == (ledger_id, stamp)]:
            if ledger is not None and ledger.dropped is not None and ledger.dropped.covers(stamp, *identity[2:]):
                del self.known[identity]

    def note(self, error: DamagedBatch, ledger_id: int, stamp: int, identity: tuple[int, int]) -> None:
        """Notes that a batch is unreadable. Called without the lock.

        A batch that was deleted, or of which reads find a newer copy, is not damage; but its file is not compacted any more."""
        first, last = identity
        location = error.location
        location.file.is_damaged = True
        loaded: dict[Section, IndexPage] = {}
        while True:
            try:
                with self._changed:
                    found = self._index.locate(ledger_id, first, stamp, 0, loaded)
                    # Only if reads would get this very copy: a newer file, or a deletion, may have made it unneeded.
                    if found and (found[0].file, found[0].offset) == (location.file, location.offset):
                        self.known[ledger_id, stamp, first, last] = Damage(ledger_id, stamp, first, last, str(error))
                return
            except EntryDroppedError:
                return
            except PageMissing as missing:
                try:
                    loaded[missing.section] = self._load_page(missing.section)
                except SectionGone:
                    continue
                except StorageUncertainError:
                    # Its index is damaged, too: that is noted, and the next scrub finds the batch again.
                    return

    def note_unreadable(self, file: LogFile, error: StorageError) -> None:
        """Notes that a file and its index are damaged. Called without the lock.

        All batches of an unreadable page are reported as one damage, from the first entry to the last."""
        with self._changed:
            sections = [section for section in file.sections if section.page is None]
        for section in sections:
            try:
                page = read_page(self._disk, section)
            except OSError:
                page = None
            if page is None:
                key = section.ledger_id, section.stamp, section.first, section.last
                reason = f"a page of {file.index_path} at {section.page_offset} is unreadable, and {error}"
                with self._changed:
                    # The page was read without the lock: the section may have been rewritten meanwhile.
                    if section in file.sections:
                        self.known[key] = Damage(*key, reason)

    def find(self, error: DamagedBatch, ledger_id: int, stamp: int) -> None:
        """Notes the damage of a batch known by its place."""
        location = error.location
        with self._changed:
            identities = [
                section.page.identity(section.page.at_offset(location.offset))[:2]
                for section in location.file.sections
                if (section.ledger_id, section.stamp) == (ledger_id, stamp)
                and section.page is not None
                and section.page.at_offset(location.offset) >= 0
            ]
        for identity in identities:
            self.note(error, ledger_id, stamp, identity)
