"""A storage's directory: who it belongs to, and that only one process has it open (B4).

    storage.json    format, version and the bookie's identity: written last when a storage is made, so its presence
                    says that all else is there
    lock            locked by the process that has the storage open; says its pid, for people, and since which boot of the
                    machine it was open, or that it was closed
    durable-mark    the number of the last transaction that was committed (`durable_mark.py`)
    doubt           what the storage cannot vouch for
    data.mdb        all that is stored; made as data.mdb.new, and renamed when it is whole and synced
    lock.mdb        LMDB's table of readers

A directory that is neither empty nor a storage of this kind is refused before anything in it is touched.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import json
import os
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from replog.backends.durable_mark import OWN_NAMES
from replog.backends.lmdb.records import VERSION
from replog.errors import (
    StorageDamagedError,
    StorageFailedError,
    StorageFullError,
    StorageIdentityError,
    StorageInUseError,
)
from replog.runtime.lmdb_file import DATA_FILE, NEW_FILE, sync_directory
from replog.runtime.platform import boot_id, sync_all

FORMAT_NAME = "replog lmdb storage"
FORMAT_FILE = "storage.json"
LOCK_FILE = "lock"
READERS_FILE = "lock.mdb"
_PREFIX = "bookie-"
_FORMAT_FILE_BYTES_MAX = 64 << 10
_OWN_NAMES = {FORMAT_FILE, f"{FORMAT_FILE}.tmp", LOCK_FILE, DATA_FILE, NEW_FILE, READERS_FILE, *OWN_NAMES}
_OWNER_BYTES = 32  # the pid stands there; behind it the boot
_BOOT_BYTES = 64


class Former(enum.Enum):
    """How the process ended that had the directory open before."""

    CLOSED = b"closed"  # it closed the storage: the durable mark is exact, and synced
    KILLED = b"killed"  # while the machine ran on: the mark is exact
    TORN = b"torn"  # LMDB met a damaged page
    UNKNOWN = b""  # with the machine, or there was none


_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def is_full(code: int | None) -> bool:
    """Whether this errno is only a lack of space."""
    return code in _NO_SPACE


@contextmanager
def named_errors(what: str) -> Iterator[None]:
    """Turns an OSError in the block into `StorageFullError` or `StorageFailedError`; `what` completes "could not ..."."""
    try:
        yield
    except OSError as error:
        if is_full(error.errno):
            raise StorageFullError(
                f"disk full: no space left to {what}", "Delete ledgers, or make room on the disk"
            ) from error
        raise StorageFailedError(
            f"could not {what}: {error}", "The storage has stopped: look at the disk, then restart the bookie"
        ) from error


class DirectoryLock:
    """The lock on a directory, held until `release`, or until the process ends. A forked child gives its copy up at once:
    else the lock would outlive its owner. Raises `StorageInUseError`, OSError."""

    def __init__(self, path: str) -> None:
        fd = os.open(f"{path}/{LOCK_FILE}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        boot = boot_id()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.former = _former(os.pread(fd, _BOOT_BYTES, _OWNER_BYTES).strip(), boot)
            # Until it is closed in peace, the boot says that it was open: after a crash of the machine another boot is
            # found.
            os.pwrite(fd, f"{os.getpid():<31}\n".encode() + boot.ljust(_BOOT_BYTES - 1) + b"\n", 0)
        except BlockingIOError as error:
            owner = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise StorageInUseError(
                f"{path} is open in process {owner}{' (this one)' if owner == str(os.getpid()) else ''}",
                "Close it there first, or use another directory",
            ) from error
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        _held.add(self)

    def say(self, end: Former) -> None:
        """Writes, durably, how this process leaves the directory. May raise OSError."""
        os.pwrite(self._fd, end.value.ljust(_BOOT_BYTES - 1) + b"\n", _OWNER_BYTES)
        sync_all(self._fd)

    def release(self) -> None:
        """Gives the lock up, even if a child that was just forked has a copy of it. Idempotent."""
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            self.forget()

    def forget(self) -> None:
        """Gives up this process's copy, not the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _former(said: bytes, boot: bytes) -> Former:
    if said in (Former.CLOSED.value, Former.TORN.value):
        return Former(said)
    return Former.KILLED if said and said == boot else Former.UNKNOWN


