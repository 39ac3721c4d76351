"""Processes that have a small file system of their own, which really gets full: tmpfs in a mount namespace."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

_TIMEOUT_S = 120.0
_MOUNT = 'mount -t tmpfs -o size="$1" none "$2" && shift 2 && exec "$@"'


# -- in the process of the tests ------------------------------------------------------------------------------------------


@cache
def _why_not() -> str:
    """Why this machine gives no such file system; empty if it does."""
    if shutil.which("unshare") is None:
        return "needs Linux and `unshare`: install util-linux"
    tried = subprocess.run(
        _command("64k", "/mnt", "true"), capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
    )
    return f"needs `unshare -Urm` and a tmpfs, which this machine refuses: {tried.stderr.strip()}" * bool(
        tried.returncode
    )


def _command(size: str, directory: str, *arguments: str) -> list[str]:
    return ["unshare", "-Urm", "sh", "-c", _MOUNT, "sh", size, directory, *arguments]


def on_small_disk(directory: Path, size_bytes: int, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs this Python with these arguments, while a file system of this size is mounted at the directory. Skips where that is
    impossible."""
    if why := _why_not():
        pytest.skip(why)
    command = _command(str(size_bytes), str(directory), sys.executable, *map(str, arguments))
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)


# -- in such a process ----------------------------------------------------------------------------------------------------


def fill(directory: Path, left_bytes: int) -> Path:
    """Leaves so many bytes free in the file system of this directory, and returns the file that takes the others. Whoever else
    writes there at this moment may leave fewer."""
    filler = directory / "filler"
    filler.unlink(missing_ok=True)
    with filler.open("wb", buffering=0) as file:
        while (free := free_bytes(directory) - left_bytes) > 0:
            try:
                file.write(bytes(free))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                break  # tmpfs counts what is free in each processor, and `statvfs` adds up late
    return filler


def free_bytes(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize
