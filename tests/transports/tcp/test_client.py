"""The client's end of a connection: what goes out together, in which order, how much may wait, and peers that fall silent."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest
import trio

from replog.errors import BookieRefusedError, BookieTooBusyError, BookieUnreachableError
from replog.protocol import wire
from replog.protocol.messages import ReadLastAddConfirmedRequest, Request, Response, Status, ledger_awaited
from replog.protocol.unasked import encode_awaited
from replog.protocol.wire import FrameSplitter
from replog.transports.tcp import TcpOptions, TcpTransport
from replog.transports.tcp.client import TcpConnection
from replog.transports.tcp.options import TcpTuning
from replog.transports.tcp.stream import Stream
from tests.transports.tcp.kit import FRAME_BYTES_MAX, KEY, Handler, Receiver, add, batch_of, listening, read, settled


class Ends:
    """A connection, and the bookie's end of it as a stream that does nothing by itself."""

    def __init__(self, connection: TcpConnection, stream: Stream, far: Stream, receiver: Receiver) -> None:
        self.connection = connection
        self.stream = stream
        self.far = far
        self.receiver = receiver
        self._splitter = FrameSplitter(wire.FRAME_BYTES_MAX)

    async def requests(self, count: int) -> list[Request]:
        """So many requests, as they come."""
        found: list[Request] = []
        while len(found) < count:
            data = await self.far.receive()
            assert data
            found += [wire.decode_request(each) for each in self._splitter.feed(data) if each.kind != wire.PING]
        return found

    def answer(self, *request_ids: int) -> None:
        """Says OK to these."""
        pieces: list[bytes] = []
        for request_id in request_ids:
            wire.encode_response(Response(request_id, Status.OK), pieces)
        self.far.write(pieces)


@asynccontextmanager
async def both_ends(nursery: trio.Nursery, **options: Any) -> AsyncIterator[Ends]:
    near, far = (Stream(each) for each in socket.socketpair())
    receiver = Receiver()
    ready = wire.Ready(b"", "", FRAME_BYTES_MAX, 60_000)
    splitter = FrameSplitter(wire.FRAME_BYTES_MAX)
    options.setdefault("frame_bytes_max", FRAME_BYTES_MAX)
    connection = TcpConnection("bookie-1", near, splitter, receiver, TcpTuning(**options), ready)
    nursery.start_soon(connection.run, [])
    nursery.start_soon(far.run)
    try:
        yield Ends(connection, near, far, receiver)
    finally:
        await connection.aclose()
        far.close()


# -- sending ----------------------------------------------------------------------------------------------------------


