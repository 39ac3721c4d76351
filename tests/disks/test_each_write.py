"""Each of a directory's first hundred writes fails once: nothing that was confirmed is lost, and the directory opens (B1).

Outside the long lane, one of them in four does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.disks.preload import preloaded

WRITES = 100


@pytest.mark.sized
@pytest.mark.parametrize("kind", ["metastore", "files", "lmdb"])
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_directory_opens_with_all_confirmed_after_a_failed_write(
    kind: str, error: str, is_long: bool, tmp_path: Path
) -> None:
    step = 1 if is_long else 4
    done = preloaded("-m", "tests.disks.each_write", kind, tmp_path, error, "1", f"{WRITES}", f"{step}")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "", done.stdout + done.stderr
    assert len(list(tmp_path.iterdir())) == WRITES // step
