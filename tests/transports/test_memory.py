"""The transport in memory: its conformance suite, and what is its own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio

from replog.abc import Reply
from replog.errors import BookieUnreachableError, ConfigError, ReplogError
from replog.protocol.messages import FenceRequest, Request, Response, Status
from replog.testing import check_transport
from replog.transports.memory import MemoryTransport


class Recorder:
    """Both ends: what was handled, answered, disconnected, in the order in which it happened."""

    def __init__(self) -> None:
        self.happened: list[object] = []

    def handle(self, requests: Sequence[Request], reply: Reply) -> None:
        self.happened.append(requests)
        reply([Response(request.request_id, Status.OK) for request in requests])
        self.happened.append("handled")

    def responses_received(self, responses: Sequence[Response]) -> None:
        self.happened.append([response.request_id for response in responses])

    def disconnected(self, error: ReplogError) -> None:
        self.happened.append(error)


REQUESTS = [FenceRequest(1, 2, b"key", 2)]


async def test_it_passes_the_conformance_suite() -> None:
    await check_transport(MemoryTransport)


async def test_sending_is_a_call_and_nothing_else(nursery: trio.Nursery) -> None:
    """No task, no copy: the bookie gets the very list, and the answer is there before `send` returns."""
    both = Recorder()
    async with MemoryTransport().listen("", both) as address:
        connection = await MemoryTransport().connect(address, both, nursery)
        assert not nursery.child_tasks
        connection.send(REQUESTS)
        assert both.happened == [REQUESTS, [1], "handled"]
        assert both.happened[0] is REQUESTS
        await connection.aclose()


async def test_addresses_are_given_out_or_chosen_and_never_shared(nursery: trio.Nursery) -> None:
    transport, bookie = MemoryTransport(), Recorder()
    async with transport.listen("", bookie) as first, transport.listen("mine", bookie) as second:
        async with transport.listen("", bookie) as third:
            assert len({first, second, third}) == 3
            assert second == "mine"
        with pytest.raises(ConfigError, match="'mine'"):
            async with transport.listen("mine", bookie):
                pass
        connection = await transport.connect("mine", bookie, nursery)  # the one that was there still is
        connection.send(REQUESTS)
        await connection.aclose()
    with pytest.raises(BookieUnreachableError, match="mine"):
        await transport.connect("mine", bookie, nursery)


def test_a_trio_run_has_its_own_addresses() -> None:
    async def listen_and_connect(address: str, other: str) -> None:
        async with MemoryTransport().listen(address, Recorder()), trio.open_nursery() as nursery:
            with pytest.raises(BookieUnreachableError):
                await MemoryTransport().connect(other, Recorder(), nursery)

    trio.run(listen_and_connect, "a", "b")
    trio.run(listen_and_connect, "b", "a")


async def test_receiver_may_close_while_it_gets_an_answer(nursery: trio.Nursery) -> None:
    transport = MemoryTransport()

    class Closing(Recorder):
        def responses_received(self, responses: Sequence[Response]) -> None:
            super().responses_received(responses)
            nursery.start_soon(connection.aclose)

    closing = Closing()
    async with transport.listen("", Recorder()) as address:
        connection = await transport.connect(address, closing, nursery)
        connection.send(REQUESTS)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(BookieUnreachableError):
            connection.send(REQUESTS)
    assert closing.happened == [[1]]  # a connection that was closed here is not told of the listener's end
