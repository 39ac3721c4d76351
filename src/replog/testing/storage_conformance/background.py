"""Calls that run in threads of their own while the suite goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from replog.testing.storage_conformance.candidate import expect

Answer = TypeVar("Answer")

DEADLINE_S = 60.0  # longer than any storage needs for one call, even on a slow disk


class Background(Generic[Answer]):
    """A call in a thread of its own, started at once. A call that hangs does not keep the process from ending."""

    def __init__(self, function: Callable[[], Answer], name: str) -> None:
        self._name = name
        self._future: Future[Answer] = Future()
        self._thread = threading.Thread(target=self._run, args=(function,), name=name, daemon=True)
        self._thread.start()

    def _run(self, function: Callable[[], Answer]) -> None:
        try:
            answer = function()
        except BaseException as error:  # raised again by `result`
            self._future.set_exception(error)
            return
        self._future.set_result(answer)

    @property
    def is_done(self) -> bool:
        """True once the call has returned or raised."""
        return self._future.done()

    def result(self, why: str) -> Answer:
        """Wait for the call; return its result or raise its error. `AssertionError` if it takes longer than `DEADLINE_S`."""
        self._thread.join(DEADLINE_S)
        expect(self._future.done(), why, f"{self._name} is not back after {DEADLINE_S:.0f} s")
        return self._future.result()
