"""Certificates, keys and secrets in files, and bookies that ask for them."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from replog.abc import Authenticator, Reply
from replog.errors import BookieError, ReplogError
from replog.protocol.messages import ReadRequest, Request, Response, Status
from replog.registry import Registry
from replog.runtime.nursery import open_service_nursery
from replog.transports.tcp import TcpOptions, TcpTransport
from replog.transports.tcp.listener import Listener

KEY = bytes(range(32))
BOOKIE_ID = "bookie-1"


class Authority:
    """An authority, with files for what it signs."""

    def __init__(self, directory: Path, name: str) -> None:
        self._ca = trustme.CA(organization_name=name)
        self._directory = directory
        self._name = name
        self.file = directory / f"{name}.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def sign(self, *names: str, common_name: str | None = None, days: int = 30, file: Path | None = None) -> Path:
        """A certificate with its key, in one file. With less than 0 days it has expired."""
        until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
        made = self._ca.issue_cert(
            *names, common_name=common_name, not_before=until - datetime.timedelta(days=60), not_after=until
        )
        target = file or self._directory / f"{self._name}-{'-'.join(names).replace(':', '_')}-{common_name}-{days}.pem"
        replacing = target.with_suffix(".new")
        made.private_key_and_cert_chain_pem.write_to_path(replacing)
        replacing.rename(target)
        return target


def encrypted(certificate: Path) -> Path:
    """The key of this file, under a password."""
    key = load_pem_private_key(certificate.read_bytes(), None)
    target = certificate.with_suffix(".encrypted")
    encryption = BestAvailableEncryption(b"open sesame")
    target.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    return target


class Echo:
    """Answers every request with OK."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def handle(self, requests: Sequence[Request], reply: Reply) -> None:
        self.requests += requests
        reply([Response(request.request_id, Status.OK) for request in requests])


class Asker:
    """Asks a bookie one thing at a time."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[Response | ReplogError](100)

    def responses_received(self, responses: Sequence[Response]) -> None:
        for response in responses:
            self._send.send_nowait(response)

    def disconnected(self, error: ReplogError) -> None:
        self._send.send_nowait(error)

    async def answer(self) -> Response:
        with trio.fail_after(10):
            came = await self._receive.receive()
        if isinstance(came, ReplogError):
            raise came
        return came


def authenticator(url: str) -> Authenticator | None:
    return Registry(load_installed=False).open_authenticator(url) if url else None


@asynccontextmanager
async def listening(
    options: TcpOptions, authentication: str = "", host: str = "127.0.0.1", handler: Echo | None = None
) -> AsyncIterator[Listener]:
    """A bookie that answers everything with OK."""
    listener = Listener(handler or Echo(), BOOKIE_ID, authenticator(authentication), options)
    await listener.bind(host, 0)
    async with open_service_nursery() as nursery:
        nursery.start_soon(listener.run)
        try:
            yield listener
        finally:
            await listener.close("the test is over")


async def ask(
    address: str, options: TcpOptions, authentication: str = "", request: Request | None = None, bookie_id: str = ""
) -> Response:
    """Connects, asks, and leaves. Raises what connecting raises, bare."""
    asker = Asker()
    async with open_service_nursery() as nursery:
        transport = TcpTransport(options)
        error: BookieError | None = None
        try:
            connection = await transport.connect(
                address, asker, nursery, bookie_id=bookie_id, authenticator=authenticator(authentication)
            )
        except BookieError as refused:
            error = refused
        else:
            try:
                connection.send([request or ReadRequest(1, 7, KEY, 0, 1, 100)])
                return await asker.answer()
            finally:
                await connection.aclose()
                nursery.cancel_scope.cancel()
    assert error is not None
    raise error
