"""Real S3 servers on ports of the loopback, which die with the process that runs the tests: that of the package moto, and
versitygw, which keeps objects as files, and checks signatures."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from replog_objects.metastore import ObjectsMetastore
from replog_objects.options import ObjectsOptions, Target
from tests.servers.processes import Server, free_port

HOST = "127.0.0.1"
STARTING_S = 60.0  # on a busy machine
ACCESS_KEY, SECRET_KEY, SESSION_TOKEN = (
    "AKIAREPLOGTEST000000",
    "a-secret-that-nobody-may-see",
    "a-token-that-nobody-may-see",
)

# It ends when the pipe from its parent does, however that ended. One request at a time: moto compares and sets in two steps.
SERVER = """
import logging, sys, threading
from werkzeug.serving import WSGIRequestHandler, make_server
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

logging.getLogger("werkzeug").setLevel(logging.ERROR)
WSGIRequestHandler.protocol_version = "HTTP/1.1"
application, turn = DomainDispatcherApplication(create_backend_app), threading.Lock()

def in_turn(environment, start):
    with turn:
        return list(application(environment, start))

server = make_server("127.0.0.1", int(sys.argv[1]), in_turn, threaded=True)
print(server.server_port, flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
"""


def credentials() -> Mapping[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_SESSION_TOKEN": SESSION_TOKEN,
        "AWS_REGION": "us-east-1",
    }


def use_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in credentials().items():
        monkeypatch.setenv(name, value)


def versitygw_program() -> str:
    """Where versitygw is. Without it a test is skipped, also where all others must run: building it takes Go, and minutes."""
    beside_python = os.path.dirname(sys.executable)  # where replog's Makefile puts it
    program = shutil.which("versitygw") or shutil.which("versitygw", path=beside_python)
    if program is None:
        pytest.skip("versitygw is missing: install Go, and type `make versitygw`")
    return program


class S3Server:
    """moto's. What it has is lost with its process."""

    TAKES_SESSION_TOKENS = True

    def __init__(self, directory: Path) -> None:
        self.address = ""
        self._log = directory / "s3.log"
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-c", SERVER, self.address.rpartition(":")[2] or "0"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        assert line, self._log.read_text()
        self.address = f"{HOST}:{int(line)}"

    def kill(self) -> None:
        if self._child is not None:
            self._child.send_signal(signal.SIGKILL)
            self._child.wait()
            for each in (self._child.stdin, self._child.stdout):
                assert each is not None
                each.close()
            self._child = None

    def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """One request, without obstore."""
        connection = http.client.HTTPConnection(self.address, timeout=STARTING_S)
        path = urllib.parse.quote(path, safe="/?&=" if "?" in path else "/")
        signed = AWSRequest(method, f"http://{self.address}{path}", data=body)
        S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", "us-east-1").add_auth(signed)
        try:
            connection.request(method, path, body, dict(signed.headers.items()))
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def bucket(self, name: str) -> Bucket:
        status, answer = self.request("PUT", f"/{name}")
        assert status == 200, answer
        return Bucket(self, name)


class VersityServer(S3Server):
    """versitygw over a directory."""

    TAKES_SESSION_TOKENS = False  # it answers InvalidToken

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.address = f"{HOST}:{free_port()}"
        stored = directory / "buckets"
        stored.mkdir()
        keys = "--access", ACCESS_KEY, "--secret", SECRET_KEY
        command = [versitygw_program(), "--port", self.address, *keys, "--quiet", "posix", str(stored)]
        self._server = Server("versitygw", command, directory, {})

    @property
    def pid(self) -> int:
        return self._server.pid

    def start(self) -> None:
        self._server.launch()
        self._server.wait_until(self._is_serving, "it listens")

    def kill(self) -> None:
        self._server.kill()

    def _is_serving(self) -> bool:
        try:
            socket.create_connection((HOST, int(self.address.partition(":")[2])), 1).close()
        except OSError:
            return False
        return True


SERVERS: Mapping[str, type[S3Server]] = {"moto": S3Server, "versitygw": VersityServer}
# For tests with a proxy that changes requests: moto checks no signatures.
unsigned = pytest.mark.parametrize("s3_server", ["moto"], indirect=True)


@attrs.frozen
class Bucket:
    """A bucket of a server."""

    server: S3Server
    name: str

    def url(self, address: str = "", **options: object) -> str:
        """The metastore's, through this address if one is given."""
        given = {"endpoint": f"http://{address or self.server.address}", **options}
        query = "&".join(f"{name}={value}" for name, value in given.items())
        return f"objects:s3://{self.name}/some/prefix?{query}"

    def metastore(self, address: str = "", **options: float) -> ObjectsMetastore:
        endpoint = f"http://{address or self.server.address}"
        return ObjectsMetastore(Target("s3", self.name, "some/prefix"), ObjectsOptions(endpoint=endpoint, **options))  # type: ignore[arg-type]

    @asynccontextmanager
    async def client(self, address: str = "", **options: float) -> AsyncIterator[ObjectsMetastore]:
        metastore = self.metastore(address, **options)
        try:
            yield metastore
        finally:
            await metastore.aclose()

    def put(self, name: str, body: bytes) -> None:
        """Writes an object, of any content, without a condition."""
        status, answer = self.server.request("PUT", f"/{self.name}/{name}", body)
        assert status == 200, answer

    def get(self, name: str) -> bytes:
        status, answer = self.server.request("GET", f"/{self.name}/{name}")
        assert status == 200, answer
        return answer

    def names(self) -> list[str]:
        """All objects, without the prefix of the metastore."""
        _, answer = self.server.request("GET", f"/{self.name}?list-type=2")
        return [each.partition("</Key>")[0].removeprefix("some/prefix/") for each in answer.decode().split("<Key>")[1:]]
