"""Web servers with several workers, as their page has it: one process has the bookie, the others reach it by a Unix socket."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.examples.orders import Load, check_kept, connected
from tests.examples.programs import Program, short_path

__all__ = ["short_path"]

GUNICORN = ("gunicorn", "--bind", "127.0.0.1:0", "--workers", "2", "--threads", "4", "--no-control-socket")
UVICORN = ("uvicorn", "--port", "0", "--workers", "2")


@pytest.mark.crash
@pytest.mark.parametrize(
    ("command", "app", "needed"),
    [
        pytest.param(GUNICORN, "examples.flask_orders:app", "flask", id="gunicorn"),
        pytest.param(
            UVICORN, "examples.fastapi_orders:app", "fastapi", id="uvicorn", marks=pytest.mark.long(is_sampled=False)
        ),
    ],
)
def test_acknowledged_entries_survive_killed_workers_and_bookie(
    command: tuple[str, ...], app: str, needed: str, short_path: Path
) -> None:
    pytest.importorskip(command[0], reason="needs the extra `recipes`")
    pytest.importorskip(needed, reason="needs the extra `recipes`")
    with ExitStack() as stack:
        host = stack.enter_context(Program("examples/web_host.py", str(short_path)))
        host.wait_for("serving")
        server = stack.enter_context(Program("-m", *command, app, ORDERS=str(short_path), WORKERS_SHARE="1"))
        port = int(server.wait_for(r"(?:Listening at|running on).*:(\d+)")[1])
        with Load(port) as load:
            load.wait(50)
            load.wait(1, log="orders-1")
            killed = load.wait(1, log="orders-0")
            os.kill(killed["worker"], signal.SIGKILL)
            load.wait_for_other(killed["log"], killed["worker"])
            load.wait(50)
            host.kill()
            host = stack.enter_context(Program("examples/web_host.py", str(short_path)))  # at the same path
            host.wait_for("serving")
            load.wait(50)  # the workers have waited for it
        assert server.stop(signal.SIGTERM) == 0
        with connected(short_path) as client:
            check_kept(client, load.answers)
        assert host.stop(signal.SIGTERM) == 0
