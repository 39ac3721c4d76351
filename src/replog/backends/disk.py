"""All calls of a files storage to the operating system, in one object, so that tests can make any of them fail.

`Disk` calls the system and raises plain OSError; `named_errors` turns that into the errors of the storage seam.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from replog.errors import StorageFailedError, StorageFullError
from replog.runtime.disk_errors import described, free_bytes_at, is_directory, is_full, trouble_of
from replog.runtime.kernel_sync import KernelSync
from replog.runtime.platform import NO_WAIT, allocate, drop_cached, read_cached, sync_all, sync_data

_IOV_MAX = os.sysconf("SC_IOV_MAX")
_SMALL_BYTES = 16 << 10  # so little is copied sooner than a copy is avoided

ZEROS = bytes(1 << 20)  # filling in smaller writes than 64 KiB leaves the page cache with small, slow folios

Buffer = bytes | memoryview


class Disk:
    """Files by descriptor, paths as text. Every method may raise OSError."""

    def open(self, path: str, *, create: bool = False) -> int:
        """Opens for reading and writing; with `create`, a new or emptied file."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_TRUNC if create else 0), 0o644)

    def close(self, fd: int) -> None:
        """Gives the descriptor back."""
        os.close(fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""
        return os.pread(fd, size, offset)

    def pread_cached(self, fd: int, size: int, offset: int) -> bytes:
        """Reads from the page cache alone: raises BlockingIOError if it lacks the bytes, and returns fewer where the
        cache ends."""
        if size <= _SMALL_BYTES:
            small = bytearray(size)
            count = read_cached(fd, (small,), offset, NO_WAIT)
            return bytes(small) if count == size else bytes(small[:count])
        # BytesIO gives its buffer away as bytes without a copy; a bytearray would be copied.
        target = io.BytesIO()
        target.seek(size - 1)
        target.write(b"\0")
        with target.getbuffer() as buffer:
            count = read_cached(fd, (buffer,), offset, NO_WAIT)
        target.truncate(count)
        return target.getvalue()

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Writes the buffers one after the other; returns how many bytes were taken, which may be fewer."""
        return os.pwritev(fd, buffers, offset)

    def fdatasync(self, fd: int) -> None:
        """Makes written bytes durable, with as much metadata as reading them needs."""
        sync_data(fd)

    def begin_fdatasync(self, fd: int, sync: KernelSync) -> None:
        """Begins what `fdatasync` does. `sync` says when it has ended, and how."""
        sync.begin(fd)

    def allocate(self, fd: int, offset: int, size: int) -> None:
        """Reserves space; the file grows to it and reads as zeros there."""
        allocate(fd, offset, size)

    def drop_cached(self, fd: int) -> None:
        """Advises the kernel to drop a file from the page cache; it keeps pages that are not synced or being read."""
        drop_cached(fd)

    def size(self, fd: int) -> int:
        """The file's length in bytes."""
        return os.fstat(fd).st_size

    def rename(self, source: str, target: str) -> None:
        """Renames, replacing the target, atomically."""
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        """Removes a file's name."""
        os.unlink(path)

    def names(self, directory: str) -> list[str]:
        """The names in a directory, sorted. FileNotFoundError if there is none."""
        return sorted(os.listdir(directory))

    def make_directory(self, path: str) -> None:
        """Makes a directory, unless it exists; its parents must exist."""
        try:
            os.mkdir(path)
        except FileExistsError:
            if not is_directory(path):
                raise

    def sync_directory(self, path: str) -> None:
        """Makes the names in a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sync_all(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> int:
        """Opens and locks a file, and creates it if need be. Raises BlockingIOError if another process has it locked.

        The kernel gives up the lock with the descriptor, even when the process is killed."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def unlock(self, fd: int) -> None:
        """Gives up the lock and the descriptor, even if a child that was just forked has a copy of it."""
        # Closing alone would not do: a lock of `flock` lasts as long as any copy of the descriptor, a forked child's too.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)

    def free_bytes(self, path: str) -> int:
        """How many bytes a user who is not root can still write to the file system of this path."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def clock_s(self) -> float:
        """A clock that never goes back."""
        return time.monotonic()

    def random_bytes(self, size: int) -> bytes:
        """Random bytes that cannot be guessed."""
        return os.urandom(size)


@contextmanager
def named_errors(what: str, at: str = "") -> Iterator[None]:
    """Turns an OSError in the block into `StorageFullError` or `StorageFailedError`; `what` completes "could not ...". The first
    one says how much space there is at this path, if it is given."""
    try:
        yield
    except OSError as error:
        raise named_error(what, error, free_bytes_at(at) if at else None) from error


@contextmanager
def errors_of_opening(path: str, needed_bytes: int) -> Iterator[None]:
    """Adds to `StorageFullError` in the block, which opens the storage in this directory, how much space there is and how much a
    new storage needs."""
    try:
        yield
    except StorageFullError as error:
        free_bytes = free_bytes_at(path)
        free = "" if free_bytes is None else f": {free_bytes} bytes are free, and a new storage needs {needed_bytes}"
        raise StorageFullError(
            f"could not open the storage in {path}: {str(error).removesuffix(f'. {error.hint}')}{free}",
            "What it holds is not changed: make room on the disk, then open it again",
        ) from error


def named_error(what: str, error: Exception, free_bytes: int | None = None) -> StorageFullError | StorageFailedError:
    """The storage error for an OSError or `lmdb.Error`. `free_bytes` is how much space the disk has left, if that is known."""
    if is_full(error, free_bytes):
        free = "" if free_bytes is None else f" ({free_bytes} bytes are free)"
        return StorageFullError(f"disk full: no space left to {what}{free}", "Delete ledgers, or make room on the disk")
    return failed_error(what, error)


def failed_error(what: str, error: Exception) -> StorageFailedError:
    """The named error of a failed storage, which even a lack of space stops. Also for `lmdb.Error`."""
    return StorageFailedError(
        f"could not {what}: {described(error)}",
        f"The storage has stopped: {trouble_of(error).value}, then restart the bookie",
    )


def write_all(disk: Disk, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
    """Writes all of these bytes, in as few calls as the system allows."""
    if len(buffers) <= _IOV_MAX:
        written = disk.pwritev(fd, buffers, offset)
        # One call is the rule, and this runs for each commit.
        if written == sum(map(len, buffers)):
            return
        offset += written
        buffers = _after(list(buffers), written)
    for start in range(0, len(buffers), _IOV_MAX):
        left = list(buffers[start : start + _IOV_MAX])
        while left:
            written = disk.pwritev(fd, left, offset)
            # Otherwise this would try without end.
            if written == 0:
                raise OSError(errno.EIO, "a write took no bytes")
            offset += written
            left = _after(left, written)


def _after(buffers: list[Buffer], written: int) -> list[Buffer]:
    """The buffers that remain after so many bytes of them were written."""
    for index, buffer in enumerate(buffers):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *buffers[index + 1 :]] if written else buffers[index:]
        written -= len(buffer)
    return []


def read_all(disk: Disk, fd: int, size: int, offset: int) -> bytes:
    """Exactly these bytes, or fewer if the file ends before."""
    data = disk.pread(fd, size, offset)
    if len(data) == size:
        return data
    while 0 < len(data) < size:
        more = disk.pread(fd, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def write_file_atomically(disk: Disk, directory: str, name: str, pieces: Sequence[Buffer]) -> None:
    """Writes a file so that after a crash either all of it exists or none of it. May raise OSError."""
    temporary = f"{directory}/{name}.tmp"
    fd = disk.open(temporary, create=True)
    try:
        try:
            write_all(disk, fd, pieces, 0)
            # Before the rename: a name that is durable before its content would be an empty file after a power loss.
            disk.fdatasync(fd)
        finally:
            disk.close(fd)
        disk.rename(temporary, f"{directory}/{name}")
    except OSError:
        # On a full disk, the unfinished file would take the last space.
        with suppress(OSError):
            disk.unlink(temporary)
        raise
    disk.sync_directory(directory)
