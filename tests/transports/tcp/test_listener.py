"""Where a bookie listens: how many it lets in, and how it leaves."""

from __future__ import annotations

import os
import resource
import socket
from contextlib import AsyncExitStack, closing

import pytest
import trio
import trio.testing

from replog.errors import BookieRefusedError, BookieUnreachableError, ConfigError
from replog.protocol import wire
from replog.protocol.messages import ReadLastAddConfirmedRequest, RecoveryReadRequest, Request, Response, Status
from replog.protocol.wire import FrameSplitter
from replog.runtime.nursery import open_service_nursery
from replog.transports.tcp import TcpOptions, TcpTransport, UnixOptions
from replog.transports.tcp.listener import Listener
from replog.transports.tcp.options import TcpTuning, tuned
from replog.transports.tcp.stream import Stream
from tests.transports.tcp.kit import (
    KEY,
    Handler,
    RawClient,
    Receiver,
    add,
    batch_of,
    connected,
    encoded,
    listening,
    raw_client,
    read,
    settled,
)


class Served:
    """A listener whose end the test decides."""

    def __init__(self, handler: Handler, nursery: trio.Nursery, **options: float) -> None:
        self.listener = Listener(handler, "bookie-1", None, TcpTuning(**options))  # type: ignore[arg-type]
        self._nursery = nursery
        self.ended = trio.Event()

    async def start(self) -> str:
        await self.listener.bind("127.0.0.1", 0)
        self._nursery.start_soon(self._run)
        return self.listener.address

    async def _run(self) -> None:
        await self.listener.run()
        self.ended.set()


# -- leaving ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_accepted_requests_are_answered_before_the_end(
    is_cancelled: bool, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    handler = Handler(holds=True)
    served = Served(handler, nursery, drain_timeout_s=5.0)
    async with raw_client(await served.start()) as client:
        client.say(*[add(number, batch_of(100)) for number in range(50)])
        client.say(ReadLastAddConfirmedRequest(100, 7, KEY, 0, 60_000))
        await settled()

        async def leave() -> None:
            with trio.CancelScope() as scope:
                if is_cancelled:
                    scope.cancel()
                await served.listener.close("leaving")

        nursery.start_soon(leave)
        await settled(1)
        assert not served.ended.is_set()
        with pytest.raises(OSError, match="refused"):
            connected(served.listener.address)
        client.say(add(200, batch_of(100)))  # too late
        await settled(1)
        handler.release()
        answers = await client.answers(51)
        assert [answer.request_id for answer in answers] == [*range(50), 100]
        assert await client.farewell() == "leaving"
    with trio.fail_after(0.1):
        await served.ended.wait()
    assert 200 not in [request.request_id for request in handler.requests]
    assert served.listener._budget.used_bytes == 0


