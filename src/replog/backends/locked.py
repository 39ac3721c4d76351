"""Storages that keep a lock on their directory, by which a later process can prove that a former one is gone (B4)."""

from __future__ import annotations

import hashlib
import os

from replog.abc import Storage

LOCK_FILE = "lock"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class LockedStorage(Storage):
    """A storage in the directory `_path`, of which it holds the file `lock` locked."""

    _path: str

    def lock_name(self) -> str | None:
        """As `Storage.lock_name`."""
        return lock_name(f"{self._path}/{LOCK_FILE}")


def lock_name(path: str) -> str | None:
    """The same name for the same file of the same machine since it was booted, and another one for every copy of it. None
    if the machine can't tell."""
    boot = boot_id()
    try:
        found = os.stat(path)
    except OSError:
        return None
    return hashlib.sha256(b"%b %d %d" % (boot, found.st_dev, found.st_ino)).hexdigest()[:32] if boot else None


def boot_id() -> bytes:
    """Another text each time that the machine is booted; empty if it can't tell."""
    try:
        with open(_BOOT_ID, "rb") as file:
            return file.read(63).strip()
    except OSError:
        return b""
