"""Everything that only some Unix systems have, and what replog does on the others. Nothing else names such calls, but for
`replog.runtime.kernel_sync`, which is of Linux alone: elsewhere a thread syncs.

Each name is bound once, when this module is imported: on Linux `sync_data` *is* `os.fdatasync`, and costs what that costs.
`tests/runtime/test_platform.py` tries what the others get by pretending to be them; `tests/test_tidy.py` finds such names
elsewhere. None of it was run on the hardware of another system yet.

| here | Linux | macOS | another Unix |
|---|---|---|---|
| `sync_data`, `sync_all` | `fdatasync`, `fsync` | `F_FULLFSYNC`, which empties the disk's cache, too | `fdatasync` or `fsync` |
| `allocate` | `posix_fallocate` | writes zeros | `posix_fallocate`, or writes zeros |
| `read_cached` | `preadv2(RWF_NOWAIT)` | nothing counts as cached | nothing counts as cached |
| `NO_ACCESS_TIME` | `O_NOATIME` | looking at files changes their times of access | the same |
| `drop_cached` | `posix_fadvise` | nothing | `posix_fadvise`, or nothing |
| `kill_when_closed` | the kernel kills | a thread of the child kills | a thread of the child kills |
| `exit_descriptor` | `pidfd_open` | the process is asked again and again | the same |
| `is_stopped` | `waitid` | `ps` | `waitid`, or `ps` |
| `keep_freed_memory` | glibc keeps large blocks | nothing | nothing |
| `return_freed_memory` | `malloc_trim` of glibc | nothing | nothing |
| `boot_id`, `table_of_locks`, `peer_credentials` | `/proc`, `SO_PEERCRED` | not known | not known |
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

_ZEROS = bytes(1 << 20)
_LARGEST_BATCH_BYTES = 16 << 20  # glibc follows up to 32 MiB
_PS_S = 10.0
_F_SETSIG = 10  # Linux; the module `fcntl` does not name it, and another system means something else by 10
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_LOCKS = "/proc/locks"
_CREDENTIALS = struct.Struct("3i")  # of the process: its id, its user, its group

Buffer = bytearray | memoryview

IS_LINUX = sys.platform == "linux"

# Of the system's `sun_path`, without the zero at its end.
UNIX_PATH_BYTES_MAX = 107 if IS_LINUX else 103

# The bytes are lost: reading again would not help. EUCLEAN is Linux's name for a damaged file system.
UNREADABLE = frozenset(getattr(errno, name) for name in ("EIO", "EBADMSG", "EUCLEAN", "EFTYPE") if hasattr(errno, name))


# -- files ----------------------------------------------------------------------------------------------------------------


def _choose_sync_all(system: Any, control: Any) -> Callable[[int], object]:
    """The call that makes all of a file durable, also against a power loss."""
    full = getattr(control, "F_FULLFSYNC", None)
    if full is None:
        chosen: Callable[[int], object] = system.fsync
        return chosen

    def sync_through(fd: int) -> None:
        """Empty the disk's cache too. File systems that cannot, such as those of a network, say so: `fsync` is all they have."""
        try:
            control.fcntl(fd, full)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOTTY):
                raise
            system.fsync(fd)

    return sync_through


def _choose_sync_data(system: Any, control: Any) -> Callable[[int], object]:
    """The call that makes written bytes durable, with as much metadata as reading them needs."""
    if hasattr(control, "F_FULLFSYNC") or not hasattr(system, "fdatasync"):
        return _choose_sync_all(system, control)
    chosen: Callable[[int], object] = system.fdatasync
    return chosen


def _choose_allocate(system: Any) -> Callable[[int, int, int], object]:
    """The call that reserves space: the file grows to `offset + size`, and reads as zeros where it had no bytes."""
    if hasattr(system, "posix_fallocate"):
        chosen: Callable[[int, int, int], object] = system.posix_fallocate
        return chosen

    def write_zeros(fd: int, offset: int, size: int) -> None:
        place, end = system.fstat(fd).st_size, offset + size
        while place < end:
            place += system.pwrite(fd, _ZEROS[: end - place], place)

    return write_zeros


def _choose_read_cached(system: Any) -> Callable[[int, Sequence[Buffer], int, int], int]:
    """The call that reads what the page cache has, given `NO_WAIT`; it raises BlockingIOError where that has nothing."""
    if hasattr(system, "RWF_NOWAIT"):
        chosen: Callable[[int, Sequence[Buffer], int, int], int] = system.preadv
        return chosen

    def refuse(fd: int, buffers: Sequence[Buffer], offset: int, flags: int) -> int:
        raise BlockingIOError(errno.EAGAIN, "the system does not say what is in its page cache")

    return refuse


def _choose_drop_cached(system: Any) -> Callable[[int], object]:
    """The call that advises the kernel to drop a file from the page cache. It keeps pages that are not synced or being read."""
    if not hasattr(system, "posix_fadvise"):
        return lambda fd: None
    return lambda fd: system.posix_fadvise(fd, 0, 0, system.POSIX_FADV_DONTNEED)


