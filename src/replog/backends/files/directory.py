"""A storage's directory: who it belongs to, and that only one process has it open (B4).

    storage.json    format, version, the bookie's identity, and whether the journal is inside: written last when a storage
                    is made, so its presence says that all else is there
    lock            locked by the process that has the storage open; says its pid, for people
    catalog         which log files there are, and from where the journal is replayed: see `catalog`
    journal/        000000000001.journal, ..., with 000000000001.index beside those that are full; spare-*.journal wait
                    for reuse
    logs/           000000000001.log, ... with 000000000001.index: entry logs
    durable-mark    how far the journal was synced: see `replog.backends.durable_mark`
    doubt           what was lost, and what this bookie can't vouch for
    reserve         a little space, given up for the catalog when the disk is full
    making.json     the identity of a storage whose journal is elsewhere, while it is being made

A journal elsewhere (`journal_dir`) has the same files in that directory itself, and a cookie, journal.json (B4). A directory
that is neither empty nor a storage is refused before anything in it is touched.
"""

from __future__ import annotations

import json
import os
import uuid
import weakref
from contextlib import suppress

import attrs

from replog.backends.disk import Disk, named_errors, read_all, write_all, write_file_atomically
from replog.backends.durable_mark import OWN_NAMES
from replog.backends.files.catalog import NAME as CATALOG
from replog.errors import StorageDamagedError, StorageIdentityError, StorageInUseError

VERSION = 1
FORMAT_NAME = "replog files storage"
JOURNAL_FORMAT_NAME = "replog files journal"
FORMAT_FILE = "storage.json"
JOURNAL_COOKIE = "journal.json"
MAKING_FILE = "making.json"
LOCK_FILE = "lock"
RESERVE_FILE = "reserve"
JOURNAL = "journal"
LOGS = "logs"
INSIDE = "inside"
ELSEWHERE = "elsewhere"
_PREFIX = "bookie-"
_FORMAT_FILE_BYTES_MAX = 64 << 10
_OWN_FILES = (FORMAT_FILE, MAKING_FILE, CATALOG)
_OWN_NAMES = {*_OWN_FILES, *(f"{name}.tmp" for name in _OWN_FILES), RESERVE_FILE, LOCK_FILE, JOURNAL, LOGS}
_OWN_NAMES |= set(OWN_NAMES)


@attrs.frozen
class Format:
    """What the format file of a directory says."""

    version: int
    bookie_id: str
    is_journal_elsewhere: bool = False


class DirectoryLock:
    """The lock on a directory, held until `release`, or until the process ends.

    A forked child gives its copy up at once: otherwise the lock would outlive its owner."""

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
            # With blanks up to a fixed length, so that nothing of a longer number before it stays.
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
    """Makes the directory, and those above it, if there is none. Refuses, without touching it, a directory with anything
    but a storage in it. Its name is durable afterwards, even if a process made it that was killed right then."""
    with named_errors(f"make the directory {path}"):
        try:
            names = disk.names(path)
        except FileNotFoundError:
            make_directories(disk, path)
            return
    foreign = sorted(set(names) - _OWN_NAMES)
    if FORMAT_FILE not in names and foreign:
        raise StorageIdentityError(
            f"{path} is not a storage of replog, and not empty: it has {', '.join(foreign[:3])}",
            "Nothing was touched: name another directory",
        )
    with named_errors(f"sync the directory above {path}"), suppress(PermissionError):
        # If this user may not read the directory above, this user's processes did not make a name in it.
        disk.sync_directory(_parent(path))


def make_directories(disk: Disk, path: str) -> None:
    """Makes a directory and those above it, durably. May raise OSError."""
    parent = _parent(path)
    try:
        disk.make_directory(path)
    except FileNotFoundError:
        make_directories(disk, parent)
        disk.make_directory(path)
    disk.sync_directory(parent)


def _parent(path: str) -> str:
    return os.path.dirname(path)


def read_format(disk: Disk, path: str, expected: str) -> Format | None:
    """What the format file says, or None if there is no such file. Raises `StorageIdentityError`."""
    where = f"{path}/{FORMAT_FILE}"
    text = read_small_file(disk, path, FORMAT_FILE)
    if text is None:
        return None
    version, bookie_id, place = _parse(text, where, FORMAT_NAME)
    if place not in (INSIDE, ELSEWHERE):
        raise _unreadable(where, f"version {version} with journal {place!r}")
    found = Format(version, bookie_id, place == ELSEWHERE)
    if expected and found.bookie_id != expected:
        raise StorageIdentityError(
            f"{path} belongs to {found.bookie_id}, expected {expected}", "Nothing was touched: name the right directory"
        )
    return found


