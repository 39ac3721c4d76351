"""Trio runs whose order of tasks follows from a seed.

Trio shuffles the tasks that are ready, so that no code relies on their order. `runtime/trio_private.py` lets the order follow
from a seed; with that, and with trio's virtual clock, a run depends on the seed only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio
import trio.testing

from replog.runtime.trio_private import seeded_order

Result = TypeVar("Result")


def run(seed: int, function: Callable[[], Awaitable[Result]]) -> Result:
    """Run an async function on virtual time, which jumps to the next deadline whenever all tasks wait."""
    with seeded_order(seed):
        return trio.run(function, clock=trio.testing.MockClock(autojump_threshold=0))


class Livelock(trio.abc.Instrument):
    """Cancels a scope once tasks have taken too many steps while no time passed."""

    def __init__(
        self,
        scope: trio.CancelScope,
        steps_max: int,
        on_found: Callable[[trio.lowlevel.Task], None] = lambda _task: None,
    ) -> None:
        self.is_found = False
        self.steps = 0
        self._scope = scope
        self._steps_max = steps_max
        self._on_found = on_found
        self._steps_now = 0
        self._now_s = -1.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Called by trio before each step of each task."""
        self.steps += 1
        self._steps_now += 1
        # Not each time: this runs before every step of every task.
        if self._steps_now % 1000 == 0:
            now_s = trio.current_time()
            if now_s != self._now_s:
                self._now_s, self._steps_now = now_s, 0
            elif self._steps_now > self._steps_max:
                if not self.is_found:
                    self.is_found = True
                    self._on_found(task)
                self._scope.cancel()
