"""The directory of a storage of any kind: whose it is, and that only one process has it open (B4).

    storage.json    format, version and the bookie's identity: written last when a storage is made, so its presence says
                    that all else is there
    lock            locked by the process that has the storage open; says its pid, for people

A directory that is neither empty nor a storage is refused before anything in it is touched.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
import weakref
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from replog.abc import Storage
from replog.backends.disk import Disk, named_errors, read_all, write_all, write_file_atomically
from replog.errors import StorageDamagedError, StorageIdentityError, StorageInUseError
from replog.runtime.platform import boot_id

FORMAT_FILE = "storage.json"
LOCK_FILE = "lock"
OWNER_BYTES = 32  # of the lock file: the pid, with blanks
_PREFIX = "bookie-"
_SMALL_FILE_BYTES_MAX = 64 << 10
_RESTORE = "Restore it from a backup, or recover this bookie's copies from the others"


# -- the lock -----------------------------------------------------------------------------------------------------


class LockedStorage(Storage):
    """A storage in the directory `_path`, of which it holds the lock. A later process can prove by it that this one is gone."""

    _path: str

    def lock_name(self) -> str | None:
        """The name of the lock that this process holds on the directory, or None (`Storage.lock_name`)."""
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


class DirectoryLock:
    """The lock on a directory, held until `release`, or until the process ends. Raises `StorageInUseError`, OSError.

    A forked child gives its copy up at once: otherwise the lock would outlive its owner."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        lock_path = f"{path}/{LOCK_FILE}"
        try:
            self._fd = disk.lock(lock_path)
        except BlockingIOError as error:
            owner = read_owner(disk, lock_path)
            in_use = StorageInUseError(
                f"{path} is open in process {owner or 'unknown'}{' (this one)' if owner == os.getpid() else ''}",
                "Close it there first, or use another directory",
            )
            in_use.lock = lock_name(lock_path)
            raise in_use from error
        try:
            # With blanks up to a fixed length, so that nothing of a longer number before it stays.
            write_all(disk, self._fd, (f"{os.getpid():<{OWNER_BYTES - 1}}\n".encode() + self._behind_owner(),), 0)
        except BaseException:
            self.release()
            raise
        _held.add(self)

    def _behind_owner(self) -> bytes:
        """The bytes that this kind of storage writes behind the owner into the file that it has just locked."""
        return b""

    def release(self) -> None:
        """Gives the lock up. Idempotent."""
        if self._fd >= 0:
            self._disk.unlock(self._fd)
            self._fd = -1

    def forget(self) -> None:
        """Gives up this process's copy, not the lock."""
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1


def read_owner(disk: Disk, lock_path: str) -> int | None:
    """The process that wrote its id into the lock file last, if one did. Raises OSError."""
    fd = disk.open(lock_path)
    try:
        text = read_all(disk, fd, OWNER_BYTES, 0).decode("ascii", "replace").strip()
    finally:
        disk.close(fd)
    return int(text) if text.isascii() and text.isdecimal() else None


_held: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    for lock in list(_held):
        lock.forget()


os.register_at_fork(after_in_child=_forget_in_child)


# -- the directory ------------------------------------------------------------------------------------------------


_BESIDE = frozenset(
    {"metastore"}
)  # a member of a metastore, which the process of a bookie may keep in the same directory


def check_is_ours(disk: Disk, path: str, own_names: Collection[str]) -> None:
    """Makes the directory, and those above it, if there is none. Refuses, without touching it, a directory with anything
    but a storage in it. Its name is durable afterwards, even if a process made it that was killed right then."""
    with named_errors(f"make the directory {path}"):
        try:
            names = disk.names(path)
        except FileNotFoundError:
            make_directories(disk, path)
            return
    foreign = sorted(set(names) - set(own_names) - _BESIDE)
    if FORMAT_FILE not in names and foreign:
        raise StorageIdentityError(
            f"{path} is not a storage of replog, and not empty: it has {', '.join(foreign[:3])}",
            "Nothing was touched: name another directory",
        )
    with named_errors(f"sync the directory above {path}"), suppress(PermissionError):
        # If this user may not read the directory above, this user's processes did not make a name in it.
        disk.sync_directory(os.path.dirname(path))


