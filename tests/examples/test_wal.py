"""The example of a write-ahead log in real processes, killed in mid-flight: what it acknowledged is there afterwards."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forks
from tests.forks import Forked

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "wal.py"
KEYS = 5


class Process:
    """The example, reading commands."""

    def __init__(self, directory: Path) -> None:
        self.popen = Forked(
            [sys.executable, str(EXAMPLE), str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.stdin, self.stdout = self.popen.stdin, self.popen.stdout

    def ask(self, command: str) -> str:
        """The answer; "" if the process is dead."""
        try:
            self.stdin.write(command + "\n")
            self.stdin.flush()
        except BrokenPipeError:
            return ""
        return self.stdout.readline().strip()

    def kill(self) -> None:
        self.popen.send_signal(signal.SIGKILL)
        self.popen.communicate(timeout=30)

    def end(self) -> str:
        """Ends it as a user would; returns what it had to say on standard error."""
        _, errors = self.popen.communicate(timeout=30)
        assert self.popen.returncode == 0, errors
        return errors


def run(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLE), str(directory), *words]
    return forks.run(command)


@pytest.mark.crash
def test_nothing_acknowledged_is_lost_by_kills(tmp_path: Path) -> None:
    chance = random.Random(7)
    acknowledged: dict[str, str] = {}
    number = 0
    for _ in range(5):
        process = Process(tmp_path / "store")
        for name in map(str, range(KEYS)):
            assert process.ask(f"get {name}") == acknowledged.get(name, "(none)")
        for _ in range(chance.randrange(20, 60)):
            number += 1
            name = str(chance.randrange(KEYS))
            if number % 17 == 0:
                assert process.ask("snapshot") == "ok"
            assert process.ask(f"set {name} {number}") == "ok"
            acknowledged[name] = str(number)
        # One change, or a snapshot, is under way when it dies: a change may be kept or not, no other may be touched.
        in_flight = chance.choice(["set unsure 1", "snapshot"])
        process.stdin.write(in_flight + "\n")
        process.stdin.flush()
        process.kill()
    process = Process(tmp_path / "store")
    assert {name: process.ask(f"get {name}") for name in map(str, range(KEYS))} == acknowledged
    assert process.ask("get unsure") in ("1", "(none)")
    assert process.end() == ""


def test_a_snapshot_replaces_the_log_before_it(tmp_path: Path) -> None:
    store = tmp_path / "store"
    process = Process(store)
    for number in range(10):
        assert process.ask(f"set name-{number} {number}") == "ok"
    assert process.ask("delete name-3") == "ok"
    assert process.ask("snapshot") == "ok"
    assert process.ask("set after yes") == "ok"
    assert process.end() == ""
    assert run(store, "get", "name-9").stdout == "9\n"
    assert run(store, "get", "name-3").stdout == "(none)\n"
    assert run(store, "get", "after").stdout == "yes\n"


def test_second_process_learns_the_holder_of_the_store(tmp_path: Path) -> None:
    process = Process(tmp_path / "store")
    assert process.ask("set name 1") == "ok"
    second = run(tmp_path / "store", "set", "name", "2")
    assert second.returncode == 1
    assert f"open in process {process.popen.pid}" in second.stderr
    assert process.ask("get name") == "1"
    assert process.end() == ""


def test_wrong_command_lists_the_valid_ones(tmp_path: Path) -> None:
    assert "one of: set NAME VALUE" in run(tmp_path / "store", "increase", "x").stdout
