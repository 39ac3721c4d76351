"""`wait_ended` in a thread: others go on appending meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import replog
from replog import blocking

DEADLINE_S = 60


def test_idle_leader_learns_of_its_deposition(tmp_path: Path) -> None:
    with blocking.embed(tmp_path / "wal") as client, ThreadPoolExecutor(1) as threads, client.write_log("log") as first:
        ended = threads.submit(first.wait_ended)
        first.append(b"0")
        assert not ended.done()
        with client.write_log("log") as second:
            with pytest.raises(replog.FencedError):
                ended.result(DEADLINE_S)
            second.append(b"1")


def test_wait_returns_when_writer_is_closed(tmp_path: Path) -> None:
    with blocking.embed(tmp_path / "wal") as client, ThreadPoolExecutor(1) as threads:
        with client.write_log("log") as log:
            ended = threads.submit(log.wait_ended)
            log.append(b"0")
        ended.result(DEADLINE_S)
