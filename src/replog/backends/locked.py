"""Storages that keep a lock on their directory, by which a later process can prove that a former one is gone (B4)."""

from __future__ import annotations

import hashlib
import os

from replog.abc import Storage
from replog.runtime.platform import boot_id

LOCK_FILE = "lock"


class LockedStorage(Storage):
    """A storage in the directory `_path`, of which it holds the file `lock` locked."""

    _path: str

    def lock_name(self) -> str | None:
        """As `Storage.lock_name`."""
        return lock_name(f"{self._path}/{LOCK_FILE}")


def lock_name(path: str) -> str | None:
    """A name that is the same for one file of one machine until the next boot, and another for every copy of the file.
    None if the machine has no boot id."""
    boot = boot_id()
    try:
        found = os.stat(path)
    except OSError:
        return None
    return hashlib.sha256(b"%b %d %d" % (boot, found.st_dev, found.st_ino)).hexdigest()[:32] if boot else None
