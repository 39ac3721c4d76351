"""The servers that other tests rely on: they keep what they must, and die when they must."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import kazoo.client
import kazoo.exceptions
import kazoo.handlers.threading
import kazoo.security
import pytest
import trio

from tests.kit import until
from tests.servers import fixtures
from tests.servers.certificates import HOST_NAME, make_certificates
from tests.servers.fixtures import need
from tests.servers.zookeeper import Ensemble, Settings, ZooKeeper, missing, zookeeper_blocking, zookeeper_server

pytestmark = pytest.mark.needs_zookeeper
# Each starts a Java of its own. Among all tests, those of the metastore need the same, and fail without it.
long = pytest.mark.long(is_sampled=False)
ROOT = Path(__file__).parent.parent.parent
STARTING_S = 30.0
REFUSED_S = 3.0


@contextmanager
def connected(address: str, **options: object) -> Iterator[kazoo.client.KazooClient]:
    client = kazoo.client.KazooClient(hosts=address, timeout=10.0, **options)
    try:
        client.start(timeout=STARTING_S)
        yield client
    finally:
        client.stop()
        client.close()


@long
async def test_killed_server_returns_with_its_data(own_zookeeper: ZooKeeper) -> None:
    with connected(own_zookeeper.address) as client:
        client.create("/kept", b"value")
    await own_zookeeper.restart()
    with connected(own_zookeeper.address) as client:
        assert client.get("/kept")[0] == b"value"
    await own_zookeeper.stop()
    assert not own_zookeeper.is_running
    await own_zookeeper.start()
    with connected(own_zookeeper.address) as client:
        assert client.get("/kept")[0] == b"value"


async def test_frozen_server_answers_again_when_it_thaws(own_zookeeper: ZooKeeper) -> None:
    await until(lambda: own_zookeeper.mode() == "standalone", STARTING_S)  # one that is busy gives no answer
    own_zookeeper.freeze()
    assert (own_zookeeper.mode(), own_zookeeper.is_running) == ("", True)
    own_zookeeper.thaw()
    await until(lambda: own_zookeeper.mode() == "standalone", STARTING_S)


@long
async def test_an_ensemble_replaces_a_killed_or_frozen_leader(zookeeper_ensemble: Ensemble) -> None:
    first = await zookeeper_ensemble.wait_leader()
    with trio.fail_after(STARTING_S):
        while len(await zookeeper_ensemble.followers()) != 2:  # noqa: ASYNC110 - one that is busy gives no answer
            await trio.sleep(0.02)
    first.kill()
    second = await zookeeper_ensemble.wait_leader()
    assert second is not first
    await first.start()
    second.freeze()
    third = await zookeeper_ensemble.wait_leader()
    assert third is not second


ORPHAN = """
import pathlib, sys, time
from tests.servers.zookeeper import zookeeper_blocking
with zookeeper_blocking(pathlib.Path(sys.argv[1])) as server:
    print(server._server.pid, flush=True)
    time.sleep(600)
"""


async def test_server_dies_with_its_starter(tmp_path: Path) -> None:
    need(missing())
    command = [sys.executable, "-c", ORPHAN, str(tmp_path)]
    parent = await trio.lowlevel.open_process(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=ROOT)
    assert parent.stdout is not None
    try:
        with trio.fail_after(STARTING_S):
            pid = int(await parent.stdout.receive_some())
    finally:
        parent.kill()
        await parent.wait()
        await parent.stdout.aclose()
    try:
        await until(lambda: not is_alive(pid), STARTING_S)
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    """Not gone, nor a zombie that its new parent has not taken notice of."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@long
async def test_tls_accepts_only_clients_of_its_authority(tmp_path: Path) -> None:
    need(missing())
    files = make_certificates(tmp_path / "certificates")
    async with zookeeper_server(tmp_path, Settings(tls=files.server)) as server:
        tls = {"use_ssl": True, "ca": str(files.authority)}
        trusted = {"certfile": str(files.client_certificate), "keyfile": str(files.client_key)}
        address = server.address.replace("127.0.0.1", HOST_NAME)
        with connected(address, check_hostname=True, **tls, **trusted) as client:
            client.create("/kept", b"value")
        stranger = {"certfile": str(files.stranger_certificate), "keyfile": str(files.stranger_key)}
        client = kazoo.client.KazooClient(hosts=address, **tls, **stranger)
        with pytest.raises(kazoo.handlers.threading.KazooTimeoutError):
            client.start(timeout=1.0)
        client.close()


@long
async def test_sasl_accepts_only_its_users(tmp_path: Path) -> None:
    need(missing())
    async with zookeeper_server(tmp_path, Settings(users={"alice": "wonderland"})) as server:
        alice = {"mechanism": "DIGEST-MD5", "username": "alice", "password": "wonderland"}
        acl = [kazoo.security.make_acl("sasl", "alice", all=True)]
        with connected(server.address, sasl_options=alice) as client:
            client.create("/mine", b"value", acl=acl)
        wrong = kazoo.client.KazooClient(hosts=server.address, sasl_options={**alice, "password": "looking-glass"})
        # The server says why, and ends the connection: kazoo does not always get to see the first.
        with pytest.raises((kazoo.exceptions.AuthFailedError, kazoo.handlers.threading.KazooTimeoutError)):
            wrong.start(timeout=REFUSED_S)
            wrong.get("/")
        wrong.stop()
        wrong.close()
        with connected(server.address) as nobody, pytest.raises(kazoo.exceptions.NoAuthError):
            nobody.get("/mine")


@long
def test_failing_server_shows_its_log(tmp_path: Path) -> None:
    need(missing())
    with zookeeper_blocking(tmp_path / "first") as first:
        second = ZooKeeper(tmp_path / "second")
        second.port = first.port
        second._server = second._make()
        try:
            with pytest.raises(AssertionError, match=r"zookeeper-1: it has ended(.|\n)*in use"):
                second.start_blocking()
        finally:
            second.kill()


def test_missing_program_skips_here_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="java"):
        fixtures.need("no java")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="java"):
        fixtures.need("no java")
