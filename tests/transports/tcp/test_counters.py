"""What a TCP listener counts: connections and bytes, of those who were heard and of those who were not."""

from __future__ import annotations

import trio

from replog.protocol.messages import ReadRequest
from replog.runtime.host_ports import parse_address
from replog.transports.tcp import TcpOptions, TcpTransport
from tests.transports.tcp.kit import KEY, Handler, Receiver


async def until(transport: TcpTransport, **wanted: float) -> dict[str, float]:
    """The statistics, once they are so."""
    with trio.fail_after(30):
        while any(transport.statistics()[name] != value for name, value in wanted.items()):  # noqa: ASYNC110 - nobody tells
            await trio.sleep(0.001)
    return dict(transport.statistics())


async def test_connections_and_bytes_are_counted() -> None:
    transport, receiver = TcpTransport(TcpOptions()), Receiver()
    assert set(transport.statistics().values()) == {0}
    async with transport.listen("127.0.0.1:0", Handler(), bookie_id="bookie-1") as address:
        async with trio.open_nursery() as nursery:
            connection = await TcpTransport(TcpOptions()).connect(address, receiver, nursery)
            greeted = await until(transport, connections=1, handshakes=0, accepted_connections=1)
            assert greeted["received_bytes"] > 0
            connection.send([ReadRequest(each, 7, KEY, 0, 1, 1) for each in range(100)])
            with trio.fail_after(30):
                while len(receiver.responses) < 100:  # noqa: ASYNC110 - nobody tells
                    await trio.sleep(0.001)
            asked = dict(transport.statistics())
            assert asked["received_bytes"] > greeted["received_bytes"] + 100 * 32
            assert asked["sent_bytes"] > greeted["sent_bytes"] + 100 * 16
            await connection.aclose()
        left = await until(transport, connections=0)
        assert left["received_bytes"] >= asked["received_bytes"]
        assert left["sent_bytes"] >= asked["sent_bytes"]
    assert transport.statistics()["accepted_connections"] == 1


async def test_refused_clients_are_counted() -> None:
    transport = TcpTransport(TcpOptions(connections_max=1))
    async with transport.listen("127.0.0.1:0", Handler(), bookie_id="bookie-1") as address:
        host, port = parse_address(address)
        async with await trio.open_tcp_stream(host, port) as silent:
            await until(transport, connections=1, handshakes=1)
            async with await trio.open_tcp_stream(host, port):
                await until(transport, refused_connections=1)
            await silent.send_all(b"this is no greeting" * 10)
            found = await until(transport, connections=0, handshakes=0)
        assert found["failed_handshakes"] == 1
        assert found["accepted_connections"] == 1
        async with await trio.open_tcp_stream(host, port):
            await until(transport, connections=1)
        found = await until(transport, connections=0)
        assert found["failed_handshakes"] == 1, "who only looks whether the port is open has failed nothing"
