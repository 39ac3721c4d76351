"""The conformance suite of transports finds out those that cheat."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest
import trio

from replog.abc import Connection, ResponseReceiver
from replog.errors import BookieUnreachableError
from replog.protocol.messages import Request, Response
from replog.testing import check_transport
from replog.transports.memory import MemoryTransport


@attrs.define
class Cheating(Connection):
    """A connection whose ends are tampered with."""

    inner: Connection
    tamper: Callable[[Sequence[Request]], Sequence[Request]]

    def send(self, requests: Sequence[Request]) -> None:
        self.inner.send(self.tamper(requests))

    async def aclose(self) -> None:
        await self.inner.aclose()


@attrs.define
class CheatingReceiver:
    inner: ResponseReceiver
    tamper: Callable[[Sequence[Response]], Sequence[Response]]
    disconnections: int = 1

    def responses_received(self, responses: Sequence[Response]) -> None:
        self.inner.responses_received(self.tamper(responses))

    def disconnected(self, error: Any) -> None:
        for _ in range(self.disconnections):
            self.inner.disconnected(error)


class CheatingTransport(MemoryTransport):
    def __init__(self, **cheat: Any) -> None:
        self.requests = cheat.get("requests", lambda requests: requests)
        self.responses = cheat.get("responses", lambda responses: responses)
        self.disconnections = cheat.get("disconnections", 1)
        self.deaf_to_close = cheat.get("deaf_to_close", False)

    async def connect(
        self, address: str, receiver: ResponseReceiver, nursery: trio.Nursery, **introduction: Any
    ) -> Connection:
        tampered = CheatingReceiver(receiver, self.responses, self.disconnections)
        connection = await super().connect(address, tampered, nursery, **introduction)
        if self.deaf_to_close:
            return Deaf(connection, self.requests)
        return Cheating(connection, self.requests)


class Deaf(Cheating):
    async def aclose(self) -> None:
        pass


class MuteWhenGone(MemoryTransport):
    """Drops what is sent on a connection that is gone, instead of saying so."""

    async def connect(
        self, address: str, receiver: ResponseReceiver, nursery: trio.Nursery, **introduction: Any
    ) -> Connection:
        return Mute(await super().connect(address, receiver, nursery, **introduction), lambda requests: requests)


class Mute(Cheating):
    def send(self, requests: Sequence[Request]) -> None:
        with contextlib.suppress(BookieUnreachableError):
            self.inner.send(requests)


def forget_the_detail(responses: Sequence[Response]) -> Sequence[Response]:
    return [attrs.evolve(response, detail="") for response in responses]


CHEATS = {
    "reorders requests": lambda: CheatingTransport(requests=lambda requests: requests[::-1]),
    "loses a request": lambda: CheatingTransport(requests=lambda requests: requests[:30]),
    "doubles answers": lambda: CheatingTransport(responses=lambda responses: [*responses, *responses]),
    "loses answers": lambda: CheatingTransport(responses=lambda responses: responses[:-1]),
    "loses a field": lambda: CheatingTransport(responses=forget_the_detail),
    "says it twice": lambda: CheatingTransport(disconnections=2),
    "never says it": lambda: CheatingTransport(disconnections=0),
    "does not close": lambda: CheatingTransport(deaf_to_close=True),
    "is mute when gone": MuteWhenGone,
}


@pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS)
async def test_transport_fails_when_it_breaks_a_promise(
    cheat: Callable[[], MemoryTransport], autojump_clock: trio.testing.MockClock
) -> None:
    with pytest.raises(AssertionError, match="the contract is broken"):
        await check_transport(cheat)
