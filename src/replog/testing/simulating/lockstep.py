"""The threads of simulated bookies: they run one at a time, on trio's virtual time.

Each is a real thread that runs the product's own code, for example the loop of the group commit. It runs only while trio's
thread waits for it, and only to its next wait: for a disk, a queue, or a condition. There it is parked. A task of trio resumes it
when its time has come, or when another thread has done what it waits for. So the steps of threads have one place in the order of
all events, and the seed decides which.

Code that runs in such a thread must not wait for anything else, like a real lock or a real clock: `resume` gives up after 30 s
of real time and raises an error that names the thread.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TypeVar, cast

import outcome
import trio

from replog.errors import LocalProtocolError
from replog.runtime.threads import Condition, Thread, Threads, Wakes

T = TypeVar("T")

_REAL_TIME_MAX_S = 30.0


class _Ended(BaseException):
    """Raised in parked threads when the simulation ends. Not an `Exception`, so that no code handles it."""


class LockstepThread(Thread):
    """One thread. `deadline_s` is until when it is parked at most; `raises` says whether an error in it ends the run."""

    def __init__(self, owner: Lockstep, name: str, function: Callable[[], object], *, raises: bool = False) -> None:
        self.name = name
        self.raises = raises
        self.limiter: trio.CapacityLimiter | None = None  # taken until the thread has ended
        self.ended = trio.Event()
        self.wake = trio.Event()
        self.deadline_s = -math.inf
        self.outcome: outcome.Outcome[object] | None = None
        self.must_end = False
        self._owner = owner
        self._may_run = threading.Lock()  # each is released by the other side
        self._is_parked = threading.Lock()
        self._may_run.acquire()
        self._is_parked.acquire()

        def run() -> None:
            self._may_run.acquire()
            self.outcome = outcome.capture(self._unless_ended, function)
            self._is_parked.release()

        self._thread = threading.Thread(target=run, name=f"simulated {name}", daemon=True)
        self._thread.start()

    def _unless_ended(self, function: Callable[[], object]) -> object:
        return None if self.must_end else function()

    def resume(self) -> None:
        """Let the thread run to its next wait, or to its end. Called in trio's thread, which waits meanwhile."""
        self.wake = trio.Event()
        self._may_run.release()
        if not self._is_parked.acquire(timeout=_REAL_TIME_MAX_S):
            raise LocalProtocolError(
                f"thread '{self.name}' waits for something outside of the simulation, like a real lock or clock"
            )
        # Joined for real, so that no simulated thread outlives its run.
        if self.outcome is not None:
            self._thread.join()

    def park(self, deadline_s: float) -> None:
        """Wait until this time or until `wake` is set. Called in this thread."""
        self.deadline_s = deadline_s
        self._is_parked.release()
        self._may_run.acquire()
        if self.must_end:
            raise _Ended

    # -- as a thread ----------------------------------------

    def join(self, timeout: float | None = None) -> None:
        """Waits for the end of the thread (`Thread.join`). Called in another simulated thread."""
        self._owner.wait_until(lambda: self.outcome is not None, timeout)

    def is_alive(self) -> bool:
        """True until the thread has ended (`Thread.is_alive`)."""
        return self.outcome is None


