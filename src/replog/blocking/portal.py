"""One trio run in a thread of its own, and the ways into it from every other thread.

Rules:
- The thread that starts the portal's thread also joins it: nothing of it outlives the `with` block that made it. If
  that block is never left, the end of the thread that entered it ends it: an interpreter can always end.
- A caller sleeps on a lock of its own, where signals still reach it; its call is a task in the trio thread. The task's
  result or error is returned or raised in the caller's thread, the very same object.
- A caller that is interrupted cancels its task, waits for its end, and lets the interruption pass on. A signal handler
  may raise between any two steps: only `_is_given` says whether an answer has come, never the holder of its lock.
- A caller holds no lock that the trio run or its threads need, not even trio's in `run_sync_soon`: a finalizer can be
  called in the middle of any call, and waits for one of its own.
- A thread of replog's own never waits here: a finalizer or an observer would wait for itself. Each use raises
  `OwnThreadError` before anything is touched; leaving a block begins to leave it there, and doesn't wait.
- Every call that was accepted is answered, even if the run ends before the call could begin.
- A forked child has these objects but not the thread: each use raises `ForkedError` before anything is touched, and
  leaving a block there does nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from math import inf
from time import monotonic
from typing import Any, Generic, ParamSpec, TypeVar

import trio

from replog.blocking.calls import ThreadCalls
from replog.errors import ClosedError, ForkedError, OwnThreadError
from replog.runtime.faces import closed, forked, without_trio
from replog.runtime.loggers import handing_over
from replog.runtime.nursery import open_service_nursery
from replog.runtime.own_threads import in_own_thread, is_own_thread

Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")

_FAREWELL_S = 10.0  # how long an interrupted caller waits for the end of its cancelled call
_LOOK_S = 1.0  # how often a caller looks whether the trio thread is still there, and that whether its owner is


class _LeftOnError(Exception):
    """The block in the caller's thread was left on an error, which stays there."""


class _CancelledByCaller(Exception):
    """A call ended because its caller was interrupted. The caller raises the interruption."""


class _Answer(Generic[Value]):
    """The result of a call: waited for in one thread, given once by another. A second one is ignored."""

    __slots__ = ("_error", "_given", "_is_given", "_value", "is_started", "scope")

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.is_started = False
        self._given = threading.Lock()
        self._given.acquire()
        self._is_given = False
        self._error: BaseException | None = None

    def succeed(self, value: Value) -> None:
        if not self._is_given:
            self._value = value
            self._give()

    def fail(self, error: BaseException) -> None:
        if not self._is_given:
            self._error = error
            self._give()

    def _give(self) -> None:
        self._is_given = True
        self._given.release()

    def cancel(self) -> None:
        if self.is_started:
            self.scope.cancel()
        else:
            self.fail(_CancelledByCaller())  # before it had asked

    def wait(self, timeout_s: float) -> bool:
        """True if it was given in time."""
        # A lock, because waiting for one is interrupted by signals, so that Ctrl-C reaches the caller. A caller that was
        # interrupted right after it took the lock asks again: so the lock is taken only where nothing has come yet, and kept.
        return self._is_given or (self._given.acquire(timeout=timeout_s) and self._is_given)

    def wait_long(self, timeout_s: float, giver: threading.Thread, calls: ThreadCalls) -> None:
        """Waits until it is given, at most this long. Raises `ClosedError` if the thread that gives it has ended before."""
        deadline_s = monotonic() + timeout_s
        while not self.wait(_LOOK_S):
            if not giver.is_alive() and not self.wait(0):
                raise closed()
            if monotonic() >= deadline_s:
                return
            calls.wake()  # a caller that was interrupted may not have come to it

    def take(self) -> Value:
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # its traceback has this frame: no cycle, please
        return self._value


