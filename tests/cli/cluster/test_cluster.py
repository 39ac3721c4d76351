"""`replog cluster` as a real process, with the real processes of its bookies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import replog
from tests import forks
from tests.cli.test_inspect import run
from tests.forks import Forked
from tests.lanes.seeds import some

COMMAND = [sys.executable, "-m", "replog.cli", "cluster"]
_WAIT_S = 60  # for processes on a busy machine: never the length of a test


class Running:
    """A cluster that runs, with all that it said."""

    def __init__(self, process: Forked) -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._is_read = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._is_read = True
            self._changed.notify_all()

    def wait_for(self, **wanted: object) -> dict[str, Any]:
        """The first line with these fields."""

        def found() -> list[dict[str, Any]]:
            return [each for each in self.lines if wanted.items() <= each.items()]

        with self._changed:
            assert self._changed.wait_for(lambda: found() or self._is_read, _WAIT_S), f"no {wanted} in {self.lines}"
            assert found(), f"ended without {wanted}: {self.lines}"
            return found()[0]

    def bookie(self, number: int, **wanted: object) -> dict[str, Any]:
        return self.wait_for(kind="bookie", name=f"bookie-{number}", **wanted)

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        status = self.process.wait(_WAIT_S)
        self._reader.join(_WAIT_S)
        return status


@contextmanager
def cluster(*arguments: str | Path) -> Iterator[Running]:
    command = [*COMMAND, *map(str, arguments), "--json", "--set", "bookie.read_only_below_bytes=0"]
    process = Forked(command, stdout=subprocess.PIPE, text=True)
    running = Running(process)
    try:
        yield running
    finally:
        running.end(signal.SIGKILL)
        assert process.stdout is not None
        process.stdout.close()


def is_alive(pid: int) -> bool:
    """Whether it runs: one that has ended and was not waited for does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.sized
async def test_dead_bookie_is_restarted_and_its_data_stays(tmp_path: Path, is_long: bool) -> None:
    with cluster("--dir", tmp_path) as running:
        told = running.wait_for(kind="cluster", state="serving")
        assert told["bookies"] == 3
        async with replog.connect(told["metastore"]) as client:
            assert client.default_quorum.ensemble == 3
            async with client.write_log("orders") as log:
                await log.append(b"first")
        killed = running.bookie(1, state="serving")
        os.kill(killed["pid"], signal.SIGKILL)
        waiting = running.bookie(1, state="waiting")
        assert "killed by signal 9" in waiting["problem"]
        again = running.bookie(1, state="serving", restarts=1)
        assert again["bookie"] == killed["bookie"]
        assert again["pid"] != killed["pid"]
        pids = [each["pid"] for each in running.lines if each.get("pid")]
        assert running.end(signal.SIGINT) == 0
        assert not any(map(is_alive, pids))
        assert {running.bookie(each, state="left")["problem"] for each in range(3)} == {""}
    with pytest.raises(replog.ConfigError, match="belongs to a cluster whose processes keep the metastore together"):
        async with replog.embed(tmp_path):
            pass
    assert not (tmp_path / "metadata").exists()
    if is_long:  # three processes more
        with cluster("--dir", tmp_path) as running:
            again = running.wait_for(kind="cluster", state="serving")
            assert (again["bookies"], again["metastore"]) == (3, told["metastore"])
            assert running.bookie(1, state="serving")["bookie"] == killed["bookie"]
            async with replog.connect(again["metastore"]) as client, client.read_log("orders") as reader:
                assert [record.data async for record in reader] == [b"first"]


async def test_two_bookies_keep_their_metadata_in_a_file(tmp_path: Path) -> None:
    with cluster("2", "--dir", tmp_path) as running:
        told = running.wait_for(kind="cluster", state="serving")
        both = replog.Quorum(2, 2, 2)
        async with replog.connect(told["metastore"], quorum=both) as client, client.write_log("orders") as log:
            await log.append(b"first")
        assert running.end(signal.SIGINT) == 0
    async with replog.embed(tmp_path) as client, client.read_log("orders") as reader:
        assert len(client.bookies) == 2
        assert [record.data async for record in reader] == [b"first"]


def test_no_process_outlives_a_killed_cluster() -> None:
    with cluster("2") as running:
        told = running.wait_for(kind="cluster", state="serving")
        pids = [running.bookie(each, state="serving")["pid"] for each in range(2)]
        assert all(map(is_alive, pids))
        assert running.end(signal.SIGKILL) == -signal.SIGKILL
        until(lambda: not any(map(is_alive, pids)))
    directory = Path(told["directory"])
    assert directory.parent == Path(tempfile.gettempdir())
    subprocess.run(["rm", "-rf", str(directory)], check=True)


def test_a_temporary_directory_is_removed() -> None:
    """And one bookie that isn't started again makes the status 1."""
    with cluster("1", "--no-restart", "--storage", "lmdb") as running:
        told = running.wait_for(kind="cluster", state="serving")
        assert Path(told["directory"], "bookie-0", "data.mdb").exists()
        os.kill(running.bookie(0, state="serving")["pid"], signal.SIGKILL)
        assert "signal 9" in running.bookie(0, state="dead")["problem"]
        assert running.end(signal.SIGTERM) == 1
        assert not Path(told["directory"]).exists()


def test_the_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with cluster("1", "--dir", tmp_path) as running:
        pid = running.bookie(0, state="serving")["pid"]
        os.kill(pid, signal.SIGSTOP)  # it will not leave
        running.process.send_signal(signal.SIGINT)
        running.bookie(0, state="leaving")
        assert running.end(signal.SIGINT) == 130
        assert not is_alive(pid)


@pytest.mark.parametrize(
    ("option", "status", "words"),
    some([("storage.expected_bookie_id=somebody", 2, "somebody"), ("bookie.nonsense=1", 2, "no such option")], few=1),
)
def test_cluster_reports_bookies_unable_to_serve(tmp_path: Path, option: str, status: int, words: str) -> None:
    done = forks.run([*COMMAND, "1", "--dir", tmp_path, "--set", option])
    assert done.returncode == status
    assert done.stderr.startswith("replog: bookie-")
    assert "cannot serve: " in done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_cluster_ends_when_its_reader_leaves(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = forks.run([*COMMAND, "1"], stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_fewer_bookies_than_the_directory_has_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"bookie-{number}").mkdir()
    status, output, errors = run(capsys, "cluster", "3", "--dir", tmp_path)
    assert (status, output) == (2, "")
    assert errors == f"replog: {tmp_path} has 4 bookies, and 3 were asked for: their ledgers need them all\n"
