"""The FastAPI servers of which one leads, in real uvicorn: the leader is killed, and deposed while it has nothing to do."""

from __future__ import annotations

import http.client
import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import replog
from tests.examples.orders import ask, check_kept, connected
from tests.examples.programs import WAIT_S, Program, short_path

__all__ = ["short_path"]

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(not (find_spec("fastapi") and find_spec("uvicorn")), reason="needs the extra `recipes`"),
]


class Servers:
    """Two servers over one bookie, of which one leads."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.host = stack.enter_context(Program("examples/web_host.py", str(directory)))
        self.host.wait_for("serving")
        command = ("-m", "uvicorn", "--port", "0", "examples.fastapi_failover:app")
        url = f"lmdb:{directory / 'metadata'}"
        self.servers = [stack.enter_context(Program(*command, METASTORE=url)) for _ in range(2)]
        self.ports = [int(each.wait_for(r"running on http://127.0.0.1:(\d+)")[1]) for each in self.servers]
        self._numbers = count()

    def order(self, server: int, answers: dict[str, dict[str, Any]]) -> None:
        """Orders there, until that was acknowledged ten times."""
        for identity in (str(next(self._numbers)) for _ in range(10)):
            answer = ask(self.ports[server], identity)
            assert answer is not None, self.servers[server].lines
            answers[identity] = answer

    def leading(self) -> list[int]:
        """Those that take orders now."""
        return [number for number, port in enumerate(self.ports) if status(port) == 200]


def status(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request("GET", "/leading")
        answer = connection.getresponse()
        json.load(answer)
        return answer.status
    finally:
        connection.close()


@pytest.fixture
def servers(short_path: Path) -> Iterator[Servers]:
    with ExitStack() as stack:
        found = Servers(short_path, stack)
        yield found
        for each in found.servers:
            if each.popen.poll() is None:
                assert each.stop(signal.SIGTERM) in (0, -signal.SIGTERM)
        assert found.host.stop(signal.SIGTERM) == 0


def first_leader(servers: Servers) -> int:
    """The one that leads, once one does."""
    deadline_s = time.monotonic() + WAIT_S
    while not servers.leading():
        assert time.monotonic() < deadline_s, [each.lines for each in servers.servers]
        time.sleep(0.05)
    return servers.leading()[0]


def test_next_server_leads_when_leader_is_killed(servers: Servers, short_path: Path) -> None:
    answers: dict[str, dict[str, Any]] = {}
    leader = first_leader(servers)
    servers.order(leader, answers)
    assert ask(servers.ports[1 - leader], "refused") is None
    servers.servers[leader].kill()
    servers.servers[1 - leader].wait_for("leads from")
    servers.order(1 - leader, answers)
    assert servers.servers[1 - leader].stop(signal.SIGTERM) in (0, -signal.SIGTERM)
    with connected(short_path) as client:
        check_kept(client, answers)


def test_idle_leader_hears_of_its_deposition(servers: Servers, short_path: Path) -> None:
    answers: dict[str, dict[str, Any]] = {}
    leader = first_leader(servers)
    servers.order(leader, answers)
    # A server that hears of it takes the log back at once: this writer may be deposed before it has ended.
    with suppress(replog.FencedError), connected(short_path) as client, client.write_log("orders"):
        servers.servers[leader].wait_for("deposed, 0 in doubt")
