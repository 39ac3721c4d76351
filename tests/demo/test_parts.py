"""The parts of the demonstration: input, reports, and how leaders' processes begin and end."""

from __future__ import annotations

import io
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from replog.demo import input as demo_input
from replog.demo.appending import Quota
from replog.demo.errors import DemoFailedError
from replog.demo.input import Input, spool
from replog.demo.leader import LeaderConfig
from replog.demo.leading import leading
from replog.demo.reports import Closed, Confirmed, Opened, Replayed, Report, TakenOver, decode, encode
from replog.errors import ConfigError
from replog.protocol.model import Position


def test_the_standard_library_reads_the_same_each_time() -> None:
    first = list(itertools.islice(Input().lines(), 5000))
    assert first[2000:] == list(itertools.islice(Input().lines(2000), 3000))
    assert sum(map(len, first)) > 50_000


def test_lines_of_any_bytes_are_the_file_again_and_again(tmp_path: Path) -> None:
    data = b"one\r\n\n\x00\xff\x80two\nlast without an end"
    (tmp_path / "input").write_bytes(data)
    lines = list(itertools.islice(Input(tmp_path / "input").lines(), 8))
    assert b"".join(lines[:4]) == data
    assert lines[:4] == lines[4:]
    assert list(itertools.islice(Input(tmp_path / "input").lines(5), 3)) == lines[5:]


def test_a_line_of_great_length_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_input, "LINE_BYTES_MAX", 10)
    (tmp_path / "input").write_bytes(b"x" * 25)
    assert list(itertools.islice(Input(tmp_path / "input").lines(), 3)) == [b"x" * 10, b"x" * 10, b"x" * 5]


@pytest.mark.parametrize("name", ["empty", "nowhere"])
def test_an_input_without_lines_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(ConfigError, match=name):
        next(Input(tmp_path / name).lines())


def test_a_spooled_input_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_input, "SPOOLED_BYTES_MAX", 10)
    assert spool(io.BytesIO(b"x" * 10), tmp_path / "copy", "it")
    assert not spool(io.BytesIO(b"x" * 11), tmp_path / "copy", "it")
    assert (tmp_path / "copy").read_bytes() == b"x" * 10
    with pytest.raises(ConfigError, match="it: is empty"):
        spool(io.BytesIO(), tmp_path / "copy", "it")


@pytest.mark.parametrize(
    "report",
    [Opened(3), TakenOver(2, (1, 7), 0.25), Replayed(0), Confirmed(9, Position(2, 8), 12), Closed(9)],
)
def test_reports_come_over_whole(report: Report) -> None:
    line = encode(report)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line) == report


@pytest.mark.parametrize(
    "line", [b"", b"{}", b"[]", b"\xff", b'{"report": "Nothing"}', b'{"report": "Replayed", "entries": "x"}']
)
def test_what_is_no_report_is_refused(line: bytes) -> None:
    with pytest.raises(DemoFailedError):
        decode(line)


def test_a_quota_ends_with_what_is_reached_first() -> None:
    assert Quota().fraction(10**9, 10**9) is None
    assert Quota(entries=100).fraction(50, 10**9) == 0.5
    assert Quota(entries=100, seconds=2.0).fraction(50, 1.5) == 0.75


async def test_a_leader_that_fails_says_why(tmp_path: Path) -> None:
    config = LeaderConfig(str(tmp_path / "wal"), 1, str(tmp_path / "nowhere"), 10, None)
    async with leading("leader 9", config, tmp_path / "stderr") as leader:
        await leader.expect(Opened)
        await leader.expect(TakenOver)
        await leader.expect(Replayed)
        with pytest.raises(
            DemoFailedError, match=r"leader 9 .* ended by itself with status 1: .*nowhere: cannot be read"
        ):
            await leader.expect(Confirmed)


async def test_a_leader_is_dead_when_its_context_is_left(tmp_path: Path) -> None:
    config = LeaderConfig(str(tmp_path / "wal"), 1, None, None, None)
    with pytest.raises(KeyError):
        async with leading("leader", config, tmp_path / "stderr") as leader:
            await leader.expect(Opened)
            raise KeyError
    with pytest.raises(ProcessLookupError):
        os.kill(leader.pid, 0)


def test_a_leader_ends_when_its_watcher_is_killed(tmp_path: Path) -> None:
    script = f"""
import sys, trio
from pathlib import Path
from replog.demo.leader import LeaderConfig
from replog.demo.leading import leading
from replog.demo.reports import TakenOver, Opened
async def main():
    config = LeaderConfig({str(tmp_path / "wal")!r}, 1, None, None, None)
    async with leading("leader", config, Path({str(tmp_path / "stderr")!r})) as leader:
        await leader.expect(Opened)
        print(leader.pid, flush=True)
        await trio.sleep_forever()
trio.run(main)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout is not None
        leader = int(watcher.stdout.readline())
        watcher.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + 10
        while _is_running(leader):
            assert time.monotonic() < deadline, "the leader outlives its watcher"
            time.sleep(0.01)


def _is_running(pid: int) -> bool:
    """A process that nobody waits for any more is a zombie until init has seen it; that is as good as gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_silent_leader_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replog.demo.leading.SILENCE_S", 0.05)  # no leader starts in so short a time
    config = LeaderConfig(str(tmp_path / "wal"), 1, None, None, None)
    async with leading("leader 9", config, tmp_path / "stderr") as leader:
        with pytest.raises(DemoFailedError, match=r"leader 9 .* told nothing"):
            await leader.next_report()
