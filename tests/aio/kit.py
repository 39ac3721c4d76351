"""Tests as coroutines of asyncio: pytest-trio would run them under trio."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

DEADLINE_S = 60


def run_under(
    new_event_loop: Callable[[], asyncio.AbstractEventLoop] | None, test: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Runs a test in an event loop of its own in debug mode, with a deadline; what the loop complains of fails it."""
    complaints: list[dict[str, Any]] = []

    async def limited() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with asyncio.timeout(DEADLINE_S):
            await test()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(limited())
    assert complaints == []


def under_asyncio(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test as `asyncio.run` would."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_under(None, lambda: test(*args, **kwargs))

    return run
