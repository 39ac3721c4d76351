"""`replog log metrics`: what Prometheus is told of logs and cursors."""

from __future__ import annotations

import http.client
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import replog.blocking
from tests.cli.test_inspect import run
from tests.forks import Forked
from tests.metrics.kit import parsed


def filled(directory: Path) -> str:
    with replog.blocking.embed(directory) as client:
        for name in ("orders", "audit"):
            with client.write_log(name) as log:
                log.extend([b"one", b"two"])
        with client.cursor("orders", "billing"):
            pass
    return str(directory)


def test_metrics_are_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wal = filled(tmp_path / "wal")
    status, output, errors = run(capsys, "log", "metrics", "--dir", wal)
    assert (status, errors) == (0, "")
    found = parsed(output)
    assert found["replog_log_entries"] == {("audit",): 2, ("orders",): 2}
    assert found["replog_cursor_lag_entries"] == {("billing", "orders"): 2}
    status, output, errors = run(capsys, "log", "metrics", "audit", "--dir", wal)
    assert (status, errors) == (0, "")
    assert parsed(output)["replog_log_entries"] == {("audit",): 2}
    status, output, errors = run(capsys, "log", "metrics", "absent", "--dir", wal)
    assert (status, output) == (1, "")
    assert "'absent'" in errors
    status, output, errors = run(capsys, "log", "metrics", "--listen", "nowhere", "--dir", wal)
    assert (status, output) == (2, "")
    assert "HOST:PORT" in errors


def test_metrics_are_served_until_a_signal(tmp_path: Path) -> None:
    wal = filled(tmp_path / "wal")
    command = [sys.executable, "-m", "replog.cli", "log", "metrics", "--listen", "127.0.0.1:0", "--dir", wal]
    with Forked(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            told = re.fullmatch(r"replog: metrics of logs at http://127\.0\.0\.1:(\d+)/metrics\n", line)
            assert told is not None, line
            connection = http.client.HTTPConnection("127.0.0.1", int(told[1]), timeout=60)
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
            assert parsed(text)["replog_log_entries"] == {("audit",): 2, ("orders",): 2}
        finally:
            process.send_signal(signal.SIGTERM)
            status = process.wait(60)
        assert status in (143, -signal.SIGTERM)
