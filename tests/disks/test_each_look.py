"""A look at a file that fails is not absence: a directory opens with all that it had, or not at all, and says why (B4, M1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.disks.preload import preloaded
from tests.lanes.seeds import some

EACH_ONCE = [
    ("metastore", "EACCES", 1, 15),
    ("files", "EIO", 1, 15),
    ("lmdb", "ESTALE", 1, 15),
    ("unfinished", "ESTALE", 1, 15),
    ("backup", "EACCES", 3, 9),
]
ALL = [(kind, error, 1, 15) for kind in ("metastore", "files", "lmdb") for error in ("EACCES", "ESTALE", "EIO")]


@pytest.mark.parametrize(
    ("kind", "error", "step", "looks"),
    some([*dict.fromkeys([*EACH_ONCE, ("embedded", "ESTALE", 7, 70), *ALL])], few=len(EACH_ONCE)),
)
def test_failed_look_does_not_count_as_absence(kind: str, error: str, step: int, looks: int, tmp_path: Path) -> None:
    done = preloaded("-m", "tests.disks.each_look", kind, tmp_path, error, f"{step}")
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == 1, done.stdout + done.stderr
    assert int(said[0].split()[0]) >= looks, said
