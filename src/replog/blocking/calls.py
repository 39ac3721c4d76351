"""Calls that any thread makes in the trio thread.

`TrioToken.run_sync_soon` would do, but for its lock: replog's threads take that, too, and a finalizer that is called while the
program's thread has it, and waits for replog, would wait without end.

Rules:
- Calls are made in the order in which they were put here, each once, and none is lost: calls that come too late for the
  trio run are made right after it.
- `put` takes no lock. A signal handler may raise in it: then the call is made with the next one, or when a caller that waits for
  long wakes the trio thread.
- Calls that are put while the trio thread is awake need no wake-up of their own: one is enough for all of them.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import trio

_WOKEN_BYTES = 1 << 12  # that are received at a time


class ThreadCalls:
    """Calls on their way into one trio thread."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], object]] = deque()
        self._has_ended = False  # no call is made any more
        self._is_waking = False  # a byte was sent, and the trio thread has not looked at the calls since
        self._waking: socket.socket | None = None  # gets a byte when there are calls
        self._woken: socket.socket | None = None  # has these bytes

    @contextmanager
    def served(self) -> Iterator[None]:
        """Makes, at the end, the calls that the trio run in the block did not."""
        self._waking, self._woken = socket.socketpair()
        with self._waking, self._woken:
            self._waking.setblocking(False)
            self._woken.setblocking(False)
            try:
                yield
            finally:
                self._has_ended = True
                self._make_all()

    def put(self, call: Callable[[], object]) -> bool:
        """Has it made. False if it is too late for that: it may have been made nevertheless."""
        self._calls.append(call)
        # Looked at afterwards: what comes after the last look of the trio thread is not made.
        if self._has_ended:
            return False
        # The trio thread resets this before it looks at the calls: so it sees what was put before this was found set.
        if not self._is_waking:
            self._is_waking = True
            self.wake()
        return True

    def wake(self) -> None:
        """Has the trio thread look at the calls."""
        assert self._waking is not None, "the trio run has begun"
        with suppress(
            OSError
        ):  # there are bytes enough, or the run has just ended and makes the calls as its last ones
            self._waking.send(b"\0")

    async def make(self) -> None:
        """Makes calls as they come, until cancelled."""
        assert self._woken is not None, "it is served"
        while True:
            await trio.lowlevel.wait_readable(self._woken)
            with suppress(BlockingIOError):
                while len(self._woken.recv(_WOKEN_BYTES)) == _WOKEN_BYTES:
                    pass
            self._is_waking = False
            self._make_all()

    def _make_all(self) -> None:
        for _ in range(len(self._calls)):
            self._calls.popleft()()