_held: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    for lock in list(_held):
        lock.forget()


os.register_at_fork(after_in_child=_forget_in_child)


def check_is_ours(path: str) -> None:
    """Makes the directory, and those above it, if there is none. Refuses, without touching it, a directory with anything
    but a storage in it. Its name is durable afterwards, even if a process made it that was killed right then."""
    with named_errors(f"make the directory {path}"):
        _make_directories(path)
        names = os.listdir(path)
    foreign = sorted(set(names) - _OWN_NAMES)
    if FORMAT_FILE not in names and foreign:
        raise StorageIdentityError(
            f"{path} is not a storage of replog, and not empty: it has {', '.join(foreign[:3])}",
            "Nothing was touched: name another directory",
        )
    with named_errors(f"sync the directory above {path}"), suppress(PermissionError):
        # One that we may not even read was not made by us.
        sync_directory(os.path.dirname(path))


def _make_directories(path: str) -> None:
    try:
        os.mkdir(path)
    except FileExistsError:
        return
    except FileNotFoundError:
        _make_directories(os.path.dirname(path))
        os.mkdir(path)
    # The name of a new directory is durable before anything in it is acknowledged.
    sync_directory(os.path.dirname(path))


def read_bookie_id(path: str, expected: str) -> str | None:
    """The identity in the format file, or None if there is no such file. Raises `StorageIdentityError`."""
    with named_errors(f"read {path}/{FORMAT_FILE}"):
        try:
            with open(f"{path}/{FORMAT_FILE}", "rb") as file:
                text = file.read(_FORMAT_FILE_BYTES_MAX)
        except FileNotFoundError:
            return None
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
        if not bookie_id.startswith(_PREFIX):
            raise ValueError(f"{bookie_id!r} is not a bookie id: it must begin with {_PREFIX}")
        uuid.UUID(hex=bookie_id.removeprefix(_PREFIX))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        is_damaged = isinstance(error, json.JSONDecodeError | UnicodeDecodeError)  # nobody writes that
        kind = StorageDamagedError if is_damaged else StorageIdentityError
        raise kind(
            f"{where} can't be read: {error!r}",
            "Restore it from a backup, or recover this bookie's copies from the others",
        ) from error
    if name != FORMAT_NAME or version != VERSION:
        raise StorageIdentityError(
            f"{where} says {name!r} version {version!r}, this storage reads {FORMAT_NAME!r} version {VERSION}",
            "Nothing was touched: open it with the storage it says, or with the replog that wrote it",
        )
    return str(bookie_id)


def identity_of(bookie_id: str) -> bytes:
    """The 16 bytes of an identity."""
    return uuid.UUID(hex=bookie_id.removeprefix(_PREFIX)).bytes


def new_bookie_id(expected: str, path: str) -> str:
    """A random identity. Raises `StorageIdentityError` if another one was expected: then this directory was wiped."""
    # A bookie whose disk was wiped must not begin again under its old identity: it would deny what it acknowledged (B4).
    if expected:
        raise StorageIdentityError(
            f"{path} is empty, expected the storage of {expected}",
            "Nothing was touched. If its disk is lost, start it as a new bookie and re-replicate from the others",
        )
    return f"{_PREFIX}{uuid.uuid4().hex}"


def write_format(path: str, bookie_id: str) -> None:
    """Declares the directory a storage. Done last. May raise OSError."""
    content = {"format": FORMAT_NAME, "version": VERSION, "bookie_id": bookie_id}
    temporary = f"{path}/{FORMAT_FILE}.tmp"
    with open(temporary, "wb") as file:
        file.write(json.dumps(content, indent=2).encode() + b"\n")
        file.flush()
        sync_all(file.fileno())
    os.rename(temporary, f"{path}/{FORMAT_FILE}")
    sync_directory(path)