def read_journal_cookie(disk: Disk, journal: str) -> str | None:
    """Whose journal a directory has, or None if it has no cookie (B4). Raises `StorageIdentityError`."""
    text = read_small_file(disk, journal, JOURNAL_COOKIE)
    return None if text is None else _parse(text, f"{journal}/{JOURNAL_COOKIE}", JOURNAL_FORMAT_NAME)[1]


def check_journal_cookie(disk: Disk, journal: str, bookie_id: str) -> None:
    """Refuses a journal directory that is not this bookie's (B4). Raises `StorageIdentityError`."""
    owner = read_journal_cookie(disk, journal)
    if owner != bookie_id:
        raise StorageIdentityError(
            f"{journal} is the journal of {owner or 'nobody'}, expected {bookie_id}",
            "Nothing was touched: name the directory that has this bookie's journal. If that is lost, so are entries that "
            "were acknowledged: recover this bookie's copies from the others",
        )


def read_making(disk: Disk, path: str) -> str | None:
    """The identity of the storage that somebody began to make here, or None. Raises `StorageIdentityError`."""
    text = read_small_file(disk, path, MAKING_FILE)
    return None if text is None else _parse(text, f"{path}/{MAKING_FILE}", FORMAT_NAME)[1]


def read_small_file(disk: Disk, directory: str, name: str) -> bytes | None:
    """A file's content, or None if there is no such file, or no such directory. Raises `StorageFailedError`."""
    with named_errors(f"read {directory}/{name}"):
        try:
            fd = disk.open(f"{directory}/{name}")
        except FileNotFoundError:
            return None
        try:
            return read_all(disk, fd, _FORMAT_FILE_BYTES_MAX, 0)
        finally:
            disk.close(fd)


_RESTORE = "Restore it from a backup, or recover this bookie's copies from the others"


def _parse(text: bytes, where: str, expected_name: str) -> tuple[int, str, object]:
    """The version, the bookie's identity, and what is said of the journal's place."""
    try:
        content = json.loads(text)
        name, version, bookie_id = content["format"], content["version"], content["bookie_id"]
        place = content.get("journal")
        identity_of(bookie_id)
    # Before ValueError, of which both are subclasses.
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        # No version of replog writes that: it is damaged.
        raise StorageDamagedError(f"{where} can't be read: {error!r}", _RESTORE) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(where, repr(error)) from error
    if name != expected_name or version != VERSION:
        raise StorageIdentityError(
            f"{where} says {name!r} version {version!r}, this replog reads {expected_name!r} version {VERSION}",
            "Nothing was touched: use the replog that wrote it, or a newer one",
        )
    return int(version), str(bookie_id), place


def _unreadable(where: str, reason: str) -> StorageIdentityError:
    return StorageIdentityError(f"{where} can't be read: {reason}", _RESTORE)


def new_bookie_id(disk: Disk, expected: str, path: str) -> str:
    """A random identity. Raises `StorageIdentityError` if another one was expected: then this directory was wiped."""
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


def write_format(disk: Disk, path: str, bookie_id: str, *, is_journal_elsewhere: bool) -> None:
    """Declares the directory a storage. Done last. May raise OSError."""
    where = ELSEWHERE if is_journal_elsewhere else INSIDE
    _write_json(disk, path, FORMAT_FILE, format=FORMAT_NAME, version=VERSION, bookie_id=bookie_id, journal=where)


def write_journal_cookie(disk: Disk, journal: str, bookie_id: str) -> None:
    """Says whose journal the directory has. May raise OSError."""
    _write_json(disk, journal, JOURNAL_COOKIE, format=JOURNAL_FORMAT_NAME, version=VERSION, bookie_id=bookie_id)


def write_making(disk: Disk, path: str, bookie_id: str) -> None:
    """Says which storage is being made here, before anything is put elsewhere. May raise OSError."""
    _write_json(disk, path, MAKING_FILE, format=FORMAT_NAME, version=VERSION, bookie_id=bookie_id)


def _write_json(disk: Disk, directory: str, name: str, **content: object) -> None:
    write_file_atomically(disk, directory, name, (json.dumps(content, indent=2).encode() + b"\n",))


def journal_name(number: int) -> str:
    """The name of a journal file."""
    return f"{number:012}.journal"


def journal_number(name: str) -> int | None:
    """The number of a journal file, or None if the name is not one's."""
    stem = name.removesuffix(".journal")
    return int(stem) if stem != name and stem.isdecimal() and journal_name(int(stem)) == name else None


def number_of_index(name: str) -> int | None:
    """The number of the journal file that an index file's name belongs to, or None."""
    return journal_number(name.removesuffix(".index") + ".journal")


def entry_log_name(number: int) -> str:
    """The name of an entry log."""
    return f"{number:012}.log"


def entry_log_number(name: str) -> int | None:
    """The number of an entry log, or None if the name is not one's."""
    stem = name.removesuffix(".log")
    return int(stem) if stem != name and stem.isdecimal() and entry_log_name(int(stem)) == name else None
