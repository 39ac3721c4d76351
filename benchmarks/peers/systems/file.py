"""A plain file as a log on one node, as people write it by hand: length, CRC and entry, one write and one sync for each call.

The file grows, so each sync has its new length to write, too. When it is opened it is read from the beginning, to find where
it ends; what was not written wholly is cut off.
"""

from __future__ import annotations

import os
import platform
import struct
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.peers.local import LocalRunning
from benchmarks.peers.system import Promise

_HEADER = struct.Struct("<II")  # bytes of the entry, its CRC32
_READ_BYTES = 1 << 20


class FileStore:
    """The file."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.ftruncate(self._fd, sum(_HEADER.size + len(entry) for entry in self._entries()))
        os.fsync(self._fd)
        directory = os.open(path.parent, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)

    def append(self, entries: list[bytes]) -> None:
        """As `Store.append`."""
        pieces: list[bytes] = []
        for entry in entries:
            pieces += (_HEADER.pack(len(entry), zlib.crc32(entry)), entry)
        data = b"".join(pieces)
        written = os.write(self._fd, data)
        while written < len(data):
            written += os.write(self._fd, memoryview(data)[written:])
        os.fdatasync(self._fd)

    def read(self) -> int:
        """As `Store.read`."""
        return sum(1 for _ in self._entries())

    def _entries(self) -> Iterator[bytes]:
        """From the beginning to the first that is not whole."""
        buffer, start, offset = b"", 0, 0
        while data := os.pread(self._fd, _READ_BYTES, offset):
            buffer, start = buffer[start:] + data, 0
            offset += len(data)
            while start + _HEADER.size <= len(buffer):
                size, checksum = _HEADER.unpack_from(buffer, start)
                end = start + _HEADER.size + size
                if end > len(buffer):
                    break
                entry = buffer[start + _HEADER.size : end]
                if zlib.crc32(entry) != checksum:
                    return
                yield entry
                start = end

    def clear(self) -> None:
        """As `Store.clear`."""
        os.ftruncate(self._fd, 0)
        os.fsync(self._fd)

    def close(self) -> None:
        """As `Store.close`."""
        os.close(self._fd)


def open_store(directory: Path) -> FileStore:
    """In this directory."""
    return FileStore(directory / "entries")


class File:
    """The system."""

    name = "file"
    title = "plain file"
    is_replicated = False
    promise = Promise(
        copies=1,
        confirmed_by=1,
        is_synced=True,
        words="one file in this process that grows: length, CRC32 and entry, one write and one fdatasync for each call; "
        "no index, no trimming, nobody else may write",
    )

    def missing(self) -> str | None:
        """Nothing."""
        return None

    def version(self) -> str:
        """Of the kernel, which is what writes it."""
        return f"Linux {platform.release()}"

    @contextmanager
    def running(self, directory: Path) -> Iterator[LocalRunning]:
        """An empty file."""
        with closing(LocalRunning(__name__, directory)) as running:
            yield running


SYSTEM = File()
