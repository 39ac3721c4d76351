"""Forked processes, in which something may fail that must not fail in this one."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

_DAMAGED = 3  # a status of its own


def in_child(action: Callable[[], None]) -> int:
    """The exit status of a forked process that did this."""
    pid = os.fork()
    if not pid:
        do_and_exit(action)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def do_and_exit(action: Callable[[], None]) -> NoReturn:
    """Does this in a process that was forked for it."""
    try:
        action()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(_DAMAGED)
    os._exit(0)
