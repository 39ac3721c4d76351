"""Decides whether a bookie takes new entries, from the space on its disk and from failed commits (B5).

Two bounds, so that a bookie at one of them does not change its mind with every batch: below the lower one it takes none,
above the higher one it does again. Pure: the caller passes what it saw, and when.
"""

from __future__ import annotations

import math

from replog.errors import StorageFullError

_GIVEN_BACK_BYTES = 1 << 20  # a smaller change may come from other programs
TRY_AGAIN_S = 5.0  # after a commit that found no space: before that, the disk's own figures are not believed


class Space:
    """The space of one bookie. `error` says why new entries are refused, or is None; `free_bytes` is what was last seen
    to be left, None if nothing limits it."""

    def __init__(self, bookie_id: str, read_only_below_bytes: int, writable_above_bytes: int, place: str = "") -> None:
        self.error: StorageFullError | None = None
        self.free_bytes: int | None = None
        self._bookie_id = bookie_id
        self._where = f" in {place}" if place else ""
        self._low_bytes = read_only_below_bytes
        self._high_bytes = writable_above_bytes
        self._full_until_s = -math.inf

    def looked(self, free_bytes: int | None, now_s: float) -> None:
        """So many bytes are free. A disk of which nothing is known is presumed to have space again after a while: the
        next entry will show."""
        self.free_bytes = free_bytes
        if free_bytes is not None and free_bytes < self._low_bytes:
            self.error = self.error or StorageFullError(
                f"bookie {self._bookie_id}: disk full: {free_bytes} bytes are free{self._where}, fewer than "
                f"read_only_below_bytes={self._low_bytes}",
                f"Make space: it takes new entries again from {self._high_bytes} free bytes on",
            )
        elif now_s >= self._full_until_s and (free_bytes is None or free_bytes >= self._high_bytes):
            self.error = None

    def made(self, free_bytes: int | None, now_s: float) -> None:
        """Space was given back: what the disk says of itself is believed again, if it is clearly more than before."""
        before_bytes = self.free_bytes
        if free_bytes is not None and before_bytes is not None and free_bytes >= before_bytes + _GIVEN_BACK_BYTES:
            self._full_until_s = -math.inf
        self.looked(free_bytes, now_s)

    def met_full(self, error: StorageFullError, now_s: float) -> None:
        """A commit found no space."""
        self.error = self.error or error
        self._full_until_s = now_s + TRY_AGAIN_S
