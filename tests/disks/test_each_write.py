"""Each of a directory's first hundred writes fails once: nothing that was confirmed is lost, and the directory opens (B1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.disks.preload import preloaded

WRITES = 100


@pytest.mark.parametrize("kind", ["metastore", "files", "lmdb"])
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_directory_opens_with_all_confirmed_after_a_failed_write(kind: str, error: str, tmp_path: Path) -> None:
    done = preloaded("-m", "tests.disks.each_write", kind, tmp_path, error, "1", f"{WRITES}")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "", done.stdout + done.stderr
    assert len(list(tmp_path.iterdir())) == WRITES
