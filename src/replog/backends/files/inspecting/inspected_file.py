"""A file read forward in windows without leaving a trace, while somebody else may write to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from replog.backends.disk import read_all
from replog.backends.files.record import PAGE_BYTES, FileHeader, unpack_file_header
from replog.backends.files.window import Window
from replog.backends.inspection.read_only import READ_ONLY, Progress, ignore_progress
from replog.backends.inspection.reports import Problem
from replog.errors import StorageFailedError


class Unreadable(Exception):
    """The system could not read a file. `offset` is where; `is_gone` if the file is not there any more."""

    def __init__(self, path: str, offset: int, error: OSError) -> None:
        super().__init__(f"it cannot be read: {error.strerror or error}")
        self.path = path
        self.offset = offset
        self.reason = str(self)
        self.is_gone = isinstance(error, FileNotFoundError)

    @property
    def problem(self) -> Problem:
        """This, as a report. A file that is gone was recycled by a bookie that runs: that is not damage."""
        if self.is_gone:
            return Problem(self.path, 0, "gone", "it was removed or renamed since its name was read")
        return Problem(self.path, self.offset, "unreadable", self.reason)


@contextmanager
def must_be_readable() -> Iterator[None]:
    """For what no report can do without: raises `StorageFailedError` in place of `Unreadable`."""
    try:
        yield
    except Unreadable as error:
        raise StorageFailedError(f"{error.path}: {error.reason}", "Run this as the user that owns it") from error


class InspectedFile(Window):
    """A file that is open for reading, as a context. Raises `Unreadable`, from its constructor too."""

    def __init__(self, path: str, progress: Progress = ignore_progress) -> None:
        super().__init__()
        self.path = path
        self.name = os.path.basename(path)
        self._progress = progress
        try:
            self.fd = READ_ONLY.open(path)
        except OSError as error:
            raise Unreadable(path, 0, error) from error
        status = os.fstat(self.fd)
        self.size_bytes = status.st_size
        self._inode = (status.st_dev, status.st_ino)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives the descriptor back. Idempotent."""
        if self.fd >= 0:
            READ_ONLY.close(self.fd)
            self.fd = -1

    def read(self, offset: int, size: int) -> bytes:
        """As `Window.read`."""
        try:
            data = read_all(READ_ONLY, self.fd, size, offset)
        except OSError as error:
            raise Unreadable(self.path, offset, error) from error
        self._progress(len(data))
        return data

    def file_header(self) -> FileHeader | None:
        """The header page of a journal file or an entry log, as it is now, or None if there is none."""
        return unpack_file_header(self.read(0, PAGE_BYTES))

    def is_in_place(self) -> bool:
        """True while the path leads to this file: it wasn't renamed or removed."""
        try:
            status = os.stat(self.path)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._inode


def read_whole_file(path: str) -> bytes:
    """A file's bytes. Raises `Unreadable`."""
    with InspectedFile(path) as file:
        return file.read(0, file.size_bytes)


def list_names(path: str) -> list[str]:
    """What is in a directory, sorted; [] if there is none. Raises `Unreadable`."""
    try:
        return READ_ONLY.names(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Unreadable(path, 0, error) from error
