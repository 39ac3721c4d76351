"""What of the full files stays in the page cache: the newest of what was written, as much as `page_cache_bytes` says.

The kernel keeps what was written until something else wants the memory. Where nothing is ever deleted, each journal file
then takes memory that was not used before: clearing it costs as much as the write, and on a virtual machine a fault in
its host several times that. Files that are dropped give their pages to the next one. Who reads what was dropped reads the
disk; what is read then stays in memory for as long as the kernel likes.
"""

from __future__ import annotations

import threading
from bisect import insort

from replog.backends.disk import Disk
from replog.backends.files.descriptors import Descriptors
from replog.backends.files.log_file import LogFile
from replog.errors import StorageUncertainError


class PageCache:
    """Full files that were written by this process and not dropped, the oldest content first. `changed` is the storage's lock,
    held by callers where nothing else is said. With `bytes_max` of 0 nothing is noted, and nothing dropped."""

    def __init__(self, disk: Disk, descriptors: Descriptors, changed: threading.Condition, bytes_max: int) -> None:
        self._disk = disk
        self._descriptors = descriptors
        self._changed = changed
        self._bytes_max = bytes_max
        self._files: list[LogFile] = []
        self._bytes = 0
        self.dropped_bytes = 0

    def add(self, file: LogFile) -> None:
        """All of this file was written, and synced: of pages that were not, the kernel lets none go."""
        if self._bytes_max and not file.is_retired:
            insort(self._files, file, key=_age)  # what compaction wrote just now is as old as what it copied
            self._bytes += file.position
            self._changed.notify_all()

    def forget(self, file: LogFile) -> None:
        """The file is nobody's any more: as a spare it is soon written again, and that is faster into pages that are there."""
        if file in self._files:
            self._files.remove(file)
            self._bytes -= file.position

    @property
    def is_too_full(self) -> bool:
        """Whether the oldest file is to be dropped."""
        return self._bytes > self._bytes_max

    def drop_oldest(self) -> None:
        """Lets the oldest file go, if more than wanted is kept. Called without the lock. May raise OSError."""
        with self._changed:
            if not self.is_too_full:
                return
            file = self._files.pop(0)
            self._bytes -= file.position
            try:
                self._descriptors.pin((file,), wait=True)  # nobody makes a spare of it meanwhile
            except StorageUncertainError:
                return  # it can't be opened, and who reads it hears of that: here it is left to the kernel
        try:
            self._disk.drop_cached(file.fd)
        finally:
            with self._changed:
                self._descriptors.unpin((file,))
                self.dropped_bytes += file.position


def _age(file: LogFile) -> tuple[int, int]:
    return file.age, file.number
