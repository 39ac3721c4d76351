"""`replog cursor`, and trims that cursors block: what people and programs get, and the exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import replog.blocking
from tests.cli.test_inspect import run


def test_cursors_are_listed_shown_moved_and_deleted(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    wal = tmp_path / "wal"
    with replog.blocking.embed(wal) as client:
        with client.write_log("log") as log:
            log.extend([b"one", b"two"])
            log.roll()
            log.append(b"three")
        with client.cursor("log", "billing") as cursor:
            assert cursor.receive().data == b"one"
            cursor.commit()
            assert cursor.receive().data == b"two"
            assert str(cursor.begins_at) == "1:1"

    def cursor_command(*arguments: str) -> tuple[int, str, str]:
        return run(capfd, *arguments, "--dir", wal)

    status, output, _ = cursor_command("cursor", "list", "log", "--json")
    (found,) = json.loads(output)["cursors"]
    assert (status, found["cursor"], found["begins_at"], found["term"]) == (0, "billing", "1:1", 1)
    assert (found["lag_entries"], found["lag_bytes"]) == (2, 8)
    assert 0 <= found["lag_s"] < 600
    headings, line, *_ = cursor_command("cursor", "list", "log")[1].splitlines()
    assert "entries left" in headings
    assert line.split()[:5] == ["billing", "1:1", "2", "8", "B"]
    shown = cursor_command("cursor", "show", "log", "billing")[1]
    assert "begins at 1:1; term 1" in shown
    assert "entries left: 2; payloads: 8 B; age of the first: " in shown
    status, _, errors = cursor_command("cursor", "show", "log", "absent")
    assert (status, "there is no such cursor: the log has billing" in errors) == (1, True)
    (listed,) = map(json.loads, cursor_command("log", "list", "--long", "--json")[1].splitlines())
    assert [(each["cursor"], each["lag_entries"]) for each in listed["cursors"]] == [("billing", 2)]
    assert (listed["slowest_cursor"], listed["droppable_segments"]) == ("billing", 0)
    assert "billing: 2 left" in cursor_command("log", "list", "--long")[1]
    status, _, errors = cursor_command("log", "trim", "log", "--before", "2:0")
    assert status == 1
    assert "cursor 'billing'" in errors
    assert "1:1" in errors
    assert cursor_command("cursor", "move", "log", "billing", "--to", "2:0")[:2] == (
        0,
        "cursor billing of log log begins at 2:0\n",
    )
    assert cursor_command("log", "trim", "log", "--before", "2:0")[0] == 0
    assert cursor_command("cursor", "delete", "log", "billing")[0] == 2
    assert cursor_command("cursor", "delete", "log", "billing", "--yes")[1] == "cursor billing of log log: deleted\n"
    assert json.loads(cursor_command("cursor", "list", "log", "--json")[1]) == {"log": "log", "cursors": []}
