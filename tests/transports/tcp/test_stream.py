"""A socket as a stream: what is written arrives, whole and in order, however little the other side takes at a time."""

from __future__ import annotations

import random
import socket
import struct
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from replog.protocol import wire
from replog.protocol.wire import FrameSplitter
from replog.runtime.nursery import open_service_nursery
from replog.transports.tcp.stream import Stream

WRITE_LIMIT = Path("/proc/sys/net/core/wmem_max")


@asynccontextmanager
async def pair(buffer_bytes: int = 0) -> AsyncIterator[tuple[Stream, Stream]]:
    one, other = socket.socketpair()
    streams = Stream(one), Stream(other)
    if buffer_bytes:
        for each in (one, other):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
    async with open_service_nursery() as nursery:
        for stream in streams:
            nursery.start_soon(stream.run)
        try:
            yield streams
        finally:
            for stream in streams:
                stream.close()


async def received(stream: Stream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = await stream.receive()
        assert more
        data += more
    return bytes(data)


async def test_many_and_large_pieces_arrive_in_order() -> None:
    chance = random.Random(1)
    async with pair(buffer_bytes=20_000) as (one, other):
        writes = [
            [chance.randbytes(chance.choice([0, 1, 24, 300, 5000])) for _ in range(count)] + [bytes(count)] * 3
            for count in (1, 600, 3, 100_000 // 200, 0, 1500)
        ]
        expected = b"".join(b"".join(pieces) for pieces in writes)

        async def write() -> None:
            for pieces in writes:
                one.write(pieces)
                await trio.lowlevel.checkpoint()

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write)
                found = await received(other, len(expected))
        assert found == expected
        assert one.waiting_bytes == 0
        assert one.taken_bytes == len(expected)


async def test_no_more_is_received_than_is_wanted() -> None:
    async with pair() as (one, other):
        one.write([bytes(range(100))])
        with trio.fail_after(5):
            assert await other.receive(10) == bytes(range(10))
            assert await other.receive(1000) == bytes(range(10, 100))


async def test_others_get_their_turn_beside_a_flood_of_large_frames() -> None:
    frame = wire.seal(wire.ADD, 0, 1, b"", 300_000) + bytes(300_000)
    splitter, frames, turns = FrameSplitter(1 << 20), 0, [0]

    async def take_turns() -> None:
        while True:
            turns[0] += 1
            await trio.lowlevel.checkpoint()

    async with pair(buffer_bytes=4 << 20) as (one, other), trio.open_nursery() as nursery:
        nursery.start_soon(take_turns)
        one.write([frame] * 10)
        with trio.fail_after(10):
            while frames < 10:
                frames += len(splitter.feed(await other.receive(splitter.wanted_bytes)))
        nursery.cancel_scope.cancel()
    assert turns[0] >= frames - 1  # one before each; nobody knows whether the first was there before


@pytest.mark.skipif(not WRITE_LIMIT.exists(), reason="only Linux says what it allows")
async def test_unix_sockets_take_a_batch_at_once() -> None:
    """As far as the system lets them. With its default a megabyte goes in five pieces, and each wakes both ends."""
    allowed = int(await trio.Path(WRITE_LIMIT).read_text())
    async with pair() as (one, other):
        one.write([bytes(1 << 20)])
        assert one.taken_bytes >= min(1 << 20, allowed)
        assert len(await received(other, one.taken_bytes)) == one.taken_bytes


async def test_waiting_bytes_are_counted_and_reported_as_they_go() -> None:
    async with pair(buffer_bytes=4096) as (one, other):
        seen: list[int] = []
        one.on_sent = lambda: seen.append(one.waiting_bytes)
        one.write([bytes(1 << 20)])
        assert one.waiting_bytes + one.taken_bytes == 1 << 20
        assert one.waiting_bytes > 500_000
        with trio.fail_after(10):
            await received(other, 1 << 20)
        assert seen == sorted(seen, reverse=True)
        assert seen[-1] == 0


async def test_small_waiting_pieces_cost_their_size() -> None:
    async with pair(buffer_bytes=4096) as (one, _):
        one.write([bytes(1 << 20)])
        tracemalloc.start()
        try:
            for _ in range(50_000):
                one.write([b"x" * 24])
            kept = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert kept < 50_000 * 24 * 1.3 + 100_000


async def test_closing_wakes_waiters_on_both_ends() -> None:
    async with pair(buffer_bytes=4096) as (one, other):
        ended: list[bytes] = []

        async def receive(stream: Stream) -> None:
            while data := await stream.receive():
                pass
            ended.append(data)

        one.write([bytes(1 << 20)])  # so `run` waits as well
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive, one)
                await trio.testing.wait_all_tasks_blocked()
                one.close()
                nursery.start_soon(receive, other)
        assert ended == [b"", b""]
        one.close()
        one.write([b"dropped"])
        assert one.waiting_bytes == 0
        assert await one.receive() == b""


async def test_departed_peer_fails_no_write_and_ends_the_reader() -> None:
    async with pair() as (one, other):
        other.close()
        for _ in range(3):
            one.write([b"x" * 100])
        assert one.waiting_bytes == 0
        with trio.fail_after(5):
            assert await one.receive() == b""


async def test_a_reset_connection_ends_in_an_os_error_or_silence() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        stream = Stream(socket.create_connection(listening.getsockname()))
        accepted, _ = listening.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()
        with pytest.raises(ConnectionResetError), trio.fail_after(5):
            await stream.receive()
        stream.write([b"x"])
        stream.close()


async def test_cancelled_receiving_loses_nothing() -> None:
    chance = random.Random(2)
    async with pair() as (one, other):
        data = chance.randbytes(200_000)

        async def write() -> None:
            for start in range(0, len(data), 1000):
                one.write([data[start : start + 1000]])
                await trio.lowlevel.checkpoint()

        found = b""
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write)
                while len(found) < len(data):
                    with trio.CancelScope() as scope:
                        if chance.random() < 0.5:
                            scope.cancel()
                        found += await other.receive()
        assert found == data


async def test_endless_sender_lets_others_have_their_turn() -> None:
    async with pair() as (one, other):
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            for _ in range(200):
                one.write([bytes(100_000)])
                await other.receive()
            nursery.cancel_scope.cancel()
        assert turns >= 100


async def test_waiting_bytes_are_sent_and_received_after_the_end() -> None:
    async with pair(buffer_bytes=4096) as (one, other):
        one.write([bytes(1 << 20)])
        one.end()
        with trio.fail_after(10):
            assert len(await received(other, 1 << 20)) == 1 << 20
            assert await other.receive() == b""
            other.write([b"answer"])
            assert await one.receive() == b"answer"
