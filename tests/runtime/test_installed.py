"""What is installed is read once, and again after something was installed."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import pytest

from replog.runtime.installed import installed_plugins, replog_version


def install(directory: Path, name: str) -> None:
    info = directory / f"replog_{name}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: replog-{name}\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(f"[replog]\n{name} = {name}\n")


def names() -> set[str]:
    return {each.name for each in installed_plugins()}


def test_version_is_the_installed_packages() -> None:
    assert replog_version() == version("replog")


def test_package_installed_at_run_time_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "first")
    monkeypatch.syspath_prepend(tmp_path)
    assert "first" in names()
    assert installed_plugins() is installed_plugins(), "nothing is read twice"
    before_s = tmp_path.stat().st_mtime
    install(tmp_path, "second")
    os.utime(tmp_path, (before_s + 2, before_s + 2))  # the clock of some file systems is coarse
    assert {"first", "second"} <= names()
    monkeypatch.undo()
    assert {"first", "second"}.isdisjoint(names())
