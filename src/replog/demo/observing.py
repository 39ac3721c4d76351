"""An observer plugin: what replog tells of takeovers."""

from __future__ import annotations

from collections.abc import Callable

from replog.demo.errors import DemoFailedError
from replog.hookspecs import Event, LogTakenOver, hookimpl
from replog.registry import Registry


class Observer:
    """Keeps the last takeover that a client did, and calls `notify` at the moment it was done."""

    def __init__(self, notify: Callable[[], None] = lambda: None) -> None:
        self._notify = notify
        self._taken_over: LogTakenOver | None = None

    def registry(self) -> Registry:
        """A registry whose clients tell this observer."""
        return Registry({"demo": self})

    @hookimpl
    def replog_observe(self, event: Event) -> None:
        """Called by replog."""
        if isinstance(event, LogTakenOver):
            self._taken_over = event
            self._notify()

    def taken_over(self) -> LogTakenOver:
        """The last takeover. Raises `DemoFailedError` if none was told of."""
        if self._taken_over is None:
            raise DemoFailedError("the log was taken over, and replog told no observer of it")
        return self._taken_over
