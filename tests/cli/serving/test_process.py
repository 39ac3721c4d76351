"""`replog bookie` as a real process: how it begins, serves and leaves."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import lmdb
import pytest
import trio
import trio.lowlevel
from prometheus_client.parser import text_string_to_metric_families

import replog
from replog import ClientOptions, Quorum
from replog.abc import Connection
from replog.errors import BookieUnreachableError, ReplogError
from replog.protocol.batch import build
from replog.protocol.digest import Digest, DigestType
from replog.protocol.messages import AddRequest, Response, Status
from replog.records.ids import raise_next_ledger_id
from replog.registry import Registry
from replog.transports.tcp import TcpOptions, TcpTransport
from tests import forks
from tests.cli.serving.processes import bookie_process, failed
from tests.transports.tcp.credentials import Authority

ONE = Quorum(1, 1, 1)
SECRET = "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0IHM="
HASTY = ClientOptions(add_timeout_s=1, add_quorum_timeout_s=2)


@pytest.mark.parametrize("storage", ["files", "lmdb"])
async def test_entries_are_read_from_the_next_process(tmp_path: Path, storage: str) -> None:
    metastore = f"lmdb:{tmp_path / 'metadata'}"
    identities = []
    for entry in (b"first", b"second"):
        with bookie_process(tmp_path, "--storage", storage) as bookie:
            identities.append(bookie.bookie_id)
            async with replog.connect(metastore, quorum=ONE) as client:
                async with client.write_log("orders") as log:
                    await log.append(entry)
            assert bookie.stop() == 0
            assert bookie.wait_for("leaving")["signal"] == "SIGTERM"
            assert bookie.wait_for("stopped")["level"] == "info"
    assert identities[0] == identities[1]
    with bookie_process(tmp_path, "--storage", storage):
        async with replog.connect(metastore) as client, client.read_log("orders") as reader:
            assert [record.data async for record in reader] == [b"first", b"second"]


def test_collector_never_searches_objects_of_the_start(tmp_path: Path) -> None:
    """With a million ledgers that would stop the bookie for a second."""
    program = (
        "import gc, sys; from replog.cli import commands; from replog.cli.serving import process\n"
        "process.notify = lambda said: print(said, gc.isenabled(), gc.get_freeze_count() > 10_000, flush=True)\n"
        f"sys.argv = ['replog', 'bookie', '--metastore', 'lmdb:{tmp_path / 'metadata'}', '--data', '{tmp_path / 'data'}',"
        " '--listen', '127.0.0.1:0']\n"
        "commands.run()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as bookie:
        try:
            assert bookie.stdout is not None
            assert bookie.stdout.readline().split() == ["READY=1", "True", "True"]
            bookie.terminate()
            assert bookie.wait(10) == 0
        finally:
            bookie.kill()


def test_serving_is_logged_once_it_can_be_used(tmp_path: Path) -> None:
    told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    told.settimeout(60)
    with closing(told), bookie_process(tmp_path, "--listen", "127.0.0.1:0", notified=told) as bookie:
        assert told.recv(100) == b"READY=1"
        line = bookie.lines[0]
        assert list(line)[:4] == ["time", "level", "event", "bookie"]
        assert line["event"] == "serving"
        assert line["bookie"].startswith("bookie-")
        assert line["data"] == str(tmp_path / "bookie")
        assert line["storage"] == "files"
        assert line["metastore"] == f"lmdb:{tmp_path / 'metadata'}"
        assert len(line["listen"]) == 2
        for address in line["listen"]:
            host, port = address.removeprefix("tcp:").split(":")
            socket.create_connection((host, int(port)), 10).close()
        assert bookie.stop(signal.SIGINT) == 0
        assert told.recv(100) == b"STOPPING=1"


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = ["--metastore", f"lmdb:{tmp_path / 'm'}", "--data", str(tmp_path / "b"), "--listen", address]
        status, said = failed(*arguments, "--log-format", "text")
        assert (status, said.count("\n")) == (2, 1)
        assert said.startswith(f"replog: tcp:{address}: cannot listen there: ")
        status, said = failed(*arguments)
        line = json.loads(said)
        assert (status, line["event"], line["error"]) == (2, "failed", "ConfigError")
        assert address in line["problem"]


async def test_socket_of_a_killed_bookie_is_replaced_by_the_next(tmp_path: Path) -> None:
    metastore = f"lmdb:{tmp_path / 'metadata'}"
    with tempfile.TemporaryDirectory(prefix="replog-") as short:
        path = Path(short) / "bookie.sock"
        for entry in (b"first", b"second"):
            with bookie_process(tmp_path, listen=f"unix:{path}?silence_max_s=2") as bookie:
                assert bookie.lines[0]["listen"] == [f"unix:{path}"]
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
                async with replog.connect(metastore, quorum=ONE) as client:
                    async with client.write_log("orders") as log:
                        await log.append(entry)
                    async with client.read_log("orders") as reader:
                        found = [record.data async for record in reader]
                assert found == [b"first", b"second"][: len(found)]
                assert found[-1] == entry
                if entry == b"first":
                    bookie.process.kill()
                    bookie.ended()
                    assert path.exists()
                else:
                    command = [sys.executable, "-m", "replog.cli", "bookies", "--metastore", metastore, "--json"]
                    listed = await trio.to_thread.run_sync(forks.run, command)
                    assert json.loads(listed.stdout)["endpoints"][-1] == f"unix:{path}"
                    assert bookie.stop() == 0
        assert not path.exists()


def test_a_directory_in_use(tmp_path: Path) -> None:
    with bookie_process(tmp_path):
        arguments = ["--metastore", f"lmdb:{tmp_path / 'metadata'}", "--data", str(tmp_path / "bookie")]
        status, said = failed(*arguments, "--listen", "127.0.0.1:0")
        assert (status, json.loads(said)["error"]) == (1, "StorageInUseError")


async def test_metastore_of_another_cluster_is_refused(tmp_path: Path) -> None:
    with bookie_process(tmp_path) as bookie:
        async with replog.connect(f"lmdb:{tmp_path / 'metadata'}", quorum=ONE) as client:
            async with client.create_ledger() as ledger:
                await ledger.append(b"mine")
        assert bookie.stop() == 0
    arguments = ["--metastore", f"lmdb:{tmp_path / 'other'}", "--data", str(tmp_path / "bookie")]
    status, said = failed(*arguments, "--listen", "127.0.0.1:0")
    assert (status, json.loads(said)["error"]) == (2, "StorageIdentityError")
    expected = ["--set", "storage.expected_bookie_id=bookie-of-somebody-else"]
    arguments[1] = f"lmdb:{tmp_path / 'metadata'}"
    status, said = failed(*arguments, "--listen", "127.0.0.1:0", *expected)
    assert (status, json.loads(said)["error"]) == (2, "StorageIdentityError")


def test_unreachable_metastore_is_an_error(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    status, said = failed(
        "--metastore", f"lmdb:{missing}?create=no", "--data", str(tmp_path / "b"), "--listen", "127.0.0.1:0"
    )
    line = json.loads(said)
    assert (status, line["error"]) == (1, "MetastoreUnavailableError")
    assert str(missing) in line["problem"]


def test_the_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """The first one makes it leave, which can't end: somebody else holds the metastore's lock."""
    patient = ["--metastore", f"lmdb:{tmp_path / 'metadata'}?timeout_s=300"]
    with bookie_process(tmp_path, *patient) as bookie:
        with lmdb.open(str(tmp_path / "metadata"), max_dbs=8) as environment, environment.begin(write=True):
            bookie.process.send_signal(signal.SIGTERM)
            bookie.wait_for("leaving")
            assert bookie.stop() == -signal.SIGTERM
    with bookie_process(tmp_path):
        pass  # nothing keeps it from being served again


async def test_nothing_acknowledged_is_lost_when_leaving_under_load(tmp_path: Path) -> None:
    """Every append that was accepted is answered; what is answered well is there in the next process."""
    metastore = f"lmdb:{tmp_path / 'metadata'}"
    acknowledged: list[bytes] = []
    enough = trio.Event()
    with bookie_process(tmp_path) as bookie:

        async def write() -> None:
            with pytest.raises(ReplogError):
                async with (
                    replog.connect(metastore, quorum=ONE, options=HASTY) as client,
                    client.write_log("orders") as log,
                ):
                    number = 0
                    while True:
                        payloads = [b"%d" % (number + each) for each in range(50)]
                        await log.extend(payloads)
                        acknowledged.extend(payloads)
                        number += len(payloads)
                        if number >= 1000:
                            enough.set()

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write)
                await enough.wait()
                assert await trio.to_thread.run_sync(bookie.stop) == 0
    with bookie_process(tmp_path):
        async with replog.connect(metastore) as client:
            async with client.write_log("orders", quorum=ONE):
                pass  # closes what the writer left
            async with client.read_log("orders") as reader:
                found = [record.data async for record in reader]
    assert found[: len(acknowledged)] == acknowledged


class Pusher:
    """A client that adds without waiting, and keeps what it is answered."""

    def __init__(self) -> None:
        self.answered: dict[int, Status] = {}
        self.ended = trio.Event()
        self.pushed = 0
        self._enough = trio.Event()

    def responses_received(self, responses: Sequence[Response]) -> None:
        self.answered.update((each.request_id, each.status) for each in responses)
        if len(self.answered) >= 200:
            self._enough.set()

    def disconnected(self, error: ReplogError) -> None:
        self.ended.set()

    async def push(self, connection: Connection) -> None:
        """Batches of one entry, more than one wake-up takes at a time, until the connection ends."""
        digest = Digest(DigestType.CRC32C, 7, b"")
        while not self.ended.is_set():
            while self.pushed - len(self.answered) < 3000:
                batch = build(
                    digest,
                    ledger_id=7,
                    first_entry_id=self.pushed,
                    stride=1,
                    payloads=[b"x" * 1000],
                    last_add_confirmed=-1,
                    stamp=1,
                    timestamp_ns=0,
                    cumulative_length=1000 * (self.pushed + 1),
                )
                try:
                    connection.send([AddRequest(self.pushed, 7, bytes(32), 1, batch)])
                except BookieUnreachableError:
                    return
                self.pushed += 1
            await trio.lowlevel.checkpoint()

    async def enough(self) -> None:
        await self._enough.wait()


@pytest.mark.parametrize("storage", ["files", "lmdb"])
async def test_accepted_entries_are_answered_before_leaving(tmp_path: Path, storage: str) -> None:
    """What is durable was answered, and what was answered is durable: nothing is between the two when it is gone."""
    pusher = Pusher()
    with bookie_process(tmp_path, "--storage", storage) as bookie:
        async with replog.connect(f"lmdb:{tmp_path / 'metadata'}") as client:
            await raise_next_ledger_id(client._opened.ledgers.records.metastore, 8)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                connection = await TcpTransport(TcpOptions()).connect(bookie.address, pusher, nursery)
                nursery.start_soon(pusher.push, connection)
                await pusher.enough()
                bookie.process.send_signal(signal.SIGTERM)
                await pusher.ended.wait()
            assert await trio.to_thread.run_sync(bookie.ended) == 0
    assert set(pusher.answered.values()) == {Status.OK}
    opened = Registry().open_storage(f"{storage}:{tmp_path / 'bookie'}")
    with closing(opened):
        durable = {each for each in range(pusher.pushed) if opened.read(7, each, 1, 1)}
    assert durable == set(pusher.answered)


def ask(address: str, path: str) -> tuple[int, bytes]:
    host, port = address.rsplit(":", 1)
    with closing(http.client.HTTPConnection(host, int(port), timeout=30)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()


async def test_metrics_and_health_until_the_end(tmp_path: Path) -> None:
    patient = ["--metastore", f"lmdb:{tmp_path / 'metadata'}?timeout_s=300", "--metrics", "127.0.0.1:0"]
    with bookie_process(tmp_path, *patient) as bookie:
        address = bookie.wait_for("starting")["metrics"]
        assert bookie.wait_for("serving")["metrics"] == address
        async with replog.connect(f"lmdb:{tmp_path / 'metadata'}", quorum=ONE) as client:
            async with client.create_ledger() as ledger:
                await ledger.extend([b"x"] * 7)
        status, body = ask(address, "/metrics")
        families = {each.name: each for each in text_string_to_metric_families(body.decode())}
        added = families["replog_bookie_added_entries"].samples[0]
        assert (status, added.value, added.labels) == (200, 7, {"bookie": bookie.bookie_id})
        status, body = ask(address, "/health")
        assert (status, json.loads(body)["state"]) == (200, "serving")
        with lmdb.open(str(tmp_path / "metadata"), max_dbs=8) as environment, environment.begin(write=True):
            bookie.process.send_signal(signal.SIGTERM)  # it can't leave: somebody else holds the metastore's lock
            bookie.wait_for("leaving")
            status, body = ask(address, "/health")
            assert (status, json.loads(body)["state"]) == (503, "leaving")
        assert bookie.ended() == 0


def test_a_port_of_metrics_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status, said = failed("--metastore", "memory:", "--data", str(tmp_path / "b"), "--metrics", address)
        assert (status, json.loads(said)["error"]) == (2, "ConfigError")
        assert address in said
        assert not (tmp_path / "b").exists()


def test_health_before_it_serves(tmp_path: Path) -> None:
    """It can't come to serve: somebody else holds the metastore's lock."""
    with bookie_process(tmp_path) as bookie:
        assert bookie.stop() == 0
    patient = ["--metastore", f"lmdb:{tmp_path / 'metadata'}?timeout_s=300", "--metrics", "127.0.0.1:0"]
    with lmdb.open(str(tmp_path / "metadata"), max_dbs=8) as environment, environment.begin(write=True) as transaction:
        with bookie_process(tmp_path, *patient, until="starting") as bookie:
            address = bookie.wait_for("starting")["metrics"]
            status, body = ask(address, "/health")
            assert (status, json.loads(body)["state"]) == (503, "starting")
            transaction.abort()
            bookie.wait_for("serving")
            status, body = ask(address, "/health")
            assert (status, json.loads(body)["state"]) == (200, "serving")


def test_a_signal_before_it_serves(tmp_path: Path) -> None:
    """It ends well, without having served: nothing was accepted."""
    with bookie_process(tmp_path) as bookie:
        assert bookie.stop() == 0
    with lmdb.open(str(tmp_path / "metadata"), max_dbs=8) as environment, environment.begin(write=True):
        with bookie_process(tmp_path, "--metrics", "127.0.0.1:0", until="starting") as bookie:
            assert bookie.stop() == 0
            assert not [line for line in bookie.lines if line["event"] == "serving"]


async def test_only_authenticated_clients_are_served(tmp_path: Path) -> None:
    """Flags for TLS and for a secret: who has neither is refused and logged, without the secret."""
    authority = Authority(tmp_path, "home")
    secrets = tmp_path / "secrets.toml"
    secrets.write_text(f'[clients.app]\nsecret = "{SECRET}"\n')
    secrets.chmod(0o600)
    flags = ["--tls-certificate", str(authority.sign("127.0.0.1")), "--authentication", f"secret:{secrets}"]
    metastore = f"lmdb:{tmp_path / 'metadata'}"
    with bookie_process(tmp_path, *flags) as bookie:
        assert bookie.wait_for("serving")["tls"] is True
        knowing = ClientOptions(transports=(f"tcp:?tls_ca_file={authority.file}",), authentication=f"secret:{secrets}")
        async with replog.connect(metastore, quorum=ONE, options=knowing) as client:
            async with client.write_log("orders") as log:
                await log.append(b"mine")
        async with replog.connect(metastore, quorum=ONE, options=HASTY) as client:
            with pytest.raises(ReplogError):
                async with client.write_log("orders"):
                    pass
        assert bookie.stop() == 0
        refused = [line for line in bookie.lines if "refused" in line["event"]]
        assert refused
        assert (refused[0]["level"], refused[0]["logger"]) == ("warning", "replog.transports.tcp")
        assert SECRET not in str(bookie.lines)
