"""The ledger cache: pages of the index that were read from index files, in a bounded piece of memory (seed 002)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from replog.backends.files.index_page import IndexPage
from replog.backends.files.log_file import Section


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
