"""`replog archive`, `replog log archive` and `recall`, as somebody types them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.logs import Replog, entries_of, make_log


def test_log_is_archived_audited_and_recalled(tmp_path: Path, typed: Replog) -> None:
    wal = make_log(tmp_path / "wal", [b"one", b"two"], [b"three"], [b"four"])
    (tmp_path / "store").mkdir()
    url = f"file:{tmp_path / 'store'}"
    assert typed("log", "archive", "log", "--dir", wal)[0] == 2, "there is no archive yet"
    status, shown, _ = typed("archive", "add", url, "--dir", wal)
    assert (status, shown.endswith(f": {url}\n")) == (0, True)
    assert json.loads(typed("archive", "list", "--dir", wal, "--json")[1])["archives"][0]["url"] == url
    status, shown, errors = typed("log", "archive", "log", "--before", "3:0", "--dir", wal)
    assert (status, errors) == (0, "")
    assert shown.startswith("log log: 2 fragments archived, ")
    assert entries_of(wal) == [b"one", b"two", b"three", b"four"]
    lines = typed("log", "show", "log", "--dir", wal)[1].splitlines()
    assert lines[-1].startswith("log log: 3 segments, 4 entries, 15 B, 11 B of them archived; ")
    found = json.loads(typed("log", "show", "log", "--dir", wal, "--json")[1])
    assert [each["archived_bytes"] for each in found["segments"]] == [6, 5, 0]
    assert json.loads(typed("log", "list", "--long", "--dir", wal, "--json")[1])["archived_bytes"] == 11
    moved = json.loads(typed("log", "archive", "log", "--into", url, "--dir", wal, "--json")[1])
    assert (moved["log"], moved["fragments"]) == ("log", 1)
    assert typed("archive", "audit", "--dir", wal)[1].startswith("3 fragments in 3 objects, ")
    ledger = json.loads(typed("ledger", "show", "1", "--dir", wal, "--json")[1])
    assert ledger["fragments"][0]["archive"]
    assert "archived as" in typed("ledger", "show", "1", "--dir", wal)[1]
    assert typed("log", "recall", "log", "--dir", wal)[1].startswith("log log: 3 fragments recalled, ")
    assert typed("archive", "collect", "--dir", wal)[1] == "no objects deleted, 0 B; 3 are younger than a day\n"
    assert entries_of(wal) == [b"one", b"two", b"three", b"four"]


def test_audit_names_a_missing_object(tmp_path: Path, typed: Replog) -> None:
    wal = make_log(tmp_path / "wal", [b"one", b"two"], [b"three"])
    (tmp_path / "store").mkdir()
    typed("archive", "add", f"file:{tmp_path / 'store'}", "--dir", wal)
    typed("log", "archive", "log", "--before", "2:0", "--dir", wal)
    (found,) = [each for each in (tmp_path / "store" / "ledgers").rglob("*") if each.is_file()]
    found.unlink()
    status, shown, _ = typed("archive", "audit", "--dir", wal)
    assert status == 1
    assert "problem: ledger 1, entries 0 to 1: archive file:" in shown
    status, _, errors = typed("log", "read", "log", "--dir", wal)
    assert status == 1
    assert "put it back" in errors


def test_copies_of_restored_metadata_are_adopted(tmp_path: Path, typed: Replog) -> None:
    wal = make_log(tmp_path / "wal", [b"one", b"two"], [b"three"])
    (tmp_path / "store").mkdir()
    typed("archive", "add", f"file:{tmp_path / 'store'}", "--dir", wal)
    typed("log", "archive", "log", "--dir", wal)
    typed("log", "recall", "log", "--dir", wal)  # the copies are complete, and no record names them
    shown = typed("archive", "adopt", "--dir", wal)
    assert (shown[0], shown[1].startswith("2 fragments adopted, ")) == (0, True), shown
    assert json.loads(typed("archive", "adopt", "--dir", wal, "--json")[1])["fragments"] == 0
    assert typed("archive", "audit", "--dir", wal)[0] == 0
    assert entries_of(wal) == [b"one", b"two", b"three"]