async def test_requests_of_one_tick_go_out_together_and_in_order(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with both_ends(nursery) as ends:
        writes: list[int] = []
        write = ends.stream.write

        def counted(pieces: Sequence[bytes]) -> None:
            writes.append(len(pieces))
            write(pieces)

        monkeypatch.setattr(ends.stream, "write", counted)
        for number in range(1000):
            ends.connection.send([read(number)])
        requests = await ends.requests(1000)
        assert [request.request_id for request in requests] == list(range(1000))
        # The first ones by themselves, then 16 KiB at a time, and the rest.
        assert len(writes) <= 4 + ends.stream.taken_bytes // (16 << 10) + 1
        ends.answer(*range(1000))
        await settled()
        assert len(ends.receiver.responses) == 1000


async def test_long_tick_sends_first_requests_before_last_are_made(nursery: trio.Nursery) -> None:
    """A bookie begins with them meanwhile."""
    async with both_ends(nursery) as ends:
        for number in range(1000):
            ends.connection.send([read(number)])
            assert ends.connection._outbox.size_bytes < 16 << 10
        sent_bytes = ends.stream.taken_bytes + ends.stream.waiting_bytes
        assert sent_bytes > 3 * ends.connection._outbox.size_bytes
        requests = await ends.requests(1000)
        assert [request.request_id for request in requests] == list(range(1000))


async def test_large_requests_do_not_overtake_small_ones(nursery: trio.Nursery) -> None:
    large, small = batch_of(100_000), batch_of(10)
    async with both_ends(nursery) as ends:
        for number in range(200):
            batch = large if number % 7 == 6 else small
            ends.connection.send([add(number, batch)])
            if number % 50 == 49:
                await trio.lowlevel.checkpoint()
        with trio.fail_after(10):
            requests = await ends.requests(200)
        assert [request.request_id for request in requests] == list(range(200))


async def test_a_lone_request_is_with_the_system_when_send_returns(nursery: trio.Nursery) -> None:
    async with both_ends(nursery) as ends:
        ends.connection.send([read(1)])
        assert ends.stream.taken_bytes > 0
        assert ends.stream.waiting_bytes == 0


async def test_bytes_waiting_for_a_deaf_bookie_are_bounded(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    batch = batch_of(1 << 20)
    async with both_ends(nursery, connection_bytes_max=4 << 20) as ends:
        sent = 0
        with pytest.raises(BookieTooBusyError, match="bytes wait to be sent to it"):
            while sent < 100:
                ends.connection.send([add(sent, batch)])
                sent += 1
        assert 3 <= sent < 20
        assert ends.stream.waiting_bytes <= 4 << 20
        small = sent
        with pytest.raises(BookieTooBusyError):
            while small < 100_000:
                ends.connection.send([read(small)])
                small += 1
        assert ends.stream.waiting_bytes + ends.connection._outbox.size_bytes <= 4 << 20
        requests = await ends.requests(small)  # all but the refused ones arrive
        assert [request.request_id for request in requests] == list(range(small))
        ends.connection.send([read(small)])
        await ends.requests(1)


async def test_a_request_above_the_bound_is_sent_when_nothing_waits(nursery: trio.Nursery) -> None:
    async with both_ends(nursery, connection_bytes_max=FRAME_BYTES_MAX) as ends:
        ends.connection.send([add(1, batch_of((2 << 20) - 1000)), add(2, batch_of((2 << 20) - 1000))])
        assert len(await ends.requests(2)) == 2
        with pytest.raises(BookieRefusedError, match="it takes messages of at most"):
            ends.connection.send([add(3, batch_of(3 << 20))])


# -- signs of life ----------------------------------------------------------------------------------------------------


async def test_silent_bookie_is_noticed_in_time(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    """W6: a frozen process, or a network that swallows everything."""
    async with both_ends(nursery, silence_max_s=8.0) as ends:
        begin_s = trio.current_time()
        ends.connection.send([read(1)])
        await ends.receiver.disconnection.wait()
        assert 8 <= trio.current_time() - begin_s <= 10.1
        assert "nothing was heard from it for 8.0 s" in str(ends.receiver.errors[0])
        with pytest.raises(BookieUnreachableError, match="nothing was heard"):
            ends.connection.send([read(2)])


async def test_receiving_bookie_is_not_silent(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    """Much over a slow line: until it has it all, it has nothing to answer."""
    batch = batch_of(2_000_000)
    async with both_ends(nursery, silence_max_s=8.0, connection_bytes_max=64 << 20) as ends:
        for number in range(10):
            ends.connection.send([add(number, batch)])
        ends.far._receive_bytes = 1 << 19
        taken_bytes = 0
        while ends.stream.waiting_bytes:
            taken_bytes += len(await ends.far.receive())
            await trio.sleep(1)
        assert trio.current_time() > 16
        assert taken_bytes > 16 << 20
        assert not ends.receiver.errors


async def test_an_idle_connection_is_kept_alive_over_tcp(autojump_clock: trio.testing.MockClock) -> None:
    handler = Handler(holds=True)
    receiver = Receiver()
    async with listening(handler, silence_max_s=8.0) as listener, trio.open_nursery() as nursery:
        connection = await TcpTransport(TcpOptions()).connect(listener.address, receiver, nursery)
        connection.send([ReadLastAddConfirmedRequest(1, 7, KEY, 0, 600_000)])
        await trio.sleep(60)
        assert not receiver.errors
        handler.release()
        await settled()
        assert [response.request_id for response in receiver.responses] == [1]
        await connection.aclose()


# -- the end ----------------------------------------------------------------------------------------------------------


async def test_bytes_of_the_last_tick_are_sent_before_closing(nursery: trio.Nursery) -> None:
    async with both_ends(nursery) as ends:
        for number in range(20):
            ends.connection.send([read(number)])
        await ends.connection.aclose()
        assert len(await ends.requests(20)) == 20
        assert await ends.far.receive() == b""
        assert not ends.receiver.errors


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "it closed the connection"),
        (bytes(24), "it broke the protocol"),
        (wire.seal(wire.ADD, 0, 1, bytes(100)), "it broke the protocol"),
        (wire.seal(wire.RESPONSE, 0, 1, bytes(3)), "it broke the protocol"),
        (wire.seal(wire.REFUSE, 0, 1, b""), "it broke the protocol"),
        (wire.encode_greeting(wire.Refuse("enough", retry=True)), "it ended the connection: enough"),
    ],
)
async def test_ending_or_confused_bookie_is_an_error(data: bytes, problem: str, nursery: trio.Nursery) -> None:
    async with both_ends(nursery) as ends:
        ends.connection.send([read(1)])
        await ends.requests(1)
        ends.answer(1)
        await settled()
        ends.far.write([data])
        if not data:
            ends.far.close()
        with trio.fail_after(5):
            await ends.receiver.disconnection.wait()
        (error,) = ends.receiver.errors
        assert problem in str(error)
        assert len(ends.receiver.responses) == 1


# -- races and leaks --------------------------------------------------------------------------------------------------


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def _leaks_nothing() -> Any:
    gc.collect()
    before = descriptors()
    yield
    gc.collect()
    assert descriptors() == before


@pytest.mark.usefixtures("_leaks_nothing")
async def test_connecting_may_be_cancelled_at_any_point() -> None:
    """After so many turns of the loop: while resolving, connecting, in the middle of the handshake, at its end."""
    completed = 0
    async with listening(Handler()) as listener:
        for turns in range(40):
            receiver = Receiver()
            async with trio.open_nursery() as nursery:
                with trio.CancelScope() as scope:

                    async def cancel(scope: trio.CancelScope = scope, turns: int = turns) -> None:
                        for _ in range(turns):
                            await trio.lowlevel.checkpoint()
                        scope.cancel()

                    nursery.start_soon(cancel)
                    connection = await TcpTransport(TcpOptions()).connect(listener.address, receiver, nursery)
                    completed += 1
                    await connection.aclose()
                nursery.cancel_scope.cancel()
            assert len(receiver.errors) == 0
        await settled()
        assert 0 < completed < 40


@pytest.mark.usefixtures("_leaks_nothing")
async def test_nursery_takes_its_connections_along() -> None:
    receiver = Receiver()
    async with listening(Handler(holds=True)) as listener:
        async with trio.open_nursery() as nursery:
            connection = await TcpTransport(TcpOptions()).connect(listener.address, receiver, nursery)
            for number in range(10):
                connection.send([read(number)])
            nursery.cancel_scope.cancel()
        assert len(receiver.errors) == 1
        await connection.aclose()


@pytest.mark.usefixtures("_leaks_nothing")
async def test_exited_nursery_gets_no_connection() -> None:
    async with trio.open_nursery() as left:
        pass
    async with listening(Handler()) as listener:
        with pytest.raises(BookieUnreachableError, match="left"):
            await TcpTransport(TcpOptions()).connect(listener.address, Receiver(), left)


@pytest.mark.usefixtures("_leaks_nothing")
async def test_a_silent_listener_costs_one_handshake_timeout(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        begin_s = trio.current_time()
        with pytest.raises(BookieUnreachableError, match="no handshake"):
            await TcpTransport(TcpTuning(handshake_timeout_s=3.0)).connect(address, Receiver(), nursery)
        assert trio.current_time() - begin_s == pytest.approx(3.0)


async def test_unrequested_messages_reach_the_receiver(nursery: trio.Nursery) -> None:
    async with both_ends(nursery) as ends:
        ends.connection.send([read(1)])
        ends.far.write([encode_awaited(7)])
        with trio.fail_after(5):
            while not ends.receiver.responses:  # noqa: ASYNC110 - it comes from a socket
                await trio.sleep(0.001)
        assert ends.receiver.responses == [ledger_awaited(7)]
        assert ends.connection._outbox.unanswered == 1


async def test_too_short_message_ends_the_connection(nursery: trio.Nursery) -> None:
    async with both_ends(nursery) as ends:
        ends.far.write([wire.seal(wire.AWAITED, 0, 0, b"1234567")])
        with trio.fail_after(5):
            await ends.receiver.disconnection.wait()
        assert "kind 33 with 7 bytes" in str(ends.receiver.errors[0])
