"""The trio run of an asyncio event loop: a guest in the same thread, for as long as it is used.

Rules:
- One run for each event loop. It begins with the first context that is opened, and ends with the last one that is left.
- A call without waiting is direct: both loops share one thread, so nothing has to be handed over. A waiting call is a
  task of the trio run; its result or error is the outcome of an asyncio future, the very same object.
- A caller that is cancelled cancels its trio task, and goes on when that has ended: so its outcome is the documented
  one.
- Every caller is answered: when the run ends, calls under way raise `ClosedError`.
- Objects opened without a block are left when the event loop ends, the last one first. asyncio has one hook for that,
  the end of asynchronous generators (`shutdown_asyncgens`), which `asyncio.run`, runners and servers call.
- A loop that is closed while something is open, or never runs again, ends the run: everything in it is cancelled, and a
  `ResourceWarning` names the open objects. Confirmed entries are durable, and the thread can run trio again.
- A forked child has these objects but not the run: each use raises `ForkedError`.
- No exception of trio's leaves this package.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import warnings
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Protocol

import outcome
import trio

from replog.aio.call_soon import HostCallSoon
from replog.aio.interrupts import begin_deferring, end_deferring
from replog.errors import ForkedError, WrongEventLoopError
from replog.runtime.event_loop import use_host_loop
from replog.runtime.faces import closed, forked, without_trio

_hosts: dict[asyncio.AbstractEventLoop, Host] = {}  # whose run has not ended
_watched: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()  # that have a `_Closing`
_parent: int | None = None  # the process that had runs when this one was forked from it

_YEAR_S = 365 * 24 * 3600.0


class Kept(Protocol):
    """A context that was opened without a block."""

    async def leave(self) -> None:
        """Leaves it, or waits until it is left."""


class Call:
    """A task of the trio run, and the futures that tell of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.answer: asyncio.Future[Any] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()  # this one is never cancelled
        self._scope = trio.CancelScope()

    async def run(self, function: Callable[[], Awaitable[Any]]) -> None:
        """The trio task."""
        answer = self.answer
        try:
            with self._scope:
                value = await function()
                if not answer.done():
                    answer.set_result(value)
        except Exception as error:
            if not answer.done():
                answer.set_exception(without_trio(error))
        finally:
            if not answer.get_loop().is_closed():  # else no task can wait for it
                if not answer.done():  # the run ends
                    answer.set_exception(closed())
                # Looked at: a waiting caller has it from a shield, and a cancelled one asks for no outcome.
                answer.exception()
                self._ended.set_result(None)

    async def wait(self) -> Any:
        """Returns or raises what the task does. If cancelled, the task is, and has ended before this does."""
        try:
            return await asyncio.shield(self.answer)
        except asyncio.CancelledError:
            await self.cancel()
            raise

    async def ended(self) -> None:
        """Waits for the task's end, however it ends."""
        await asyncio.shield(self._ended)

    async def cancel(self) -> None:
        """Cancels the task, and waits for its end, however often the caller is cancelled meanwhile: it raises that afterwards."""
        self._scope.cancel()
        while not self._ended.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(self._ended)


