"""The last entry of a burst reaches a follower that waits at once, whenever its poll arrives (W5, D1)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
import trio.testing

import replog
from replog.config.client import ClientTuning
from replog.protocol.messages import ReadLastAddConfirmedRequest, Request, Response, WriteLastAddConfirmedRequest
from replog.protocol.quorum import Quorum
from tests.kit import Cluster, cluster, settle
from tests.lanes.seeds import some

HALF_ROUND_S = 0.001  # requests take as long on their way, answers no time
AT_ONCE_S = 0.01
IDLE_S = 60.0  # until an idle writer publishes by its own: longer than any of these tests
QUORUMS = some([Quorum(1, 1, 1), Quorum(3, 3, 2), Quorum(5, 3, 2), Quorum(4, 2, 2)], fast=2)
OPTIONS = ClientTuning(explicit_last_add_confirmed_after_s=IDLE_S)


@asynccontextmanager
async def followed_log(
    quorum: Quorum, *, is_instant: bool = True, half_round_s: float = HALF_ROUND_S
) -> AsyncIterator[tuple[Cluster, replog.LogWriter, replog.LogReader]]:
    """A log whose idle writer publishes nothing by the clock, and another client that follows it."""
    async with (
        cluster(quorum.ensemble, is_instant=is_instant) as world,
        world.client(OPTIONS, quorum=quorum) as client,
        world.client() as other,
        client.write_log("log") as log,
        other.read_log("log", follow=True) as reader,
    ):
        for bookie in world.bookies:
            bookie.wire.delay_s = half_round_s
        yield world, log, reader


def published(world: Cluster) -> int:
    return sum(isinstance(each, WriteLastAddConfirmedRequest) for bookie in world.bookies for each in bookie.wire.seen)


class Follower:
    """Notes when it had each entry in hand. Between two batches it does something else for a while."""

    def __init__(self, reader: replog.LogReader) -> None:
        self.seen_s: list[float] = []
        self.pause_s = 0.0
        self._reader = reader
        self._news = trio.Event()

    async def run(self) -> None:
        while True:
            batch = await self._reader.receive_batch()
            assert batch is not None
            self.seen_s += [trio.current_time()] * len(batch.payloads())
            self._news.set()
            self._news = trio.Event()
            await trio.sleep(self.pause_s)

    async def has(self, entries: int) -> None:
        with trio.fail_after(10):
            while len(self.seen_s) < entries:
                await self._news.wait()


@pytest.mark.parametrize("quorum", QUORUMS, ids=str)
@pytest.mark.parametrize("is_pushed", [False, True], ids=["appended", "pushed"])
async def test_last_entry_arrives_at_once(
    autojump_clock: trio.testing.MockClock, quorum: Quorum, is_pushed: bool
) -> None:
    """W5: bursts of any size, one entry after the other or all in flight, soon after the last one or long after it."""
    chance = Random(7)
    async with followed_log(quorum) as (_, log, reader), trio.open_nursery() as nursery:
        follower = Follower(reader)
        nursery.start_soon(follower.run)
        entries = 0
        for size in (1, 2, 5, 20) * 10:
            await trio.sleep(chance.choice((0.0, 0.0005, HALF_ROUND_S, 0.003, 0.05, 1.0)))
            for _ in range(size):
                if is_pushed:
                    log.push_nowait(b"data")
                    await trio.sleep(chance.choice((0.0, 0.0, 0.0003, 0.0015)))
                else:
                    await log.append(b"data")
            await log.flush()
            entries += size
            confirmed_s = trio.current_time()
            await follower.has(entries)
            # At most: a read that is on its way, a poll that is answered with entries of before, a poll that waits, what the
            # writer publishes then, and a read of the entry.
            assert trio.current_time() - confirmed_s <= 5 * HALF_ROUND_S + 0.0001, f"burst of {size}"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("quorum", QUORUMS, ids=str)
async def test_last_entry_arrives_when_poll_comes_after_answer(
    autojump_clock: trio.testing.MockClock, quorum: Quorum
) -> None:
    """W5: the follower is busy while the last add is answered, so no answer can tell that it waits."""
    async with followed_log(quorum) as (world, log, reader), trio.open_nursery() as nursery:
        follower = Follower(reader)
        follower.pause_s = 0.5
        nursery.start_soon(follower.run)
        await log.append(b"one")
        await follower.has(1)
        for number in range(2, 12):
            await trio.sleep(2.0)  # its poll waits again
            await log.append(b"news")  # which the next one tells
            await trio.sleep(0.1)
            await log.append(b"last")
            assert published(world) >= number - 2
            await follower.has(2 * number - 2)
            waits_from_s = follower.seen_s[-1] + follower.pause_s
            await follower.has(2 * number - 1)
            assert trio.current_time() <= waits_from_s + 4 * HALF_ROUND_S + 0.0001
        nursery.cancel_scope.cancel()


async def test_last_entry_arrives_when_follower_reaches_few_bookies(autojump_clock: trio.testing.MockClock) -> None:
    """W5: with E > Qw some adds are answered by one bookie only at which the follower waits."""

    def is_poll(request: Request) -> bool:
        return isinstance(request, ReadLastAddConfirmedRequest)

    async with followed_log(Quorum(5, 3, 2)) as (world, log, reader), trio.open_nursery() as nursery:
        follower = Follower(reader)
        nursery.start_soon(follower.run)
        await log.append(b"data")
        await follower.has(1)
        for bookie in world.bookies[:2]:
            bookie.wire.lose_answer = is_poll
        entries = 1
        for size in (1, 2, 5, 1, 1, 3, 1, 4, 1, 1, 2):
            await trio.sleep(1.0)
            for _ in range(size):
                await log.append(b"data")
            entries += size
            confirmed_s = trio.current_time()
            await follower.has(entries)
            assert trio.current_time() - confirmed_s <= AT_ONCE_S, f"burst of {size}"
        nursery.cancel_scope.cancel()


async def test_writer_publishes_little_after_follower_has_left(autojump_clock: trio.testing.MockClock) -> None:
    async with followed_log(Quorum(3, 3, 2)) as (world, log, reader):
        async with trio.open_nursery() as nursery:
            follower = Follower(reader)
            nursery.start_soon(follower.run)
            await log.append(b"data")
            await follower.has(1)
            nursery.cancel_scope.cancel()
        await trio.sleep(30)  # its polls have expired
        before = published(world)
        for _ in range(100):
            await log.append(b"data")
            await trio.sleep(0.01)
        assert published(world) == before


@pytest.mark.slow
async def test_vain_follower_does_not_make_writers_publish(autojump_clock: trio.testing.MockClock) -> None:
    async with followed_log(Quorum(3, 3, 2)) as (world, log, reader), trio.open_nursery() as nursery:
        follower = Follower(reader)
        nursery.start_soon(follower.run)
        await log.append(b"data")
        await follower.has(1)
        await settle()
        before = published(world)
        told: list[Response] = []
        for bookie in world.bookies:
            bookie.wire.alter = lambda _request, response: told.append(response) or response  # type: ignore[func-returns-value]
        await trio.sleep(300)
        assert published(world) == before
        assert not [each for each in told if each.awaited]
        nursery.cancel_scope.cancel()
