"""A task behind a public context manager."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def in_background(task: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Runs the task while the context is open. The body's own exception leaves as it is, never in a group; what the task
    raises ends the body, and is raised alone."""
    raised: list[BaseException] = []
    failed: list[Exception] = []

    async def run() -> None:
        try:
            await task()
        except Exception as error:
            failed.append(error)
            nursery.cancel_scope.cancel()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            try:
                yield
            except trio.Cancelled:
                raise
            except BaseException as error:
                raised.append(error)
            nursery.cancel_scope.cancel()
    finally:
        if failed:
            for each in raised:
                failed[0].add_note(f"the body was ended by it, or failed too: {each!r}")
            raise failed.pop()
        if raised:
            raise raised.pop()
