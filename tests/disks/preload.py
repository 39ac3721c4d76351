"""Starts processes in which calls of the operating system fail, by `failing_calls.c` in LD_PRELOAD; see `failing.py`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

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
    environment = os.environ | {"LD_PRELOAD": failing_library()}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
