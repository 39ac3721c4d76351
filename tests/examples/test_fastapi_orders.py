"""The FastAPI example in real uvicorn, under real load, killed: what it acknowledged is there afterwards."""

from __future__ import annotations

import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from replog import blocking
from tests.examples.orders import Load, ask, check_kept, listed
from tests.examples.programs import Program

# Not imported here: each worker of pytest-xdist collects this file, and a process of its own uses them.
pytestmark = pytest.mark.skipif(not (find_spec("fastapi") and find_spec("uvicorn")), reason="needs the extra `recipes`")


def started(directory: Path) -> Program:
    return Program("-m", "uvicorn", "--port", "0", "examples.fastapi_orders:app", ORDERS=str(directory))


def port_of(server: Program) -> int:
    return int(server.wait_for(r"running on http://127.0.0.1:(\d+)")[1])


@pytest.mark.crash
def test_nothing_acknowledged_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    with started(tmp_path / "orders") as server, Load(port_of(server)) as load:
        load.wait(200)
        server.kill()
    with started(tmp_path / "orders") as server:
        port = port_of(server)
        assert listed(port) >= load.answers.keys()
        last = ask(port, "last")
        assert last is not None
        assert server.stop(signal.SIGTERM) in (
            0,
            -signal.SIGTERM,
        )  # uvicorn repeats the signal once it has left in order
    with blocking.embed(tmp_path / "orders") as client:
        check_kept(client, {**load.answers, "last": last})
