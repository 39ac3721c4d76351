"""Contexts of the trio run, for `with` in any thread, or for as long as the process lives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from replog.runtime.faces import Face, entered_before

_of_process: set[Opening] = set()  # kept here: the program may keep no reference


class Opening(AbstractContextManager[Any]):
    """A context to be entered once: by `with`, or by `open`."""

    def __init__(self, enter: Callable[[bool], AbstractContextManager[Any]]) -> None:
        self._enter = enter  # with whether the process owns it, else the thread that enters it
        self._entered: AbstractContextManager[Any] | None = None
        # One that a signal handler may take again in the thread that holds it.
        self._leaving = threading.RLock()
        self._is_used = False

    def __enter__(self) -> Any:
        return self._open(is_of_process=False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Two threads may leave it at once: `close` in one, the end of the process in another.
        with self._leaving:
            entered, self._entered = self._entered, None
            _of_process.discard(self)
        if entered is not None:
            entered.__exit__(kind, error, traceback)

    def open(self) -> Any:
        """Enters it without a block. It is left by `close` of the returned object, or when the process ends; the thread
        that opened it may end before."""
        return self._open(is_of_process=True)

    def _open(self, *, is_of_process: bool) -> Any:
        with self._leaving:
            if self._is_used:
                raise entered_before()
            self._is_used = True
        try:
            entered = self._enter(is_of_process)
            value = entered.__enter__()
        except BaseException:
            self._is_used = False
            raise
        self._entered = entered
        if is_of_process:
            _of_process.add(self)
        if isinstance(value, Opened):
            value._opening = self
        return value


class Opened(Face):
    """A face that a context gave: it can leave that."""

    _opening: Opening | None = None

    def close(self) -> None:
        """Leaves the context that gave this, as the end of its block does. Idempotent."""
        if self._opening is not None:
            self._opening.__exit__(None, None, None)
