"""The shared parts of one open storage: its files, its index, and the lock that guards both."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from replog.backends.disk import Disk
from replog.backends.files.caches import LedgerCache, PageCache
from replog.backends.files.damages import Damages
from replog.backends.files.descriptors import Descriptors
from replog.backends.files.index import Index, SectionGone
from replog.backends.files.index_page import IndexPage
from replog.backends.files.indexing import read_page
from replog.backends.files.log_file import EntryLogFile, JournalFile, LogFile, Section
from replog.backends.files.options import FilesTuning
from replog.errors import StorageUncertainError


class Contents:
    """The files and the index of a storage.

    `changed` guards all of it. A thread that indexes, flushes, compacts or scrubs holds `working` for as long as that takes;
    `working` is always taken first."""

    def __init__(
        self,
        disk: Disk,
        options: FilesTuning,
        path: str,
        identity: bytes,
        index: Index,
        journals: dict[int, JournalFile],
        entry_logs: dict[int, EntryLogFile],
    ) -> None:
        self.disk = disk
        self.options = options
        self.path = path
        self.identity = identity
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.working = threading.Lock()
        self.closing = threading.Event()  # long work ends early
        self.index = index
        self.journals = journals
        self.entry_logs = entry_logs
        self.cache = LedgerCache(options.ledger_cache_bytes)
        self.descriptors = Descriptors(disk, self.changed, options.open_files_max)
        self.page_cache = PageCache(disk, self.descriptors, self.changed, options.page_cache_bytes)
        self.damages = Damages(disk, self.changed, index, self.load_page)

    def files(self) -> list[LogFile]:
        """All log files."""
        return [*self.journals.values(), *self.entry_logs.values()]

    def journal_file_is_full(self, file: JournalFile) -> None:
        """Keeps a full file open while there are not too many, and lets its pages go when newer files need the memory.

        With a journal elsewhere its batches are flushed soon and the file is written again: it stays in memory."""
        self.descriptors.add(file)
        if not self.options.journal_dir:
            self.page_cache.add(file)

    def remove(self, file: LogFile) -> None:
        """Removes a file from the storage; it stays on the disk."""
        (self.journals if file.is_journal else self.entry_logs).pop(file.number)
        self.descriptors.forget(file)
        self.page_cache.forget(file)
        self.damages.unreadable_indexes.discard(file)

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
                self.damages.unreadable_indexes.add(section.file)
                self.changed.notify_all()
            raise StorageUncertainError(
                f"a page of {section.file.index_path} at {section.page_offset} is unreadable: {reason}",
                "The storage writes it again from the log file: try again, or read from another bookie",
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
            # Read once: without the lock, the cache may drop the page between two looks.
            page = section.page
            pages[section] = self.load_page(section) if page is None else page
        return pages
