"""`replog metastore`: what it refuses before it asks anybody. What it does is in `tests/failures/test_quorum_rounds.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_inspect import run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("status",), "which metastore?"),
        (("status", "--metastore", "memory:"), "is not kept by members of its own"),
        (("add", "m4:3181", "--dir", "wal"), "--dir is for an embedded log"),
        (("remove", "m4:3181", "--metastore", "quorum:"), "names no member"),
    ],
)
def test_wrong_places_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.delenv("REPLOG_METASTORE", raising=False)
    status, output, errors = run(capsys, "metastore", *arguments)
    assert (status, output) == (2, "")
    assert said in errors


def test_directory_without_a_member_is_not_rescued(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, _, errors = run(capsys, "metastore", "rescue", str(tmp_path), "--force")
    assert status == 1
    assert "no member of a metastore has its files there" in errors
    assert not list(tmp_path.iterdir())


def test_status_without_a_leader_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    status, output, _ = run(capsys, "metastore", "status", "--metastore", "quorum:127.0.0.1:1")
    assert status == 1
    assert "no member leads" in output
