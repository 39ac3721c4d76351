"""Whether a process has a storage open, without touching its lock.

A shared lock taken for a moment would make a bookie that starts right then fail, so the system's table of locks is read."""

from __future__ import annotations

import os

from replog.backends.disk import read_all
from replog.backends.inspection.read_only import READ_ONLY
from replog.runtime.platform import table_of_locks


def owner_of(lock_path: str) -> int | None:
    """The process that wrote its id into the lock file last: it has the storage open, or had it."""
    try:
        fd = READ_ONLY.open(lock_path)
        try:
            text = read_all(READ_ONLY, fd, 32, 0).decode("ascii", "replace").strip()
        finally:
            READ_ONLY.close(fd)
    except OSError:
        return None
    return int(text) if text.isascii() and text.isdecimal() else None


def is_locked(lock_path: str) -> bool | None:
    """True if a process holds the lock, as far as this process can see; None if the system does not say.

    Processes of another pid namespace (another container) may be invisible: then False is wrong."""
    # The lock itself is never tried: a bookie that starts at that moment would find its directory in use.
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
