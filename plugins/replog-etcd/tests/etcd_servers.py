"""Real etcd servers, one alone or three, on free ports of the loopback; they die with the process that runs the tests."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import attrs
import pytest

from replog_etcd.metastore import EtcdMetastore
from replog_etcd.options import EtcdOptions, Target

HOST = "127.0.0.1"
STARTING_S = 60.0  # on a busy machine
ATTEMPTS = 5  # to find ports that nobody takes meanwhile
PORTS = range(20_000, 30_000)  # below those that the kernel gives to clients
F_SETSIG = 10  # Linux; the module `fcntl` does not name it
MISSING = "etcd is missing: apt-get install etcd-server (3.4 or newer)"


def etcd_program() -> str:
    """Where etcd is. Without it a test is skipped; where tests must all run (CI=true), it fails."""
    beside_python = os.path.dirname(sys.executable)  # where replog's Makefile puts it
    program = shutil.which("etcd") or shutil.which("etcd", path=beside_python)
    if program is None:
        if os.environ.get("CI") == "true":
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    return program


def free_port() -> int:
    while True:
        port = random.choice(PORTS)
        with socket.socket() as trial:
            try:
                trial.bind((HOST, port))
            except OSError:
                continue
            return port


class Etcd:
    """One server: its directory and ports stay the same however often its process ends."""

    def __init__(self, directory: Path, name: str, client_port: int, peer_port: int, options: Sequence[str]) -> None:
        self.address = f"{HOST}:{client_port}"
        self.peer_url = f"http://{HOST}:{peer_port}"
        self.name = name
        self.log = directory / f"{name}.log"
        self.options = list(options)
        self.command: list[str] = []
        self._directory = directory
        self._child: subprocess.Popen[bytes] | None = None
        self._our_end = -1

    def configure(self, everybody: Sequence[Etcd], scheme: str = "http") -> None:
        """Before the first start: who is in the cluster."""
        client_url = f"{scheme}://{self.address}"
        self.command = [
            etcd_program(),
            *("--name", self.name, "--data-dir", str(self._directory / self.name)),
            *("--listen-client-urls", client_url, "--advertise-client-urls", client_url),
            *("--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url),
            *("--initial-cluster", ",".join(f"{each.name}={each.peer_url}" for each in everybody)),
            *("--heartbeat-interval", "20", "--election-timeout", "400"),  # it serves sooner, and leases may be short
            *("--logger", "zap", "--log-level", "error", *self.options),
        ]

    def launch(self) -> None:
        its_input, self._our_end = os.pipe()
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self.command, stdin=its_input, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        # The kernel kills it when nobody holds the other end of its input any more: when the tests have ended, however.
        fcntl.fcntl(its_input, fcntl.F_SETOWN, self._child.pid)
        fcntl.fcntl(its_input, F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(its_input, fcntl.F_SETFL, fcntl.fcntl(its_input, fcntl.F_GETFL) | os.O_ASYNC)
        os.close(its_input)

    def wait_serving(self) -> bool:
        """Whether it serves; False if it has ended. A server that asks for TLS serves when its port is open."""
        deadline_s = time.monotonic() + STARTING_S
        while time.monotonic() < deadline_s:
            assert self._child is not None
            if self._child.poll() is not None:
                return False
            if self._is_serving():
                return True
            time.sleep(0.01)
        raise AssertionError(f"{self.name} does not serve: {self.log.read_text()[-3000:]}")

    def _is_serving(self) -> bool:
        try:
            if any(f"https://{self.address}" in each for each in self.command):
                socket.create_connection((HOST, int(self.address.split(":")[1])), 1).close()
                return True
            with urllib.request.urlopen(f"http://{self.address}/health", timeout=1) as answer:
                return b'"true"' in answer.read()
        except OSError:  # also urllib's
            return False

    def start(self) -> None:
        self.launch()
        assert self.wait_serving(), self.log.read_text()[-3000:]

    def signal(self, number: signal.Signals) -> None:
        assert self._child is not None
        self._child.send_signal(number)

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL. Idempotent."""
        if self._child is not None:
            self._child.kill()
            self._child.wait(30)
            os.close(self._our_end)
        self._child = None


def start_etcd(directory: Path, size: int = 1, *options: str, scheme: str = "http") -> list[Etcd]:
    """Starts a cluster of so many servers, of which each serves."""
    said = ""
    for attempt in range(ATTEMPTS):
        below = directory / f"attempt-{attempt}"
        below.mkdir(parents=True)
        servers = [Etcd(below, f"etcd-{number}", free_port(), free_port(), options) for number in range(size)]
        for each in servers:
            each.configure(servers, scheme)
            each.launch()
        if all(each.wait_serving() for each in servers):
            return servers
        for each in servers:
            each.kill()
        said = servers[0].log.read_text()[-3000:]
    raise AssertionError(f"no etcd could be started: {said}")


@contextmanager
def hasty(metastore: EtcdMetastore, request_timeout_s: float) -> Iterator[None]:
    """Shortens the timeout only of calls that must time out."""
    gateway = metastore._gateway
    patient = gateway._options
    gateway._options = attrs.evolve(patient, request_timeout_s=request_timeout_s)
    try:
        yield
    finally:
        gateway._options = patient


class Store:
    """What tests have of one cluster: clients with a prefix of their own."""

    def __init__(self, servers: list[Etcd], prefix: str) -> None:
        self.servers = servers
        self.prefix = prefix

    def url(self, *addresses: str) -> str:
        """For `replog.connect`. With other addresses, through something that stands between."""
        return f"etcd://{','.join(addresses or [each.address for each in self.servers])}/{self.prefix}"

    @asynccontextmanager
    async def client(self, *addresses: str, **options: object) -> AsyncIterator[EtcdMetastore]:
        """Another client. The options are those of `EtcdOptions`."""
        target = Target.parse(self.url(*addresses).removeprefix("etcd://"))
        metastore = EtcdMetastore(target, EtcdOptions(**options))  # type: ignore[arg-type]
        try:
            yield metastore
        finally:
            await metastore.aclose()


StartStore = Callable[..., Store]
