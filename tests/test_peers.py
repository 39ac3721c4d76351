"""Three copies of a program that keep their metastore themselves: `embed(peers=)` and `serve_bookie` with peers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

import replog
from replog.abc import Authenticator, Metastore, MetastoreOverTransports, Transport
from replog.api.reaching import reached_metastore
from replog.config import BookieOptions
from replog.errors import ConfigError, MetastoreError, MetastoreUnavailableError
from replog.hookspecs import (
    Backend,
    BookieLeftOut,
    Event,
    MetastoreLeaderChanged,
    MetastoreMembersChanged,
    hookimpl,
)
from replog.metastores.memory import MemoryMetastore
from replog.metastores.quorum.channels import Channel, NotSentError
from replog.metastores.quorum.metastore import QuorumMetastore
from replog.metastores.quorum.questions import QuestionKind
from replog.protocol.messages import MetastorePurpose, Status
from replog.registry import Registry
from replog.transports.tcp import TcpTransport
from tests.kit import until
from tests.servers.processes import HOST, free_port
from tests.transports.tcp.credentials import Authority

PEERS = ("memory:m0", "memory:m1", "memory:m2")
SOON_S = 20.0


class Programs:
    """Programs that embed: each runs until it is ended, and `clients` are those that have entered."""

    def __init__(self, directory: Path, nursery: trio.Nursery) -> None:
        self.clients: dict[int, replog.Client] = {}
        self._directory = directory
        self._nursery = nursery
        self._scopes: dict[int, trio.CancelScope] = {}
        self._ended: dict[int, trio.Event] = {}

    def start(self, *numbers: int, **options: Any) -> None:
        for number in numbers:
            self._scopes[number], self._ended[number] = trio.CancelScope(), trio.Event()
            self._nursery.start_soon(self._run, number, options)

    async def _run(self, number: int, options: dict[str, Any]) -> None:
        try:
            with self._scopes[number]:
                place = self._directory / str(number)
                quick: dict[str, Any] = {
                    "listen": f"memory:m{number}",
                    "peers": PEERS,
                    "metastore": "quorum:?timeout_s=2&lease_s=1",
                }
                async with replog.embed(place, **(quick | options)) as client:
                    self.clients[number] = client
                    await trio.sleep_forever()
        finally:
            self.clients.pop(number, None)
            self._ended[number].set()

    async def end(self, number: int) -> None:
        self._scopes[number].cancel()
        await self._ended[number].wait()

    async def have_entered(self, *numbers: int) -> None:
        await until(lambda: set(numbers) <= set(self.clients), SOON_S)


async def test_three_programs_share_logs_and_survive_one(tmp_path: Path, nursery: trio.Nursery) -> None:
    programs = Programs(tmp_path, nursery)
    heard: list[Event] = []

    class Observer:
        @hookimpl
        def replog_observe(self, event: Event) -> None:
            heard.append(event)

    programs.start(0, registry=Registry({"observer": Observer()}))
    programs.start(1, 2)
    await programs.have_entered(0, 1, 2)
    await until(
        lambda: any(isinstance(each, MetastoreLeaderChanged) and each.leader_address in PEERS for each in heard)
    )
    assert MetastoreMembersChanged(PEERS) in heard
    assert programs.clients[0]._opened.default_quorum == replog.Quorum(3, 3, 2)
    figures = [client.bookies[0].statistics() for client in programs.clients.values()]
    assert sum(each["metastore_leads"] for each in figures) == 1
    assert [each["metastore_survives"] for each in figures if "metastore_survives" in each] == [1]
    async with programs.clients[0].write_log("orders") as log:
        await log.extend([b"one", b"two"])
    await programs.end(0)
    with trio.fail_after(SOON_S):
        async with programs.clients[1].write_log("orders") as log:
            await log.append(b"three")
        async with programs.clients[2].read_log("orders") as reader:
            assert [entry.data async for entry in reader] == [b"one", b"two", b"three"]
        programs.start(0)
        await programs.have_entered(0)
        async with programs.clients[0].read_log("orders") as reader:
            assert [entry.data async for entry in reader] == [b"one", b"two", b"three"]
    for number in range(3):
        await programs.end(number)


async def test_program_whose_storage_is_left_out_keeps_its_member(tmp_path: Path, nursery: trio.Nursery) -> None:
    """C7: its bookie is not served, but its member is one of the majority."""
    programs = Programs(tmp_path, nursery)
    programs.start(0, 1, 2)
    await programs.have_entered(0, 1, 2)
    for number in range(3):
        await programs.end(number)
    journal = next((tmp_path / "0" / "bookie-0").glob("storage.json"))
    journal.write_bytes(b"damaged")
    left_out: list[object] = []

    class Observer:
        @hookimpl
        def replog_observe(self, event: object) -> None:
            left_out.append(event)

    programs.start(0, registry=Registry({"observer": Observer()}))
    programs.start(1)
    await programs.have_entered(0, 1)
    assert not programs.clients[0].bookies
    assert len(programs.clients[0].left_out) == 1
    assert [each for each in left_out if isinstance(each, BookieLeftOut)]
    assert await programs.clients[1].logs() == []
    for number in range(2):
        await programs.end(number)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"listen": "memory:m9"}, "none of them is this process"),
        ({}, "which listens at nowhere"),
        ({"listen": "m1:0", "peers": ("m1:0",)}, "a member needs a port that others know"),
        ({"listen": "memory:m0", "peers": ("memory:m0", "memory:m0")}, "is named twice"),
        ({"listen": "memory:m0", "metastore": "memory:"}, "give one of them"),
        ({"listen": "memory:m0", "metastore": MemoryMetastore()}, "give one of them"),
        ({"listen": "memory:m0", "bookies": 2}, "with peers, each process has one"),
        ({"advertise": "m1:3181"}, "without listen"),
    ],
)
async def test_wrong_peers_are_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    arguments: dict[str, Any] = {"peers": PEERS, **options}
    with pytest.raises(ConfigError, match=said):
        async with replog.embed(tmp_path, **arguments):
            pass


async def test_name_that_is_a_loopback_address_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with Debian's /etc/hosts, where 127.0.1.1 is the machine's own name: its peers would wait for it forever."""
    known = {"m1": "127.0.1.1", "m2": "10.77.0.2", "m3": "10.77.0.3"}

    async def getaddrinfo(host: str, *_: object, **options: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (known[host], 0))]

    monkeypatch.setattr(trio.socket, "getaddrinfo", getaddrinfo)
    peers = ["m1:3181", "m2:3181", "m3:3181"]
    said = "m1 is an address of this machine alone here, .* listen at 0.0.0.0:3181, and advertise m1:3181"
    with pytest.raises(ConfigError, match=said):
        async with replog.embed(tmp_path, listen="m1:3181", peers=peers):
            pass


