"""A call that runs in a thread of its own while the exam goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from replog.testing.storage_exam.candidate import expect

Answer = TypeVar("Answer")

DEADLINE_S = 60.0  # no storage needs that long for what the exam asks, on however slow a disk


class Background(Generic[Answer]):
    """A call in a thread of its own. `result` joins it; one that hangs does not keep the process from ending."""

    def __init__(self, function: Callable[[], Answer], name: str) -> None:
        self._name = name
        self._future: Future[Answer] = Future()
        self._thread = threading.Thread(target=self._run, args=(function,), name=name, daemon=True)
        self._thread.start()

    def _run(self, function: Callable[[], Answer]) -> None:
        try:
            answer = function()
        except BaseException as error:  # it is raised again where the result is asked for
            self._future.set_exception(error)
            return
        self._future.set_result(answer)

    @property
    def is_done(self) -> bool:
        """Whether the call has returned or raised."""
        return self._future.done()

    def result(self, why: str) -> Answer:
        """What the call returned or raised. It breaks this promise if it does not end within the deadline."""
        self._thread.join(DEADLINE_S)
        expect(self._future.done(), why, f"{self._name} is not back after {DEADLINE_S:.0f} s")
        return self._future.result()
