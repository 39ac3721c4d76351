"""The durable mark of a member: how far its store was durable, in a small file (B8, Q11).

    position (u64), CRC32C of that (u32)

The position is that of the last transaction that was synced: it only grows. It is written after each of them, and not synced
itself: after a kill it is exact, since the page cache survives; after a power loss it is a lower bound. So a store that has less
than its mark lost something, as one has that was put back from a copy without its mark.
"""

from __future__ import annotations

import os
import struct

from crc32c import crc32c

from replog.runtime.platform import sync_all

_MARK = struct.Struct(">QI")
_POSITION = struct.Struct(">Q")


class DurableMark:
    """An open mark. `position` is what it said when it was opened; None for a new one, or one that is damaged."""

    def __init__(self, path: str) -> None:
        """Opens the file, or makes it. Raises OSError."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self.position = _read(os.pread(self._file, _MARK.size, 0))
        except BaseException:
            os.close(self._file)
            raise

    def put(self, position: int, *, is_synced: bool = False) -> None:
        """All up to here is durable. Raises OSError."""
        os.pwrite(self._file, _MARK.pack(position, crc32c(_POSITION.pack(position))), 0)
        if is_synced:
            sync_all(self._file)

    def close(self) -> None:
        """Gives the file back."""
        os.close(self._file)


def _read(data: bytes) -> int | None:
    if len(data) != _MARK.size:
        return None
    position, checksum = _MARK.unpack(data)
    return int(position) if crc32c(_POSITION.pack(position)) == checksum else None