async def test_metadata_of_before_is_not_forgotten(tmp_path: Path) -> None:
    """An empty metastore never begins beside ledgers."""
    async with replog.embed(tmp_path) as client, client.write_log("log") as log:
        await log.append(b"kept")
    with pytest.raises(ConfigError, match="would begin an empty metastore beside it"):
        async with replog.embed(tmp_path, listen="memory:m0", peers=PEERS):
            pass
    async with replog.embed(tmp_path) as client, client.read_log("log") as reader:
        assert [entry.data async for entry in reader] == [b"kept"]


async def serve(directory: Path, number: int, peers: Sequence[str], task_status: trio.TaskStatus[None]) -> None:
    options = BookieOptions(listen=(f"memory:m{number}",))
    config = replog.BookieConfig(directory=str(directory / str(number)), peers=tuple(peers), options=options)
    async with replog.serve_bookie(config):
        task_status.started()
        await trio.sleep_forever()


async def test_bookies_with_peers_serve_clients_of_their_metastore(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as starting:
            for number in range(3):

                async def start(number: int = number) -> None:
                    await nursery.start(serve, tmp_path, number, PEERS)

                starting.start_soon(start)
        async with replog.connect(f"quorum:{','.join(PEERS)}") as client, client.write_log("log") as log:
            await log.append(b"one")
        nursery.cancel_scope.cancel()


async def test_bookie_needs_a_metastore_or_peers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no metastore, and no peers"):
        async with replog.serve_bookie(replog.BookieConfig(directory=str(tmp_path))):
            pass


async def test_metastore_over_transports_gets_those_of_the_client() -> None:
    """The seam: with their options, and with the client's authentication."""
    given: list[tuple[Callable[[str], Transport], Authenticator | None]] = []

    class Reached(MemoryMetastore, MetastoreOverTransports):
        def use(self, open_transport: Callable[[str], Transport], authenticator: Authenticator | None) -> None:
            given.append((open_transport, authenticator))

    class Plugin:
        @hookimpl
        def replog_metastores(self) -> list[Backend[Metastore]]:
            return [Backend("reached", lambda rest, options: Reached())]

    options = replog.ClientOptions(transports=("tcp:?silence_max_s=7",))
    async with replog.connect("reached:", options=options, registry=Registry({"reached": Plugin()})):
        ((open_transport, authenticator),) = given
        transport = open_transport("tcp")
        assert isinstance(transport, TcpTransport)
        assert transport.options.silence_max_s == 7
        assert authenticator is not None
        assert authenticator.mechanism == "none"


async def test_members_prove_who_they_are_on_the_bookie_s_port(tmp_path: Path) -> None:
    """One port, one file of secrets: a bookie's name makes a member, a client's does not."""
    secrets = tmp_path / "secrets.toml"
    secrets.write_text(
        "".join(f'[clients.{name}]\nsecret = "{name}-{"0123456789abcdef" * 2}"\n' for name in ("bookie", "app"))
    )
    secrets.chmod(0o600)
    addresses = [f"{HOST}:{free_port()}" for _ in range(3)]
    as_bookie, as_app = (f"secret:{secrets}?name={name}" for name in ("bookie", "app"))

    async def serve_one(number: int, task_status: trio.TaskStatus[None]) -> None:
        options = BookieOptions(listen=(f"tcp:{addresses[number]}",), authentication=as_bookie)
        client = replog.ClientOptions(authentication=as_bookie)
        config = replog.BookieConfig(
            directory=str(tmp_path / str(number)), peers=tuple(addresses), options=options, client=client
        )
        async with replog.serve_bookie(config):
            task_status.started()
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as starting:
            for number in range(3):
                starting.start_soon(nursery.start, serve_one, number)
        url = f"quorum:{','.join(addresses)}"
        options = replog.ClientOptions(authentication=as_app)
        with trio.fail_after(SOON_S):
            async with replog.connect(url, options=options) as client, client.write_log("log") as log:
                await log.append(b"one")
        registry = Registry()
        authenticator = registry.open_authenticator(as_app)
        channel = Channel(addresses[0], registry.open_transport, authenticator, nursery)
        for purpose in (MetastorePurpose.MEMBER, MetastorePurpose.ADMIN):
            assert (await channel.ask(purpose, b"", lambda: None)).status is Status.UNAUTHORIZED
        metastore = reached_metastore(url, registry, options)
        assert isinstance(metastore, QuorumMetastore)
        with pytest.raises(MetastoreError, match=r"refuses: .*admin") as refused:
            await metastore.administer(QuestionKind.REMOVE, {"member": addresses[0]}, SOON_S)
        assert refused.type is MetastoreError
        await metastore.aclose()
        stranger = Channel(addresses[0], registry.open_transport, None, nursery)
        with pytest.raises(NotSentError, match="authentication"):
            await stranger.ask(MetastorePurpose.CLIENT, b"", lambda: None)
        nursery.cancel_scope.cancel()


async def test_members_speak_tls_with_the_files_of_the_bookie_s_listener(tmp_path: Path) -> None:
    """Mutual TLS: a member shows the bookie's certificate to the others, and who has none is let in nowhere."""
    authority = Authority(tmp_path, "authority")
    files = f"tls_certificate_file={authority.sign(HOST)}&tls_ca_file={authority.file}"
    addresses = [f"{HOST}:{free_port()}" for _ in range(3)]

    async def serve_one(number: int, task_status: trio.TaskStatus[None]) -> None:
        options = BookieOptions(listen=(f"tcp:{addresses[number]}?{files}",))
        config = replog.BookieConfig(
            directory=str(tmp_path / str(number)),
            peers=tuple(addresses),
            options=options,
            client=replog.ClientOptions(transports=(f"tcp:?{files}",)),
        )
        async with replog.serve_bookie(config):
            task_status.started()
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as starting:
            for number in range(3):
                starting.start_soon(nursery.start, serve_one, number)
        url = f"quorum:{','.join(addresses)}"
        with trio.fail_after(SOON_S):
            known = replog.ClientOptions(transports=(f"tcp:?{files}",))
            async with replog.connect(url, options=known) as client, client.write_log("log") as log:
                await log.append(b"one")
            with pytest.raises(MetastoreUnavailableError, match="speaks TLS only"):
                async with replog.connect(f"{url}?timeout_s=1") as stranger:
                    await stranger.logs()
        nursery.cancel_scope.cancel()