class Host:
    """The trio run of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.is_forked = False  # this process is a fork of the one that the run is in
        self.process_id = os.getpid()
        self._users = 0
        self._kept: list[Kept] = []  # in the order of opening
        self._at_the_end: AsyncGenerator[None, None] | None = None
        self._is_forgotten = False
        self._open: dict[Kept, None] = {}  # in the order of entering
        self._is_ending_alone = False  # the event loop is closed
        self._thread = threading.current_thread()
        self.call_soon = HostCallSoon(loop)
        self._leaving = trio.Event()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._failure: BaseException | None = None

    @classmethod
    async def join(cls) -> Host:
        """The run of this event loop, which begins unless there is one. The caller joins its parts. Raises
        `WrongEventLoopError`."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError as error:
            raise WrongEventLoopError("replog.aio needs asyncio; under trio use replog.embed and the like") from error
        for other in list(_hosts.values()):
            if other.loop.is_closed():
                other.end_without_loop()
        # A run that is ending takes no new caller, and a loop has only one: the next begins when it has ended.
        while (host := _hosts.get(loop)) is not None and host._leaving.is_set():
            await asyncio.shield(host._ended)
        if host is None:
            host = _hosts[loop] = cls(loop)
            host._begin()
        host._users += 1
        try:
            await asyncio.shield(host._ready)
        except BaseException:
            # It was counted: without a matching leave, the run would never end.
            await host.part()
            raise
        return host

    async def part(self) -> None:
        """One user less; without any the run ends. Raises what it failed with."""
        self._users -= 1
        if not self._users and not self.loop.is_closed():
            self._leaving.set()
            await asyncio.shield(self._ended)
            if self._failure is not None:
                raise self._failure

    async def keep(self, context: Kept) -> None:
        """Leaves this when the event loop ends, unless it is left before."""
        self._kept.append(context)
        if self._at_the_end is None:
            self._at_the_end = self._leave_at_the_end()
            await anext(self._at_the_end)  # from here on the event loop knows it

    def entered(self, context: Kept) -> None:
        """It is open, and named if it still is when the event loop ends."""
        self._open[context] = None

    def forget(self, context: Kept) -> None:
        """It is left."""
        self._open.pop(context, None)
        if context in self._kept:
            self._kept.remove(context)

    async def _leave_at_the_end(self) -> AsyncGenerator[None, None]:
        errors: list[Exception] = []
        try:
            yield
        finally:
            # The object opened last is left first: writers before their client.
            while self._kept:
                try:
                    await self._kept.pop().leave()
                except Exception as error:
                    errors.append(error)
            if errors:
                raise errors[0] if len(errors) == 1 else ExceptionGroup("several contexts were left on errors", errors)

    @property
    def has_ended(self) -> bool:
        """Whether the trio run has ended, or is about to."""
        return self.call_soon.nursery is None

    def forked(self) -> ForkedError:
        """For callers in a fork of its process."""
        return forked(self.process_id)

    def check_loop(self) -> None:
        """Raises `WrongEventLoopError` in another event loop than its own; in a fork of its process `ForkedError`."""
        if self.is_forked:
            raise self.forked()
        try:
            loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is not self.loop:
            raise WrongEventLoopError("this belongs to another event loop: open a client of its own in each")

    def begin(self, call: Call, function: Callable[[], Awaitable[Any]]) -> None:
        """Starts the call's task. Raises `ClosedError`."""
        self.check_loop()
        if self.call_soon.nursery is None:
            raise closed()
        self.call_soon.nursery.start_soon(call.run, function)

    async def call(self, function: Callable[[], Awaitable[Any]]) -> Any:
        """Calls an async function in the trio run. If cancelled, it is cancelled, with what that means for it."""
        call = Call(self.loop)
        self.begin(call, function)
        return await call.wait()

    def _begin(self) -> None:
        loop = self.loop
        begin_deferring()
        try:
            trio.lowlevel.start_guest_run(
                self._main,
                run_sync_soon_threadsafe=self.call_soon.turn_from_any_thread,
                run_sync_soon_not_threadsafe=self.call_soon.turn,
                done_callback=self._did_end,
                host_uses_signal_set_wakeup_fd=True,
            )
        except RuntimeError as error:
            end_deferring()
            del _hosts[loop]
            if _parent is not None:
                raise forked(_parent) from error
            raise WrongEventLoopError(f"replog.aio needs an event loop whose thread runs no trio: {error}") from error
        if loop not in _watched:
            _watched.add(loop)
            loop.call_later(_YEAR_S, _Closing(loop).stay)

    def end_without_loop(self) -> None:
        """Ends the run of an event loop that is closed: cancels everything, and makes the turns that this needs.

        Only the run's own thread can do that."""
        self.warn_if_forgotten()
        if not self.is_forked and threading.current_thread() is self._thread and not self._is_ending_alone:
            self._is_ending_alone = True
            self._leaving.set()
            self.call_soon.end_without_loop(self._ended.done)

    def warn_if_forgotten(self) -> None:
        """Names once the open objects of an event loop that will never run again."""
        if not self._is_forgotten and not self.is_forked:
            self._is_forgotten = True
            what = ", ".join(map(repr, self._open)) or "a context"
            warnings.warn(
                f"replog.aio: an event loop ended, and left open: {what}. What was confirmed is durable, and the rest was "
                "cancelled. Call aclose(), leave the block, or end the loop with asyncio.run() or loop.shutdown_asyncgens()",
                ResourceWarning,
                stacklevel=2,
            )

    async def _main(self) -> None:
        try:
            use_host_loop(self.call_soon)
            async with trio.open_nursery() as self.call_soon.nursery:
                self._ready.set_result(None)
                await self._leaving.wait()
                self.call_soon.nursery.cancel_scope.cancel()
        finally:
            self.call_soon.nursery = None

    def _did_end(self, result: outcome.Outcome[None]) -> None:
        if isinstance(result, outcome.Error):
            self._failure = result.error
        end_deferring()
        self._leaving.set()
        _hosts.pop(self.loop, None)
        try:
            self._ended.set_result(None)
        except RuntimeError:
            # Its waiters are tasks of a closed event loop.
            if not self.loop.is_closed():
                raise


class _Closing:
    """An object that only its event loop keeps, in a timer: when the loop is closed, it drops its timers."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def stay(self) -> None:
        """Once a year."""
        self._loop.call_later(_YEAR_S, self.stay)

    def __del__(self) -> None:
        host = _hosts.get(self._loop)
        if host is not None and self._loop.is_closed():
            host.end_without_loop()


@atexit.register
def _end_the_forgotten() -> None:
    for host in list(_hosts.values()):
        import ctypes  # seldom needed, and not everywhere there

        if not host.loop.is_running():
            host.loop.close()
            host.end_without_loop()
        host.warn_if_forgotten()
        if not host.has_ended:
            # Its tasks stay as they are, since they can't run any more: torn down with the interpreter, they would complain.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(host))


def _forget_the_parents_runs() -> None:
    global _parent
    for host in _hosts.values():
        host.is_forked = True
        # Of a thread that was running an event loop then, trio believes in the child, too, that it runs there.
        _parent = host.process_id
    _hosts.clear()


os.register_at_fork(after_in_child=_forget_the_parents_runs)
