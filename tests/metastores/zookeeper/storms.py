"""What a network does to one client of ZooKeeper, again and again: answers lost, requests late, connections refused."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import trio

from replog.testing import TcpProxy

_CALM_S = 0.4  # at most, between two
_LASTS_S = 0.15
_REQUEST_BYTES = 60  # at least so many go through while answers are swallowed
_ANSWERED_BYTES = 500  # so many must have come through before it storms again: more than a handshake


async def lose_answers(proxy: TcpProxy) -> None:
    """Requests are done, their answers are lost, and then the connection."""
    proxy.to_client.swallow()
    before = proxy.to_bookie.forwarded_bytes
    with trio.move_on_after(10 * _LASTS_S):
        while proxy.to_bookie.forwarded_bytes < before + _REQUEST_BYTES:  # noqa: ASYNC110 - a count has no event
            await trio.sleep(0.002)
        await trio.sleep(0.01)
    proxy.reset()
    proxy.mend()


async def delay_requests(proxy: TcpProxy) -> None:
    """Requests are held for a while, and then done: the client may have given up by then."""
    proxy.to_bookie.swallow()
    await trio.sleep(_LASTS_S)
    proxy.mend()


async def refuse(proxy: TcpProxy) -> None:
    """Connections are reset, and new ones refused."""
    proxy.cut()
    await trio.sleep(_LASTS_S)
    proxy.mend()


async def reset(proxy: TcpProxy) -> None:
    """Connections are reset; new ones are welcome."""
    proxy.reset()


KINDS: tuple[Callable[[TcpProxy], Awaitable[None]], ...] = (lose_answers, lose_answers, delay_requests, refuse, reset)


async def storm(proxy: TcpProxy, seed: int) -> None:
    """One after the other, at random, until cancelled; then all is well again. In between something is done: a client that waits
    ever longer between two attempts would else find itself in the next one for ever."""
    chance = random.Random(seed)
    try:
        while True:
            before = proxy.to_client.forwarded_bytes
            while proxy.to_client.forwarded_bytes < before + _ANSWERED_BYTES:  # noqa: ASYNC110
                await trio.sleep(0.01)
            await trio.sleep(_CALM_S * chance.random())
            await chance.choice(KINDS)(proxy)
    finally:
        proxy.mend()
