"""Exceptions of signals' handlers are told from those of the code that they interrupt."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import trio

from replog.runtime.signals import is_of_handler


class Ending:
    def leave(self, _number: int, _frame: object) -> None:
        raise SystemExit(3)

    def __call__(self, *_: object) -> None:
        self.leave(0, None)


def leave(code: int, _number: int, _frame: object) -> None:
    raise SystemExit(code)


def end_once(number: int, _frame: object) -> None:
    signal.signal(number, signal.SIG_DFL)  # the next one ends the process
    raise SystemExit(3)


def time_out(_number: int, _frame: object) -> None:
    raise TimeoutError


def forgetful(number: int, frame: object) -> None:
    del number, frame
    raise SystemExit(3)


@contextmanager
def handled(number: int, handler: Any) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def caught(raising: Callable[[], object]) -> bool:
    try:
        raising()
    except BaseException as error:
        return is_of_handler(error)
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("number", "handler"),
    [
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, Ending().leave),
        (signal.SIGTERM, partial(leave, 3)),
        (signal.SIGTERM, Ending()),
        (signal.SIGTERM, end_once),
        (signal.SIGTERM, forgetful),
        (signal.SIGALRM, time_out),
    ],
)
def test_exception_of_a_handler_is_recognized(number: int, handler: Any) -> None:
    with handled(number, handler):
        assert caught(lambda: signal.raise_signal(number))
        assert not caught(lambda: int("x"))


def test_exception_of_code_with_its_callers_frame_is_no_handlers() -> None:
    def look(*_: object) -> None:
        caller = sys._getframe(1)
        raise LookupError(caller.f_lineno)

    assert not caught(look)


def test_ctrl_c_is_recognized_under_trio() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    async def main() -> list[bool]:
        return [caught(lambda: signal.raise_signal(signal.SIGINT)), caught(interrupt)]

    with handled(signal.SIGINT, signal.default_int_handler):
        assert trio.run(main) == [True, False]


async def test_handlers_run_in_no_other_thread() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with handled(signal.SIGINT, signal.default_int_handler):
        assert not await trio.to_thread.run_sync(caught, interrupt)
        assert caught(interrupt)  # here it may be either
