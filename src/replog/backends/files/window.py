"""Files read forward in large pieces: what replay, the repair of an index and inspections scan (B3)."""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Iterator

from replog.backends.disk import Disk, named_error, read_all
from replog.backends.files.log_file import LogFile
from replog.backends.files.record import PAGE_BYTES
from replog.errors import StorageDamagedError
from replog.runtime.platform import UNREADABLE

WINDOW_BYTES = 4 << 20
RECOVER = "Recover this bookie's copies from the others, into a new directory"
_UNREADABLE_PAGES_MAX = 64  # of one file: a disk that refuses more has failed


class Window(ABC):
    """The part of a file that was read last: `data`, from the place `start` on."""

    def __init__(self) -> None:
        self.start = 0
        self.data = b""

    @abstractmethod
    def read(self, offset: int, size: int) -> bytes:
        """So many bytes from there, or fewer if the file ends before."""

    @property
    def end(self) -> int:
        """Where `data` ends in the file."""
        return self.start + len(self.data)

    def offset_of(self, at: int) -> int:
        """Where this place in `data` is in the file."""
        return self.start + at

    def seek(self, offset: int, length: int) -> int:
        """Where in `data` this place is, or -1 if the file ends before these bytes do."""
        at = offset - self.start
        if at < 0 or at + length > len(self.data):
            # At least a whole window: records are small, and each read is a system call.
            self.data = self.read(offset, max(length, WINDOW_BYTES))
            self.start = offset
            at = 0
        return at if at + length <= len(self.data) else -1

    def forget(self) -> None:
        """Drops the bytes read: another process may have written to the file since."""
        self.data = b""


class LogWindow(Window):
    """A log file of the storage itself.

    With `passes_over`, pages that the disk refuses to read (EIO) count as zeros, and `unreadable` has their places; else
    they are damage. Raises `StorageDamagedError`, `StorageFailedError`."""

    def __init__(self, disk: Disk, file: LogFile, *, passes_over: bool = False) -> None:
        super().__init__()
        self._disk = disk
        self._file = file
        self._passes_over = passes_over
        self.unreadable: list[int] = []
        if file.fd < 0:
            try:
                file.fd = disk.open(file.path)
            except OSError as error:
                self._check_lost(error)
                raise damaged(file, 0, f"it cannot be opened: {error}") from error

    def read(self, offset: int, size: int) -> bytes:
        """The bytes at this place (`Window.read`)."""
        try:
            return read_all(self._disk, self._file.fd, size, offset)
        except OSError as error:
            self._check_lost(error)
            if not self._passes_over:
                raise damaged(self._file, offset, f"it cannot be read: {error}") from error
        # The disk refuses some page of this piece. Page by page, all others can still be read.
        return b"".join(self._pages(offset, offset + size))

    def _check_lost(self, error: OSError) -> None:
        """Raises `StorageFailedError` unless the error says that bytes are lost: a missing right, or a file system that went
        away, is not damage."""
        if error.errno not in (*UNREADABLE, errno.ENOENT):
            raise named_error(f"read {self._file.path}", error) from error

    def _pages(self, offset: int, end: int) -> Iterator[bytes]:
        while offset < end:
            stop = min(end, (offset // PAGE_BYTES + 1) * PAGE_BYTES)
            try:
                piece = read_all(self._disk, self._file.fd, stop - offset, offset)
            except OSError as error:
                if error.errno not in UNREADABLE or len(self.unreadable) >= _UNREADABLE_PAGES_MAX:
                    raise named_error(f"read {self._file.path} at {offset}", error) from error
                if offset not in self.unreadable:
                    self.unreadable.append(offset)
                piece = bytes(stop - offset)
                # A page behind the end of the file is not unreadable: there is none.
                if self._disk.size(self._file.fd) <= offset:
                    return
            yield piece
            if len(piece) < stop - offset:
                return
            offset = stop


def damaged(file: LogFile, offset: int, reason: str) -> StorageDamagedError:
    """The error that says where a file is damaged."""
    return StorageDamagedError(f"{file.path} is damaged at {offset}: {reason}", RECOVER)