async def test_recovery_read_is_answered_before_the_end(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """R4: it has raised the fence. Its recovery would wait for nothing."""
    handler = Handler(lambda request: Response(request.request_id, Status.NO_ENTRY), holds=True)
    served = Served(handler, nursery, drain_timeout_s=5.0)
    async with raw_client(await served.start()) as client:
        client.say(RecoveryReadRequest(1, 7, KEY, 2, 0, 1))
        await settled()
        nursery.start_soon(served.listener.close, "leaving")
        await settled(1)
        assert not served.ended.is_set()
        handler.release()
        (answer,) = await client.answers(1)
        assert answer.status is Status.NO_ENTRY
        assert await client.farewell() == "leaving"


@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.parametrize("client_reads", [False, True])
async def test_no_client_waits_longer_for_an_answer_than_promised(
    client_reads: bool, is_cancelled: bool, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    def large(request: Request) -> Response:
        return Response(request.request_id, Status.OK, batches=(batch_of(8 << 20),))

    handler = Handler(large, holds=client_reads)
    served = Served(handler, nursery, drain_timeout_s=5.0)
    async with raw_client(await served.start()) as client:
        client.say(add(1, batch_of(100)), *[read(number) for number in range(2, 6)])
        await settled()
        begin_s = trio.current_time()
        with trio.CancelScope() as scope:
            if is_cancelled:
                scope.cancel()
            await served.listener.close("leaving")
        assert trio.current_time() - begin_s == pytest.approx(5.0, abs=0.1)
        assert served.ended.is_set()
        assert served.listener._budget.used_bytes == 0


async def test_idle_clients_hear_at_once(nursery: trio.Nursery, autojump_clock: trio.testing.MockClock) -> None:
    served = Served(Handler(holds=True), nursery)
    receiver = Receiver()
    connection = await TcpTransport(TcpOptions()).connect(await served.start(), receiver, nursery)
    connection.send([ReadLastAddConfirmedRequest(1, 7, KEY, 0, 60_000), read(2)])
    await settled()
    begin_s = trio.current_time()
    await served.listener.close("leaving")
    assert trio.current_time() - begin_s < 0.1
    await receiver.disconnection.wait()
    assert "it ended the connection: leaving" in str(receiver.errors[0])


async def test_client_introducing_itself_does_not_delay_leaving(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    served = Served(Handler(), nursery)
    address = await served.start()
    with closing(connected(address)) as silent, closing(connected(address)) as half:
        half.send(wire.encode_greeting(wire.Hello(1, 1, 0, bytes(32), "", "none", ""))[:30])
        await settled()
        assert served.listener._hosts.under_way == 2
        begin_s = trio.current_time()
        await served.listener.close("leaving")
        assert trio.current_time() - begin_s < 0.1
        for each in (silent, half):
            each.settimeout(5)
            try:
                assert each.recv(100) == b""
            except ConnectionResetError:
                assert each is half  # what it said was not read
    assert served.listener._connections == served.listener._hosts.under_way == 0


async def test_client_is_sent_away_when_it_comes_while_leaving(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """Else it would take their requests, and end before it answers them."""
    handler = Handler(holds=True)
    served = Served(handler, nursery)
    address = await served.start()
    async with raw_client(address) as busy:
        busy.say(add(1, batch_of(100)))
        await settled()
        with closing(connected(address)) as late:
            stream, splitter = Stream(late), FrameSplitter(wire.FRAME_BYTES_MAX)
            stream.write([wire.encode_greeting(wire.Hello(1, 1, 0, bytes(32), "", "none", ""))])
            await settled()
            nursery.start_soon(served.listener.close, "leaving")
            await settled()
            stream.write([wire.encode_greeting(wire.Prove(b"")), encoded(add(2, batch_of(100)))])
            client = RawClient(stream, splitter, [])
            assert await client.farewell() == "this bookie is shutting down"
            handler.release()
            assert [answer.request_id for answer in await busy.answers(1)] == [1]
        assert [request.request_id for request in handler.requests] == [1]
    await served.ended.wait()


async def test_it_listens_at_the_same_port_again_at_once(autojump_clock: trio.testing.MockClock) -> None:
    transport, address = TcpTransport(TcpOptions()), "127.0.0.1:0"
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            receiver = Receiver()
            async with transport.listen(address, Handler()) as reached:
                assert address in (reached, "127.0.0.1:0")
                address = reached
                connection = await transport.connect(address, receiver, nursery)
                connection.send([read(1)])
            await receiver.disconnection.wait()
            with pytest.raises(BookieUnreachableError) as caught:
                await transport.connect(address, Receiver(), nursery)
            assert str(caught.value) == f"bookie {address}: Connection refused"


async def test_two_cannot_listen_at_one_port() -> None:
    transport = TcpTransport(TcpOptions())
    async with transport.listen("127.0.0.1:0", Handler()) as address:
        with pytest.raises(ConfigError, match=f"tcp:{address}: cannot listen there"):
            async with transport.listen(address, Handler()):
                pass


@pytest.mark.parametrize("address", ["192.0.2.1:0", "no-such-host.invalid:0"])
async def test_unusable_address_is_named(address: str) -> None:
    with pytest.raises(ConfigError, match="cannot listen there"):
        async with TcpTransport(TcpOptions()).listen(address, Handler()):
            pass


async def test_a_host_with_several_addresses_is_listened_at_on_all() -> None:
    found = socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    async with TcpTransport(TcpOptions()).listen("localhost:0", Handler()) as address:
        port = address.rpartition(":")[2]
        for host in {str(where[0]) for *_, where in found}:
            with closing(socket.create_connection((host, int(port)), timeout=5)):
                pass


# -- who is let in ----------------------------------------------------------------------------------------------------


async def test_too_many_connections_are_refused_until_one_ends(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with listening(Handler(), connections_max=3) as listener, AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(raw_client(listener.address))
        with pytest.raises(BookieRefusedError, match="has 3 connections, and takes no more"):
            async with raw_client(listener.address):
                pass
        await stack.aclose()
        await settled()
        async with raw_client(listener.address) as client:
            client.say(read(1))
            assert await client.answers(1)


async def test_without_descriptors_it_waits_and_goes_on(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """EMFILE: those who are connected are served, those who come are when there are descriptors again. It is said once."""
    async with listening(Handler()) as listener, raw_client(listener.address) as client:
        waiting = [socket.socket() for _ in range(3)]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
        spare: list[socket.socket] = []
        try:
            with pytest.raises(OSError, match="Too many open files"):
                while True:  # fill the gaps
                    spare.append(socket.socket())
            host, port = listener.address.rsplit(":", 1)
            for each in waiting:
                each.connect((host, int(port)))
            await settled(1)
            assert listener._connections == 1
            client.say(read(1))
            assert await client.answers(1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for each in spare:
                each.close()
        await settled(1)
        assert listener._connections == 4
        assert [each.message for each in caplog.records if "no new connections" in each.message] == [
            "no new connections for a while: Too many open files"
        ]
        for each in waiting:
            each.close()
        await settled()
        assert listener._connections == 1


async def test_connections_ended_before_service_leave_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with listening(Handler()) as listener:
        for _ in range(20):
            with connected(listener.address) as each:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not a farewell
        await settled()
        assert listener._connections == 0
        async with raw_client(listener.address) as client:
            client.say(read(1))
            assert await client.answers(1)


async def test_a_slow_client_does_not_stall_another(autojump_clock: trio.testing.MockClock) -> None:
    def large(request: Request) -> Response:
        return Response(request.request_id, Status.OK, batches=(batch_of(1 << 20),))

    async with listening(Handler(large), connection_bytes_max=8 << 20) as listener, AsyncExitStack() as stack:
        for _ in range(5):
            slow = await stack.enter_async_context(raw_client(listener.address))
            slow.say(*[read(number, 1 << 20) for number in range(100)])
            slow.stream.write([b"x"])  # and half a message
        await settled()
        begin_s = trio.current_time()
        async with raw_client(listener.address) as client:
            for number in range(20):
                client.say(read(number, 1 << 20))
                assert len(await client.answers(1)) == 1
        assert trio.current_time() - begin_s < 1


async def test_contradictory_limits_are_refused() -> None:
    for options in (
        {"total_bytes_max": wire.FRAME_BYTES_MAX - 1},
        {"connections_max": 0},
        {"silence_max_s": float("nan")},
        {"silence_max_s": 0},
    ):
        with pytest.raises(ConfigError):
            TcpOptions(**options)


def test_deadlines_follow_from_the_longest_silence() -> None:
    slow, quick = tuned(TcpOptions(silence_max_s=60.0)), tuned(UnixOptions(silence_max_s=2.0))
    assert (slow.transfer_timeout_s, slow.handshake_timeout_s, slow.drain_timeout_s) == (60.0, 10.0, 5.0)
    assert (quick.transfer_timeout_s, quick.handshake_timeout_s, quick.drain_timeout_s) == (2.0, 1.0, 1.0)
    assert tuned(quick) is quick
    assert tuned(TcpOptions(total_bytes_max=40 << 20)).connection_bytes_max == 40 << 20


async def test_limits_can_be_turned_off() -> None:
    endless = TcpOptions(silence_max_s=float("inf"))
    async with open_service_nursery() as nursery:
        transport = TcpTransport(endless)
        async with transport.listen("127.0.0.1:0", Handler()) as address:
            receiver = Receiver()
            connection = await transport.connect(address, receiver, nursery)
            connection.send([read(1)])
            with trio.fail_after(5):
                while not receiver.responses:  # noqa: ASYNC110 - it has no event
                    await trio.sleep(0.001)
            await connection.aclose()
