"""What errors of the operating system say about a disk: the table, and questions that do not take errors for absence."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from replog.runtime.disk_errors import (
    Trouble,
    described,
    exists,
    free_bytes_at,
    is_directory,
    is_full,
    names_like,
    trouble_of,
)


@pytest.mark.parametrize(
    ("name", "trouble"),
    [
        ("ENOSPC", Trouble.FULL),
        ("EDQUOT", Trouble.FULL),
        ("EFBIG", Trouble.FULL),
        ("EROFS", Trouble.READ_ONLY),
        ("EACCES", Trouble.FORBIDDEN),
        ("ESTALE", Trouble.GONE),
        ("EMFILE", Trouble.LIMITED),
        ("ENOTDIR", Trouble.WRONG_PATH),
        ("EIO", Trouble.BROKEN),
        ("EUCLEAN", Trouble.BROKEN),
    ],
)
def test_each_error_has_one_cause(name: str, trouble: Trouble) -> None:
    error = OSError(getattr(errno, name), "text")
    assert trouble_of(error) is trouble
    assert described(error).endswith(f"({name})")


def test_an_error_of_lmdb_has_its_code() -> None:
    error = RuntimeError("a write of which the disk took a part")
    error.code = errno.EIO  # type: ignore[attr-defined]
    assert not is_full(error)
    assert not is_full(error, 1 << 30)
    assert is_full(error, 4096)
    assert not is_full(OSError(errno.EIO, "text"), 4096), "the system itself says when there is no space"


def test_path_questions_are_answered(tmp_path: Path) -> None:
    file = tmp_path / "file-1"
    file.touch()
    assert (exists(file), is_directory(file)) == (True, False)
    assert (exists(tmp_path), is_directory(tmp_path)) == (True, True)
    for absent in (tmp_path / "none", file / "below", tmp_path / "none" / "below"):
        assert (exists(absent), is_directory(absent), names_like(absent, "*")) == (False, False, [])
    assert names_like(tmp_path, "file-[0-9]*") == ["file-1"]
    assert names_like(tmp_path, "other*") == []


@pytest.mark.parametrize("code", [errno.EACCES, errno.ESTALE, errno.EIO, errno.ELOOP])
def test_an_error_is_not_absence(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "stat", fail)
    monkeypatch.setattr(os, "listdir", fail)
    for question in (exists, is_directory, lambda path: names_like(path, "*")):
        with pytest.raises(OSError, match=os.strerror(code)):
            question(tmp_path)


def test_free_space_is_measured_at_the_future_path(tmp_path: Path) -> None:
    assert free_bytes_at(str(tmp_path / "none" / "below")) is not None
