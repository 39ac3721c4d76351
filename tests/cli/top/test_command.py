"""`replog top`: on a terminal, where there is none, and how it ends."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import replog.blocking
from tests.forks import Forked, run

DEADLINE_S = 30.0
ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"
COMMAND = [sys.executable, "-m", "replog.cli", "top"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An embedded log of two bookies."""
    made = tmp_path_factory.mktemp("top") / "wal"
    with replog.blocking.embed(made, bookies=2, storage="lmdb") as client, client.write_log("log") as log:
        log.append(b"one")
    return made


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *arguments: str, width: int = 100, height: int = 12) -> None:
        self.seen = b""
        self._ours, theirs = pty.openpty()
        self.resize(width, height)
        self.modes = termios.tcgetattr(self._ours)
        environment = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "COLUMNS": "", "LINES": ""}
        self.process = Forked(
            [*COMMAND, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={name: value for name, value in environment.items() if value},
            start_new_session=True,
        )
        os.close(theirs)

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def press(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def until(self, pattern: bytes) -> bytes:
        """Reads on until this comes; what came since the last one."""
        deadline = time.monotonic() + DEADLINE_S
        begin = len(self.seen)
        while re.search(pattern, self.seen[begin:], re.DOTALL) is None:
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.seen[begin:][-3000:]!r}"
            self._read(0.1)
        return self.seen[begin:]

    def _read(self, timeout_s: float) -> bool:
        if not select.select([self._ours], [], [], timeout_s)[0]:
            return True
        try:
            found = os.read(self._ours, 65536)
        except OSError:
            return False  # nobody has the other side open any more
        self.seen += found
        return bool(found)

    def end(self) -> int:
        """The exit status; the terminal is as it was."""
        while self.process.poll() is None and self._read(0.05):
            pass
        status = self.process.wait(DEADLINE_S)
        while self._read(0.0) and select.select([self._ours], [], [], 0.0)[0]:
            pass
        assert termios.tcgetattr(self._ours)[3] == self.modes[3]
        assert self.seen.count(ENTER) == self.seen.count(LEAVE) >= 1
        return status

    def close(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)
        os.close(self._ours)


@pytest.fixture
def terminal(directory: Path) -> Iterator[Terminal]:
    made = Terminal("--dir", str(directory), "--interval", "0.2")
    yield made
    made.close()


def test_keys_change_the_view_and_q_ends_it(terminal: Terminal) -> None:
    first = terminal.until(rb"2 writable.*s order: bookie")
    assert ENTER in first
    terminal.press("s")
    terminal.until(rb"s order: entries/s")
    terminal.press("S")
    terminal.until(rb"s order: bookie")
    terminal.press("\x1b[A")  # an arrow
    terminal.press("p")
    terminal.until(rb"PAUSED.*p go on")
    terminal.press("p")
    terminal.until(rb"p pause")
    terminal.press("l")
    terminal.until(rb"1 log: .*1 closed.*l bookies")
    terminal.press("p")
    terminal.press("l")
    terminal.until(rb"2 writable.*p go on.*l logs")
    terminal.press("q")
    assert terminal.end() == 0


def test_picture_follows_the_size_of_the_terminal(terminal: Terminal) -> None:
    assert b"answer p50" not in terminal.until(rb"q quit")
    terminal.resize(150, 20)
    os.kill(terminal.process.pid, signal.SIGWINCH)
    terminal.until(rb"answer p50 p99")
    terminal.press("q")
    assert terminal.end() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_terminal_is_restored_when_a_signal_ends_it(terminal: Terminal, number: signal.Signals) -> None:
    terminal.until(rb"2 writable")
    os.kill(terminal.process.pid, number)
    assert terminal.end() == 128 + number


def test_view_goes_on_after_ctrl_z(terminal: Terminal) -> None:
    terminal.until(rb"2 writable")
    os.kill(terminal.process.pid, signal.SIGTSTP)
    terminal.until(re.escape(LEAVE))
    deadline = time.monotonic() + DEADLINE_S
    while "T (stopped)" not in Path(f"/proc/{terminal.process.pid}/status").read_text(encoding="ascii"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(terminal.process.pid, signal.SIGCONT)
    terminal.until(re.escape(ENTER) + rb".*2 writable")
    terminal.press("q")
    assert terminal.end() == 0


def top(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run([*COMMAND, *arguments], timeout=DEADLINE_S)


def test_one_picture_is_printed_without_a_terminal(directory: Path) -> None:
    done = top("--dir", str(directory), "--interval", "0.1")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "2 bookies: 2 writable" in lines[0]
    assert lines[3].split()[:3] == ["bookie", "state", "entries/s"]
    assert [line.split()[1] for line in lines[4:]] == ["writable", "writable"]
    assert "\x1b" not in done.stdout


def test_logs_are_printed_instead(directory: Path) -> None:
    done = top("--dir", str(directory), "--interval", "0.1", "--logs", "--once")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "1 log: 1 closed" in lines[0]
    assert lines[2].split()[:4] == ["log", "state", "entries/s", "entries"]
    assert lines[3].split()[:5] == ["log", "closed", "0", "1", "3"]
    found = json.loads(top("--dir", str(directory), "--interval", "0.1", "--logs", "--json").stdout)
    assert len(found["bookies"]) == 2
    [log] = found["logs"]
    assert (log["log"], log["entries"], log["entries_rate"], log["problem"]) == ("log", 1, 0.0, None)


def test_json_has_everything(directory: Path) -> None:
    done = top("--dir", str(directory), "--interval", "0.1", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["problem"] is None
    assert found["total"]["entries_rate"] == 0.0
    assert [bookie["state"] for bookie in found["bookies"]] == ["writable", "writable"]
    bookie = found["bookies"][0]
    assert bookie["endpoints"][0].startswith("memory:")
    assert bookie["free_bytes"] > bookie["used_bytes"] > 0
    assert bookie["version"]
    assert {"commit_p50_s", "answer_p99_s", "fence_requests", "queued_bytes", "connections"} <= set(bookie)


def test_error_names_the_options_when_none_is_given(tmp_path: Path) -> None:
    done = top("--dir", str(tmp_path))
    assert done.returncode == 2
    assert "no embedded log" in done.stderr
