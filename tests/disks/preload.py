"""Starts processes in which calls of the operating system fail, by `failing_calls.c` in LD_PRELOAD; see `failing.py`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests import forks

_SOURCE = Path(__file__).with_name("failing_calls.c")


@cache
def failing_library() -> str:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler: install gcc")
    target = f"{mkdtemp(prefix='replog-failing-calls-')}/failing_calls.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-w", "-o", target, str(_SOURCE), "-ldl"], check=True)
    return target


def preloaded(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs this Python with these arguments, in a process whose calls can be made to fail."""
    preload = forks.Preload(failing_library(), ("tests.disks.each_write", "tests.disks.each_look"))
    return forks.run([sys.executable, *arguments], timeout=600, preload=preload)
