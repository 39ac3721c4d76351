"""The turns of a trio run that an asyncio event loop makes, and calls that the run wants of the event loop.

Rules:
- Calls are kept here until they are made: an event loop that is closed drops its own.
- Without the event loop, `end_without_loop` makes turns and calls in their order, until the run has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import select
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic
from typing import Any

import trio

_LOOK_S = 0.01  # how often a run that ends without its event loop looks at descriptors
_FAREWELL_S = 10.0  # how long such an end may take


class HostCallSoon:
    """The `replog.runtime.event_loop.HostLoop` of a trio run."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.nursery: trio.Nursery | None = None  # of the run; None before and after it
        self._loop = loop
        # What the run does next: no other object holds it, and without it, it would be torn down in the middle of its tasks.
        self._next: Callable[[], object] | None = None
        self._calls: deque[Callable[[], object]] = deque()  # that were asked for, in their order
        self._watches: dict[int, Callable[[], object]] = {}  # by descriptor
        self._wakes: queue.SimpleQueue[None] | None = None  # instead of the event loop, when that is closed

    def soon(self, call: Callable[[], object]) -> None:
        """Calls this in the next turn of the event loop (`replog.runtime.event_loop.HostLoop`)."""
        self._calls.append(call)
        try:
            self._loop.call_soon(self._make_next)
        except RuntimeError:
            self._wake_if_closed()

    def soon_from_any_thread(self, call: Callable[..., object], /, *arguments: Any) -> None:
        """Thread-safe form of `soon` (`replog.runtime.event_loop.HostLoop`)."""
        if self.nursery is None:
            raise trio.RunFinishedError
        self._calls.append(partial(call, *arguments) if arguments else call)
        try:
            self._loop.call_soon_threadsafe(self._make_next)
        except RuntimeError:
            self._wake_if_closed()

    def watch(self, descriptor: int, call: Callable[[], object]) -> Callable[[], object]:
        """Calls this when the descriptor is readable (`replog.runtime.event_loop.HostLoop`)."""
        if not self._loop.is_closed():
            self._loop.add_reader(descriptor, self._make, call)
        self._watches[descriptor] = call
        return partial(self._unwatch, descriptor)

    def _unwatch(self, descriptor: int) -> None:
        del self._watches[descriptor]
        if not self._loop.is_closed():
            self._loop.remove_reader(descriptor)

    def _make_next(self) -> None:
        self._make(self._calls.popleft())

    def _make(self, call: Callable[[], object]) -> None:
        if self.nursery is not None:
            try:
                call()
            except BaseException as error:
                # It is a bug, and ends the run, as in a call that trio makes: waiting callers must not wait without end.
                if self.nursery is not None:
                    self.nursery.start_soon(_raise, error)
                if not isinstance(error, Exception):
                    raise

    def turn(self, function: Callable[[], object]) -> None:
        """Makes a turn of the trio run, soon. The run has one turn at a time before it."""
        self._next = function
        try:
            self._loop.call_soon(self._take_turn)
        except RuntimeError:
            self._wake_if_closed()

    def turn_from_any_thread(self, function: Callable[[], object]) -> None:
        """Thread-safe form of `turn`."""
        self._next = function
        try:
            self._loop.call_soon_threadsafe(self._take_turn)
        except RuntimeError:
            self._wake_if_closed()

    def _take_turn(self) -> None:
        turn, self._next = self._next, None
        if turn is not None:
            turn()

    def _wake_if_closed(self) -> None:
        """For callers that could not reach the event loop. Raises that error again if it is not closed."""
        if not self._loop.is_closed():
            raise
        if self._wakes is not None:
            self._wakes.put(None)

    def end_without_loop(self, has_ended: Callable[[], bool]) -> None:
        """Cancels everything, and makes what the run needs to end, in the thread of its event loop, which is closed."""
        wakes = self._wakes = queue.SimpleQueue()
        if self.nursery is not None:
            self.nursery.cancel_scope.cancel()
        deadline_s = monotonic() + _FAREWELL_S
        while not has_ended() and monotonic() < deadline_s:
            self._take_turn()
            while self._calls:
                self._make_next()
            if self._next is None and not has_ended():
                with contextlib.suppress(queue.Empty):
                    wakes.get(timeout=_LOOK_S)
                for descriptor, _ in _readable(self._watches):
                    self._make(self._watches[descriptor])


def _readable(descriptors: Iterable[int]) -> list[tuple[int, int]]:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return poll.poll(0)


async def _raise(error: BaseException) -> None:
    raise error
