"""A real S3 server, of the package moto, on a port of the loopback; it dies with the process that runs the tests."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest

from replog_objects.metastore import ObjectsMetastore
from replog_objects.options import ObjectsOptions, Target

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


class S3Server:
    """One server. What it has is lost with its process."""

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
        """One request, without obstore: moto checks no signatures, but wants one that looks so."""
        connection = http.client.HTTPConnection(self.address, timeout=STARTING_S)
        authorization = (
            f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20260101/us-east-1/s3/aws4_request, SignedHeaders=host"
        )
        try:
            connection.request(method, path, body, {"Authorization": authorization})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def bucket(self, name: str) -> Bucket:
        status, answer = self.request("PUT", f"/{name}")
        assert status == 200, answer
        return Bucket(self, name)


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
