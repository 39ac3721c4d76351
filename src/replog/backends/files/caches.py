"""What the storage keeps in memory of its indexes and ledgers, within bounds."""

from __future__ import annotations

import threading
from bisect import insort
from collections import OrderedDict
from collections.abc import Iterable

from replog.backends.disk import Disk
from replog.backends.files.descriptors import Descriptors
from replog.backends.files.index_page import IndexPage
from replog.backends.files.log_file import LogFile, Section
from replog.errors import StorageUncertainError

# -- page cache -------------------------------------------------------------------------------------------------------
#
# Drops full files from the kernel's page cache, the oldest first, when they take more than `page_cache_bytes`.
#
# The kernel keeps written pages until something else needs the memory. If nothing is ever deleted, each journal file then
# takes memory that was not used before. The kernel must clear that memory, which costs as much as the write; on a virtual
# machine it may also cause a fault in the host, which costs several times as much. A file that is dropped gives its pages to
# the next one. A read of a dropped file reads the disk, and the kernel decides how long it keeps those pages.


class PageCache:
    """Full files that this process wrote and has not dropped, the oldest content first.

    `changed` is the storage's lock; callers hold it unless a method says otherwise. A `bytes_max` of 0 drops nothing."""

    def __init__(self, disk: Disk, descriptors: Descriptors, changed: threading.Condition, bytes_max: int) -> None:
        self._disk = disk
        self._descriptors = descriptors
        self._changed = changed
        self._bytes_max = bytes_max
        self._files: list[LogFile] = []
        self._bytes = 0
        self.dropped_bytes = 0

    def add(self, file: LogFile) -> None:
        """Adds a file that is written and synced. The kernel does not drop pages that are not synced."""
        if self._bytes_max and not file.is_retired:
            # By age and not by time: what compaction wrote just now is as old as what it copied.
            insort(self._files, file, key=_age)
            self._bytes += file.position
            self._changed.notify_all()

    def forget(self, file: LogFile) -> None:
        """Removes a file that is no longer part of the storage.

        It stays in the cache: as a spare it is soon written again, which is faster if its pages are in memory."""
        if file in self._files:
            self._files.remove(file)
            self._bytes -= file.position

    @property
    def is_too_full(self) -> bool:
        """True if the oldest file must be dropped."""
        return self._bytes > self._bytes_max

    def drop_oldest(self) -> None:
        """Drops the oldest file if too much is kept. Called without the lock. May raise OSError."""
        with self._changed:
            if not self.is_too_full:
                return
            file = self._files.pop(0)
            self._bytes -= file.position
            try:
                # A pinned file is not recycled: else the cache of its next life would be dropped.
                self._descriptors.pin((file,), wait=True)
            except StorageUncertainError:
                # It can't be opened; a read of it reports that, and the kernel may keep its pages.
                return
        try:
            self._disk.drop_cached(file.fd)
        finally:
            with self._changed:
                self._descriptors.unpin((file,))
                self.dropped_bytes += file.position


def _age(file: LogFile) -> tuple[int, int]:
    return file.age, file.number


# -- ledger cache -----------------------------------------------------------------------------------------------------
#
# The ledger cache: pages of the index that were read from index files, in a bounded piece of memory (seed 002).


class LedgerCache:
    """Keeps the pages that were read lately. The storage's lock guards it.

    A page stays at its section while it is here; one that was read since the cache last looked gets another round."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[Section, int] = OrderedDict()  # the oldest first
        self.bytes = 0
        self.loaded_pages = 0

    def admit(self, section: Section, page: IndexPage) -> None:
        """Keeps a page that can be read again, and lets others go."""
        section.page = page
        self.bytes += page.memory_bytes - self._kept.pop(section, 0)
        self._kept[section] = page.memory_bytes
        self.loaded_pages += 1
        # One page always stays: the caller is about to use it.
        while self.bytes > self._bytes_max and len(self._kept) > 1:
            oldest, size = self._kept.popitem(last=False)
            if oldest.is_touched:
                # It was read since it was last looked at here: a scan of cold ledgers must not push out what is in use.
                oldest.is_touched = False
                self._kept[oldest] = size
                continue
            oldest.page = None
            self.bytes -= size

    def forget(self, sections: Iterable[Section]) -> None:
        """Drops the pages of sections that were deleted, or rewritten elsewhere."""
        for section in sections:
            size = self._kept.pop(section, 0)
            if size:
                section.page = None
                self.bytes -= size
