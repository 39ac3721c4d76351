"""How much may be on the way at once."""

from __future__ import annotations

from collections import deque

import attrs
import trio


@attrs.define(eq=False)
class _Waiting:
    calls: int
    size_bytes: int
    woken: trio.Event = attrs.field(factory=trio.Event)
    is_admitted: bool = False


class Budget:
    """Calls and bytes on the way over one connection, admitted in order. A call that asks for more than the whole
    budget gets it when nothing else is on the way."""

    def __init__(self, calls_max: int, bytes_max: int) -> None:
        self._calls_max = calls_max
        self._bytes_max = bytes_max
        self._calls = 0
        self._bytes = 0
        self._waiting: deque[_Waiting] = deque()
        self.is_closed = False

    async def acquire(self, calls: int, size_bytes: int) -> bool:
        """Waits for room. False if the budget was closed meanwhile: its connection is lost. If cancelled, takes nothing."""
        if self.is_closed:
            return False
        if not self._waiting and self._fits(calls, size_bytes):
            self._take(calls, size_bytes)
            return True
        waiting = _Waiting(calls, size_bytes)
        self._waiting.append(waiting)
        try:
            await waiting.woken.wait()
        except trio.Cancelled:
            # Admitted and cancelled in the same turn: the room goes to the next one.
            if waiting.is_admitted:
                self.release(calls, size_bytes)
            elif waiting in self._waiting:
                self._waiting.remove(waiting)
                self._admit()
            raise
        return waiting.is_admitted

    def release(self, calls: int, size_bytes: int) -> None:
        """Returns room that was acquired: the calls are no longer on the way."""
        self._calls -= calls
        self._bytes -= size_bytes
        self._admit()

    def close(self) -> None:
        """The connection is lost: no call is admitted any more, and nothing is on the way."""
        self.is_closed = True
        for waiting in self._waiting:
            waiting.woken.set()
        self._waiting.clear()

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0].calls, self._waiting[0].size_bytes):
            waiting = self._waiting.popleft()
            self._take(waiting.calls, waiting.size_bytes)
            waiting.is_admitted = True
            waiting.woken.set()

    def _fits(self, calls: int, size_bytes: int) -> bool:
        # A request larger than the whole budget goes alone; otherwise it could never go.
        if not self._calls:
            return True
        return self._calls + calls <= self._calls_max and self._bytes + size_bytes <= self._bytes_max

    def _take(self, calls: int, size_bytes: int) -> None:
        self._calls += calls
        self._bytes += size_bytes
