"""The whole demonstration, small: as a user runs it, with a fault put into what is read back, and interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from replog import cli
from replog.demo import verifying
from replog.demo.verifying import Feed
from replog.protocol.model import Position

REPLOG = [sys.executable, "-m", "replog.cli"]
TIMEOUT_S = 60


def replog(*arguments: str, home: Path, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """Runs the command without a terminal; its temporary files go to `home`."""
    return subprocess.run(
        [*REPLOG, *arguments],
        env=os.environ | {"TMPDIR": str(home), "LANG": "C.UTF-8", "COLUMNS": "100"},
        capture_output=True,
        timeout=TIMEOUT_S,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
    )


def test_the_whole_of_it_without_a_terminal(tmp_path: Path) -> None:
    done = replog("demo", "--entries", "1000", home=tmp_path)
    shown = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b""), shown
    assert "\x1b" not in shown
    assert "killed by SIGKILL" in shown
    rows = [line.strip("│ ").split("│") for line in shown.splitlines() if line.startswith("│")]
    table = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}
    assert table["verdict"] == ["PASSED", "PASSED"]
    assert table["order and content"] == ["as confirmed", "as confirmed"]
    assert table["entries confirmed"] == table["entries read back"]
    assert all(int(cell.replace(",", "")) >= 2000 for cell in table["entries confirmed"])
    assert all(int(cell.replace(",", "")) > 0 for cell in table["in flight at its end"])
    assert table["confirmed to it since"] == ["-", "0"]
    assert "Every confirmed entry is there" in shown
    assert list(tmp_path.iterdir()) == [], "temporary files were left"


def test_any_bytes_from_standard_input_as_json_and_files_kept(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    data = bytes(range(256)) * 40 + b"\n\n\nthe end"
    kept = tmp_path / "kept"
    done = replog(
        "demo",
        "--entries",
        "200",
        "--input",
        "-",
        "--json",
        "--bookies",
        "1",
        "--keep",
        str(kept),
        home=home,
        stdin=data,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["passed"]
    for act in found["acts"]:
        assert act["sha256_of_input"] == act["sha256_read"]
        assert act["entries_read"] == act["entries_confirmed"] >= 400
        assert act["entries_in_flight"] > 0
    assert (kept / "input").read_bytes() == data
    assert (kept / "act-one" / "bookie-0").is_dir()
    assert list(home.iterdir()) == []


Spoil = Callable[[list[bytes]], list[bytes]]


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lambda entries: entries[1:], "missing"),
        (lambda entries: [entries[1], entries[0], *entries[2:]], "out of order"),
    ],
)
def test_a_fault_in_what_is_read_back_is_exit_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], spoil: Spoil, kind: str
) -> None:
    """Real acts with real leaders; only the reader lies, about one place of each log. The other faults: test_verdict.py."""
    honest = verifying.read_back

    async def lying(directory: Path, bookies: int, feed: Feed) -> None:
        read: list[tuple[Position, Sequence[bytes]]] = []
        await honest(directory, bookies, lambda first, entries: read.append((first, entries)))
        target = next(each for each in read if len(set(each[1][:2])) == 2)
        for first, entries in read:
            feed(first, spoil(list(entries)) if first == target[0] else entries)

    monkeypatch.setattr(verifying, "read_back", lying)
    monkeypatch.setattr(sys, "argv", ["replog", "demo", "--entries", "100", "--bookies", "1"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    shown = capsys.readouterr().out
    assert ended.value.code == 1, shown
    assert shown.count("FAILED") == 2
    assert f"{kind}: " in shown
    assert "Every confirmed entry is there" not in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [*REPLOG, "demo", "--seconds", "60"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        deadline = time.monotonic() + TIMEOUT_S
        leader = None
        while leader is None and time.monotonic() < deadline:
            line = process.stdout.readline()
            leader = int(line.split("process ")[1].split(")")[0]) if "(process " in line else None
        assert leader is not None
        process.send_signal(number)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, errors) == (128 + number, f"replog: stopped by {number.name}\n")
    with pytest.raises(ProcessLookupError):
        os.kill(leader, 0)
    assert list(tmp_path.iterdir()) == []
