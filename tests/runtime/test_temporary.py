"""A temporary directory is gone when it is left, however that happens, and what goes wrong has a name."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
import trio

from replog.errors import ConfigError, ReplogError
from replog.runtime.temporary import temporary_directory


class OurError(ReplogError):
    """What this program fails with."""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def fill(directory: Path) -> None:
    (directory / "below").mkdir()
    (directory / "below" / "file").write_bytes(b"x")


def what_is_left(directory: Path) -> list[Path]:
    return list(directory.iterdir())


async def test_directory_is_removed_with_its_content(tmp_path: Path) -> None:
    async with temporary_directory("ours-", option="--dir", failed=OurError) as directory:
        assert directory.parent == tmp_path
        assert directory.name.startswith("ours-")
        fill(directory)
    assert what_is_left(tmp_path) == []


async def test_it_is_removed_when_cancelled_and_after_an_error(tmp_path: Path) -> None:
    with trio.CancelScope() as scope:
        async with temporary_directory("ours-", option="--dir", failed=OurError):
            scope.cancel()
            await trio.sleep_forever()
    with pytest.raises(ZeroDivisionError):
        async with temporary_directory("ours-", option="--dir", failed=OurError):
            raise ZeroDivisionError
    assert what_is_left(tmp_path) == []


async def test_failed_creation_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match=r"no temporary directory can be made: .*; name one with --dir"):
        async with temporary_directory("ours-", option="--dir", failed=OurError):
            pytest.fail("it is there")


async def test_failed_removal_is_left_to_the_user() -> None:
    with pytest.raises(OurError, match=r"cannot be removed: .*; remove it yourself"):
        async with temporary_directory("ours-", option="--dir", failed=OurError) as directory:
            shutil.rmtree(directory)
