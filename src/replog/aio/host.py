"""The trio run of an asyncio event loop: a guest in the same thread, for as long as somebody uses it.

Rules:
- One run for each event loop. It begins with the first context that is opened, and ends with the last one that is left.
- What needs no waiting is called directly: both loops share one thread, so nothing has to be handed over. What waits is a task
  of the trio run; what it returns or raises is the outcome of an asyncio future, the very same object.
- A caller that is cancelled cancels its trio task, and goes on when that has ended: so its outcome is the documented one.
- Every caller is answered: when the run ends, what was under way raises `ClosedError`.
- No exception of trio's leaves this package.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakKeyDictionary

import outcome
import trio

from replog.errors import WrongEventLoopError
from replog.runtime.faces import closed, without_trio

_hosts: WeakKeyDictionary[asyncio.AbstractEventLoop, Host] = WeakKeyDictionary()


class Call:
    """A task of the trio run, and the futures that tell of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.answer: asyncio.Future[Any] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()  # nobody cancels this one
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
            if not answer.done():  # the run ends
                answer.set_exception(closed())
            self._ended.set_result(None)

    async def wait(self) -> Any:
        """Returns or raises what the task does. If cancelled, the task is, and has ended before this does."""
        try:
            return await asyncio.shield(self.answer)
        except asyncio.CancelledError:
            await self.cancel()
            raise

    async def cancel(self) -> None:
        """Cancels the task, and waits for its end."""
        self._scope.cancel()
        await asyncio.shield(self._ended)
        # Looked at: whoever cancels asks for no outcome.
        self.answer.exception()


class Host:
    """The trio run of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._users = 0
        self._nursery: trio.Nursery | None = None
        self._leaving = trio.Event()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._failure: BaseException | None = None

    @classmethod
    async def join(cls) -> Host:
        """The run of this event loop, which begins unless there is one. Whoever joins parts. Raises `WrongEventLoopError`."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError as error:
            raise WrongEventLoopError("replog.aio needs asyncio; under trio use replog.embed and the like") from error
        while (host := _hosts.get(loop)) is not None and host._leaving.is_set():
            await asyncio.shield(host._ended)
        if host is None:
            host = _hosts[loop] = cls(loop)
            host._begin()
        host._users += 1
        try:
            await asyncio.shield(host._ready)
        except BaseException:
            await host.part()
            raise
        return host

    async def part(self) -> None:
        """One user less; without any the run ends. Raises what it failed with."""
        self._users -= 1
        if not self._users:
            self._leaving.set()
            await asyncio.shield(self._ended)
            if self._failure is not None:
                raise self._failure

    def check_loop(self) -> None:
        """Raises `WrongEventLoopError` in another event loop than its own."""
        if asyncio.get_running_loop() is not self.loop:
            raise WrongEventLoopError("this belongs to another event loop: open a client of its own in each")

    def begin(self, call: Call, function: Callable[[], Awaitable[Any]]) -> None:
        """Starts the call's task. Raises `ClosedError`."""
        self.check_loop()
        if self._nursery is None:
            raise closed()
        self._nursery.start_soon(call.run, function)

    def start(self, function: Callable[[], Awaitable[Any]]) -> None:
        """Starts a task that raises nothing. Raises `ClosedError`."""
        if self._nursery is None:
            raise closed()
        self._nursery.start_soon(function)

    async def call(self, function: Callable[[], Awaitable[Any]]) -> Any:
        """Calls an async function in the trio run. If cancelled, it is cancelled, with what that means for it."""
        call = Call(self.loop)
        self.begin(call, function)
        return await call.wait()

    def _begin(self) -> None:
        loop = self.loop
        try:
            trio.lowlevel.start_guest_run(
                self._main,
                run_sync_soon_threadsafe=loop.call_soon_threadsafe,
                run_sync_soon_not_threadsafe=loop.call_soon,
                done_callback=self._did_end,
                host_uses_signal_set_wakeup_fd=True,
            )
        except RuntimeError as error:
            del _hosts[loop]
            raise WrongEventLoopError(f"replog.aio needs an event loop whose thread runs no trio: {error}") from error

    async def _main(self) -> None:
        try:
            async with trio.open_nursery() as self._nursery:
                self._ready.set_result(None)
                await self._leaving.wait()
                self._nursery.cancel_scope.cancel()
        finally:
            self._nursery = None

    def _did_end(self, result: outcome.Outcome[None]) -> None:
        if isinstance(result, outcome.Error):
            self._failure = result.error
        self._leaving.set()
        _hosts.pop(self.loop, None)
        self._ended.set_result(None)
