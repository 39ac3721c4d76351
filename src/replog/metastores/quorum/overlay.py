"""The rows of a member's state: what is on its disk, and over it what was applied since, in memory.

An entry is applied as soon as it is committed, so that its command is answered after one round and one flush. Its rows reach the
disk with the next entry, or a moment later. Until then they are here: `take` hands them to a write, and `written` forgets them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Protocol


class Below(Protocol):
    """The rows on the disk."""

    def get(self, row: bytes) -> bytes | None:
        """The value, or None."""

    def rows_from(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows from this one on, in order."""


class OverlayRows:
    """Rows in memory over rows on a disk. None in memory is a row that was deleted."""

    def __init__(self, below: Below) -> None:
        self.size_bytes = 0  # of what waits to be written, about
        self._below = below
        self._changes: dict[bytes, bytes | None] = {}
        self._in_write: dict[bytes, bytes | None] = {}  # older than `_changes`

    def get(self, row: bytes) -> bytes | None:
        """The newest value."""
        for layer in (self._changes, self._in_write):
            if row in layer:
                return layer[row]
        return self._below.get(row)

    def put(self, row: bytes, value: bytes) -> None:
        """Changes it in memory."""
        self._changes[row] = value
        self.size_bytes += len(row) + len(value)

    def delete(self, row: bytes) -> None:
        """Deletes it in memory."""
        self._changes[row] = None
        self.size_bytes += len(row)

    def rows_from(self, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows from this one on, in order."""
        changed = {**self._in_write, **self._changes}
        above = sorted(row for row in changed if row >= first)
        below = (each for each in self._below.rows_from(first) if each[0] not in changed)
        kept = ((row, value) for row in above if (value := changed[row]) is not None)
        return heapq.merge(kept, below, key=lambda each: each[0])

    @property
    def is_empty(self) -> bool:
        """True if nothing waits to be written."""
        return not self._changes

    def take(self) -> dict[bytes, bytes | None]:
        """Hands the changes to a write that begins now. One write at a time."""
        assert not self._in_write, "one write at a time"
        self._in_write, self._changes, self.size_bytes = self._changes, {}, 0
        return self._in_write

    def written(self) -> None:
        """The write has ended: the disk has what it took."""
        self._in_write = {}

    def replace(self) -> None:
        """A copy of the state takes the place of everything: what is here was of before."""
        self._changes, self._in_write, self.size_bytes = {}, {}, 0
