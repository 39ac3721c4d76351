"""Tests as coroutines of asyncio: pytest-trio would run them under trio."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

DEADLINE_S = 60


def under_asyncio(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test under `asyncio.run` in debug mode, with a deadline; what an event loop complains of fails it."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        complaints: list[dict[str, Any]] = []

        async def limited() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
            async with asyncio.timeout(DEADLINE_S):
                await test(*args, **kwargs)

        asyncio.run(limited())
        assert complaints == []

    return run
