"""A nursery for background tasks behind a public context manager; and doing many things a few at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from replog.errors import ReplogError

Item = TypeVar("Item")


@asynccontextmanager
async def open_service_nursery() -> AsyncIterator[trio.Nursery]:
    """A nursery that is cancelled when the body ends, and never wraps the body's own exception in a group.

    If a background task fails, the body is cancelled and that failure is raised: alone if it is the only one.
    """
    raised: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                yield nursery
            except trio.Cancelled:
                raise
            except BaseExceptionGroup as group:
                cancelled, rest = group.split(trio.Cancelled)
                if rest is None:
                    # A nursery of the body's: whether this scope is meant, this nursery knows.
                    raise
                raised = group if cancelled is None else rest
            except BaseException as error:
                raised = error
            # The body has ended: the tasks beside it are not needed any more.
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if raised is not None:
            raised.add_note(f"while it was being left, a background task failed too: {group!r}")
        elif len(group.exceptions) == 1 and not isinstance(group.exceptions[0], trio.Cancelled | BaseExceptionGroup):
            raise group.exceptions[0] from None
        else:
            raise
    if raised is not None:
        try:
            raise raised
        finally:
            # Its traceback has this frame: no cycle, please.
            del raised


async def for_each(function: Callable[[Item], Awaitable[None]], items: Iterable[Item], at_once: int) -> None:
    """Calls the function with each item, a few at a time, in order. The first call that fails ends it: the others that are
    under way are cancelled, and its exception is raised alone."""
    waiting, failures = iter(items), list[ReplogError]()
    # The body must not end before the work does: the end of the body cancels the nursery.
    working = at_once
    all_done = trio.Event()

    async def work() -> None:
        nonlocal working
        for item in waiting:
            try:
                await function(item)
            except ReplogError as error:
                failures.append(error)
                nursery.cancel_scope.cancel()
                return
        working -= 1
        if not working:
            all_done.set()

    async with open_service_nursery() as nursery:
        for _ in range(at_once):
            nursery.start_soon(work)
        await all_done.wait()
    if failures:
        raise failures[0]