def make_directories(disk: Disk, path: str) -> None:
    """Makes a directory and those above it, durably. May raise OSError."""
    parent = os.path.dirname(path)
    try:
        disk.make_directory(path)
    except FileNotFoundError:
        make_directories(disk, parent)
        disk.make_directory(path)
    # The name of a new directory is durable before anything in it is acknowledged.
    disk.sync_directory(parent)


# -- whose it is --------------------------------------------------------------------------------------------------


def read_small_file(disk: Disk, directory: str, name: str) -> bytes | None:
    """A file's content, or None if there is no such file, or no such directory. Raises `StorageFailedError`."""
    with named_errors(f"read {directory}/{name}"):
        try:
            fd = disk.open(f"{directory}/{name}")
        except FileNotFoundError:
            return None
        try:
            return read_all(disk, fd, _SMALL_FILE_BYTES_MAX, 0)
        finally:
            disk.close(fd)


def read_identity(disk: Disk, directory: str, name: str, expected: str, version: int) -> dict[str, Any] | None:
    """The owner that a file names: it has this format name and version, and a valid `bookie_id`. None if there is no such
    file. Raises `StorageIdentityError`, `StorageDamagedError`."""
    where, text = f"{directory}/{name}", read_small_file(disk, directory, name)
    if text is None:
        return None
    try:
        content: dict[str, Any] = json.loads(text)
        found = content["format"], content["version"]
        identity_of(content["bookie_id"])
    # Before ValueError, of which both are subclasses.
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        # No version of replog writes that: it is damaged.
        raise StorageDamagedError(f"{where} can't be read: {error!r}", _RESTORE) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise unreadable(where, repr(error)) from error
    if found != (expected, version):
        raise StorageIdentityError(
            f"{where} says {found[0]!r} version {found[1]!r}, this storage reads {expected!r} version {version}",
            "Nothing was touched: open it with the storage that it names, or with the replog that wrote it",
        )
    return content


def unreadable(where: str, reason: str) -> StorageIdentityError:
    """The error for a file that another version may have written."""
    return StorageIdentityError(f"{where} can't be read: {reason}", _RESTORE)


def check_expected(path: str, bookie_id: str, expected: str) -> None:
    """Refuses a directory that belongs to another bookie than expected. Raises `StorageIdentityError`."""
    if expected and bookie_id != expected:
        raise StorageIdentityError(
            f"{path} belongs to {bookie_id}, expected {expected}", "Nothing was touched: name the right directory"
        )


def new_bookie_id(disk: Disk, expected: str, path: str) -> str:
    """A random identity. Raises `StorageIdentityError` if another one was expected: then this directory was wiped."""
    # A bookie whose disk was wiped must not begin again under its old identity: it would deny what it acknowledged (B4).
    if expected:
        raise StorageIdentityError(
            f"{path} is empty, expected the storage of {expected}",
            "Nothing was touched. If its disk is lost, start it as a new bookie and re-replicate from the others",
        )
    return f"{_PREFIX}{uuid.UUID(bytes=disk.random_bytes(16), version=4).hex}"


def identity_of(bookie_id: str) -> bytes:
    """The 16 bytes of an identity, for file headers and checksums. Raises ValueError, even for another spelling of it."""
    identity = uuid.UUID(hex=bookie_id.removeprefix(_PREFIX))
    if bookie_id != f"{_PREFIX}{identity.hex}":
        raise ValueError(f"{bookie_id!r} is not a bookie id: {_PREFIX} and 32 hexadecimal digits in lower case")
    return identity.bytes


def write_identity(disk: Disk, directory: str, name: str, **content: object) -> None:
    """Replaces the file that `read_identity` reads. May raise OSError."""
    write_file_atomically(disk, directory, name, (json.dumps(content, indent=2).encode() + b"\n",))
