"""Web servers with several workers, as their page has it: one process has the bookie, the others reach it by a Unix socket."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.examples.orders import Load, check_kept, connected
from tests.examples.programs import Program, short_path

__all__ = ["short_path"]

GUNICORN = ("gunicorn", "--bind", "127.0.0.1:0", "--workers", "3", "--threads", "4", "--no-control-socket")
UVICORN = ("uvicorn", "--port", "0", "--workers", "2")


@pytest.mark.crash
@pytest.mark.parametrize(
    ("command", "app", "needed", "workers"),
    [
        pytest.param(GUNICORN, "examples.flask_orders:app", "flask", 3, id="gunicorn"),
        pytest.param(UVICORN, "examples.fastapi_orders:app", "fastapi", 2, id="uvicorn"),
    ],
)
def test_nothing_acknowledged_is_lost_when_workers_are_killed(
    command: tuple[str, ...], app: str, needed: str, workers: int, short_path: Path
) -> None:
    pytest.importorskip(command[0], reason="needs the extra `recipes`")
    pytest.importorskip(needed, reason="needs the extra `recipes`")
    host = Program("examples/web_host.py", str(short_path))
    with host, Program("-m", *command, app, ORDERS=str(short_path), WORKERS_SHARE="1") as server:
        host.wait_for("serving")
        port = int(server.wait_for(r"(?:Listening at|running on).*:(\d+)")[1])
        with Load(port) as load:
            load.wait(50)
            killed = load.wait(1)
            os.kill(killed["worker"], signal.SIGKILL)
            load.wait_for_other(killed["log"], killed["worker"])
            load.wait(50)
        assert len({each["log"] for each in load.answers.values()}) == workers
        assert len({each["worker"] for each in load.answers.values()}) == workers + 1
        assert server.stop(signal.SIGTERM) == 0
        host.kill()
        with Program("examples/web_host.py", str(short_path)) as next_host:  # at the same path
            next_host.wait_for("serving")
            with connected(short_path) as client:
                check_kept(client, load.answers)
            assert next_host.stop(signal.SIGTERM) == 0
