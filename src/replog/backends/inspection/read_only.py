"""The system's files for looking at only: nothing is written, locked or made, and not even a time of access changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from replog.backends.disk import Disk
from replog.runtime.platform import NO_ACCESS_TIME

Progress = Callable[[int], None]
"""Called with how many bytes were read since its last call."""


def ignore_progress(size_bytes: int) -> None:
    """Progress that nobody watches."""


class ReadOnlyDisk(Disk):
    """A `Disk` whose descriptors can only be read, so that the storage's own parsers can look at a running bookie's files."""

    def open(self, path: str, *, create: bool = False) -> int:
        """As `Disk.open`, for reading."""
        assert not create, "an inspection makes no file"
        flags = os.O_RDONLY | os.O_CLOEXEC
        # Only the owner may read without leaving a time of access.
        with suppress(PermissionError):
            return os.open(path, flags | NO_ACCESS_TIME)
        return os.open(path, flags)


READ_ONLY = ReadOnlyDisk()
