"""Disk space that a member holds back, so that a full disk still takes votes and deletions (Q18).

It is a file of zeros beside the map. When a commit finds no space, the file goes, and the commit is tried once more: what follows
needs little, since LMDB uses freed pages again. Until the file is back, the member refuses what would fill the disk further.
"""

from __future__ import annotations

import os

from replog.runtime.disk_errors import exists, is_full
from replog.runtime.platform import allocate

SPARE_BYTES = 16 << 20


class SpareRoom:
    """The file. Methods raise OSError, but not for a full disk."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.is_held = False
        self.hold()

    def hold(self) -> None:
        """Takes the space, if it is free: then `is_held`."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            allocate(file, 0, SPARE_BYTES)
            self.is_held = True
        except OSError as error:
            os.unlink(self._path)
            if not is_full(error):
                raise
        finally:
            os.close(file)

    def give_up(self) -> bool:
        """Frees the space. False if there was none."""
        self.is_held = False
        if not exists(self._path):
            return False
        os.unlink(self._path)
        return True
