"""Freezes all tasks of one simulated process, as SIGSTOP and SIGKILL do.

Trio cannot leave a task out of its turn. So an instrument looks at each task right before it takes a step, and if the task
belongs to a frozen process, replaces that step by an empty one and keeps the real step for later. A frozen task takes no
step at all: its deadlines pass unnoticed, and not even its `finally` clauses run, until `thaw`.

A task belongs to the process in whose context it was started, and so do all tasks that it starts. What this needs of trio's
private parts is in `runtime/trio_private.py`.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import trio

from replog.runtime.trio_private import in_order_of_start, open_shields, skip_step

_tasks_of: contextvars.ContextVar[Tasks | None] = contextvars.ContextVar(
    "the simulated process of a task", default=None
)


class Tasks:
    """The tasks of one process: those started by `start`, and all that these start."""

    def __init__(self) -> None:
        self.is_frozen = False
        self.root: trio.lowlevel.Task | None = None
        self._held: list[tuple[trio.lowlevel.Task, Any]] = []
        self._context = contextvars.copy_context()
        self._context.run(_tasks_of.set, self)

    def start(self, nursery: trio.Nursery, main: Callable[..., Any], *arguments: object) -> None:
        """Start the first task in a nursery that belongs to the simulation."""

        async def run() -> None:
            self.root = trio.lowlevel.current_task()
            await main(*arguments)

        self._context.run(nursery.start_soon, run)

    def call(self, action: Callable[[], None]) -> None:
        """Call what a message from outside causes in this process. Tasks that this starts belong to the process."""
        self._context.run(action)

    def freeze(self) -> None:
        """No task takes another step until `thaw`."""
        self.is_frozen = True

    def thaw(self) -> None:
        """Let all tasks go on from where they are."""
        self.is_frozen = False
        held, self._held = self._held, []
        for task, value in held:
            trio.lowlevel.reschedule(task, value)

    def hold(self, task: trio.lowlevel.Task) -> None:
        """Replace the step that this task is about to take by an empty one."""
        self._held.append((task, skip_step(task)))

    def unshield(self) -> None:
        """Remove the shields of all tasks, so that a cleanup that waits without end can be cancelled."""
        for task in subtasks(self.root):
            open_shields(task)


class Freezer(trio.abc.Instrument):
    """Holds the tasks of frozen processes. One in a trio run, added before its first process starts."""

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Called by trio before each step of each task."""
        tasks = task.context.get(_tasks_of)
        if tasks is not None and tasks.is_frozen:
            tasks.hold(task)


def subtasks(root: trio.lowlevel.Task | None) -> Iterator[trio.lowlevel.Task]:
    """A task and all tasks below it, those of one nursery in the order in which they were started."""
    if root is None:
        return
    yield root
    for nursery in root.child_nurseries:
        for task in in_order_of_start(nursery.child_tasks):
            yield from subtasks(task)
