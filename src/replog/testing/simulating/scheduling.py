"""Trio runs whose order of tasks follows from a seed.

Trio shuffles the tasks that are ready, so that no code relies on their order. It has a private switch, made for Hypothesis, that
lets the order follow from a private random generator: `_ALLOW_DETERMINISTIC_SCHEDULING` and `_r` in `trio._core._run`. With both
set, and with trio's virtual clock, a run depends on the seed only. If a new version of trio has neither, `seeded` raises, and the
tests of this module say what must hold. With `freezing`, this is the only module that uses private parts of trio.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio
import trio.testing
from trio._core import _run

from replog.errors import LocalProtocolError

Result = TypeVar("Result")

_SWITCH = "_ALLOW_DETERMINISTIC_SCHEDULING"


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let trio runs within the context schedule their tasks in the order of the seed."""
    generator = getattr(_run, "_r", None)
    before = getattr(_run, _SWITCH, None)
    if not isinstance(generator, random.Random) or not isinstance(before, bool):
        raise LocalProtocolError(
            f"trio {trio.__version__} no longer has {_SWITCH} and _r in trio._core._run: find out how its order of tasks "
            "follows from a seed now, and mend replog.testing.simulating.scheduling"
        )
    # Put back afterwards: other trio runs of this process keep their own order.
    state = generator.getstate()
    setattr(_run, _SWITCH, True)
    generator.seed(seed)
    try:
        yield
    finally:
        setattr(_run, _SWITCH, before)
        generator.setstate(state)


def run(seed: int, function: Callable[[], Awaitable[Result]]) -> Result:
    """Run an async function on virtual time, which jumps to the next deadline whenever all tasks wait."""
    with seeded(seed):
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
