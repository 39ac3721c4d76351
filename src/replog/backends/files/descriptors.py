"""Open descriptors of log files: pinned during reads, closed when too many are open."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable

import trio

from replog.backends.disk import Disk
from replog.backends.files.log_file import JournalFile, LogFile
from replog.errors import StorageUncertainError

_TOO_MANY = {errno.EMFILE, errno.ENFILE}  # passes, and says nothing of the file


class Descriptors:
    """Full files that are open, in the order in which they were opened. `changed` is the storage's lock, held by callers."""

    def __init__(self, disk: Disk, changed: threading.Condition, open_files_max: int) -> None:
        self._disk = disk
        self._changed = changed
        self._open_files_max = open_files_max
        self._opened: list[LogFile] = []
        self.is_closing = False

    def pin(self, files: Iterable[LogFile], *, wait: bool) -> None:
        """Opens what is closed, and keeps it open until it is unpinned.

        Raises `StorageUncertainError`, or `trio.WouldBlock` if something must be opened and may not."""
        pinned: list[LogFile] = []
        try:
            for file in files:
                if file.fd < 0:
                    self._open(file, wait)
                # Before the next file is opened: that may close files that are not pinned.
                file.pins += 1
                pinned.append(file)
        except BaseException:
            self.unpin(pinned)
            raise

    def _open(self, file: LogFile, wait: bool) -> None:
        if not wait:
            raise trio.WouldBlock
        try:
            file.fd = self._disk.open(file.path)
        except OSError as error:
            if error.errno not in _TOO_MANY:
                # Compaction leaves it alone from now on; it would fail at the same file each time.
                file.is_damaged = True
            raise StorageUncertainError(
                f"could not open {file.path}: {error}", "Read it from another bookie"
            ) from error
        self.add(file)

    def unpin(self, files: Iterable[LogFile]) -> None:
        """Ends a read of these files."""
        for file in files:
            file.pins -= 1
            if not file.pins and (file.is_retired or self.is_closing):
                self._changed.notify_all()  # `close` or the pool waits for the last read of it
        if len(self._opened) > self._open_files_max:
            self._close_excess()

    def add(self, file: LogFile) -> None:
        """A file was opened, or is full now; the one opened first is closed if they are too many."""
        self._opened.append(file)
        self._close_excess()

    def _close_excess(self) -> None:
        for oldest in self._opened[: -self._open_files_max]:
            if not oldest.pins and self._close(oldest):
                self._opened.remove(oldest)

    def _close(self, file: LogFile) -> bool:
        # The pool may be writing zeros to it, and would go on in whatever file gets the same descriptor next.
        if isinstance(file, JournalFile) and not file.filling.acquire(blocking=False):
            return False
        self._disk.close(file.fd)
        file.fd = -1
        if isinstance(file, JournalFile):
            file.filling.release()
        return True

    def forget(self, file: LogFile) -> None:
        """Removes a file that is no longer part of the storage. The caller that removes it closes it."""
        file.is_retired = True
        if file in self._opened:
            self._opened.remove(file)
