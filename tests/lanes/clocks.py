"""Virtual time for tests in which threads or sockets take part, however busy the machine is.

trio's own `MockClock` jumps to the next deadline as soon as all tasks wait, or when they have waited for some time. Both are
wrong if a task waits for a thread: on a busy machine the thread may get no processor for a while, and a timeout of many
virtual seconds would pass meanwhile. The clock here also asks the kernel, and jumps only if no other thread of this process
wants to run, waits for a disk, or has run since it last looked. A thread that waits for a lock or an event does not hold it up.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import trio.testing

_TASKS = Path("/proc/self/task")
_WAITS_FOR_NOTHING_SOON = "S"


def patient_clock(idle_s: float) -> trio.testing.MockClock:
    """A clock that jumps when no task could run for so many real seconds, and no thread was busy."""
    clock = trio.testing.MockClock(autojump_threshold=idle_s)
    jump, last = clock._autojump, Activity.of_other_threads()

    def jump_if_idle() -> None:
        nonlocal last
        now = Activity.of_other_threads()
        if now is not None and now == last:
            jump()
        last = now  # otherwise trio waits again for `idle_s`, and asks again

    clock._autojump = jump_if_idle  # type: ignore[method-assign] # the one place where trio decides to jump
    return clock


def lane_clock(idle_s: float) -> trio.testing.MockClock:
    """As `patient_clock`, and without patience until the run has a thread: what no thread does, need not be waited for. Of the
    threads that are there already, only trio's workers can be the run's: these are kept from one run to the next."""
    clock = patient_clock(idle_s)
    jump_if_idle, jump = clock._autojump, functools.partial(trio.testing.MockClock._autojump, clock)
    workers = {str(each.native_id) for each in threading.enumerate() if each.name.startswith("Trio thread")}
    others = set(_threads()) - workers

    def jump_if_alone() -> None:
        if others.issuperset(_threads()):
            jump()
        else:
            clock._autojump, clock.autojump_threshold = jump_if_idle, idle_s  # type: ignore[method-assign]
            jump_if_idle()

    clock._autojump, clock.autojump_threshold = jump_if_alone, 0.0  # type: ignore[method-assign]
    return clock


class Activity(dict[str, str]):
    """What each other thread of this process has run up to now, by its id."""

    @classmethod
    def of_other_threads(cls) -> Activity | None:
        """None if one is busy at this moment."""
        activity = cls()
        try:
            threads = list(_other_threads())
        except OSError:  # a test has used up all descriptors: nothing can be seen, and no thread of it works
            return activity
        for thread in threads:
            try:
                state = (thread / "stat").read_text().rpartition(")")[2].split()[0]
                activity[thread.name] = (thread / "schedstat").read_text()
            except OSError:
                continue  # it has ended
            if state != _WAITS_FOR_NOTHING_SOON:
                return None
        return activity


def _other_threads() -> Iterator[Path]:
    return (_TASKS / name for name in _threads())


def _threads() -> Iterator[str]:
    """The ids of this process's threads, but for the one that asks."""
    own = str(threading.get_native_id())
    return (name for name in os.listdir(_TASKS) if name != own)
