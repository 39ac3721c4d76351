"""Tells an exception of a signal's handler from one of the code that the handler interrupted."""

from __future__ import annotations

import inspect
import signal
import threading
import traceback
from functools import partial
from types import FrameType


def is_of_handler(error: BaseException) -> bool:
    """Whether a signal's handler raised this, such as `KeyboardInterrupt` at Ctrl-C, by its traceback. The caller has caught it.

    Not seen: an `Exception` of a handler that deletes its argument for the frame, or that is written in C."""
    # Python runs handlers in the main thread only.
    if threading.current_thread() is not threading.main_thread() or error.__traceback__ is None:
        return False
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__.tb_next)]  # the first is the caller's
    if any(map(_is_called_for_signal, frames)):
        return True
    # Asking for all handlers takes far longer than a command that raises.
    if isinstance(error, Exception):
        return False
    handlers = {signal.getsignal(number) for number in signal.valid_signals()}
    # Written in C, it has no frame of its own.
    if isinstance(error, KeyboardInterrupt) and signal.default_int_handler in handlers:
        return True
    codes = {_code_of(each) for each in handlers}
    return any(frame.f_code in codes for frame in frames)


def _is_called_for_signal(frame: FrameType) -> bool:
    """Whether its function was passed the frame that it interrupts, as Python does for signals: then the handler is known
    even if it is not set any more."""
    caller, code, values = frame.f_back, frame.f_code, frame.f_locals
    arguments = code.co_varnames[: code.co_argcount]
    if any(values.get(name) is caller for name in arguments):
        return caller is not None
    if not code.co_flags & inspect.CO_VARARGS:
        return False
    others = values.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
    return type(others) is tuple and len(others) > 0 and others[-1] is caller


def _code_of(handler: object) -> object:
    while isinstance(handler, partial):
        handler = handler.func
    return getattr(getattr(handler, "__func__", handler), "__code__", None)
