"""What processes of this Python need to run the modules of this one."""

from __future__ import annotations

import itertools
import os
import sys
from contextlib import suppress
from pathlib import Path


def environment() -> dict[str, str]:
    """For `python -m MODULE`. What is compiled is kept, as that of an installed package is: else each start compiles it again."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONDONTWRITEBYTECODE": ""}


def held_bytes(*directories: Path) -> int:
    """What the files below them take on the disk. One that is removed meanwhile, by a server that runs, takes nothing."""
    found = 0
    for place, _, names in itertools.chain.from_iterable(map(os.walk, directories)):
        for name in names:
            with suppress(FileNotFoundError):
                found += Path(place, name).lstat().st_blocks * 512
    return found
