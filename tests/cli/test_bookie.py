"""`replog bookie`: a storage is made once, never over anything, and is what `info` says."""

import json
from pathlib import Path

import pytest

from replog.registry import Registry
from tests import forks
from tests.cli.test_inspect import COMMAND, run


def names_in(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir())


@pytest.mark.parametrize("storage", ["files", "lmdb"])
def test_a_storage_is_made_and_known(capsys: pytest.CaptureFixture[str], tmp_path: Path, storage: str) -> None:
    path = tmp_path / "missing" / "too"
    status, output, _ = run(capsys, "bookie", "format", path, "--storage", storage, "--json")
    made = json.loads(output)
    assert (status, made["storage"], made["path"]) == (0, storage, str(path))
    done = forks.run([*COMMAND, "bookie", "info", str(path), "--json"])
    known = json.loads(done.stdout)
    assert done.returncode == 0
    assert (known["bookie_id"], known["storage"], known["ledgers"]) == (made["bookie_id"], storage, 0)
    opened = Registry().open_storage(f"{storage}:{path}")
    try:
        assert opened.bookie_id == made["bookie_id"]
    finally:
        opened.close()


def test_the_identity_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, output, _ = run(capsys, "bookie", "format", tmp_path, "--bookie-id-only")
    assert output == f"{output.strip()}\n"
    assert output.startswith("bookie-")


def test_a_journal_elsewhere(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path, journal = tmp_path / "st", tmp_path / "journal"
    status, output, _ = run(capsys, "bookie", "format", path, "--journal-dir", journal)
    assert status == 0
    assert str(journal) in output
    _, output, _ = run(capsys, "bookie", "info", path, "--journal-dir", journal, "--json")
    assert json.loads(output)["journal_files"] == 1
    status, output, _ = run(capsys, "bookie", "info", path)
    assert status == 0
    assert "name it with --journal-dir" in output
    status, _, errors = run(capsys, "inspect", "ledger", path, "1")
    assert status == 2
    assert "--journal-dir" in errors


@pytest.mark.parametrize("arguments", [[], ["--storage", "lmdb"], ["--json"]], ids=" ".join)
def test_format_never_touches_existing_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str]
) -> None:
    path = tmp_path / "st"
    run(capsys, "bookie", "format", path)
    before = {name: (path / name).stat().st_mtime_ns for name in names_in(path)}
    status, output, errors = run(capsys, "bookie", "format", path, *arguments)
    assert (status, output) == (2, "")
    assert errors == (
        f"replog: {path} has a storage already: `replog bookie info` says which; name another directory\n"
    )
    assert {name: (path / name).stat().st_mtime_ns for name in names_in(path)} == before
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine").touch()
    for options in ([], ["--journal-dir", str(tmp_path / "new")]):
        assert run(capsys, "bookie", "format", other, *options, *arguments)[0] == 2
    assert names_in(other) == ["mine"]
    status, _, errors = run(capsys, "bookie", "format", tmp_path / "new", "--journal-dir", other)
    assert status == 2
    assert "is not empty: it has mine" in errors
    assert not (tmp_path / "new").exists()


def test_unknown_storages_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, _, errors = run(capsys, "bookie", "format", tmp_path / "st", "--storage", "nonsense")
    assert status == 2
    assert "nonsense" in errors
    journal = ["--journal-dir", str(tmp_path / "journal")]
    assert run(capsys, "bookie", "format", tmp_path / "st", "--storage", "lmdb", *journal)[0] == 2
    assert not (tmp_path / "st").exists()
