"""`replog backup`, `verify` and `restore`, as somebody types them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import replog.blocking
from replog.cli import backup
from tests.cli.logs import Replog


@pytest.fixture
def wal(tmp_path: Path) -> Path:
    with replog.blocking.embed(tmp_path / "wal") as client:
        for name in ("orders", "other"):
            with client.write_log(name) as log:
                log.append(b"one")
                log.roll()
                log.append(b"two")
    return tmp_path / "wal"


def test_a_log_goes_to_a_directory_and_back(wal: Path, tmp_path: Path, typed: Replog) -> None:
    saved, restored = tmp_path / "saved", tmp_path / "restored"
    status, shown, errors = typed("backup", saved, "--dir", wal, "--log", "orders")
    assert (status, errors) == (0, "")
    assert shown.startswith("orders: segments 1 to 2, ")
    assert shown.endswith(", 2 of them new\n")
    assert "new" not in typed("backup", saved, "--dir", wal, "--log", "orders")[1]
    assert typed("verify", saved)[0] == 0
    status, _, errors = typed("restore", tmp_path / "misspelt", "--dir", tmp_path / "new")
    assert (status, "no finished back-up" in errors, (tmp_path / "new").exists()) == (1, True, False)
    assert typed("restore", saved, "--dir", tmp_path / "new")[0] == 0
    with replog.blocking.embed(tmp_path / "new") as client:
        assert client.logs() == ["orders"]
    with replog.blocking.embed(restored, bookies=3):
        pass
    status, shown, errors = typed("restore", saved, "--quorum", "3,2,2", "--dir", restored, "--json")
    assert (status, errors) == (0, "")
    assert json.loads(shown)["logs"][0]["new_segments"] == 2
    with replog.blocking.embed(restored, bookies=3) as client, client.read_log("orders") as reader:
        assert [(str(each.position), each.data) for each in reader] == [("1:0", b"one"), ("2:0", b"two")]
        assert client.logs() == ["orders"]


def test_progress_counts_saved_restored_and_checked_bytes(
    wal: Path, tmp_path: Path, typed: Replog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For people only."""
    told: dict[str, list[int]] = {}

    @contextmanager
    def watch(what: str, total_bytes: int | None, *, is_quiet: bool) -> Iterator[Callable[[int], None]]:
        of = told.setdefault(f"{what} {is_quiet}", [])
        yield of.append

    monkeypatch.setattr(backup, "watched", watch)
    saved = tmp_path / "saved"
    for each in (["backup", saved, "--dir", wal], ["restore", saved, "--dir", tmp_path / "new"], ["verify", saved]):
        assert typed(*each)[0] == 0
    files = [each.stat().st_size for each in (saved / "ledgers").iterdir()]
    assert {what: sum(sizes) for what, sizes in told.items()} == {
        "saved False": 12,
        "restored False": 12,
        "checked False": sum(files),
    }
    assert typed("backup", saved, "--dir", wal, "--json")[0] == 0
    assert told["saved True"] == [], "nothing is new"


def test_damage_is_named(wal: Path, tmp_path: Path, typed: Replog) -> None:
    typed("backup", tmp_path / "saved", "--dir", wal)
    path = min((tmp_path / "saved" / "ledgers").iterdir())
    path.write_bytes(path.read_bytes()[:-1])
    status, shown, _ = typed("verify", tmp_path / "saved")
    assert status == 1
    assert f"problem: {path}: at byte" in shown
    status, shown, _ = typed("verify", tmp_path / "saved", "--json")
    assert status == 1
    assert [str(path) in each for each in json.loads(shown)["problems"]] == [True]


def test_restore_names_the_log_of_a_damaged_file(wal: Path, tmp_path: Path, typed: Replog) -> None:
    typed("backup", tmp_path / "saved", "--dir", wal)
    path = min((tmp_path / "saved" / "ledgers").iterdir())
    path.write_bytes(path.read_bytes()[:-1])
    status, shown, errors = typed("restore", tmp_path / "saved", "--dir", tmp_path / "new")
    assert (status, shown) == (1, "")
    assert errors.startswith(f"replog: {path}: at byte")
    assert "Log 'orders' needs it, and is not restored. Restored whole: none." in errors
    assert errors.endswith("by their names: 'other'\n")
    assert typed("restore", tmp_path / "saved", "--log", "other", "--dir", tmp_path / "new")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("verify", "nowhere"), "nothing is there"),
        (("restore", ".", "--quorum", "3,2", "--dir", "."), "ENSEMBLE,WRITE,ACK"),
    ],
)
def test_impossible_back_up_is_refused(arguments: tuple[str, ...], words: str, typed: Replog) -> None:
    status, _, errors = typed(*arguments)
    assert status == 2
    assert words in errors
