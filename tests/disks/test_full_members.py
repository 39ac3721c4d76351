"""Q18: a full disk still elects, and takes what makes room."""

from __future__ import annotations

from pathlib import Path

from tests.disks.small_disk import on_small_disk


def test_full_disk_still_elects(tmp_path: Path) -> None:
    done = on_small_disk(tmp_path, 96 << 20, "-m", "tests.disks.full_members", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
