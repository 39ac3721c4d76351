"""Calls to a storage that may wait for its disk: in worker threads, which are accounted for until they have ended.

A task that waits for such a call can be cancelled at any time, and the call then ends without it. So a disk that does
not answer does not block leaving; and because each call is counted in its own thread, it is known on leaving which
calls are still under way in the storage, and it is not closed in the middle of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

import trio

from replog.abc import Storage
from replog.errors import StorageError, StorageFailedError
from replog.runtime.threads import current_threads

T = TypeVar("T")

_READING_THREADS_MAX = 8
_OTHER_THREADS_MAX = 8


class _Call:
    """One call: it begins in its thread, unless its caller was cancelled before."""

    __slots__ = ("has_begun", "is_given_up")

    def __init__(self) -> None:
        self.has_begun = self.is_given_up = False


class StorageCalls:
    """The calls of one bookie to its storage. One that never waits for a disk is called at once, without a thread."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.threads = current_threads()
        self._reading = trio.CapacityLimiter(_READING_THREADS_MAX)
        self._others = trio.CapacityLimiter(_OTHER_THREADS_MAX)
        self._ended = self.threads.condition()
        self._short = self._long = 0  # under way

    async def read(self, function: Callable[..., T], *arguments: object) -> T:
        """Calls a read that answers a client. Like `call`, but such reads wait only for each other."""
        return await self._call(function, arguments, self._reading, is_long=False)

    async def call(self, function: Callable[[], T], *, is_long: bool = False) -> T:
        """Calls the storage. Raises `StorageError`; any other error of the storage becomes a `StorageFailedError`. If
        cancelled, the call goes on, and its result is dropped. A long one takes as long as it takes, and returns early
        if the storage is closed meanwhile."""
        return await self._call(function, (), self._others, is_long=is_long)

    async def _call(
        self, function: Callable[..., T], arguments: tuple[object, ...], limiter: trio.CapacityLimiter, *, is_long: bool
    ) -> T:
        if self.storage.is_instant:
            await trio.lowlevel.checkpoint()
            return self._checked(function, arguments)

        call = _Call()

        def counted() -> T | None:
            with self._ended:
                # The thread may begin long after the caller was cancelled: all threads of this kind were busy.
                if call.is_given_up:
                    # Its caller is gone and would not hear of a result, and the storage may be closing.
                    return None
                call.has_begun = True
            try:
                return self._checked(function, arguments)
            finally:
                self._count(-1, is_long=is_long)

        self._count(1, is_long=is_long)
        try:
            return cast("T", await self.threads.run(counted, abandon_on_cancel=True, limiter=limiter))
        finally:
            with self._ended:
                call.is_given_up = not call.has_begun
            if call.is_given_up:
                self._count(-1, is_long=is_long)

    def _count(self, change: int, *, is_long: bool) -> None:
        with self._ended:
            self._long += change if is_long else 0
            self._short += 0 if is_long else change
            self._ended.notify_all()

    def _checked(self, function: Callable[..., T], arguments: tuple[object, ...]) -> T:
        try:
            return function(*arguments)
        except StorageError:
            raise
        except Exception as error:
            raise broken_contract(self.storage, error) from error

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Counts the block as one call, for a caller that has a thread of its own."""
        self._count(1, is_long=False)
        try:
            yield
        finally:
            self._count(-1, is_long=False)

    async def close(self, timeout_s: float) -> StorageFailedError | None:
        """Waits for short calls, closes the storage, which ends long calls, and waits for these. Cancelling does not
        interrupt it. Raises the error of closing.

        Returns an error if the disk keeps a call for longer than that. The outcome of that call is unknown; the storage
        was closed only if nothing but long calls was under way."""
        if self.storage.is_instant:
            self.storage.close()
            return None
        problem: StorageFailedError | None = None
        # Bounded: all waits in there have one deadline, by the real clock.
        with trio.CancelScope(shield=True):
            problem = await self.threads.run(self._close_in_thread, self.threads.clock_s() + timeout_s)
        return problem

    def _close_in_thread(self, deadline: float) -> StorageFailedError | None:
        if not self._wait(lambda: self._short == 0, deadline):
            return self._stuck("it was not closed")
        raised: list[StorageError] = []
        closing = self.threads.start("replog close", lambda: self._close(raised))
        # In a thread of its own, because a disk that hangs would otherwise keep this one, and the process, for as long.
        closing.join(max(0.0, deadline - self.threads.clock_s()))
        if closing.is_alive() or not self._wait(lambda: self._long == 0, deadline):
            return self._stuck("its closing has begun")
        if raised:
            raise raised[0]
        return None

    def _close(self, raised: list[StorageError]) -> None:
        try:
            self._checked(self.storage.close, ())
        except StorageError as error:
            raised.append(error)

    def _wait(self, is_over: Callable[[], bool], deadline: float) -> bool:
        with self._ended:
            return self._ended.wait_for(is_over, max(0.0, deadline - self.threads.clock_s()))

    def _stuck(self, what: str) -> StorageFailedError:
        return StorageFailedError(
            f"bookie {self.storage.bookie_id}: its storage was left, but a call to it has not returned, and {what}",
            "The disk does not answer: what was under way has an unknown outcome. End this process to let go of the disk",
        )


def broken_contract(storage: Storage, error: Exception) -> StorageFailedError:
    """The failure of a storage that raised an error which its contract does not allow."""
    problem = f"bookie {storage.bookie_id}: its storage broke its contract: {error!r}"
    return StorageFailedError(problem, "Restart the bookie, and report this")
