"""The end of a flood of requests: when a listener returns its memory to the kernel (B9).

Memory of clients is freed as soon as their messages are handled or they are gone. The C library returns only what is at
the end of its heap: one small block behind the memory of a flood keeps all of it, for as long as that block lives.
"""

from __future__ import annotations

_WORTH_BYTES = 32 << 20  # less is not returned: the next requests need it
_CALM_S = 5.0  # a load that comes and goes keeps its memory: to have each page faulted in again costs more


class FloodEnd:
    """Notices that clients use much less than they did, and go on so."""

    __slots__ = ("_high_at_s", "_highest_bytes")

    def __init__(self) -> None:
        self._highest_bytes = 0  # since memory was last returned
        self._high_at_s = 0.0  # when they last used about as much

    def look(self, used_bytes: int, now_s: float) -> bool:
        """Whether to return memory now. `used_bytes` is the most that clients used since the last look."""
        self._highest_bytes = max(self._highest_bytes, used_bytes)
        if used_bytes + _WORTH_BYTES > self._highest_bytes:
            self._high_at_s = now_s
        if now_s - self._high_at_s < _CALM_S:
            return False
        self._highest_bytes = used_bytes
        return True
