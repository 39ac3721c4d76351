"""Which event loop runs here."""

from __future__ import annotations

import trio

from replog.errors import WrongEventLoopError


def check_event_loop(verb: str) -> None:
    """Raises `WrongEventLoopError` unless this is called by a task of trio's."""
    if not trio.lowlevel.in_trio_task():
        raise WrongEventLoopError(
            f"replog.{verb}() needs trio; under asyncio use replog.aio.{verb}(). Nothing was opened"
        )
