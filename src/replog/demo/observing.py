"""An observer plugin: what replog tells a leader of takeovers and of changes of its ensemble."""

from __future__ import annotations

import time

from replog.demo.errors import DemoFailedError
from replog.demo.reports import BookieReplaced
from replog.hookspecs import EnsembleChanged, Event, LogTakenOver, hookimpl
from replog.registry import Registry


class Observer:
    """Keeps the last takeover that a client did, and the bookies that it replaced."""

    def __init__(self) -> None:
        self._taken_over: LogTakenOver | None = None
        self._replaced: list[BookieReplaced] = []

    def registry(self) -> Registry:
        """A registry whose clients tell this observer."""
        return Registry({"demo": self})

    @hookimpl
    def replog_observe(self, event: Event) -> None:
        """Called by replog."""
        if isinstance(event, LogTakenOver):
            self._taken_over = event
        elif isinstance(event, EnsembleChanged):
            now = time.monotonic()
            for old, new in event.replaced.values():
                self._replaced.append(BookieReplaced(event.first_entry_id, old, new, now))

    def taken_over(self) -> LogTakenOver:
        """The last takeover. Raises `DemoFailedError` if none was told of."""
        if self._taken_over is None:
            raise DemoFailedError("the log was taken over, and replog told no observer of it")
        return self._taken_over

    def take_replaced(self) -> list[BookieReplaced]:
        """What was replaced since this was asked last."""
        taken, self._replaced = self._replaced, []
        return taken
