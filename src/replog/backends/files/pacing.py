"""Work in the background at a bounded rate, which ends early when the storage is closed."""

from __future__ import annotations

import threading
import time

_STRETCH_BYTES = 8 << 20
_PATIENCE_S = 0.002  # shorter pauses are put together: each costs a change of thread


class Closing(Exception):
    """The storage is being closed: leave what you do, in a state that a crash might leave too."""


class Pace:
    """So many bytes per second at most, on average since the beginning; 0 is no limit."""

    def __init__(self, bytes_per_s: int, closing: threading.Event) -> None:
        self._bytes_per_s = bytes_per_s
        self._closing = closing
        self._spent_bytes = 0
        self._began_s = time.monotonic()

    def spend(self, size_bytes: int) -> bool:
        """Waits until these bytes are due; returns whether it is time to look after something else. Raises `Closing`."""
        if self._closing.is_set():
            raise Closing
        before = self._spent_bytes // _STRETCH_BYTES
        self._spent_bytes += size_bytes
        if self._bytes_per_s:
            ahead_s = self._spent_bytes / self._bytes_per_s - (time.monotonic() - self._began_s)
            if ahead_s > _PATIENCE_S and self._closing.wait(ahead_s):
                raise Closing
        return self._spent_bytes // _STRETCH_BYTES > before
