"""Which threads are replog's own, as opposed to the program's.

The program's code can run in a thread of replog's: a finalizer that the collector calls there, or an observer.
If it waited there for replog, it would wait for itself.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class _Mark(threading.local):
    def __init__(self) -> None:
        self.is_own = False
        self.is_trios = threading.current_thread().name.startswith("Trio thread")


_mark = _Mark()


def is_own_thread() -> bool:
    """True in a thread that replog started, and in one of trio's while it works for replog."""
    return _mark.is_own or (_mark.is_trios and not _is_in_programs_job())


def in_own_thread(function: Callable[..., T], *arguments: object) -> T:
    """Calls the function; meanwhile this thread is one of replog's own."""
    before, _mark.is_own = _mark.is_own, True
    try:
        return function(*arguments)
    finally:
        _mark.is_own = before


def _is_in_programs_job() -> bool:
    """True in a job that the program has given to this thread of trio's: between two jobs it is about to begin or end one of
    anybody's."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "worker_fn":  # of `trio.to_thread.run_sync`
            return not str(getattr(frame.f_locals.get("sync_fn"), "__module__", "")).startswith("replog.")
    return False
