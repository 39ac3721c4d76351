"""Tells an exception of a signal's handler from one of the code that the handler interrupted."""

from __future__ import annotations

import signal
import threading
import traceback
from functools import partial


def is_of_handler(error: BaseException) -> bool:
    """Whether a signal's handler raised this, such as `KeyboardInterrupt` at Ctrl-C, by its traceback."""
    # Python runs handlers in the main thread only.
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = {signal.getsignal(number) for number in signal.valid_signals()}
    # Written in C, it has no frame of its own.
    if isinstance(error, KeyboardInterrupt) and signal.default_int_handler in handlers:
        return True
    codes = {_code_of(each) for each in handlers}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def _code_of(handler: object) -> object:
    while isinstance(handler, partial):
        handler = handler.func
    return getattr(getattr(handler, "__func__", handler), "__code__", None)
