"""The proxy delays, holds, resets and ends connections as it says, and loses no byte of those it lets live."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from replog.testing import NetworkConditions, TcpProxy, serve_proxy

HOST = "127.0.0.1"
PATIENCE_S = 10.0  # for what must happen
SILENCE_S = 0.2  # for what must not


@asynccontextmanager
async def before_an_echo(seed: int = 0) -> AsyncIterator[TcpProxy]:
    """A proxy before somebody who sends back whatever comes, and ends when the other side does."""

    async def echo(stream: trio.SocketStream) -> None:
        try:
            async for data in stream:
                await stream.send_all(data)
        except trio.BrokenResourceError:
            pass

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host=HOST)
        nursery.start_soon(trio.serve_listeners, echo, [listener])
        async with serve_proxy(f"{HOST}:{listener.socket.getsockname()[1]}", seed=seed) as proxy:
            yield proxy
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def connected(proxy: TcpProxy) -> AsyncIterator[trio.SocketStream]:
    async with await trio.open_tcp_stream(HOST, int(proxy.address.rpartition(":")[2])) as stream:
        yield stream


async def receive(stream: trio.SocketStream, size_bytes: int) -> bytes:
    found = b""
    with trio.fail_after(PATIENCE_S):
        while len(found) < size_bytes:
            data = await stream.receive_some()
            assert data, f"the end, after {len(found)} bytes"
            found += data
    return found


async def until(happened: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not happened():  # noqa: ASYNC110 - nobody else tells
            await trio.sleep(0.01)


async def hears_something(stream: trio.SocketStream) -> bool:
    with trio.move_on_after(SILENCE_S):
        await stream.receive_some(1)
        return True
    return False


async def expect_reset(stream: trio.SocketStream) -> None:
    with trio.fail_after(PATIENCE_S), pytest.raises(trio.BrokenResourceError):
        while await stream.receive_some():
            pass
        await stream.send_all(b"?")  # it ended in peace: no reset


async def test_bytes_arrive_in_order_under_any_network_conditions() -> None:
    async with before_an_echo() as proxy, connected(proxy) as stream:
        proxy.set_conditions(NetworkConditions(delay_s=0.001, jitter_s=0.01, bytes_per_s=50e6, loss=0.001))
        sent = random.Random(1).randbytes(1 << 20)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, sent)
            assert await receive(stream, len(sent)) == sent
        await until(lambda: proxy.to_client.forwarded_bytes >= len(sent))  # counted once the system has taken them
        assert proxy.to_bookie.forwarded_bytes == proxy.to_client.forwarded_bytes == len(sent)
        await stream.send_eof()
        with trio.fail_after(PATIENCE_S):
            assert await stream.receive_some() == b""


async def test_bytes_are_delayed_in_each_direction_by_its_own_weather() -> None:
    async with before_an_echo() as proxy, connected(proxy) as stream:
        proxy.to_bookie.conditions = NetworkConditions(delay_s=0.2)
        proxy.to_client.conditions = NetworkConditions(delay_s=0.1)
        started_s = trio.current_time()
        await stream.send_all(b"x")
        await receive(stream, 1)
        assert trio.current_time() - started_s >= 0.3


async def test_bandwidth_is_bounded() -> None:
    async with before_an_echo() as proxy, connected(proxy) as stream:
        proxy.to_bookie.conditions = NetworkConditions(bytes_per_s=100_000)
        started_s = trio.current_time()
        await stream.send_all(bytes(50_000))
        await receive(stream, 50_000)
        assert trio.current_time() - started_s >= 0.5


def test_seed_decides_the_lost_segments() -> None:
    conditions = NetworkConditions(loss=0.5)
    waits_s = [conditions.wait_s(1, random.Random(seed)) for seed in range(200)]
    assert waits_s == [conditions.wait_s(1, random.Random(seed)) for seed in range(200)]
    assert 60 < waits_s.count(0.0) < 140
    assert {round(wait_s, 1) for wait_s in waits_s} >= {0.0, 0.2, 0.6}
    assert NetworkConditions(loss=0.01).wait_s(100 * 1448, random.Random(1)) > 0, (
        "a hundred segments are rarely all lucky"
    )


async def test_black_hole_holds_bytes_and_ends_until_it_is_over() -> None:
    async with before_an_echo() as proxy, connected(proxy) as stream:
        await stream.send_all(b"before")
        await receive(stream, 6)
        proxy.swallow()
        await stream.send_all(b"meanwhile")
        await stream.send_eof()
        assert not await hears_something(stream)
        assert proxy.open_connections == 1
        proxy.mend()
        assert await receive(stream, 9) == b"meanwhile"
        assert await stream.receive_some() == b""


@pytest.mark.parametrize("way", ["to_bookie", "to_client"])
async def test_a_black_hole_may_be_of_one_way(way: str) -> None:
    async with before_an_echo() as proxy, connected(proxy) as stream:
        getattr(proxy, way).swallow()
        await stream.send_all(b"x")
        assert not await hears_something(stream)
        arrived = 0 if way == "to_bookie" else 1
        await until(lambda: proxy.to_bookie.forwarded_bytes >= arrived)
        assert proxy.to_bookie.forwarded_bytes == arrived
        proxy.mend()
        assert await receive(stream, 1) == b"x"


async def test_a_reset_does_not_go_through_a_black_hole() -> None:
    async with before_an_echo() as proxy:
        async with connected(proxy) as stream:
            await stream.send_all(b"x")
            await receive(stream, 1)
            proxy.to_bookie.swallow()
        await trio.sleep(SILENCE_S)
        assert proxy.open_connections == 1
        proxy.mend()
        await until(lambda: not proxy.open_connections)


async def test_reset_ends_only_present_connections() -> None:
    async with before_an_echo() as proxy:
        async with connected(proxy) as stream:
            await stream.send_all(b"x")
            await receive(stream, 1)
            proxy.reset()
            await expect_reset(stream)
        async with connected(proxy) as stream:
            await stream.send_all(b"y")
            assert await receive(stream, 1) == b"y"


async def test_cut_lasts_until_it_is_over() -> None:
    async with before_an_echo() as proxy:
        async with connected(proxy) as stream:
            await stream.send_all(b"x")
            await receive(stream, 1)
            proxy.cut()
            await expect_reset(stream)
        async with connected(proxy) as stream:
            await expect_reset(stream)
        proxy.mend()
        async with connected(proxy) as stream:
            await stream.send_all(b"y")
            assert await receive(stream, 1) == b"y"


async def test_a_half_closed_connection_still_takes_bytes() -> None:
    async with before_an_echo() as proxy, connected(proxy) as stream:
        await stream.send_all(b"x")
        await receive(stream, 1)
        proxy.half_close()
        with trio.fail_after(PATIENCE_S):
            assert await stream.receive_some() == b""
        await stream.send_all(b"more")
        await until(lambda: proxy.to_bookie.forwarded_bytes == 5)
        assert proxy.open_connections == 1


async def test_clients_are_reset_without_a_listener() -> None:
    async with before_an_echo() as proxy:
        (gone,) = await trio.open_tcp_listeners(0, host=HOST)
        proxy.target = f"{HOST}:{gone.socket.getsockname()[1]}"
        await gone.aclose()
        async with connected(proxy) as stream:
            await expect_reset(stream)


@pytest.mark.parametrize("wrong", [{"delay_s": -1.0}, {"loss": 1.0}, {"bytes_per_s": 0.0}, {"jitter_s": float("nan")}])
def test_impossible_conditions_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="NetworkConditions"):
        NetworkConditions(**wrong)
