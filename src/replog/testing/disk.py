"""A disk in memory that can lose power, for the files storage: any part of unsynced writes may survive.

Guarantees that a storage may rely on:

- Content that `fdatasync` reported, and names that `sync_directory` reported, survive everything.
- Of unsynced writes any subset of 512-byte sectors may survive a power loss, in any order of time.
- Of unsynced changes to one directory any prefix may survive. Directories are independent: a later change of one may survive
  without an earlier change of another.
- A file's sync makes its content durable, not its name; a name may be durable before the content.
- When a process is killed, everything that it wrote can still be read, but is not more durable than before.
- After a failed `fdatasync` the pages are marked clean: they can be read until the power fails or they are dropped from the
  page cache, and no later sync writes them. Any part of them may have reached the disk.
- A file that is dropped from the page cache is on the disk only, until some of it is read or written. A file with unsynced
  writes is not dropped.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from replog.backends.disk import Buffer, Disk
from replog.runtime.kernel_sync import KernelSync

SECTOR_BYTES = 512


class PowerLoss(BaseException):
    """Raised by the `fault` function of a test where the machine stops. Not an `Exception`, so that no code handles it."""


class _Inode:
    __slots__ = ("durable", "is_cached", "pending", "visible")

    def __init__(self) -> None:
        self.visible = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes]] = []
        self.is_cached = True

    def write(self, offset: int, data: bytes) -> None:
        self.is_cached = True
        _store(self.visible, offset, data)
        self.pending.append((offset, data))

    def sync(self) -> None:
        for offset, data in self.pending:
            _store(self.durable, offset, data)
        self.pending.clear()

    def sync_badly(self, chance: random.Random) -> None:
        """Make a random part of the pending writes durable, and forget the rest."""
        self._keep_some(self.durable, chance)
        self.pending.clear()

    def _keep_some(self, content: bytearray, chance: random.Random) -> None:
        if not self.pending:
            return
        sectors = [piece for offset, data in self.pending for piece in _sectors(offset, data)]
        # The extremes are drawn on purpose: nothing, everything and all but one sector find most bugs.
        kept = chance.choice((0, len(sectors), chance.randint(0, len(sectors)), max(0, len(sectors) - 1)))
        # Even if all are kept: two unsynced writes of one place may reach the disk in the wrong order.
        if kept < len(sectors) or len(self.pending) > 1:
            chance.shuffle(sectors)
        for offset, data in sectors[:kept]:
            _store(content, offset, data)

    def drop_cached(self) -> None:
        """Drop clean pages, whether they reached the disk or not."""
        if not self.pending:
            self.is_cached = False
            self.visible = bytearray(self.durable)

    def copy(self) -> _Inode:
        """A copy with the same content and the same durability."""
        twin = _Inode()
        twin.visible, twin.durable = bytearray(self.visible), bytearray(self.durable)
        twin.pending = list(self.pending)
        twin.is_cached = self.is_cached
        return twin

    def after_power_loss(self, chance: random.Random) -> _Inode:
        """The content left after a power loss: the durable part, and a random part of unsynced writes."""
        survivor = _Inode()
        survivor.durable = bytearray(self.durable)
        self._keep_some(survivor.durable, chance)
        survivor.visible = bytearray(survivor.durable)
        return survivor


def _store(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _sectors(offset: int, data: bytes) -> list[tuple[int, bytes]]:
    pieces = []
    end = offset + len(data)
    while offset < end:
        stop = min(end, (offset // SECTOR_BYTES + 1) * SECTOR_BYTES)
        pieces.append((offset, data[len(data) - (end - offset) : len(data) - (end - stop)]))
        offset = stop
    return pieces


Names = dict[str, "_Inode | None"]  # by path; None for a directory


class _Change(NamedTuple):
    """A name is created, renamed or removed, in one directory."""

    path: str
    inode: _Inode | None = None  # None for a directory
    target: str = ""  # of a rename
    is_removal: bool = False

    @property
    def directory(self) -> str:
        return _parent(self.path)

    def apply(self, names: Names) -> None:
        if self.target:
            names[self.target] = names.pop(self.path)
        elif self.is_removal:
            del names[self.path]
        else:
            names[self.path] = self.inode


class MemoryDisk(Disk):
    """A `Disk` in memory. `fault(operation, path)` is called before each change and read of the disk, and may raise an
    OSError or `PowerLoss` in its place. `write_bytes_max` makes writes short. Files may take `capacity_bytes` in all.
    `random_bytes` repeat per `seed`. Each look at the clock takes `clock_step_s`: with 0 everybody is infinitely fast."""

    def __init__(self, seed: int = 0) -> None:
        self.fault: Callable[[str, str], None] = _no_fault
        self.write_bytes_max = 1 << 62
        self.capacity_bytes = 1 << 62
        self.clock_step_s = 1.0
        self.seed = seed
        self._names: Names = {"/": None}
        self._durable_names: Names = {"/": None}
        self._changes: list[_Change] = []  # of names, not yet durable
        self._open: dict[int, tuple[str, _Inode]] = {}
        self._locks: dict[int, str] = {}
        self._last_fd = 1000
        self._now_s = 0.0
        self._random = random.Random(seed)
        self._successor_seeds = random.Random(
            seed + 1
        )  # separate, so that `after_power_loss` does not change what happens here

    # -- what may happen to it ------------------------------------------------------------------------------------

    def after_kill(self) -> MemoryDisk:
        """A copy of this disk, for a process that starts after this one was killed. Later changes do not affect the other."""
        twins: dict[int, _Inode] = {}

        def twin(inode: _Inode | None) -> _Inode | None:
            if inode is not None and id(inode) not in twins:
                twins[id(inode)] = inode.copy()
            return None if inode is None else twins[id(inode)]

        return self._successor(
            {path: twin(inode) for path, inode in self._names.items()},
            {path: twin(inode) for path, inode in self._durable_names.items()},
            [change._replace(inode=twin(change.inode)) for change in self._changes],
        )

    def after_power_loss(self, chance: random.Random) -> MemoryDisk:
        """A disk that may be left if the power fails now: one of many, drawn from `chance`."""
        names = dict(self._durable_names)
        for directory in sorted({change.directory for change in self._changes}):
            changes = [change for change in self._changes if change.directory == directory]
            for change in changes[: chance.choice((0, len(changes), chance.randint(0, len(changes))))]:
                change.apply(names)
        for path in sorted(names):
            if path != "/" and _parent(path) not in names:
                del names[path]  # its directory is lost
        left: dict[int, _Inode] = {}
        for path, inode in names.items():
            if inode is not None:
                if id(inode) not in left:
                    left[id(inode)] = inode.after_power_loss(chance)
                names[path] = left[id(inode)]
        return self._successor(names, dict(names), [])

    def _successor(self, names: Names, durable: Names, changes: list[_Change]) -> MemoryDisk:
        successor = MemoryDisk(self._successor_seeds.randrange(1 << 32))
        successor.capacity_bytes = self.capacity_bytes
        successor.clock_step_s = self.clock_step_s
        successor._names, successor._durable_names, successor._changes = names, durable, changes
        return successor

    def content(self, path: str) -> bytearray:
        """The bytes of a file, to be inspected or damaged. Syncs the file; changes of the bytes are durable."""
        inode = self._inode(path)
        inode.sync()
        # The same object from now on: damage to it is on the disk at once, as a flipped bit is.
        inode.durable = inode.visible
        return inode.visible

    def paths(self) -> list[str]:
        """The paths of all files, sorted."""
        return sorted(path for path, inode in self._names.items() if inode is not None)

    def size_bytes(self) -> int:
        """The total size of all files."""
        return sum(
            len(inode.visible) for inode in list(self._names.values()) if inode is not None
        )  # another thread may add a file meanwhile

    # -- Disk -----------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> int:
        """Opens a file (`Disk.open`)."""
        self.fault("open", path)
        if create:
            inode = _Inode()
            self._change(_Change(path, inode))
        return self._opened(path, self._inode(path))

    def _opened(self, path: str, inode: _Inode) -> int:
        self._last_fd += 1
        self._open[self._last_fd] = (path, inode)
        return self._last_fd

    def close(self, fd: int) -> None:
        """Closes a file (`Disk.close`)."""
        self._locks.pop(fd, None)
        if self._open.pop(fd, None) is None:
            raise OSError(errno.EBADF, f"descriptor {fd} is not open")

    @property
    def open_count(self) -> int:
        """The number of open descriptors."""
        return len(self._open)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Reads bytes at an offset (`Disk.pread`)."""
        path, inode = self._open[fd]
        self.fault("pread", path)
        inode.is_cached = True
        return bytes(inode.visible[offset : offset + size])

    def pread_cached(self, fd: int, size: int, offset: int) -> bytes:
        """Reads bytes from memory (`Disk.pread_cached`). Everything that was not dropped is in memory; `fault` may
        raise `BlockingIOError`."""
        path, inode = self._open[fd]
        self.fault("pread_cached", path)
        if not inode.is_cached:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable", path)
        return bytes(inode.visible[offset : offset + size])

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Writes buffers at an offset (`Disk.pwritev`)."""
        path, inode = self._open[fd]
        self.fault("pwritev", path)
        data = b"".join(buffers)[: self.write_bytes_max]
        # A write into the file's present length needs no space, even on a full disk.
        data = data[: len(inode.visible) + self._free_bytes() - offset]
        if not data:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        inode.write(offset, data)
        return len(data)

    def fdatasync(self, fd: int) -> None:
        """Makes a file durable (`Disk.fdatasync`)."""
        path, inode = self._open[fd]
        try:
            self.fault("fdatasync", path)
        except OSError:
            # As on Linux: the pages are marked clean, and no later sync writes them.
            inode.sync_badly(self._random)
            raise
        inode.sync()

    def begin_fdatasync(self, fd: int, sync: KernelSync) -> None:
        """Makes a file durable at once, and reports it later (`Disk.begin_fdatasync`). `fault` hears of an "fdatasync"."""
        try:
            self.fdatasync(fd)
        except OSError as error:
            sync.ended_elsewhere(error)
        else:
            sync.ended_elsewhere(None)

    def allocate(self, fd: int, offset: int, size: int) -> None:
        """Allocates space (`Disk.allocate`)."""
        path, inode = self._open[fd]
        self.fault("allocate", path)
        grown = max(0, offset + size - len(inode.visible))
        if grown > self._free_bytes():
            raise OSError(errno.ENOSPC, "No space left on device", path)
        inode.write(len(inode.visible), bytes(grown))

    def drop_cached(self, fd: int) -> None:
        """Drops a file's pages from the cache (`Disk.drop_cached`)."""
        path, inode = self._open[fd]
        self.fault("drop_cached", path)
        inode.drop_cached()

    def size(self, fd: int) -> int:
        """The size of a file in bytes (`Disk.size`)."""
        return len(self._open[fd][1].visible)

    def rename(self, source: str, target: str) -> None:
        """Renames a file (`Disk.rename`)."""
        self.fault("rename", source)
        self._inode(source)
        if _parent(source) != _parent(target):
            raise OSError(
                errno.EXDEV, "a rename between two directories, of which a power loss may keep one half", target
            )
        self._change(_Change(source, target=target))

    def unlink(self, path: str) -> None:
        """Removes a file (`Disk.unlink`)."""
        self.fault("unlink", path)
        self._inode(path)
        self._change(_Change(path, is_removal=True))

    def names(self, directory: str) -> list[str]:
        """The names in a directory (`Disk.names`)."""
        self.fault("names", directory)
        if directory not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such directory", directory)
        prefix = directory.rstrip("/") + "/"
        below = (path.removeprefix(prefix) for path in list(self._names) if path.startswith(prefix) and path != prefix)
        return sorted(name for name in below if "/" not in name)

    def make_directory(self, path: str) -> None:
        """Makes a directory (`Disk.make_directory`)."""
        self.fault("make_directory", path)
        if _parent(path) not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such directory", _parent(path))
        if path not in self._names:
            self._change(_Change(path))

    def sync_directory(self, path: str) -> None:
        """Makes the names in a directory durable (`Disk.sync_directory`)."""
        self.fault("sync_directory", path)
        for change in self._changes:
            if change.directory == path:
                change.apply(self._durable_names)
        self._changes = [change for change in self._changes if change.directory != path]

    def lock(self, path: str) -> int:
        """Locks a file (`Disk.lock`)."""
        self.fault("lock", path)
        if path in self._locks.values():
            raise BlockingIOError(errno.EAGAIN, "locked", path)
        if path not in self._names:
            inode = _Inode()
            self._change(_Change(path, inode))
        fd = self._opened(path, self._inode(path))
        self._locks[fd] = path
        return fd

    def unlock(self, fd: int) -> None:
        """Unlocks a file (`Disk.unlock`)."""
        self.close(fd)

    def free_bytes(self, path: str) -> int:
        """The free bytes on the disk (`Disk.free_bytes`)."""
        self.fault("free_bytes", path)
        return self._free_bytes()

    def clock_s(self) -> float:
        """The time in seconds (`Disk.clock_s`). Each call advances the clock by `clock_step_s`, so that nothing depends
        on the machine's speed."""
        self._now_s += self.clock_step_s
        return self._now_s

    def random_bytes(self, size: int) -> bytes:
        """Random bytes, repeatable from the seed (`Disk.random_bytes`)."""
        return self._random.randbytes(size)

    def _free_bytes(self) -> int:
        return max(0, self.capacity_bytes - self.size_bytes())

    def _inode(self, path: str) -> _Inode:
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return inode

    def _change(self, change: _Change) -> None:
        change.apply(self._names)
        self._changes.append(change)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _no_fault(operation: str, path: str) -> None:
    """The default of `MemoryDisk.fault`: no operation fails."""
