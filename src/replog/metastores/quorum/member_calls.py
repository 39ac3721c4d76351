"""The ways to ask members: from another process by connections, and in a member's own process by a function call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from replog.abc import Authenticator
from replog.errors import RemoteProtocolError
from replog.metastores.quorum.channels import Channels, OpenTransport
from replog.metastores.quorum.service import MemberService
from replog.protocol.messages import MetastorePurpose, Response, Status


class RemoteMembers:
    """Members in other processes. Its connections belong to a system task of trio's, since the metastore's user opens no nursery
    for them: it begins with the first question, and ends with `aclose`."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses = tuple(addresses)
        self._open_transport: OpenTransport | None = None
        self._authenticator: Authenticator | None = None
        self._channels: Channels | None = None
        self._is_open = trio.Event()
        self._leaving = trio.CancelScope()
        self._ended: trio.Event | None = None

    def use(self, open_transport: OpenTransport, authenticator: Authenticator | None) -> None:
        """How to reach members, and to prove who asks."""
        self._open_transport, self._authenticator = open_transport, authenticator

    async def ask(self, address: str, purpose: MetastorePurpose, body: bytes, sent: Callable[[], None]) -> Response:
        """Asks the member at this address. Raises `NotSentError`, `LostError`, `trio.ClosedResourceError`."""
        if self._ended is None:
            self._ended = trio.Event()
            trio.lowlevel.spawn_system_task(self._hold_connections)
        await self._is_open.wait()
        if self._channels is None:
            raise trio.ClosedResourceError("this metastore was closed")
        return await self._channels.to(address).ask(purpose, body, sent)

    async def _hold_connections(self) -> None:
        assert self._open_transport is not None, "the client gives its transports before it asks"
        assert self._ended is not None, "it has begun"
        try:
            with self._leaving:
                async with trio.open_nursery() as nursery:
                    self._channels = Channels(self._open_transport, self._authenticator, nursery)
                    self._is_open.set()
                    await trio.sleep_forever()
        finally:
            self._channels = None
            self._is_open.set()
            self._ended.set()

    async def aclose(self) -> None:
        """Ends the connections. Questions under way end in `LostError`, or are never answered. Idempotent."""
        self._leaving.cancel()
        if self._ended is not None:
            with trio.CancelScope(shield=True):
                await self._ended.wait()
        await trio.lowlevel.cancel_shielded_checkpoint()


class MembersBeside:
    """The members of this process's cluster: its own is asked without a connection."""

    def __init__(self, service: MemberService, addresses: Sequence[str], channels: Channels) -> None:
        """The first address is its own."""
        self.addresses = tuple(dict.fromkeys(addresses))
        self._service = service
        self._channels = channels

    async def ask(self, address: str, purpose: MetastorePurpose, body: bytes, sent: Callable[[], None]) -> Response:
        """Asks the member at this address. Raises `NotSentError`, `LostError`."""
        if address != self.addresses[0]:
            return await self._channels.to(address).ask(purpose, body, sent)
        sent()
        try:
            return Response(0, Status.OK, body=await self._service.ask(purpose, body))
        except RemoteProtocolError as error:
            return Response(0, Status.BAD_REQUEST, detail=str(error))

    def use(self, open_transport: OpenTransport, authenticator: Authenticator | None) -> None:
        """Nothing: the process has its own ways to its peers."""

    async def aclose(self) -> None:
        """Nothing: the connections are the process's."""
        await trio.lowlevel.checkpoint()
