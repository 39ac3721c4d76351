"""A call that goes on when its caller stops waiting, so that callers with short deadlines get on, too.

A call of several steps begins anew after a cancellation. A caller whose deadline is shorter than the steps take together would
ask for ever: a follower that looks every 10 ms never came past a roll, which it finds in the metastore after 10 ms without
news. So once a call was cut, the next one is made in a background task, and those after it wait for that one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import attrs
import outcome
import trio

Result = TypeVar("Result")


@attrs.define
class _Background(Generic[Result]):
    """A call that goes on by itself, and what came of it: nothing, if it was ended."""

    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    ended: trio.Event = attrs.field(factory=trio.Event)
    result: outcome.Outcome[Result] | None = None


class ContinuedCall(Generic[Result]):
    """Calls `call`, for one caller at a time. What it returns or raises is handed out once. Cancelling a wait loses nothing:
    the call goes on in `nursery`, until `end`, and later waits are for that one."""

    __slots__ = ("_background", "_call", "_is_under_way", "_nursery", "_was_cut")

    def __init__(self, nursery: trio.Nursery, call: Callable[[], Awaitable[Result]]) -> None:
        self._nursery = nursery
        self._call = call
        self._is_under_way = False  # in the task of a caller
        self._was_cut = False  # the last call, in its caller's task
        self._background: _Background[Result] | None = None

    async def __call__(self) -> Result:
        """Waits for the call. Raises as it does; `trio.BusyResourceError` if another task waits."""
        if self._is_under_way:
            raise trio.BusyResourceError("another task waits for this: a reader belongs to one task at a time")
        self._is_under_way = True
        try:
            return await (self._in_background() if self._was_cut else self._call())
        except BaseException as error:
            # A wait in a nursery that is cancelled ends with a group.
            self._was_cut = self._was_cut or not isinstance(error, Exception)
            raise
        finally:
            self._is_under_way = False

    async def _in_background(self) -> Result:
        background = self._background
        if background is None:
            background = _Background()
            try:
                self._nursery.start_soon(self._go_on, background)
            except RuntimeError as error:  # "Nursery is closed to new arrivals"
                raise trio.ClosedResourceError("its client was left") from error
            self._background = background
        await background.ended.wait()
        return self._handed_out(background)

    def take_nowait(self) -> Result:
        """What came of a call that went on. Raises `trio.WouldBlock` if it has not ended."""
        background = self._background
        if background is None or self._is_under_way or not background.ended.is_set():
            raise trio.WouldBlock
        return self._handed_out(background)

    @property
    def goes_on(self) -> bool:
        """True if a call went on without its caller, and its result was not handed out."""
        return self._background is not None

    def end(self) -> None:
        """Ends a call that goes on."""
        if self._background is not None:
            self._background.scope.cancel()

    def _handed_out(self, background: _Background[Result]) -> Result:
        self._background, self._was_cut = None, False
        if background.result is None:
            raise trio.ClosedResourceError("this was closed, or its client was left")
        return background.result.unwrap()

    async def _go_on(self, background: _Background[Result]) -> None:
        try:
            with background.scope:
                try:
                    background.result = outcome.Value(await self._call())
                except Exception as error:
                    background.result = outcome.Error(error)
        finally:
            background.ended.set()
