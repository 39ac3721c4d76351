"""What processes of this Python need to run the modules of this one."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def environment() -> dict[str, str]:
    """For `python -m MODULE`. What is compiled is kept, as that of an installed package is: else each start compiles anew."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONDONTWRITEBYTECODE": ""}


def held_bytes(*directories: Path) -> int:
    """What the files below them take on the disk."""
    files = (path for directory in directories for path in directory.rglob("*") if path.is_file())
    return sum(path.stat().st_blocks * 512 for path in files)