class Lockstep(Threads):
    """All threads of one run. `left` names those that had not ended by themselves when the run ended."""

    def __init__(self, nursery: trio.Nursery, clock: trio.abc.Clock) -> None:
        self.left: list[str] = []
        self._nursery = nursery
        self._clock = clock
        self._alive: dict[LockstepThread, None] = {}
        self._current: LockstepThread | None = None
        self._waiting: dict[LockstepThread, Callable[[], bool]] = {}  # conditions that other threads may fulfil
        self._unstarted: deque[LockstepThread] = deque()

    # -- waiting, in one of the threads ----------------------------------------

    @property
    def is_in_thread(self) -> bool:
        """True if called in a simulated thread, False in trio's."""
        return self._current is not None

    def sleep(self, duration_s: float) -> None:
        """Wait for so long. In trio's thread, which must not wait, it returns at once."""
        if self._current is not None:
            self._current.park(self.clock_s() + duration_s)

    def wait_until(self, predicate: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until the predicate holds or the timeout has passed; return its last value."""
        thread = self._current
        if thread is None:
            raise LocalProtocolError("trio's thread must not wait for another one")
        deadline_s = math.inf if timeout_s is None else self.clock_s() + timeout_s
        # A wake is a hint: another thread may have run first, and have undone the condition.
        while not predicate() and self.clock_s() < deadline_s:
            self._waiting[thread] = predicate
            try:
                thread.park(deadline_s)
            finally:
                del self._waiting[thread]
        return predicate()

    def changed(self) -> None:
        """Wake threads whose conditions hold now. While a thread runs, this is done when it is parked."""
        if self._current is None:
            for thread, predicate in self._waiting.items():
                if predicate():
                    thread.wake.set()

    # -- as threads ----------------------------------------

    def start(self, name: str, function: Callable[[], object]) -> LockstepThread:
        """Starts a thread (`Threads.start`)."""
        thread = LockstepThread(self, name, function, raises=True)
        self._begin(thread)
        return thread

    async def run(
        self,
        function: Callable[..., T],
        *arguments: object,
        abandon_on_cancel: bool = False,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T:
        """Runs a function in a worker thread (`Threads.run`)."""
        await trio.lowlevel.checkpoint_if_cancelled()
        thread = LockstepThread(self, "call", lambda: function(*arguments))
        if limiter is not None:
            await limiter.acquire_on_behalf_of(thread)
            thread.limiter = limiter
        self._begin(thread)
        with trio.CancelScope(shield=not abandon_on_cancel):
            await thread.ended.wait()
        assert thread.outcome is not None
        return cast("T", thread.outcome.unwrap())

    def _begin(self, thread: LockstepThread) -> None:
        self._alive[thread] = None
        self._unstarted.append(thread)
        self._start_tasks()

    def _start_tasks(self) -> None:
        while self._unstarted and self._current is None:  # otherwise started when the current thread is parked
            self._nursery.start_soon(self._take_on, self._unstarted.popleft())

    async def _take_on(self, thread: LockstepThread) -> None:
        """Resume a thread whenever it may run, until it has ended."""
        while thread.outcome is None:
            if thread.deadline_s > self.clock_s():
                with trio.move_on_at(thread.deadline_s):
                    await thread.wake.wait()
            else:
                await trio.lowlevel.checkpoint()
            self._resume(thread)
        del self._alive[thread]
        thread.ended.set()
        # Here and not by the caller of `run`: it goes when it is cancelled, and the limiter stays taken.
        if thread.limiter is not None:
            thread.limiter.release_on_behalf_of(thread)
        if thread.raises:
            thread.outcome.unwrap()

    def _resume(self, thread: LockstepThread) -> None:
        self._current = thread
        try:
            thread.resume()
        finally:
            self._current = None
        self._start_tasks()
        self.changed()

    def end(self) -> None:
        """End all threads where they are parked."""
        for thread in list(self._alive):
            self.left.append(thread.name)
            thread.must_end = True
            while thread.outcome is None:
                self._resume(thread)

    def wakes(self) -> Wakes:
        """Makes a way to wake tasks from threads (`Threads.wakes`)."""
        return _LockstepQueue(self)

    def condition(self) -> Condition:
        """Makes a condition (`Threads.condition`)."""
        return _LockstepCondition(self)

    def clock_s(self) -> float:
        """Virtual time."""
        return self._clock.current_time()


class _LockstepQueue(Wakes):
    def __init__(self, lockstep: Lockstep) -> None:
        self._lockstep = lockstep
        self._items: deque[bool] = deque()

    def put(self, item: bool, /) -> None:
        self._items.append(item)
        self._lockstep.changed()

    def get(self) -> bool:
        self._lockstep.wait_until(lambda: bool(self._items))
        return self._items.popleft()


class _LockstepCondition(Condition):
    """Needs no lock: no other thread runs while one holds it."""

    def __init__(self, lockstep: Lockstep) -> None:
        self._lockstep = lockstep

    def notify_all(self) -> None:
        self._lockstep.changed()

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        return self._lockstep.wait_until(predicate, timeout)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass


@asynccontextmanager
async def lockstep() -> AsyncIterator[Lockstep]:
    """The threads of this trio run, as a context manager. On leaving, threads that still run are ended and named in `left`."""
    async with trio.open_nursery() as nursery:
        made = Lockstep(nursery, trio.lowlevel.current_clock())
        try:
            yield made
        finally:
            made.end()
            nursery.cancel_scope.cancel()
