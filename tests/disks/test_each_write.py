"""Each of a directory's first hundred writes fails once: nothing that was confirmed is lost, and the directory opens (B1, Q2).

Outside the long lane, one of them in four does. So it is with the power, which takes what was not synced: for LMDB, since
the files storage also syncs by calls that no library sees, and has a simulated disk of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.disks.preload import preloaded

WRITES = 100


CASES = [
    *((kind, error) for error in ("ENOSPC", "EIO") for kind in ("metastore", "files", "lmdb", "member")),
    *((kind, power) for power in ("LOSES_ALL", "KEEPS_OTHERS") for kind in ("metastore", "lmdb", "member")),
]


@pytest.mark.sized
@pytest.mark.parametrize(("kind", "error"), CASES)
def test_directory_opens_with_all_confirmed_after_a_failed_write(
    kind: str, error: str, is_long: bool, tmp_path: Path
) -> None:
    step = 1 if is_long else 4
    done = preloaded("-m", "tests.disks.each_write", kind, tmp_path, error, "1", f"{WRITES}", f"{step}")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "", done.stdout + done.stderr
    assert len(list(tmp_path.iterdir())) == WRITES // step
