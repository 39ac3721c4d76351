"""Contexts of the trio run, for `async with` in an asyncio task, or for as long as the event loop lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

import trio

from replog.aio.host import Call, Host
from replog.runtime.faces import Face, closed, entered_before

Give = Callable[[Host, Any], Any]  # the object that an asyncio task gets for the one of trio's context


class _LeftOnError(Exception):
    """The block of the asyncio task was left on an error, which is raised there."""


class Opening(AbstractAsyncContextManager[Any]):
    """A context of trio's, to be entered once: by `async with`, or by `open`. A trio task keeps it open meanwhile.

    Left on an error, or by cancellation, the trio context is left on an error, too. If entering or leaving is cancelled, trio's
    context is, and has been left before the cancellation goes on."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Any]], give: Give, owner: Host | None) -> None:
        self._make = make
        self._give = give
        self._owner = owner  # the run of the object whose verb it is; None for a function of the package
        self._joined: Host | None = None
        self._call: Call | None = None
        self._leaving = trio.Event()
        self._is_left_on_error = False
        self._given: Any = None

    async def open(self) -> Any:
        """Enters it without a block. It is left by `aclose` of the returned object, or when the event loop ends; the
        task that opened it may end before."""
        value = await self.__aenter__()
        assert self._joined is not None
        await self._joined.keep(self)
        return value

    async def __aenter__(self) -> Any:
        if self._owner is not None:
            self._owner.check_loop()
        if self._joined is not None:
            raise entered_before()
        host = self._joined = await Host.join()
        try:
            value: asyncio.Future[Any] = host.loop.create_future()
            call = self._call = Call(host.loop)
            host.begin(call, lambda: self._keep_open(value))
            await asyncio.wait((value, call.answer), return_when=asyncio.FIRST_COMPLETED)
            if not value.done():
                raise call.answer.exception() or closed()
            self._given = self._give(host, value.result())
            host.entered(self)
        except asyncio.CancelledError:
            if self._call is not None:
                await self._call.cancel()
            self._joined = None
            await host.part()
            raise
        except BaseException:
            self._joined = None
            await host.part()
            raise
        if isinstance(self._given, Opened):
            self._given._opening = self
        return self._given

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.leave(error)

    async def leave(self, error: BaseException | None = None) -> None:
        """Leaves it, or waits until it is left. In a fork of its process, where its event loop is not, it does nothing."""
        assert self._call is not None
        assert self._joined is not None
        if self._joined.is_forked or self._joined.loop.is_closed():
            return
        self._joined.check_loop()
        if self._leaving.is_set():
            await self._call.ended()
            return
        self._is_left_on_error = error is not None
        self._leaving.set()
        try:
            await self._call.wait()
        except _LeftOnError as left:
            assert error is not None
            for note in getattr(left, "__notes__", ()):
                error.add_note(note)
        finally:
            self._joined.forget(self)
            await self._joined.part()

    async def _keep_open(self, entered: asyncio.Future[Any]) -> None:
        async with self._make() as value:
            entered.set_result(value)
            await self._leaving.wait()
            if self._is_left_on_error:
                raise _LeftOnError

    def __repr__(self) -> str:
        return f"<the context of {self._given!r}>"


class Opened(Face):
    """A face that a context gave: it can leave that."""

    _opening: Opening | None = None

    async def aclose(self) -> None:
        """Leaves the context that gave this, as the end of its block does. Idempotent."""
        if self._opening is not None:
            await self._opening.leave()
