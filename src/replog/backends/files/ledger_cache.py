"""The ledger cache: pages of the index that were read from index files, in a bounded piece of memory (seed 002)."""

from __future__ import annotations

from collections import deque

from replog.backends.files.index import IndexPage, Section


class LedgerCache:
    """Keeps the pages that were read lately. The storage's lock guards it.

    A page stays at its section while it is here; one that was read since the cache last looked gets another round."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: deque[tuple[Section, int]] = deque()
        self.bytes = 0
        self.loaded_pages = 0

    def admit(self, section: Section, page: IndexPage) -> None:
        """Keeps a page that can be read again, and lets others go."""
        section.page = page
        size = page.memory_bytes
        self._kept.append((section, size))
        self.bytes += size
        self.loaded_pages += 1
        while self.bytes > self._bytes_max and len(self._kept) > 1:
            oldest, size = self._kept.popleft()
            if oldest.is_touched:
                oldest.is_touched = False
                self._kept.append((oldest, size))
                continue
            oldest.page = None
            self.bytes -= size
