"""All that replog uses of what trio keeps to itself.

`SharedEvent` sends trio's loop the message that `wait_task_rescheduled` sends. Simulations let the order of tasks follow from a
seed, take tasks out of their turn and open shields. No other module names a private part of trio. What must hold is in
`tests/runtime/test_trio_private.py`, which passed with each of the releases that it lists.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import trio
from trio.lowlevel import Abort, Task, wait_task_rescheduled

from replog.errors import LocalProtocolError

_SWITCH = "_ALLOW_DETERMINISTIC_SCHEDULING"  # trio made it for Hypothesis


# -- waiting --------------------------------------------------------------------------------------------------------


def _message() -> Any:
    wait = wait_task_rescheduled(_let_go)  # noqa: ASYNC105 - it is driven here
    message = wait.send(None)
    wait.close()
    return message


def _let_go(_raise_cancel: Callable[[], Any]) -> Abort:
    return Abort.SUCCEEDED


# The value that `wait_task_rescheduled` yields to trio's loop. It never changes, so that every wait may yield the same one. The
# loop sends back an outcome, whose `unwrap` raises if the task was cancelled.
WAIT = _message()


# -- the order of tasks ---------------------------------------------------------------------------------------------


@contextmanager
def seeded_order(seed: int) -> Iterator[None]:
    """Let trio runs within the context schedule their tasks in the order of the seed. Raises `LocalProtocolError` if this trio
    has no such order."""
    from trio._core import _run  # for simulations only: no program that uses replog needs it

    generator = getattr(_run, "_r", None)
    before = getattr(_run, _SWITCH, None)
    if not isinstance(generator, random.Random) or not isinstance(before, bool):
        raise LocalProtocolError(
            f"trio {trio.__version__} no longer has {_SWITCH} and _r in trio._core._run: find out how its order of tasks "
            "follows from a seed now, and mend replog.runtime.trio_private"
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


def in_order_of_start(tasks: frozenset[Task]) -> list[Task]:
    """The tasks of a nursery, the first one that was started first."""
    return sorted(tasks, key=lambda each: each._counter)


# -- steps ----------------------------------------------------------------------------------------------------------


def skip_step(task: Task) -> Any:
    """Replaces the step that this task is about to take by an empty one. Returns what to reschedule it with later."""
    taken = task._next_send
    task._next_send_fn = _take_no_step
    return taken


def _take_no_step(_value: object) -> Any:
    return type(WAIT)(lambda _raise_cancel: Abort.FAILED)


def open_shields(task: Task) -> None:
    """Removes the shields around this task, so that a cleanup that waits without end can be cancelled."""
    status: Any = task._cancel_status
    while status is not None:
        status._scope.shield = False
        status = status._parent