class _Confirming(Generic[Value]):
    """Entries on their way: their place, and later whether they are confirmed. Used in the trio thread."""

    __slots__ = ("_answer", "_has_place", "_is_confirmed", "_place")

    def __init__(self, answer: _Answer[tuple[Value, bool]]) -> None:
        self._answer = answer
        self._has_place = False
        self._is_confirmed: bool | None = None

    def has_place(self, place: Value) -> None:
        self._place, self._has_place = place, True
        self._answer_if_known()

    def ended(self, is_confirmed: bool) -> None:
        self._is_confirmed = is_confirmed
        self._answer_if_known()

    def _answer_if_known(self) -> None:
        if self._has_place and self._is_confirmed is not None:
            self._answer.succeed((self._place, self._is_confirmed))


class _Block(Generic[Value]):
    """An async context that a task keeps open while a `with` block in another thread is."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Value]]) -> None:
        self.entered: _Answer[Value] = _Answer()
        self.left: _Answer[None] = _Answer()
        self._make = make
        self.ended = trio.Event()
        self._leaving = trio.Event()
        self._on_error = False

    async def keep_open(self) -> None:
        is_entered = False
        try:
            async with self._make() as value:
                is_entered = True
                self.entered.succeed(value)
                await self._leaving.wait()
                if self._on_error:
                    raise _LeftOnError
        except BaseException as error:
            if not is_entered:
                self.entered.fail(closed() if isinstance(error, trio.Cancelled) else _outside(error))
            raise
        finally:
            self.ended.set()

    def leave(self, on_error: bool) -> None:
        self._on_error = on_error
        self._leaving.set()
        if not self.left.is_started:
            self.left.cancel()

    async def leave_on_error(self) -> None:
        self.leave(on_error=True)


class Portal:
    """A trio run in a thread of its own. Its methods may be called from any thread but those of replog's own."""

    def __init__(self) -> None:
        self._process_id = os.getpid()
        self._thread = threading.Thread()
        self._calls = ThreadCalls()
        self._nursery: trio.Nursery | None = None  # None before and after the run
        self._is_ready = threading.Event()
        self._kept: list[_Block[Any]] = []  # that are open as long as the process lives, in the order of opening

    @property
    def is_running(self) -> bool:
        """Whether it takes calls: begun, neither left nor failed, and this is not a fork of its process."""
        return self._nursery is not None and self._thread.is_alive() and os.getpid() == self._process_id

    @contextmanager
    def running(
        self,
        make: Callable[[], AbstractAsyncContextManager[Value]],
        owner: threading.Thread | None = None,
        *,
        is_of_process: bool = False,
    ) -> Iterator[Value]:
        """Starts the thread, opens the async context in it, and gives its value. Leaving closes both; so does the end of
        `owner`, by default the thread that calls this, as on an error. One that `is_of_process` is left in peace when the
        process ends."""
        _check_thread()
        watched = threading.main_thread() if is_of_process else owner or threading.current_thread()
        leave = self._leave_in_peace if is_of_process else _Block.leave_on_error
        block = _Block(lambda: self._serving(make, lambda: self._leave_after(watched, lambda: leave(block))))
        self._thread = threading.Thread(target=in_own_thread, args=(self._run_trio, block), name="replog blocking")
        try:
            with self._entered(block, self._thread.start):
                yield block.entered.take()
        finally:
            # A fork has no such thread to join, and no thread can wait for its own end.
            is_ours = os is not None and os.getpid() == self._process_id and self._thread.ident is not None
            if is_ours and not is_own_thread():
                self._thread.join()

    @contextmanager
    def opened(
        self, make: Callable[[], AbstractAsyncContextManager[Value]], *, is_of_process: bool = False
    ) -> Iterator[Value]:
        """Opens an async context in the trio thread, and gives its value. Leaving closes it; so does, in peace, the end of the
        process, if it `is_of_process`."""
        _check_thread()
        block = _Block(make)
        if is_of_process:
            self._kept.append(block)
        with self._entered(block, lambda: self._soon(self._start_block, block)):
            yield block.entered.take()

    def call(
        self, function: Callable[Arguments, Awaitable[Value]], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Value:
        """Calls an async function in the trio thread. If interrupted, it is cancelled, with what that means for it."""
        _check_thread()
        answer: _Answer[Value] = _Answer()
        self._wait(answer, answer, lambda: self._soon(self._start, answer, lambda: function(*args, **kwargs)))
        return answer.take()

    def call_sync(
        self, function: Callable[Arguments, Value], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Value:
        """Calls a synchronous function in the trio thread, without a task for it."""
        _check_thread()
        answer: _Answer[Value] = _Answer()
        self._wait(answer, answer, lambda: self._soon(self._run_sync, answer, lambda: function(*args, **kwargs)))
        return answer.take()

    def call_confirmed(
        self,
        begin: Callable[[Callable[[bool], None]], Value],
        check: Callable[[Value], None],
        otherwise: Callable[[], Awaitable[Value]],
    ) -> Value:
        """Begins to write entries, without a task for them, and waits until they are confirmed: `begin` gets what to call then,
        and returns their place. Where it would wait, `otherwise` is called in a task instead; where they are not confirmed,
        `check` raises the reason. If interrupted, the entries have an unknown outcome."""
        _check_thread()
        answer: _Answer[tuple[Value, bool]] = _Answer()

        async def wait() -> tuple[Value, bool]:
            return await otherwise(), True

        def begin_at_once() -> None:
            confirming = _Confirming(answer)
            try:
                if self._nursery is None:
                    raise closed()
                confirming.has_place(begin(confirming.ended))
            except trio.WouldBlock:
                self._start(answer, wait)
            except BaseException as error:
                answer.fail(_outside(error))  # the caller gets it

        self._wait(answer, answer, lambda: self._soon(begin_at_once))
        place, is_confirmed = answer.take()
        if not is_confirmed:
            self.call_sync(check, place)
        return place

    # `os.fork` copies this object into a process that has no trio thread: a call there would wait without end.
    def check_process(self) -> None:
        """Raises `ForkedError` in a fork of the process that this belongs to."""
        if os.getpid() != self._process_id:
            raise forked(self._process_id)

    # -- in the caller's thread -------------------------------------------------------------------------------------

    @contextmanager
    def _entered(self, block: _Block[Value], begin: Callable[[], object]) -> Iterator[None]:
        """Begins a block, and ends it when the caller's block does."""
        try:
            self._wait(block.entered, block.left, begin)
            yield
        # `os` is None at the interpreter's very end, which empties modules before it collects what they made.
        except BaseException as error:
            if os is not None and os.getpid() == self._process_id:
                self._leave(block, error)
            raise
        if os is not None and os.getpid() == self._process_id:
            self._leave(block, None)

    def _leave(self, block: _Block[Value], error: BaseException | None) -> None:
        if not self._is_ready.wait(_FAREWELL_S):
            # There is no run. The caller that tried to start it has got the error.
            return
        try:
            self._soon(block.leave, error is not None)
            if is_own_thread():
                return
        except ClosedError:
            # The run has ended, and the block before it: `left` says how.
            if not block.left.is_started:
                return
        try:
            self._wait(block.left, block.left, lambda: None)
            block.left.take()
        except _LeftOnError as left:
            # The thread that had entered it ended, and this is another one.
            if error is None:
                raise closed() from None
            _add_notes(left, error)
        except _CancelledByCaller:
            pass
        except ClosedError as ended:
            if error is None:
                raise
            error.add_note(f"and its block had ended before: {ended}")
        except BaseException as problem:
            if problem is not error:  # else it was raised already, by entering
                raise

    def _soon(self, function: Callable[..., object], *args: object) -> None:
        self.check_process()
        if not self._calls.put(partial(function, *args)):
            raise closed()

    def _wait(self, answer: _Answer[Any], task: _Answer[Any], begin: Callable[[], object]) -> None:
        """Begins something, and waits for its answer. If interrupted, cancels the task that would give it, and waits for
        the end of that."""
        try:
            begin()
            answer.wait_long(inf, self._thread, self._calls)
        except (ClosedError, ForkedError):
            raise
        except BaseException:
            if self._is_ready.wait(_FAREWELL_S):
                with suppress(ClosedError):
                    self._soon(task.cancel)
                    task.wait_long(_FAREWELL_S, self._thread, self._calls)
            raise

    # -- in the trio thread -----------------------------------------------------------------------------------------

    def _run_trio(self, block: _Block[Any]) -> None:
        # Ends last: a handler's calls are answered before.
        with handing_over(), self._calls.served():
            try:
                trio.run(self._main, block)
            finally:
                self._nursery = None

    async def _main(self, block: _Block[Any]) -> None:
        trio.lowlevel.spawn_system_task(self._calls.make)
        self._is_ready.set()
        block.left.is_started = True
        await self._run(block.left, block.keep_open)

    @asynccontextmanager
    async def _serving(
        self, make: Callable[[], AbstractAsyncContextManager[Value]], watch: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[Value]:
        async with make() as value:
            try:
                async with open_service_nursery() as self._nursery:
                    self._nursery.start_soon(watch)
                    yield value
            finally:
                self._nursery = None

    async def _leave_after(self, owner: threading.Thread, leave: Callable[[], Awaitable[None]]) -> None:
        """Leaves the block if the thread that owns it has ended without leaving it."""
        while owner.is_alive():  # noqa: ASYNC110 - a thread's end is not an event
            await trio.sleep(_LOOK_S)
        await leave()

    async def _leave_in_peace(self, block: _Block[Any]) -> None:
        """The object opened last is left first: writers before their client."""
        while self._kept:
            kept = self._kept.pop()
            kept.leave(on_error=False)
            if kept.left.is_started:
                await kept.ended.wait()
        block.leave(on_error=False)

    def _start(self, answer: _Answer[Value], function: Callable[[], Awaitable[Value]]) -> None:
        answer.is_started = True
        if self._nursery is None:
            answer.fail(closed())
        else:
            self._nursery.start_soon(self._run, answer, function)

    def _start_block(self, block: _Block[Any]) -> None:
        if self._nursery is None:
            block.entered.fail(closed())
        self._start(block.left, block.keep_open)

    async def _run(self, answer: _Answer[Value], function: Callable[[], Awaitable[Value]]) -> None:
        try:
            with answer.scope:
                value = await function()
        except (trio.Cancelled, BaseExceptionGroup) as error:
            cancelled, failures = _parted(error)
            answer.fail(failures or closed())  # the caller gets it
            if cancelled is not None:
                raise cancelled from None
            return
        except BaseException as error:
            answer.fail(_outside(error))  # the caller gets it
            return
        if answer.scope.cancelled_caught:
            answer.fail(_CancelledByCaller())
        else:
            answer.succeed(value)

    def _run_sync(self, answer: _Answer[Value], function: Callable[[], Value]) -> None:
        answer.is_started = True
        if self._nursery is None:
            answer.fail(closed())
            return
        try:
            answer.succeed(function())
        except BaseException as error:
            answer.fail(_outside(error))  # the caller gets it


def _check_thread() -> None:
    if is_own_thread():
        raise OwnThreadError(
            f"replog.blocking was called in replog's own thread {threading.current_thread().name!r}, which would wait for "
            "itself; nothing was done. A finalizer (__del__) or an observer runs there: let it put its work "
            "into a queue.SimpleQueue for a thread of the program's"
        )


def _add_notes(source: BaseException, error: BaseException) -> None:
    for note in getattr(source, "__notes__", ()):
        error.add_note(note)


def _outside(error: BaseException) -> BaseException:
    return without_trio(error) if isinstance(error, Exception) else error


def _parted(
    error: trio.Cancelled | BaseExceptionGroup[BaseException],
) -> tuple[BaseException | None, BaseException | None]:
    """The part that is trio's own cancellation, which must go on through the task, and the part that is a failure."""
    if isinstance(error, trio.Cancelled):
        return error, None
    return error.split(trio.Cancelled)
