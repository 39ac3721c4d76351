"""A disk that refuses writes under a running bookie is told to the writer at once, with its cause, whatever the error (B10)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.disks.preload import preloaded
from tests.lanes.seeds import some

ERRORS = ("EROFS", "EIO", "EDQUOT", "EACCES", "ESTALE")


@pytest.mark.parametrize("kind", ["files", "lmdb"])
@pytest.mark.parametrize("error", some(ERRORS, few=3))
def test_refusing_disk_is_reported_without_a_deadline(kind: str, error: str, tmp_path: Path) -> None:
    done = preloaded("-m", "tests.disks.refusing_bookie", kind, tmp_path, error)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 4, done.stdout
