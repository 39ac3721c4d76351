"""The whole demonstration, small: as a user runs it, with an entry left out when the log is read back, and interrupted."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from replog import cli
from replog.demo import running
from replog.protocol.model import Position
from tests.forks import Forked, run

REPLOG = [sys.executable, "-m", "replog.cli"]
TIMEOUT_S = 120

pytestmark = pytest.mark.slow


def test_demonstration_passes_without_a_terminal(tmp_path: Path) -> None:
    done = run(
        [*REPLOG, "demo", "--entries", "1000"],
        env=os.environ | {"TMPDIR": str(tmp_path), "LANG": "C.UTF-8", "COLUMNS": "100"},
        timeout=TIMEOUT_S,
        text=False,
    )
    shown = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b""), shown
    assert "\x1b" not in shown
    assert all(word in shown for word in ("SIGKILL", "SIGSTOP", "SIGCONT"))
    assert "two of three are enough" in shown
    rows = [line.strip("│ ").split("│") for line in shown.splitlines() if line.startswith("│")]
    table = {row[0].strip(): [cell.strip().replace(",", "") for cell in row[1:]] for row in rows if row[0].strip()}
    first, second, third = map(int, table["confirmed by then"])
    assert first >= 1000
    assert second >= first + 1000
    assert third >= second + 1000
    assert int(table["entries confirmed"][0]) >= third + 1000
    confirmed, kept, read, followed = (
        int(table[name][0])
        for name in ("entries confirmed", "in flight, and kept", "entries read back", "read by the follower")
    )
    assert confirmed + kept == read == followed
    assert kept == int(table["of these in the log"][0]) + int(table["of these in the log"][2])
    in_flight, in_log = table["in flight then"], table["of these in the log"]
    assert int(in_flight[0]) >= max(int(in_log[0]), 1)
    assert int(in_flight[2]) >= max(int(in_log[2]), 1)
    assert table["verdict"] == ["PASSED"]
    assert shown.count("PASSED") == 4
    named = re.search(r"names ([\d,]+) entries whose fate it does not know: \d+:(\d+) to \d+:(\d+)", shown)
    assert named is not None
    assert int(named[1].replace(",", "")) == int(named[3]) - int(named[2]) + 1 == int(in_flight[2])
    assert "Every confirmed entry is there" in shown
    assert list(tmp_path.iterdir()) == [], "temporary files were left"


@pytest.mark.long(is_sampled=False)
def test_exit_status_is_1_when_an_entry_is_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The acts and processes are real, the input is any bytes from standard input; only reading back leaves one entry out.

    What else the checker finds is in tests/testing/test_history.py."""
    honest = running.read_back

    async def lying(metastore: str) -> list[tuple[Position, str]]:
        read = await honest(metastore)
        return read[:50] + read[51:]

    data = bytes(range(256)) * 40 + b"\n\n\nthe end"
    kept = tmp_path / "kept"
    monkeypatch.setattr(running, "read_back", lying)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    arguments = ["--entries", "100", "--bookies", "4", "--input", "-", "--json", "--keep", str(kept)]
    monkeypatch.setattr(sys, "argv", ["replog", "demo", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    shown = capsys.readouterr()
    assert ended.value.code == 1, shown.err
    found = json.loads(shown.out)
    assert not found["passed"]
    assert [act["passed"] for act in found["acts"]] == [True, True, True]
    assert any(fault.startswith("lost: ") for fault in found["log"]["faults"])
    assert found["log"]["entries_followed"] == found["log"]["entries_read"] + 1
    assert [act["takeover_s"] is None for act in found["acts"]] == [False, True, False]
    assert found["acts"][1]["bookie_replaced_s"] > 0
    assert found["acts"][2]["leader_learnt_s"] > 0
    assert "Every confirmed entry is there" not in shown.err
    assert (kept / "input").read_bytes() == data
    assert (kept / "bookie-0").is_dir()


@pytest.mark.parametrize(
    ("number", "moment", "processes"),
    [
        pytest.param(signal.SIGINT, "created the log", 6, id="SIGINT", marks=pytest.mark.long(is_sampled=False)),
        pytest.param(signal.SIGKILL, "bookies serve", 4, id="SIGKILL"),
    ],
)
def test_no_process_is_left_when_it_is_interrupted_or_killed(
    tmp_path: Path, number: signal.Signals, moment: str, processes: int
) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with Forked(
        [*REPLOG, "demo", "--seconds", "60", "--bookies", "4"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        line, pids = " ", []
        while line and moment not in line:
            line = process.stdout.readline()
            pids += [int(each) for found in re.findall(r"process \(?([\d, ]+)\)", line) for each in found.split(", ")]
        assert len(pids) == processes
        process.send_signal(number)
        _, errors = process.communicate(timeout=TIMEOUT_S)
    if number == signal.SIGKILL:
        deadline = time.monotonic() + TIMEOUT_S
        while any(map(_is_running, pids)):
            assert time.monotonic() < deadline, "a process outlives the demonstration"
            time.sleep(0.01)
        return
    assert (process.returncode, errors) == (128 + number, f"replog: stopped by {number.name}\n")
    assert not any(map(_is_running, pids))
    assert list(tmp_path.iterdir()) == []


def _is_running(pid: int) -> bool:
    """False for a zombie too: nobody waits for it but init."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
