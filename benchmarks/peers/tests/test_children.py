"""What directories hold, as the disk counts it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.peers.children import held_bytes


def test_held_bytes_are_the_disks_allocation(tmp_path: Path) -> None:
    (tmp_path / "one" / "deep").mkdir(parents=True)
    (tmp_path / "one" / "deep" / "file").write_bytes(b"x" * 5000)
    (tmp_path / "two").mkdir()
    with (tmp_path / "two" / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 30)

    assert held_bytes(tmp_path / "one", tmp_path / "two") == 8192


def test_file_removed_by_a_server_meanwhile_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"x")
    monkeypatch.setattr(os, "walk", lambda place: [(str(place), [], ["file", "gone"])])

    assert held_bytes(tmp_path) == 4096
