"""Looking at a storage's directory without touching it: nothing is written, locked or made, nor is a time of access changed.

Its lock is not even tried: a shared lock taken for a moment would make a bookie that starts right then fail. So whether a process
has the storage open is read from the system's table of locks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress

from replog.backends.directory import FORMAT_FILE, read_owner
from replog.backends.disk import Disk, named_errors, read_all
from replog.errors import StorageDamagedError
from replog.runtime.platform import NO_ACCESS_TIME, table_of_locks

_FORMAT_BYTES_MAX = 64 << 10

Progress = Callable[[int], None]
"""Called with how many bytes were read since its last call."""


def ignore_progress(size_bytes: int) -> None:
    """Progress that nobody watches."""


class ReadOnlyDisk(Disk):
    """A `Disk` whose descriptors can only be read, so that the storage's own parsers can look at a running bookie's files."""

    def open(self, path: str, *, create: bool = False) -> int:
        """Opens a file for reading (`Disk.open`)."""
        assert not create, "an inspection makes no file"
        flags = os.O_RDONLY | os.O_CLOEXEC
        # Only the owner may read without leaving a time of access.
        with suppress(PermissionError):
            return os.open(path, flags | NO_ACCESS_TIME)
        return os.open(path, flags)


READ_ONLY = ReadOnlyDisk()


def owner_of(lock_path: str) -> int | None:
    """The process that wrote its id into the lock file last: it has the storage open, or had it."""
    try:
        return read_owner(READ_ONLY, lock_path)
    except OSError:
        return None


def is_locked(lock_path: str) -> bool | None:
    """True if a process holds the lock, as far as this process can see; None if the system does not say.

    Processes of another pid namespace (another container) may be invisible: then False is wrong."""
    try:
        status = os.stat(lock_path)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    lines = table_of_locks()
    if lines is None:
        return None
    owner = owner_of(lock_path)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    for line in lines:
        fields = line.split()
        if len(fields) < 8 or fields[1] != "FLOCK":
            continue
        where, _, inode = fields[5].rpartition(":")
        # Some file systems (overlay, btrfs) show another device in the table: then the process must be the owner.
        if inode == str(status.st_ino) and (where == device or fields[4] == str(owner)):
            return True
    return False


def format_name(path: str) -> str | None:
    """The format that the directory's format file names, or None if there is no such file. Raises `StorageDamagedError`."""
    where = f"{path}/{FORMAT_FILE}"
    with named_errors(f"read {where}"):
        try:
            fd = READ_ONLY.open(where)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            text = read_all(READ_ONLY, fd, _FORMAT_BYTES_MAX, 0)
        finally:
            READ_ONLY.close(fd)
    try:
        return str(json.loads(text)["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise StorageDamagedError(
            f"{where} can't be read: {error!r}",
            "Restore it from a backup, or recover this bookie's copies from the others",
        ) from error
