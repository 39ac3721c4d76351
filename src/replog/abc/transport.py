"""The seam of transports: how clients reach bookies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import trio

from replog.abc.authentication import Authenticator
from replog.errors import ReplogError
from replog.protocol.messages import Request, Response


class ResponseReceiver(Protocol):
    """The client's end of a connection.

    Called in the trio thread, and not from within `send` unless the transport says so. Must not block and must not raise."""

    def responses_received(self, responses: Sequence[Response]) -> None:
        """Answers arrived, in any order."""

    def disconnected(self, error: ReplogError) -> None:
        """The connection is gone: no more answers will arrive. Called once, as the last call."""


class Connection(ABC):
    """One client's connection to one bookie.

    Requests are handled in the order in which they were sent, except that other requests may overtake reads that wait for room
    (B9). Answers may arrive in any order."""

    __slots__ = ()

    @abstractmethod
    def send(self, requests: Sequence[Request]) -> None:
        """Queues requests; never waits.

        Raises `BookieUnreachableError` if the connection is gone, and `BookieTooBusyError` if too many bytes wait to be
        sent: then none of these requests was sent."""

    @abstractmethod
    async def aclose(self) -> None:
        """Ends the connection. Idempotent. Requests without an answer have an unknown outcome."""


Reply = Callable[[Sequence[Response]], None]


class RequestHandler(Protocol):
    """The bookie's end of a connection."""

    def handle(self, requests: Sequence[Request], reply: Reply) -> None:
        """Accepts requests; never waits. Calls `reply` with answers from the trio thread, once or several times.

        Answers may come in any order, and before this returns. A connection always passes the same `reply` object."""


class Transport(ABC):
    """Connects clients to bookies. An `address` is a text without the scheme, as a listener returned it."""

    __slots__ = ()

    @abstractmethod
    async def connect(
        self,
        address: str,
        receiver: ResponseReceiver,
        nursery: trio.Nursery,
        *,
        bookie_id: str = "",
        authenticator: Authenticator | None = None,
    ) -> Connection:
        """Connects to a bookie. The connection's tasks run in `nursery`.

        Raises `BookieUnreachableError`, even if it reaches another bookie than `bookie_id` ("": any bookie), or if
        authentication fails. If cancelled, nothing stays open."""

    @abstractmethod
    def listen(
        self,
        address: str,
        handler: RequestHandler,
        *,
        bookie_id: str = "",
        authenticator: Authenticator | None = None,
    ) -> AbstractAsyncContextManager[str]:
        """Serves while the context is open; yields the address to connect to.

        Clients learn that this is the bookie `bookie_id`. With an authenticator, a client's requests are handled only
        after it has proven its identity. Leaving the context accepts no new requests, sends the answers that are ready
        within a short time, and ends all connections."""

    def statistics(self) -> Mapping[str, float]:
        """Counters and gauges of all listeners of this object, by names with units, for people and metrics."""
        return {}
