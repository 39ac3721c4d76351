"""Has calls of the operating system fail in this process, which `preload.py` has started."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

WRITES, SYNCS, SIZES, OPENING, LOOKING = 1, 2, 4, 8, 16
CHANGES = WRITES | SYNCS | SIZES
LOSES_ALL, KEEPS_OTHERS = (
    -1,
    -2,
)  # in place of an error: the power fails, and takes what was not synced, or every other write of that
NO_POWER = 99  # the status of a process that ended so


def fail_calls(below: str | Path, kinds: int, error: int, *, first: int = 1, count: int = 1 << 30) -> None:
    """Calls of these kinds on files below this path fail from the `first` on, `count` of them. Replaces what failed before."""
    ctypes.CDLL(None).fail_calls(os.fsencode(below), kinds, first, min(count, (1 << 30) - first), error)


def end_failing() -> None:
    """No call fails any more."""
    ctypes.CDLL(None).fail_calls(b"", 0, 0, 0, 0)


def failed_calls() -> int:
    """How many calls failed since `fail_calls`."""
    return int(ctypes.CDLL(None).failed_calls())
