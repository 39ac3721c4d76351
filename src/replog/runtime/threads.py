"""The threads of a bookie, and what they and its event loop wait for each other with.

By default they are the system's. A simulation gives its run others, by `use_threads` before a bookie is made: these run one
at a time, on virtual time, and the same code runs in them.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import trio

from replog.runtime.own_threads import in_own_thread

T = TypeVar("T")


class Thread(Protocol):
    """A thread that was started."""

    def join(self, timeout: float | None = None) -> None:
        """Waits until it has ended, or the timeout (in s) has passed. Not for the event loop's thread."""

    def is_alive(self) -> bool:
        """True until it has ended."""


class Wakes(Protocol):
    """A queue that one thread waits at."""

    def put(self, item: bool, /) -> None:
        """Never waits."""

    def get(self) -> bool:
        """Waits for the next one."""


class Condition(AbstractContextManager[Any], Protocol):
    """The interface of `threading.Condition`."""

    def notify_all(self) -> None:
        """Wakes all waiters. Only while it is held."""

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Waits until the predicate holds, or the timeout (in s) has passed; returns what it says. Only while it is held."""


class _Called:
    """In place of a thread: its function was called at once."""

    def join(self, timeout: float | None = None) -> None:
        """At once."""

    def is_alive(self) -> bool:
        """It never was."""
        return False


class Threads:
    """The system's."""

    def start(self, name: str, function: Callable[[], None]) -> Thread:
        """Starts a thread that doesn't keep the process from ending. When the interpreter ends, calls the function here."""
        # A daemon: a disk that hangs keeps a call for hours, and must not keep the process from ending.
        thread = threading.Thread(target=in_own_thread, args=(function,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            _check_shutdown(error)
            function()
            return _Called()
        return thread

    async def run(
        self,
        function: Callable[..., T],
        *arguments: object,
        abandon_on_cancel: bool = False,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T:
        """Runs a function in a worker thread, like `run_in_thread`."""
        return await run_in_thread(function, *arguments, abandon_on_cancel=abandon_on_cancel, limiter=limiter)

    def wakes(self) -> Wakes:
        """A queue."""
        return queue.SimpleQueue[bool]()

    def condition(self) -> Condition:
        """A condition."""
        return threading.Condition()

    # The time by which threads wait, in s since some moment: asked for several times in each commit.
    clock_s: Callable[[], float] = staticmethod(time.monotonic)


async def run_in_thread(
    function: Callable[..., T],
    *arguments: object,
    abandon_on_cancel: bool = False,
    limiter: trio.CapacityLimiter | None = None,
) -> T:
    """Runs a function in a worker thread, like `trio.to_thread.run_sync`; when the interpreter ends, in this one.

    From CPython 3.12 on no thread can be started then, and that is when a program that left no block is tidied up."""
    is_begun = False

    def begin() -> T:
        nonlocal is_begun
        is_begun = True
        return in_own_thread(function, *arguments)

    try:
        return await trio.to_thread.run_sync(begin, abandon_on_cancel=abandon_on_cancel, limiter=limiter)
    except RuntimeError as error:
        # What the function itself raises may have the same words: it is never called twice.
        if is_begun:
            raise
        _check_shutdown(error)
    return function(*arguments)


def _check_shutdown(error: RuntimeError) -> None:
    if "interpreter shutdown" not in str(error):
        raise error


_threads: trio.lowlevel.RunVar[Threads] = trio.lowlevel.RunVar("replog threads", default=Threads())


def current_threads() -> Threads:
    """The threads of this trio run; the system's outside of one."""
    return _threads.get() if trio.lowlevel.in_trio_run() else Threads()


def use_threads(threads: Threads) -> None:
    """Bookies that are made in this trio run from now on use these."""
    _threads.set(threads)
