"""What the parts of one open storage share: its files, its index, and the lock over both."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from replog.abc import Damage
from replog.backends.disk import Disk
from replog.backends.files.catalog import CatalogFile
from replog.backends.files.descriptors import Descriptors
from replog.backends.files.fetching import DamagedBatch
from replog.backends.files.index import Index, PageMissing
from replog.backends.files.index_page import IndexPage
from replog.backends.files.indexing import read_page
from replog.backends.files.ledger_cache import LedgerCache
from replog.backends.files.log_file import EntryLogFile, JournalFile, LogFile, Section
from replog.backends.files.options import FilesOptions
from replog.backends.files.page_cache import PageCache
from replog.errors import StorageDamagedError, StorageUncertainError


class SectionGone(Exception):
    """The section was rewritten, or its ledger deleted, before its page could be read."""


class Contents:
    """The files and the index of a storage. `changed` guards all of it; `working` is held by whoever indexes, flushes,
    compacts or scrubs, for as long as that takes, and is always taken first."""

    def __init__(
        self,
        disk: Disk,
        options: FilesOptions,
        path: str,
        identity: bytes,
        index: Index,
        journals: dict[int, JournalFile],
        entry_logs: dict[int, EntryLogFile],
        unread: list[CatalogFile],
    ) -> None:
        self.disk = disk
        self.options = options
        self.path = path
        self.identity = identity
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.working = threading.Lock()
        self.closing = threading.Event()  # long work ends early
        self.commits = 0  # since the start
        self.index = index
        self.journals = journals
        self.entry_logs = entry_logs
        self.unread = (
            unread  # files that were missing or damaged at the start: they stay in the catalog, and may come back
        )
        self.cache = LedgerCache(options.ledger_cache_bytes)
        self.descriptors = Descriptors(disk, self.changed, options.open_files_max)
        self.page_cache = PageCache(disk, self.descriptors, self.changed, options.page_cache_bytes)
        self.damage: dict[tuple[int, int, int, int], Damage] = {}
        self.unreadable_indexes: set[LogFile] = set()

    def files(self) -> list[LogFile]:
        """All log files."""
        return [*self.journals.values(), *self.entry_logs.values()]

    def journal_file_is_full(self, file: JournalFile) -> None:
        """It stays open while others are read. With a journal elsewhere its batches are flushed soon, and it is written again:
        until then it stays in memory."""
        self.descriptors.add(file)
        if not self.options.journal_dir:
            self.page_cache.add(file)

    def remove(self, file: LogFile) -> None:
        """The file is no longer part of the storage."""
        (self.journals if file.is_journal else self.entry_logs).pop(file.number)
        self.descriptors.forget(file)
        self.page_cache.forget(file)
        self.unreadable_indexes.discard(file)

    def load_page(self, section: Section) -> IndexPage:
        """A page from its index file, which the cache keeps. Called without the lock.

        Raises `StorageUncertainError`, `SectionGone`."""
        try:
            page = read_page(self.disk, section)
            reason = "its checksum is wrong"
        except OSError as error:
            page = None
            reason = str(error)
        if page is None:
            with self.changed:
                if section not in section.file.sections:
                    raise SectionGone
                self.unreadable_indexes.add(section.file)
                self.changed.notify_all()
            raise StorageUncertainError(
                f"a page of {section.file.index_path} at {section.page_offset} is unreadable: {reason}",
                "It is made anew from the log file: try again, or read from another bookie",
            )
        with self.changed:
            if section.page is None and section in section.file.sections:
                self.cache.admit(section, page)
        return page

    def pages_of(self, sections: Iterable[Section]) -> dict[Section, IndexPage]:
        """The pages of these sections, read if need be. Called without the lock.

        Raises `StorageUncertainError`, `SectionGone`."""
        pages = {}
        for section in sections:
            page = section.page  # asked once: the cache may let it go at any moment
            pages[section] = self.load_page(section) if page is None else page
        return pages

    def note_damage(self, error: DamagedBatch, ledger_id: int, stamp: int, identity: tuple[int, int]) -> None:
        """A batch is unreadable. Called without the lock. One that was deleted, or of which there is a newer copy, which reads
        find, is no damage; but its file is not compacted any more."""
        first, last = identity
        location = error.location
        location.file.is_damaged = True
        loaded: dict[Section, IndexPage] = {}
        while True:
            try:
                with self.changed:
                    found = self.index.locate(ledger_id, first, stamp, 0, loaded)
                    if found and (found[0].file, found[0].offset) == (location.file, location.offset):
                        self.damage[ledger_id, stamp, first, last] = Damage(ledger_id, stamp, first, last, str(error))
                return
            except PageMissing as missing:
                try:
                    loaded[missing.section] = self.load_page(missing.section)
                except SectionGone:
                    continue
                except StorageUncertainError:
                    return  # its index is damaged too: that is noted, and the next look tells

    def note_unreadable(self, file: LogFile, error: StorageDamagedError) -> None:
        """The file is damaged, and so is its index. Called without the lock. What is on an unreadable page, no matter which
        of it, is damage: it is told as one, from the first entry to the last."""
        with self.changed:
            sections = [section for section in file.sections if section.page is None]
        for section in sections:
            try:
                page = read_page(self.disk, section)
            except OSError:
                page = None
            if page is None:
                key = section.ledger_id, section.stamp, section.first, section.last
                reason = f"a page of {file.index_path} at {section.page_offset} is unreadable, and {error}"
                with self.changed:
                    if section in file.sections:
                        self.damage[key] = Damage(*key, reason)

    def find_damaged(self, error: DamagedBatch, ledger_id: int, stamp: int) -> None:
        """As `note_damage`, of a batch known by its place."""
        location = error.location
        with self.changed:
            identities = [
                section.page.identity(section.page.at_offset(location.offset))[:2]
                for section in location.file.sections
                if (section.ledger_id, section.stamp) == (ledger_id, stamp)
                and section.page is not None
                and section.page.at_offset(location.offset) >= 0
            ]
        for identity in identities:
            self.note_damage(error, ledger_id, stamp, identity)
