"""Calls of a trio run to a bucket: attempts in worker threads, with a deadline for all of them, and errors that say what is
known.

Rules: a read may be tried again at any time. An attempt that was not begun when its call ends is never begun; one that was
begun goes on in its thread for a third of `timeout_s`, and what it does is unknown. Threads have a bound, which those that are
left count for.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import attrs
import trio

from replog.errors import MetastoreCorruptError, MetastoreError, MetastoreUnavailableError, MetastoreUncertainError
from replog_objects.errors import BucketRefusedError
from replog_objects.layout import DamagedError
from replog_objects.options import ObjectsOptions, Target
from replog_objects.requests import Conflict, Effect, RequestFailed, Requests

Answer = TypeVar("Answer")
Item = TypeVar("Item")

_PAUSE_S, _PAUSE_MAX_S = 0.05, 2.0
_READS_OF_DAMAGE = 3  # bytes may be damaged on their way, too


@attrs.define
class Outcome:
    """The knowledge of a change while its call goes on. `is_in_doubt`: an attempt may have been done."""

    is_in_doubt: bool = False
    last_words: str = "no attempt was begun"


class Pace:
    """When the attempts of a call are made: one at once, others after pauses that grow and differ, so that many clients do not
    come at the same time."""

    def __init__(self) -> None:
        self._pause_s = 0.0

    async def next(self) -> bool:
        """Waits for the time of the next attempt. True, always."""
        if self._pause_s:
            await trio.sleep(self._pause_s * random.uniform(0.5, 1.5))
        self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S) or _PAUSE_S
        return True


class Calls:
    """Calls to one bucket. `open` makes the requests, in a thread, at the first call."""

    def __init__(
        self, target: Target, options: ObjectsOptions, make: Callable[[Target, ObjectsOptions], Requests]
    ) -> None:
        self._target = target
        self._options = options
        self._make = make
        self._requests: Requests | None = None
        self._threads = trio.CapacityLimiter(options.requests_max)
        self._process = os.getpid()
        self._is_closed = False

    def close(self) -> None:
        """Later calls, and the next attempts of those under way, raise `trio.ClosedResourceError`."""
        self._is_closed = True

    async def read(self, what: str, ask: Callable[[Requests], Answer]) -> Answer:
        """Asks until there is an answer. Raises `MetastoreUnavailableError`, `BucketRefusedError`, `MetastoreCorruptError`."""
        outcome, damaged = Outcome(), 0
        with trio.move_on_after(self._options.timeout_s):
            pace = Pace()
            while await pace.next():
                try:
                    return await self.attempt(ask, outcome)
                except RequestFailed as error:
                    if error.effect is Effect.NONE:
                        raise self.refused(what, error) from None
                except DamagedError as error:
                    damaged += 1
                    if damaged == _READS_OF_DAMAGE:
                        raise MetastoreCorruptError(f"{self._target}: {what}: {error}") from None
        raise MetastoreUnavailableError(f"{self._target}: {what}: {outcome.last_words}; nothing was written. Try again")

    @contextmanager
    def deadline(self, what: str, outcome: Outcome) -> Iterator[None]:
        """Ends the attempts of a change in time. Raises `MetastoreUncertainError` or `MetastoreUnavailableError` then."""
        with trio.move_on_after(self._options.timeout_s):
            yield
            return
        problem = f"{self._target}: {what}: {outcome.last_words}, within {self._options.timeout_s:g} s"
        if outcome.is_in_doubt:
            raise MetastoreUncertainError(
                f"{problem}; it may have been written, or may be yet: read back before you go on"
            )
        raise MetastoreUnavailableError(f"{problem}; nothing was written. Try again")

    async def attempt(self, ask: Callable[[Requests], Answer], outcome: Outcome) -> Answer:
        """One attempt, in a thread. Raises `RequestFailed`, `Conflict`, `DamagedError`; `outcome` says more."""
        self._check_usable()
        begun = threading.Lock()  # taken by the thread, or by a call that no longer waits for it: whichever is first
        is_over = False

        def work() -> list[Answer]:
            return [ask(self._opened())] if begun.acquire(blocking=False) else []

        try:
            (answer,) = await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads)
            is_over = True
            return answer
        except RequestFailed as error:
            is_over = True
            outcome.is_in_doubt |= error.effect is Effect.UNKNOWN
            outcome.last_words = str(error)
            raise
        except (Conflict, DamagedError):
            is_over = True
            raise
        finally:
            if not is_over and not begun.acquire(blocking=False):
                outcome.is_in_doubt = True
                outcome.last_words = "no answer came"

    def refused(self, what: str, error: RequestFailed) -> MetastoreError:
        """The error for a request that the store refuses."""
        return BucketRefusedError(f"{self._target}: {what}: {error}; nothing was written")

    def _check_usable(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError("this metastore was closed")
        if self._process != os.getpid():
            problem = "this process is a fork of the one that opened it; nothing was done. Open another one here"
            raise MetastoreError(f"{self._target}: {problem}")

    def _opened(self) -> Requests:
        # In a thread, since obstore may read files. Two that do so at once make two, of which one stays.
        if self._requests is None:
            self._requests = self._make(self._target, self._options)
        return self._requests


async def for_all(function: Callable[[Item], Awaitable[Answer]], items: Iterable[Item]) -> list[Answer]:
    """The results, in the order of the items; the calls are made at the same time. Raises the first error, alone."""
    waiting = list(items)
    found: dict[int, Answer] = {}
    failures: list[Exception] = []

    async def call(number: int, item: Item) -> None:
        try:
            found[number] = await function(item)
        except (MetastoreError, trio.ClosedResourceError) as error:
            failures.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for number, item in enumerate(waiting):
            nursery.start_soon(call, number, item)
    if failures:
        raise failures[0]
    return [found[number] for number in range(len(waiting))]
