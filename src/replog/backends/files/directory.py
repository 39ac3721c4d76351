"""A storage's directory: who it belongs to, and that only one process has it open (B4).

    storage.json    format, version and the bookie's identity: written last when a storage is made, so its presence
                    says that all else is there
    lock            locked by the process that has the storage open; says its pid, for people
    journal/        000000000001.journal, ...; spare-*.journal wait for reuse

A directory that is neither empty nor a storage is refused before anything in it is touched.
"""

from __future__ import annotations

import json
import os
import uuid
import weakref
from contextlib import suppress

from replog.backends.files.disk import Disk, named_errors, read_all, write_all, write_file_atomically
from replog.backends.files.record import PAGE_BYTES, unpack_file_header
from replog.errors import StorageDamagedError, StorageIdentityError, StorageInUseError

VERSION = 1
FORMAT_NAME = "replog files storage"
FORMAT_FILE = "storage.json"
LOCK_FILE = "lock"
JOURNAL = "journal"
_PREFIX = "bookie-"
_FORMAT_FILE_BYTES_MAX = 64 << 10
_OWN_NAMES = {FORMAT_FILE, f"{FORMAT_FILE}.tmp", LOCK_FILE, JOURNAL}


class DirectoryLock:
    """The lock on a directory, held until `release`, or until the process ends.

    A forked child gives its copy up at once: else the lock would outlive its owner."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        lock_path = f"{path}/{LOCK_FILE}"
        try:
            self._fd = disk.lock(lock_path)
        except BlockingIOError as error:
            fd = disk.open(lock_path)
            owner = read_all(disk, fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            disk.close(fd)
            raise StorageInUseError(
                f"{path} is open in process {owner}{' (this one)' if owner == str(os.getpid()) else ''}",
                "Close it there first, or use another directory",
            ) from error
        try:
            write_all(disk, self._fd, (f"{os.getpid():<31}\n".encode(),), 0)
        except BaseException:
            self.release()
            raise
        _held.add(self)

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


_held: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


def _release_in_child() -> None:
    for lock in list(_held):
        lock.forget()


os.register_at_fork(after_in_child=_release_in_child)


def check_is_ours(disk: Disk, path: str) -> None:
    """Makes the directory, and those above it, if there is none; refuses, untouched, one that holds anything but a
    storage. Its name is durable afterwards, also if it was made by a process that was killed right then."""
    with named_errors(f"make the directory {path}"):
        try:
            names = disk.names(path)
        except FileNotFoundError:
            _make_directories(disk, path)
            return
    foreign = sorted(set(names) - _OWN_NAMES)
    if FORMAT_FILE not in names and foreign:
        raise StorageIdentityError(
            f"{path} is no storage of replog, and not empty: it has {', '.join(foreign[:3])}",
            "Nothing was touched: name another directory",
        )
    with named_errors(f"sync the directory above {path}"), suppress(PermissionError):
        disk.sync_directory(_parent(path))  # one that we may not even read was not made by us


def _make_directories(disk: Disk, path: str) -> None:
    parent = _parent(path)
    try:
        disk.make_directory(path)
    except FileNotFoundError:
        _make_directories(disk, parent)
        disk.make_directory(path)
    disk.sync_directory(parent)


def _parent(path: str) -> str:
    return os.path.dirname(path)


def read_bookie_id(disk: Disk, path: str, expected: str) -> str | None:
    """The identity in the format file, or None if there is no such file. Raises `StorageIdentityError`."""
    with named_errors(f"read {path}/{FORMAT_FILE}"):
        if FORMAT_FILE not in disk.names(path):
            return None
        fd = disk.open(f"{path}/{FORMAT_FILE}")
        try:
            text = read_all(disk, fd, _FORMAT_FILE_BYTES_MAX, 0)
        finally:
            disk.close(fd)
    bookie_id = _parse_format(text, f"{path}/{FORMAT_FILE}")
    if expected and bookie_id != expected:
        raise StorageIdentityError(
            f"{path} belongs to {bookie_id}, expected {expected}", "Nothing was touched: name the right directory"
        )
    return bookie_id


def _parse_format(text: bytes, where: str) -> str:
    try:
        content = json.loads(text)
        name, version, bookie_id = content["format"], content["version"], content["bookie_id"]
        identity_of(bookie_id)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageIdentityError(
            f"{where} can't be read: {error!r}",
            "Restore it from a backup, or recover this bookie's copies from the others",
        ) from error
    if name != FORMAT_NAME or version != VERSION:
        raise StorageIdentityError(
            f"{where} says {name!r} version {version!r}, this replog reads {FORMAT_NAME!r} version {VERSION}",
            "Nothing was touched: use the replog that wrote it, or a newer one",
        )
    return str(bookie_id)


def new_bookie_id(disk: Disk, expected: str, path: str) -> str:
    """A random identity. Raises `StorageIdentityError` if another one was expected: then this directory was wiped."""
    if expected:
        raise StorageIdentityError(
            f"{path} is empty, expected the storage of {expected}",
            "Nothing was touched. If its disk is lost, start it as a new bookie and re-replicate from the others",
        )
    return f"{_PREFIX}{uuid.UUID(bytes=disk.random_bytes(16), version=4).hex}"


def identity_of(bookie_id: str) -> bytes:
    """The 16 bytes of an identity, for file headers and checksums. Raises ValueError."""
    if not bookie_id.startswith(_PREFIX):
        raise ValueError(f"{bookie_id!r} is no bookie id: one begins with {_PREFIX}")
    return uuid.UUID(hex=bookie_id.removeprefix(_PREFIX)).bytes


def write_format(disk: Disk, path: str, bookie_id: str) -> None:
    """Declares the directory a storage. Done last."""
    content = {"format": FORMAT_NAME, "version": VERSION, "bookie_id": bookie_id}
    write_file_atomically(disk, path, FORMAT_FILE, json.dumps(content, indent=2).encode() + b"\n")


def journal_path(number: int) -> str:
    """The name of a journal file."""
    return f"{number:012}.journal"


def journal_number(name: str) -> int | None:
    """The number of a journal file, or None if the name is not one's."""
    stem = name.removesuffix(".journal")
    return int(stem) if stem != name and stem.isdecimal() and journal_path(int(stem)) == name else None


def clear_half_made(disk: Disk, path: str) -> None:
    """Removes what a crash left of a storage that was being made. Refuses if its journal holds anything."""
    journal = f"{path}/{JOURNAL}"
    if JOURNAL not in disk.names(path):
        return
    names = disk.names(journal)
    for name in names:
        fd = disk.open(f"{journal}/{name}")
        try:
            start = read_all(disk, fd, PAGE_BYTES + 64, 0)
        finally:
            disk.close(fd)
        if any(start[PAGE_BYTES:]) or (journal_number(name) not in (None, 1) and unpack_file_header(start)):
            raise StorageDamagedError(
                f"{path}/{FORMAT_FILE} is missing, but {journal}/{name} holds records",
                "Nothing was touched: restore the file, or recover this bookie's copies from the others",
            )
    for name in names:
        disk.unlink(f"{journal}/{name}")
