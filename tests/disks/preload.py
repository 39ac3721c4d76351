"""Processes in which calls of the operating system fail: `failing_calls.c`, compiled and given to them in LD_PRELOAD."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

WRITES, SYNCS, SIZES, OPENING, LOOKING = 1, 2, 4, 8, 16
CHANGES = WRITES | SYNCS | SIZES
_SOURCE = Path(__file__).with_name("failing_calls.c")


# -- in the process of the tests ------------------------------------------------------------------------------------------


@cache
def _library() -> str:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler: install gcc")
    target = f"{mkdtemp(prefix='replog-failing-calls-')}/failing_calls.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-w", "-o", target, str(_SOURCE), "-ldl"], check=True)
    return target


def preloaded(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs this Python with these arguments, in a process whose calls can be made to fail."""
    environment = os.environ | {"LD_PRELOAD": _library()}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)


# -- in such a process ----------------------------------------------------------------------------------------------------


def fail_calls(below: str | Path, kinds: int, error: int, *, first: int = 1, count: int = 1 << 30) -> None:
    """Calls of these kinds on files below this path fail from the `first` on, `count` of them. Replaces what failed before."""
    ctypes.CDLL(None).fail_calls(os.fsencode(below), kinds, first, min(count, (1 << 30) - first), error)


def end_failing() -> None:
    """No call fails any more."""
    ctypes.CDLL(None).fail_calls(b"", 0, 0, 0, 0)


def failed_calls() -> int:
    """How many calls failed since `fail_calls`."""
    return int(ctypes.CDLL(None).failed_calls())
