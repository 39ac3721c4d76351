"""Ctrl-C where only Python handles it: in an event loop that was not started by `asyncio.run`.

Python's own handler raises `KeyboardInterrupt` between any two steps. In the middle of a turn of the trio run that would end the
run and all clients with it; between two calls of the event loop it would lose the next call.

Rules:
- The program is interrupted as by Python's own handler: at once where its own code runs or the event loop sleeps, otherwise by
  the next call of the event loop.
- Any other handler stays as it is: asyncio's, the program's, a server's. Python's own is back when the last run has ended.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from types import FrameType

_OURS = frozenset({"replog", "trio", "outcome"})  # packages whose code must not be left between two steps
_TURNS = frozenset({"_run_once", "run_forever"})  # of asyncio's event loop: a call from there is one call of it

_users = 0


def begin_deferring() -> None:
    """Takes care of Ctrl-C, if Python does now and this is its main thread. `end_deferring` gives that up again."""
    global _users
    if threading.current_thread() is threading.main_thread():
        _users += 1
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _interrupt)


def end_deferring() -> None:
    """Gives Ctrl-C back to Python when the last one does."""
    global _users
    if threading.current_thread() is threading.main_thread():
        _users -= 1
        if not _users and signal.getsignal(signal.SIGINT) is _interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        signal.default_int_handler(number, frame)
    if _is_between_steps(loop, frame):
        loop.call_soon_threadsafe(_raise)
    else:
        signal.default_int_handler(number, frame)


def _is_between_steps(loop: asyncio.AbstractEventLoop, frame: FrameType | None) -> bool:
    """True if replog's or trio's code is under way, or the event loop is about to make its next call."""
    is_in_program = False
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in _OURS:
            return True
        if package != "asyncio":
            is_in_program = True  # or the event loop sleeps, in `selectors`
        elif frame.f_code.co_name in _TURNS:
            return not is_in_program
        frame = frame.f_back
    # The code of another event loop, such as uvloop's, has no frames.
    return asyncio.current_task(loop) is None


def _raise() -> None:
    raise KeyboardInterrupt
