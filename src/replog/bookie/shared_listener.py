"""One listener of a process for its bookie and for its member of a metastore.

The member answers as soon as the process listens, since its peers need it to begin. The bookie needs the metastore before it
serves: until then its clients are told to come again. A process whose storage is left out serves its member alone (C7).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import trio

from replog.abc import Authenticator, Connection, Reply, RequestHandler, ResponseReceiver, Transport
from replog.errors import ConfigError
from replog.protocol.messages import MetastoreRequest, Request, Response, Status


class SharedListener(Transport):
    """A transport that listens already, in `open`: `listen` hands it the bookie whose requests it takes."""

    __slots__ = ("_address", "_bookie", "_member", "_transport")

    def __init__(self, transport: Transport, member: RequestHandler) -> None:
        self._transport = transport
        self._member = member
        self._bookie: RequestHandler | None = None
        self._address = ""

    @asynccontextmanager
    async def open(self, address: str, bookie_id: str, authenticator: Authenticator | None) -> AsyncIterator[str]:
        """Listens at this address while the context is open. Raises as `Transport.listen` does."""
        listening = self._transport.listen(address, self, bookie_id=bookie_id, authenticator=authenticator)
        async with listening as self._address:
            yield self._address

    async def connect(
        self,
        address: str,
        receiver: ResponseReceiver,
        nursery: trio.Nursery,
        *,
        bookie_id: str = "",
        authenticator: Authenticator | None = None,
    ) -> Connection:
        """Connects to others as the transport does that listens here, with the same certificates."""
        return await self._transport.connect(
            address, receiver, nursery, bookie_id=bookie_id, authenticator=authenticator
        )

    @asynccontextmanager
    async def listen(
        self,
        address: str,
        handler: RequestHandler,
        *,
        bookie_id: str = "",
        authenticator: Authenticator | None = None,
    ) -> AsyncIterator[str]:
        """Hands the requests of clients to this bookie while the context is open; later ones are told to come again."""
        await trio.lowlevel.checkpoint()
        if self._bookie is not None:
            raise ConfigError(f"{self._address}: one bookie at a time is served there")
        self._bookie = handler
        try:
            yield self._address
        finally:
            self._bookie = None

    def statistics(self) -> Mapping[str, float]:
        """Those of the transport."""
        return self._transport.statistics()

    def handle(self, requests: Sequence[Request], reply: Reply) -> None:
        """Takes requests of one connection: each goes to the member or to the bookie, in their order."""
        of_member = [each for each in requests if each.__class__ is MetastoreRequest]
        if of_member:
            self._member.handle(of_member, reply)
        of_bookie = [each for each in requests if each.__class__ is not MetastoreRequest] if of_member else requests
        if not of_bookie:
            return
        if self._bookie is not None:
            self._bookie.handle(of_bookie, reply)
        else:
            problem = "the bookie of this process does not serve now: it begins, or its storage is left out"
            reply([Response(each.request_id, Status.TOO_BUSY, detail=problem) for each in of_bookie])
