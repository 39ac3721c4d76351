"""Reading a file forward in windows without leaving a trace, while somebody else may write to it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from replog.backends.files.record import PAGE_BYTES, FileHeader, unpack_file_header

WINDOW_BYTES = 4 << 20

Progress = Callable[[int], None]
"""Told how many bytes were read since it was told last."""


def ignore_progress(size_bytes: int) -> None:
    """For who does not watch."""


class Unreadable(Exception):
    """The system could not read a file, or here is no such file. `offset` is where; `is_gone` if the file is."""

    def __init__(self, path: str, offset: int, error: OSError) -> None:
        super().__init__(f"it cannot be read: {error.strerror or error}")
        self.path = path
        self.offset = offset
        self.reason = str(self)
        self.is_gone = isinstance(error, FileNotFoundError)


class InspectedFile:
    """A file that is open for reading, as a context. Raises `Unreadable`, also from its constructor.

    `data` is what was read last, from `start` on; `seek` says where in it a place is."""

    def __init__(self, path: str, progress: Progress = ignore_progress) -> None:
        self.path = path
        self.name = os.path.basename(path)
        self._progress = progress
        self.start = 0
        self.data = b""
        self.fd = -1
        try:
            self.fd = _open(path)
            status = os.fstat(self.fd)
        except OSError as error:
            self.close()
            raise Unreadable(path, 0, error) from error
        self.size_bytes = status.st_size
        self._inode = (status.st_dev, status.st_ino)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives the descriptor back. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def seek(self, offset: int, length: int) -> int:
        """Where in `data` this place is, or -1 if the file ends before these bytes do."""
        at = offset - self.start
        if at < 0 or at + length > len(self.data):
            self.data = self.read(offset, max(length, WINDOW_BYTES))
            self._progress(len(self.data))
            self.start = offset
            at = 0
        return at if at + length <= len(self.data) else -1

    def forget(self) -> None:
        """Drops what was read: somebody may have written meanwhile."""
        self.data = b""

    def read(self, offset: int, size: int) -> bytes:
        """So many bytes, or fewer if the file ends before."""
        try:
            data = os.pread(self.fd, size, offset)
            while data and len(data) < size:
                more = os.pread(self.fd, size - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise Unreadable(self.path, offset, error) from error
        return data

    def file_header(self) -> FileHeader | None:
        """The header page of a journal file or an entry log, as it is now, or None if there is none."""
        return unpack_file_header(self.read(0, PAGE_BYTES))

    def is_in_place(self) -> bool:
        """Whether the path still leads to this file: it wasn't renamed or removed."""
        try:
            status = os.stat(self.path)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._inode


def _open(path: str) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC
    with suppress(PermissionError):  # only the owner may read without leaving a time of access
        return os.open(path, flags | os.O_NOATIME)
    return os.open(path, flags)


def read_whole_file(path: str, size_max: int | None = None) -> bytes:
    """A file's bytes, or the first ones. Raises `Unreadable`."""
    with InspectedFile(path) as file:
        return file.read(0, file.size_bytes if size_max is None else size_max)


def list_names(path: str) -> list[str]:
    """What is in a directory, sorted; [] if there is none. Raises `Unreadable`."""
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Unreadable(path, 0, error) from error
