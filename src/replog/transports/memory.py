"""The way to a bookie in the same trio run: a function call.

Rules: messages pass by reference, they are not encoded, copied or queued, and wake no task. `send` calls the bookie's
`handle` before it returns, and the bookie's answers go straight to the receiver: **also before `send` returns**, in its
caller's frame. Both ends are one program: neither has to authenticate. The bookie bounds the bytes under way, and
refuses requests beyond its room.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from replog.abc import Authenticator, Connection, Reply, RequestHandler, ResponseReceiver, Transport
from replog.errors import BookieRefusedError, BookieUnreachableError, ConfigError
from replog.hookspecs import Backend, NoOptions, hookimpl

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from replog.protocol.messages import Request, Response


class MemoryTransport(Transport):
    """Reaches bookies that listen in this trio run, through any instance of this class; addresses are any text."""

    __slots__ = ()

    async def connect(
        self,
        address: str,
        receiver: ResponseReceiver,
        nursery: trio.Nursery,
        *,
        bookie_id: str = "",
        authenticator: Authenticator | None = None,
    ) -> Connection:
        """Connects to the listener at the address. Raises `BookieUnreachableError`. Starts no task."""
        await trio.lowlevel.checkpoint()
        listener = _switchboard().get(address)
        if listener is None:
            problem = f"no bookie listens at memory address {address!r} in this trio run"
            raise BookieUnreachableError(bookie_id or address, problem)
        if bookie_id and listener.bookie_id and bookie_id != listener.bookie_id:
            raise BookieRefusedError(bookie_id, f"at memory address {address!r} listens bookie {listener.bookie_id}")
        return _MemoryConnection(listener, receiver)

    @asynccontextmanager
    async def listen(
        self,
        address: str,
        handler: RequestHandler,
        *,
        bookie_id: str = "",
        authenticator: Authenticator | None = None,
    ) -> AsyncIterator[str]:
        """Serves while the context is open. "" gets a free address. Raises `ConfigError` if the address is taken."""
        await trio.lowlevel.checkpoint()
        switchboard = _switchboard()
        address = address or _free_address(switchboard)
        if address in switchboard:
            raise ConfigError(f"memory address {address!r}: a bookie listens there already; choose another, or none")
        listener = switchboard[address] = _Listener(address, handler, bookie_id)
        try:
            yield address
        finally:
            del switchboard[address]
            listener.close()


class _Listener:
    __slots__ = ("address", "bookie_id", "connections", "handler")

    def __init__(self, address: str, handler: RequestHandler, bookie_id: str) -> None:
        self.address = address
        self.bookie_id = bookie_id
        self.handler = handler
        self.connections: dict[_MemoryConnection, None] = {}  # a set that keeps its order

    def close(self) -> None:
        while self.connections:
            # One by one, and not in a loop over the map: a receiver may connect again at once, or close others.
            connection, _ = self.connections.popitem()
            connection.cut()


class _MemoryConnection(Connection):
    __slots__ = ("_handle", "_listener", "_receiver", "_reply")

    def __init__(self, listener: _Listener, receiver: ResponseReceiver) -> None:
        self._listener = listener
        self._receiver: ResponseReceiver | None = receiver
        self._handle: Callable[[Sequence[Request], Reply], None] | None = listener.handler.handle
        self._reply: Reply = self._answered
        listener.connections[self] = None

    def send(self, requests: Sequence[Request]) -> None:
        handle = self._handle
        if handle is None:
            raise BookieUnreachableError(self._listener.address, "the connection is closed")
        handle(requests, self._reply)

    def _answered(self, responses: Sequence[Response]) -> None:
        receiver = self._receiver
        if receiver is not None:
            receiver.responses_received(responses)

    def cut(self) -> None:
        """The listener ends: tells the receiver, once."""
        receiver, self._receiver, self._handle = self._receiver, None, None
        if receiver is not None:
            receiver.disconnected(BookieUnreachableError(self._listener.address, "the bookie stopped"))

    async def aclose(self) -> None:
        self._receiver = self._handle = None
        self._listener.connections.pop(self, None)
        await trio.lowlevel.cancel_shielded_checkpoint()


_listeners: trio.lowlevel.RunVar[dict[str, _Listener]] = trio.lowlevel.RunVar("replog memory transport")


def _switchboard() -> dict[str, _Listener]:
    try:
        return _listeners.get()
    except LookupError:
        switchboard: dict[str, _Listener] = {}
        _listeners.set(switchboard)
        return switchboard


def _free_address(switchboard: dict[str, _Listener]) -> str:
    number = len(switchboard) + 1
    while str(number) in switchboard:
        number += 1
    return str(number)


@hookimpl
def replog_transports() -> Sequence[Backend[Transport]]:
    """Offers "memory"."""
    return [Backend("memory", _open, summary="bookies in the same trio run, without encoding")]


def _open(rest: str, options: NoOptions) -> Transport:
    return MemoryTransport()
