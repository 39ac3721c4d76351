"""`replog audit` and `replog repair`: what they print, and their exit status."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

import replog.blocking
from replog import cli
from replog.cli import repair
from replog.cli.repair import facts_of
from replog.repair.audit_report import AuditReport, DifferingCopies, MissingCopies, UnderReplicatedFragment
from replog.repair.progress import RepairProgress

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def replog_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> Callable[..., tuple[int, str, str]]:
    """Runs a command on an embedded log of two bookies: its exit status, and what it printed."""
    with replog.blocking.embed(tmp_path / "wal", bookies=2) as client:
        with client.create_ledger() as writer:
            writer.append(b"kept")

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["replog", *arguments, "--dir", str(tmp_path / "wal")])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    return command


def test_healthy_ledgers_end_with_status_0(replog_command: Callable[..., tuple[int, str, str]]) -> None:
    for name in ("audit", "repair"):
        assert replog_command(name) == (0, "1 ledgers, 1 fragments: none lacks copies\n", "")
        status, shown, errors = replog_command(name, "--json")
        assert (status, errors) == (0, "")
        found = json.loads(shown)
        assert (found["under_replicated"], found["ledgers"], found["lacking"]) == (0, 1, [])
    status, _, errors = replog_command("repair", "--lost", "bookie-nobody")
    assert status == 1
    assert "the metastore does not know it" in errors


def test_notes_are_kept_in_a_file(replog_command: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    assert replog_command("audit", "--notes", str(notes))[0] == 0
    assert json.loads(notes.read_bytes())["ledgers"][0] == 1
    assert replog_command("audit", "--notes", str(notes))[0] == 0
    notes.write_text("a letter")
    status, _, errors = replog_command("audit", "--notes", str(notes))
    assert (status, "delete it" in errors) == (2, True)


def test_missing_copies_are_listed_and_end_with_status_1(capsys: Capture) -> None:
    many = tuple((10 * number, 10 * number + 3) for number in range(5))
    missing = (
        MissingCopies(0, "bookie-one", "lost", many, ()),
        MissingCopies(2, "bookie-two", "missing", ((0, 3),), ((0, 1),)),
        MissingCopies(3, "bookie-three", "silent", ((0, 3),), (), "it did not answer"),
    )
    report = AuditReport(3, 5, 1, (UnderReplicatedFragment(7, 0, 43, 1, missing),), {"bookie-four": 2})
    repair._show(report, for_programs=False)
    heading, one, two, three, _, gone, last = capsys.readouterr().out.splitlines()
    assert heading.split() == ["ledger", "entries", "copies", "left", "bookie", "state", "lacks", "why"]
    assert one.split() == ["7", "0-43", "1", "bookie-one", "lost", "0-3,", "10-13,", "20-23,", "...", "-"]
    assert two.endswith("no bookie has some of it")
    assert three.endswith("it did not answer")
    assert gone == "ledger 7, entries 0-1: gone: no bookie has a copy"
    assert last == "3 ledgers, 5 fragments: 1 lacks copies"
    with pytest.raises(typer.Exit) as ended:
        repair._end(report)
    assert ended.value.exit_code == 1
    repair._show(report, for_programs=True)
    found = json.loads(capsys.readouterr().out)
    assert found["lacking"][0]["missing"][1]["nowhere"] == [[0, 1]]
    assert found["draining"] == {"bookie-four": 2}
    (without,) = found["without_copies"]
    expected = {"ledger_id": 7, "first_entry_id": 0, "last_entry_id": 1, "stride": 1, "awaited": [], "refusing": []}
    assert without == {**expected, "is_gone": True}


def test_entries_without_copies_are_listed_one_and_all(capsys: Capture) -> None:
    nowhere = tuple((4 * number, 4 * number) for number in range(30))
    missing = tuple(
        MissingCopies(index, f"bookie-{index}", state, nowhere, nowhere) for index, state in enumerate(("away", "lost"))
    )
    lacking = (UnderReplicatedFragment(7, 0, 120, 0, missing, 4),)
    repair._show(AuditReport(1, 1, 0, lacking, differing=(DifferingCopies(8, 3, 5),)), for_programs=False)
    shown = capsys.readouterr().out.splitlines()
    listed = [each for each in shown if each.endswith("every 4th: no copy was found, and bookie-0 did not answer")]
    assert len(listed) == 30
    assert "ledger 8, entries 3-5: bookies have different copies, and none was copied" in shown


def test_refusing_bookie_is_not_called_silent(capsys: Capture) -> None:
    """M5, B7: its words are in the table, and the words of one that refused copies, too."""
    states = (("refused", "bookie bookie-0: of another creation"), ("silent", "no answer"), ("missing", ""))
    missing = tuple(
        MissingCopies(index, f"bookie-{index}", state, ((0, 3),), ((0, 3),), problem)
        for index, (state, problem) in enumerate(states)
    )
    lacking = (UnderReplicatedFragment(7, 0, 3, 0, missing, hindrances=("bookie-9: its disk is full",)),)
    repair._show(AuditReport(1, 1, 0, lacking), for_programs=False)
    shown = capsys.readouterr().out
    assert "no copy was found, and bookie-1 did not answer, bookie-0 refused to tell" in shown
    assert "bookie bookie-0: of another creation" in shown
    assert "bookie-9: its disk is full" in shown


def test_repairs_are_paused_and_resumed(replog_command: Callable[..., tuple[int, str, str]]) -> None:
    assert replog_command("repair", "--pause") == (0, "all repairs are paused\n", "")
    status, shown, _ = replog_command("repair", "--resume", "--json")
    assert (status, json.loads(shown)) == (0, {"paused": False})
    status, _, errors = replog_command("repair", "--pause", "--resume")
    assert (status, "give one of them" in errors) == (2, True)


def test_copies_in_the_wrong_place_end_with_status_1(replog_command: Callable[..., tuple[int, str, str]]) -> None:
    status, shown, _ = replog_command("audit", "--placement", "zones:?at_least=2")
    named, last = shown.splitlines()
    assert (status, last) == (1, "1 ledgers, 1 fragments: none lacks copies, 1 in a wrong place")
    assert named.startswith("ledger 1, entries 0-0: a write set spans 0 of 2 zones")


def test_progress_is_reported_in_words() -> None:
    progress = RepairProgress("copy", 3, 10, 7, 50 << 20, 2.0, float(25 << 20), 4.7)
    assert facts_of(progress) == "7 lack copies, 50.0 MiB copied, 25.0 MiB/s, 4.7s left"
    assert facts_of(RepairProgress("audit", 0, 10, 0, 0, 0.0, 0.0, None)) == ""
