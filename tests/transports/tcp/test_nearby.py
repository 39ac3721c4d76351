"""Clients on the bookie's own machine: who takes the Unix socket beside TCP, and who must not."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
import trio

from replog.runtime.host_ports import parse_address
from replog.runtime.nursery import open_service_nursery
from replog.runtime.platform import IS_LINUX
from replog.transports.tcp import TcpOptions, TcpTransport, nearby
from replog.transports.tcp.nearby import connect_beside, listen_beside
from tests.transports.tcp.credentials import Authority
from tests.transports.tcp.kit import Handler, Receiver, read

pytestmark = pytest.mark.skipif(not IS_LINUX, reason="only Linux has names of sockets without files")

TCP_ONLY = TcpOptions(unix_nearby=False)


@asynccontextmanager
async def listening(options: TcpOptions, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    async with TcpTransport(options).listen(address, Handler(), bookie_id="bookie-1") as announced:
        yield announced


async def family_of(address: str, options: TcpOptions) -> int:
    """What kind of socket a client gets that connects there and is answered."""
    receiver = Receiver()
    async with open_service_nursery() as nursery:
        connection = await TcpTransport(options).connect(address, receiver, nursery, bookie_id="bookie-1")
        connection.send([read(1)])
        with trio.fail_after(30):
            while not receiver.responses:  # noqa: ASYNC110 - nobody tells
                await trio.sleep(0.001)
        family = connection._stream._socket.family  # type: ignore[attr-defined]
        await connection.aclose()
    assert isinstance(family, int)
    return family


@pytest.mark.parametrize("where", ["127.0.0.1:0", "[::1]:0", "localhost:0"])
async def test_client_of_the_same_machine_takes_a_unix_socket(where: str) -> None:
    async with listening(TcpOptions(), where) as address:
        assert await family_of(address, TcpOptions()) == socket.AF_UNIX


async def test_bookie_listening_everywhere_is_found_by_each_address() -> None:
    async with listening(TcpOptions(advertise="127.0.0.1"), "0.0.0.0:0") as address:
        port = parse_address(address)[1]
        assert await family_of(address, TcpOptions()) == socket.AF_UNIX
        assert await family_of(f"127.0.0.2:{port}", TcpOptions()) == socket.AF_UNIX


@pytest.mark.parametrize("where", ["127.0.0.1:0", "0.0.0.0:0"])
async def test_machine_is_found_by_another_name(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The resolver has another name for it, as a container or /etc/hosts may: TCP finds out, and the socket is taken."""
    monkeypatch.setattr(nearby, "_may_be_here", lambda _: False)
    async with listening(TcpOptions(advertise="127.0.0.1"), where) as address:
        assert await family_of(address, TcpOptions()) == socket.AF_UNIX
        assert await family_of(address, TCP_ONLY) == socket.AF_INET


@pytest.mark.parametrize(("bookie", "client"), [(TCP_ONLY, TcpOptions()), (TcpOptions(), TCP_ONLY)])
async def test_tcp_is_taken_where_one_side_wants_it(bookie: TcpOptions, client: TcpOptions) -> None:
    async with listening(bookie) as address:
        assert await family_of(address, client) == socket.AF_INET


async def test_tls_client_uses_tcp(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, file = str(authority.sign("127.0.0.1")), str(authority.file)
    async with listening(TcpOptions(tls_certificate_file=certificate)) as address:
        assert await connect_beside(*parse_address(address)) is None
        assert await family_of(address, TcpOptions(tls_ca_file=file)) == socket.AF_INET


async def test_name_taken_by_another_user_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(TcpOptions()) as address:
        monkeypatch.setattr(nearby, "peer_credentials", lambda _: (1, os.geteuid() + 1))
        assert await family_of(address, TcpOptions()) == socket.AF_INET
        monkeypatch.setattr(nearby, "peer_credentials", lambda _: (1, nearby._ROOT))
        assert await family_of(address, TcpOptions()) == socket.AF_UNIX


async def test_bookie_with_an_occupied_name_listens_over_tcp_alone() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free, closing(socket.socket(socket.AF_UNIX)) as rude:
        host, port = free.getsockname()
        rude.bind(nearby._name(host, port))
        assert listen_beside(free) is None
        # It does not listen: the client falls back, too.
        assert await connect_beside(host, port) is None


async def test_name_ends_with_the_bookie() -> None:
    async with listening(TcpOptions()) as address:
        pass
    assert await connect_beside(*parse_address(address)) is None


async def test_another_port_or_machine_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy in front of a bookie has a port of its own: what it does to connections, it does to all of them."""
    async with listening(TcpOptions()) as address:
        port = parse_address(address)[1]
        assert await connect_beside("127.0.0.1", port ^ 1) is None
        assert await connect_beside("192.0.2.1", port) is None  # an address for documentation: never of this machine
        monkeypatch.setattr(nearby, "_is_of_this_machine", pytest.fail)
        assert await connect_beside("bookie-1.example", port) is None


async def test_other_systems_use_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearby, "IS_LINUX", False)
    async with listening(TcpOptions()) as address:
        assert await family_of(address, TcpOptions()) == socket.AF_INET
