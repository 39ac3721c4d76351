"""The meaning of operating system errors for a disk, and the remedy: one table for every user of files.

Rules:
- Only the errors in `ABSENT` say that a file is absent. Every other error leaves that open.
- An error that is not in the table is a failure of the disk.
- `lmdb.Error` has the errno as its `code`. For a write of which the disk took a part, LMDB reports EIO.
"""

from __future__ import annotations

import enum
import errno
import fnmatch
import os
import stat

ABSENT = (FileNotFoundError, NotADirectoryError)
_NEARLY_FULL_BYTES = 64 << 10


class Trouble(enum.Enum):
    """A fault of a disk or its file system. The value is the remedy."""

    FULL = "make room on the disk"
    READ_ONLY = "look at the kernel's log for why the file system is read-only, and mount it writable again"
    FORBIDDEN = "let this user read and write there"
    GONE = "mount the file system again"
    WRONG_PATH = "name another path"
    LIMITED = "raise the limits of this process or of the machine"
    BROKEN = "look at the disk"


_NAMES = {
    Trouble.FULL: ("ENOSPC", "EDQUOT", "EFBIG"),
    Trouble.READ_ONLY: ("EROFS",),
    Trouble.FORBIDDEN: ("EACCES", "EPERM"),
    Trouble.GONE: ("ESTALE", "ENODEV", "ENXIO", "ENOTCONN", "ESHUTDOWN", "EHOSTDOWN"),
    Trouble.WRONG_PATH: ("ENOENT", "ENOTDIR", "EISDIR", "EEXIST", "ELOOP", "ENAMETOOLONG"),
    Trouble.LIMITED: ("EMFILE", "ENFILE", "ENOMEM", "ENOLCK"),
}
_TROUBLES = {
    getattr(errno, name): trouble for trouble, names in _NAMES.items() for name in names if hasattr(errno, name)
}


def code_of(error: Exception) -> int:
    """The errno of an OSError or `lmdb.Error`; 0 if it has none."""
    return int(getattr(error, "errno" if isinstance(error, OSError) else "code", None) or 0)


def trouble_of(error: Exception, free_bytes: int | None = None) -> Trouble:
    """The fault of the disk. `free_bytes`, if known, reveal a lack of space that LMDB reports as EIO."""
    code = code_of(error)
    is_short_write = code == errno.EIO and not isinstance(error, OSError)
    if is_short_write and free_bytes is not None and free_bytes < _NEARLY_FULL_BYTES:
        return Trouble.FULL
    return _TROUBLES.get(code, Trouble.BROKEN)


def is_full(error: Exception, free_bytes: int | None = None) -> bool:
    """Whether the error is only a lack of space."""
    return trouble_of(error, free_bytes) is Trouble.FULL


def described(error: Exception) -> str:
    """The error's own text, and the name that people search for: `[Errno 5] Input/output error (EIO)`."""
    name = errno.errorcode.get(code_of(error))
    return f"{error} ({name})" if name else str(error)


def free_bytes_at(path: str) -> int | None:
    """How many bytes a user who is not root can still write where this path is, or would be made; None if that is unknown."""
    try:
        found = os.statvfs(path)
    except FileNotFoundError:
        above = os.path.dirname(os.path.abspath(path))
        return free_bytes_at(above) if above != path else None
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


# `os.path.exists`, `Path.is_dir`, `Path.glob` and their like take errors for absence: which ones depends on Python's version.


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file or directory of this name. Raises OSError if that is unknown."""
    return _mode(path) is not None


def is_directory(path: str | os.PathLike[str]) -> bool:
    """Whether there is a directory of this name. Raises OSError if that is unknown."""
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def names_like(directory: str | os.PathLike[str], pattern: str) -> list[str]:
    """The names in a directory that match, sorted; none if there is no directory. Raises OSError if that is unknown."""
    try:
        return sorted(fnmatch.filter(os.listdir(directory), pattern))
    except ABSENT:
        return []


def _mode(path: str | os.PathLike[str]) -> int | None:
    try:
        return os.stat(path).st_mode
    except ABSENT:
        return None
