"""A deposed leader that had just rolled learns of its unconfirmed entries in both ledgers (L5, W4)."""

from __future__ import annotations

import pytest
import trio
import trio.testing

import replog
from replog.config.client import ClientTuning
from replog.errors import FencedError
from replog.log.log_writer import LogWriter
from replog.protocol.messages import AddRequest
from replog.protocol.model import Position
from tests.kit import Cluster, cluster, until

QUICK = ClientTuning(add_timeout_s=1.0, read_timeout_s=1.0, add_quorum_timeout_s=10.0)
UNCONFIRMED = [Position(1, 1), Position(1, 2), Position(2, 0), Position(2, 1)]


async def roll_and_lose(world: Cluster, log: LogWriter, other: replog.Client) -> None:
    """The leader rolls with unconfirmed entries, and pushes more; then somebody takes over, and the leader learns it."""
    await log.append(b"0")
    for bookie in world.bookies:  # the entries arrive, and nobody is told
        bookie.wire.lose_answer = lambda request: isinstance(request, AddRequest) and request.term == 1
    for data in (b"1", b"2"):
        log.push_nowait(data)
    async with trio.open_nursery() as nursery:

        async def roll() -> None:
            with pytest.raises(FencedError) as caught:
                await log.roll()
            assert list(caught.value.positions) == UNCONFIRMED

        nursery.start_soon(roll)
        await until(lambda: log.segment == 2)
        for data in (b"3", b"4"):
            log.push_nowait(data)
        async with other.write_log("log"):
            await until(lambda: log._writer.error is not None)


@pytest.mark.parametrize("verb", ["append", "extend", "push", "push_nowait", "flush"])
async def test_positions_in_doubt_include_the_previous_segment(
    verb: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster(6) as world, world.deaf_client(QUICK) as client, world.client(QUICK) as other:
        async with client.write_log("log") as log:
            await roll_and_lose(world, log, other)
            with pytest.raises(FencedError) as caught:
                if verb == "flush":
                    await log.flush()
                elif verb == "push_nowait":
                    log.push_nowait(b"5")
                else:
                    await getattr(log, verb)([b"5"] if verb == "extend" else b"5")
            assert list(caught.value.positions)[: len(UNCONFIRMED)] == UNCONFIRMED
