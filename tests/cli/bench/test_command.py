"""`replog bench`: what it prints, what it refuses, and how Ctrl-C ends it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import replog.blocking
from replog import cli
from replog.cli.bench import disk
from tests.forks import Forked

Capture = pytest.CaptureFixture[str]
DEADLINE_S = 30.0


def bench(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["replog", "bench", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def ledgers(directory: Path) -> list[int]:
    with replog.blocking.embed(directory) as client:
        return client.ledgers()


def test_programs_get_everything(monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path) -> None:
    monkeypatch.setattr("replog.cli.bench.command._DISK_SECONDS", 0.05)
    where = ("--dir", str(tmp_path / "wal"), "--fdatasync", str(tmp_path))
    assert bench(monkeypatch, *where, "--entries", "500", "--size", "1KB", "--ledgers", "2", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["entries"], found["size_bytes"], found["ledgers"]) == (500, 1000, 2)
    assert found["quorum"] == {"ensemble": 1, "write": 1, "ack": 1}
    assert found["entries_rate"] == pytest.approx(500 / found["elapsed_s"])
    assert found["bytes_rate"] == pytest.approx(500_000 / found["elapsed_s"])
    assert 0 < found["latency"]["p50_s"] <= found["latency"]["p999_s"] <= found["latency"]["longest_s"]
    assert found["cpu_s_per_entry"] > 0
    assert found["fdatasync"]["count"] >= 1
    assert found["kept_ledgers"] == []
    assert ledgers(tmp_path / "wal") == []
    assert [path.name for path in tmp_path.iterdir()] == ["wal"]


def test_people_get_a_table_and_may_keep_the_ledgers(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    where = ("--dir", str(tmp_path / "wal"))
    assert bench(monkeypatch, *where, "--seconds", "0.1", "--in-flight", "20", "--batch", "10", "--keep") == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    (kept,) = ledgers(tmp_path / "wal")
    for text in (
        "1.0 KiB entries, 1 ledger ",
        "in flight 20 in calls of 10",
        "quorum 1,1,1",
        "entries/s",
        "p99.9",
        "us an entry",
        f"kept ledgers {kept}",
    ):
        assert text in shown


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--size", "17MiB"], "from 0 to"),
        (["--size", "x"], "64KiB"),
        (["--quorum", "3,2"], "5,3,2"),
        (["--quorum", "2,3,2"], "ensemble"),
        (["--in-flight", "10000000"], "lower --in-flight"),
        (["--fdatasync", "/nowhere/at/all"], "No such file"),
    ],
)
def test_invalid_loads_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path, arguments: list[str], match: str
) -> None:
    assert bench(monkeypatch, "--dir", str(tmp_path / "wal"), *arguments) == 2
    assert match in capsys.readouterr().err


def test_quorum_larger_than_the_cluster_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, tmp_path: Path
) -> None:
    assert bench(monkeypatch, "--dir", str(tmp_path / "wal"), "--quorum", "3/3/2") == 1
    assert "3" in capsys.readouterr().err


def test_ctrl_c_prints_what_was_measured_and_leaves_nothing(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "replog.cli",
        "bench",
        "--dir",
        str(tmp_path / "wal"),
        "--seconds",
        "600",
        "--json",
    ]
    with Forked(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            journal = tmp_path / "wal" / "bookie-0"
            deadline = time.monotonic() + DEADLINE_S
            while not _is_written(journal):
                assert time.monotonic() < deadline
                assert process.poll() is None, process.stderr and process.stderr.read()
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            shown, errors = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGINT, errors
    found = json.loads(shown)
    assert found["entries"] > 0
    assert found["elapsed_s"] < 2 * DEADLINE_S
    assert ledgers(tmp_path / "wal") == []


def _is_written(directory: Path) -> bool:
    """Whether some bytes of a journal file are not zero behind its header: many entries, and not only the first."""
    for path in (directory / "journal").glob("*"):
        with path.open("rb") as file:
            file.seek(1 << 20)
            if any(file.read(4096)):
                return True
    return False


async def test_the_disk_alone_is_measured_and_its_file_is_gone(tmp_path: Path) -> None:
    samples = await disk.measure(tmp_path, 5 << 20, 0.05)
    assert samples.count >= 1
    assert samples.longest_s > 0
    assert os.listdir(tmp_path) == []