sync_all = _choose_sync_all(os, fcntl)
sync_data = _choose_sync_data(os, fcntl)
allocate = _choose_allocate(os)
read_cached = _choose_read_cached(os)
NO_WAIT = getattr(os, "RWF_NOWAIT", 0)  # for `read_cached`
NO_ACCESS_TIME = getattr(os, "O_NOATIME", 0)  # for `os.open`: reading leaves no time of access
drop_cached = _choose_drop_cached(os)


# -- processes ------------------------------------------------------------------------------------------------------------


def kill_when_closed(read_end: int, pid: int) -> bool:
    """Have the kernel kill this process (SIGKILL) once no process has the other end of this pipe open.

    False where no kernel does that: then the child must watch by itself (`watch_until_closed`)."""
    if not IS_LINUX:
        return False
    fcntl.fcntl(read_end, fcntl.F_SETOWN, pid)
    fcntl.fcntl(read_end, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(read_end, fcntl.F_SETFL, fcntl.fcntl(read_end, fcntl.F_GETFL) | os.O_ASYNC)
    return True


def watch_until_closed(read_end: int) -> None:
    """Start a thread that kills this process (SIGKILL) once no process has the other end of this pipe open.

    A process that is stopped dies only when it goes on, and one whose threads cannot run never."""
    threading.Thread(target=_kill_once_closed, args=(read_end,), name="replog lifeline", daemon=True).start()


def _kill_once_closed(read_end: int) -> None:
    watch = select.poll()
    watch.register(read_end, 0)  # nothing is read: what comes is for the program
    while not watch.poll():
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def _choose_exit_descriptor(system: Any) -> Callable[[int], int | None]:
    """The call for a descriptor that is readable once this process has ended; None where there is no such thing."""

    def open_one(pid: int) -> int | None:
        try:
            descriptor: int = system.pidfd_open(pid)
        except OSError:  # Linux before 5.3
            return None
        return descriptor

    return open_one if hasattr(system, "pidfd_open") else lambda pid: None


def _choose_is_stopped(system: Any) -> Callable[[int], bool]:
    """The call that says whether a child, which has not ended, is stopped (from SIGSTOP to SIGCONT)."""
    if hasattr(system, "waitid"):
        # WNOWAIT leaves what is found for the next call. A process that has ended is not asked for: WEXITED is not given.
        how = system.WSTOPPED | system.WNOHANG | system.WNOWAIT
        return lambda pid: system.waitid(system.P_PID, pid, how) is not None
    return _is_stopped_by_ps


def _is_stopped_by_ps(pid: int) -> bool:
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, timeout=_PS_S, check=False)
    return shown.stdout.strip().startswith(b"T")


exit_descriptor = _choose_exit_descriptor(os)
is_stopped = _choose_is_stopped(os)


# -- what the system knows ------------------------------------------------------------------------------------------------


def boot_id() -> bytes:
    """A text that changes each time the machine boots; empty if the machine has none."""
    try:
        with open(_BOOT_ID, "rb") as file:
            return file.read(63).strip()
    except OSError:
        return b""


def table_of_locks() -> list[str] | None:
    """The lines of the system's table of file locks; None if it shows none."""
    try:
        with open(_LOCKS, encoding="ascii") as table:
            return table.read().splitlines()
    except OSError:
        return None


def peer_credentials(connected: socket.socket) -> tuple[int, int]:
    """Process and user at the other end of a Unix socket, as the kernel knows them; (0, -1) where it does not tell."""
    asked = getattr(socket, "SO_PEERCRED", None)
    if asked is None:
        return 0, -1
    try:
        process_id, user_id, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, asked, _CREDENTIALS.size))
    except OSError:  # it has gone
        return 0, -1
    return process_id, user_id


def keep_freed_memory() -> None:
    """Let this process reuse the memory of large batches instead of returning it to the kernel each time.

    The change lasts as long as the process, and concerns all of its memory: up to twice 16 MiB stay with the process after
    they were freed. Without glibc nothing changes. Calling it again is harmless.
    """
    # glibc maps each large block on its own and unmaps it when it is freed, so every page of the next one is faulted in
    # again. It raises the size from which it does so to that of the largest block that was freed. A zeroed block is mapped
    # but never touched, so this costs two system calls.
    block = bytes(_LARGEST_BATCH_BYTES)
    del block


def return_freed_memory() -> None:
    """Returns memory that was freed to the kernel, wherever in the heap it is.

    That takes a third of a second for 4 GiB, in which no thread gets a large block: not for the event loop. Without glibc nothing
    happens."""
    try:
        import ctypes  # only here: it takes a while, and some builds of CPython come without
    except ImportError:
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Makes the names in a directory durable. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_all(fd)
    finally:
        os.close(fd)
