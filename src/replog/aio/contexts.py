"""Contexts of the trio run, for `async with` in an asyncio task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

import trio

from replog.aio.host import Call, Host
from replog.runtime.faces import closed

Give = Callable[[Host, Any], Any]  # what an asyncio task gets for what trio's context gives


class _LeftOnError(Exception):
    """The block of the asyncio task was left on an error, which is raised there."""


class Opening(AbstractAsyncContextManager[Any]):
    """A context of trio's, that a trio task keeps open while an asyncio task is in its block.

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

    async def __aenter__(self) -> Any:
        if self._owner is not None:
            self._owner.check_loop()
        host = self._joined = await Host.join()
        try:
            value: asyncio.Future[Any] = host.loop.create_future()
            call = self._call = Call(host.loop)
            host.begin(call, lambda: self._keep_open(value))
            await asyncio.wait((value, call.answer), return_when=asyncio.FIRST_COMPLETED)
            if not value.done():
                raise call.answer.exception() or closed()
            return self._give(host, value.result())
        except asyncio.CancelledError:
            if self._call is not None:
                await self._call.cancel()
            await host.part()
            raise
        except BaseException:
            await host.part()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._call is not None
        assert self._joined is not None
        self._is_left_on_error = error is not None
        self._leaving.set()
        try:
            await self._call.wait()
        except _LeftOnError as left:
            assert error is not None
            for note in getattr(left, "__notes__", ()):
                error.add_note(note)
        finally:
            await self._joined.part()

    async def _keep_open(self, entered: asyncio.Future[Any]) -> None:
        async with self._make() as value:
            entered.set_result(value)
            await self._leaving.wait()
            if self._is_left_on_error:
                raise _LeftOnError
