"""A nursery for background tasks behind a public context manager."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


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
                    raise  # a nursery of the body's: whether this scope is meant, this nursery knows
                raised = group if cancelled is None else rest
            except BaseException as error:
                raised = error
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
            del raised  # its traceback has this frame: no cycle, please
