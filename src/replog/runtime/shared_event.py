"""An event that a thousand tasks wait for at once, as those do that append to one log.

`trio.Event` makes three coroutines, a function with its cells and a message to trio's loop for each task that waits, and a
result for each that it wakes. With a thousand tasks Python searches these for cycles again and again, for a third of all time.
This makes a coroutine.

Rules:
- A task waits where it calls `wait`: `await event.wait()`, nothing else. Its `custom_sleep_data` says what it waits for, and trio
  empties that when the task is woken or cancelled. So a task that has gone is not woken by mistake.
- Tasks are woken in the order in which they came. Nothing is woken twice.
"""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator
from typing import Any

import outcome
import trio
from trio.lowlevel import Task, current_task, reschedule

from replog.runtime.trio_private import WAIT


class _Woken(outcome.Outcome[None]):
    """The result that a woken task gets. Unlike `outcome.Value` it may be given to many."""

    __slots__ = ()

    def unwrap(self) -> None:
        return None

    def send(self, gen: Any) -> Any:
        return gen.send(None)

    async def asend(self, agen: Any) -> Any:
        return await agen.asend(None)


_WOKEN = _Woken()


@types.coroutine
def _wait() -> Generator[Any, Any, None]:
    # As `wait_task_rescheduled`, in one coroutine instead of two: `unwrap` raises if the task was cancelled.
    (yield WAIT).unwrap()


class SharedEvent:
    """A `trio.Event` for many tasks."""

    __slots__ = ("_is_set", "_tasks")

    def __init__(self) -> None:
        self._is_set = False
        self._tasks: list[Task] = []

    def is_set(self) -> bool:
        """True once it was set."""
        return self._is_set

    def set(self) -> None:
        """Wakes all waiting tasks; later waits end at once."""
        self._is_set = True
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            # Otherwise it was cancelled, and may even wait for something else by now.
            if task.custom_sleep_data is self:
                reschedule(task, _WOKEN)

    def wait(self) -> Coroutine[Any, Any, None]:
        """Returns once it was set; a checkpoint in any case."""
        if self._is_set:
            return trio.lowlevel.checkpoint()  # noqa: ASYNC105 - by the caller
        task = current_task()
        task.custom_sleep_data = self
        self._tasks.append(task)
        return _wait()
