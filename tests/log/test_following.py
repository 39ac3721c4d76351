"""Following the tail of a log (L6, D1)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

import replog
from replog.config.client import ClientTuning
from replog.protocol.messages import (
    ReadLastAddConfirmedRequest,
    ReadRequest,
    Request,
    WriteLastAddConfirmedRequest,
)
from replog.protocol.quorum import Quorum
from replog.testing import FaultyMetastore
from tests.kit import Cluster, Wire, cluster, settle
from tests.lanes.seeds import seeds


async def test_news_known_to_this_client_are_not_awaited(tmp_path: Path) -> None:
    # Nobody but this client's own writer knows of the second record: bookies would tell of it after 60 s.
    options = ClientTuning(follow_wait_s=60.0, explicit_last_add_confirmed_after_s=60.0)
    with trio.fail_after(20):
        async with (
            replog.embed(tmp_path, options=options) as client,
            client.write_log("log") as log,
            client.read_log("log", follow=True) as reader,
        ):
            for data in (b"one", b"two", b"three"):
                await log.append(data)
                assert (await reader.receive()).data == data


@asynccontextmanager
async def followed_log(
    bookies: int = 3, options: replog.ClientOptions | None = None, quorum: Quorum | None = None
) -> AsyncIterator[tuple[Cluster, replog.LogWriter, replog.LogReader]]:
    """A log, and somebody else who follows it from its beginning."""
    async with (
        cluster(bookies) as world,
        world.client(options, quorum=quorum) as client,
        world.client(options) as other,
        client.write_log("log") as log,
        other.read_log("log", follow=True) as reader,
    ):
        yield world, log, reader


async def test_follower_polls_rarely_in_silence_and_hears_news_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A thousand followers of quiet logs took a whole processor (D1)."""
    async with followed_log() as (world, log, reader):
        await log.append(b"0")
        assert (await reader.receive()).data == b"0"
        async with trio.open_nursery() as nursery:
            heard = {1: trio.Event(), 2: trio.Event()}

            async def receive() -> None:
                for number in (1, 2):
                    assert (await reader.receive()).data == b"%d" % number
                    heard[number].set()

            nursery.start_soon(receive)
            await trio.sleep(20)
            before = requests(world, ReadLastAddConfirmedRequest)
            await trio.sleep(100)
            assert requests(world, ReadLastAddConfirmedRequest) - before <= 3 * (100 / 16 + 1)
            for number in (1, 2):
                await log.append(b"%d" % number)
                with trio.fail_after(0.05):  # not only in the writer's round of 0.1 s
                    await heard[number].wait()


async def appended_slowly(log: replog.LogWriter, entries: int, every_s: float) -> None:
    for number in range(entries):
        await trio.sleep(every_s)
        await log.append(b"%d" % number)


async def followed(reader: replog.LogReader, entries: int) -> list[float]:
    """When each entry was in hand. They must come in order."""
    seen_s: list[float] = []
    async for record in reader:
        assert record.data == b"%d" % len(seen_s)
        seen_s.append(trio.current_time())
        if len(seen_s) == entries:
            break
    return seen_s


def requests(world: Cluster, kind: type[Request]) -> int:
    return sum(isinstance(each, kind) for bookie in world.bookies for each in bookie.wire.seen)


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(5, 3, 2)], ids=str)
async def test_a_follower_gets_an_entry_at_once_without_a_read(
    autojump_clock: trio.testing.MockClock, quorum: Quorum
) -> None:
    """W5: whoever waits for an entry makes its writer tell that it is confirmed, and gets it with that."""
    async with followed_log(5, quorum=quorum) as (world, log, reader), trio.open_nursery() as nursery:
        started_s = trio.current_time()
        nursery.start_soon(appended_slowly, log, 20, 3.0)
        seen_s = await followed(reader, 20)
        for number, each_s in enumerate(seen_s):
            assert each_s - (started_s + 3.0 * (number + 1)) < 0.011, f"entry {number} came late"
        assert requests(world, ReadRequest) <= 2  # what the first question of all was too early for


async def test_without_followers_nothing_is_published_but_when_idle(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, client.write_log("log") as log:
        for number in range(100):
            await log.append(b"%d" % number)
        await settle()
        assert requests(world, WriteLastAddConfirmedRequest) == 0
        await trio.sleep(10)
        assert requests(world, WriteLastAddConfirmedRequest) == 3
        async with world.client() as other, other.read_log("log", follow=True) as reader:
            await followed(reader, 100)
            with trio.move_on_after(5):
                await reader.receive()
        await trio.sleep(60)  # what it asked has expired
        before = requests(world, WriteLastAddConfirmedRequest)
        for number in range(100):
            await log.append(b"%d" % number)
        await settle()
        assert requests(world, WriteLastAddConfirmedRequest) == before


@pytest.mark.slow
async def test_steady_appends_inform_followers_by_themselves(autojump_clock: trio.testing.MockClock) -> None:
    async with followed_log() as (world, log, reader), trio.open_nursery() as nursery:

        async def follow() -> None:
            await followed(reader, 1000)

        nursery.start_soon(follow)
        for number in range(1000):
            await log.append(b"%d" % number)
        assert requests(world, WriteLastAddConfirmedRequest) <= 30


@pytest.mark.slow
async def test_a_busy_follower_does_not_ask_the_metastore(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with (
        cluster() as world,
        world.client() as client,
        client.write_log("log") as log,
    ):
        gets: list[str] = []

        def choose(operation: str, key: str) -> None:
            gets.extend([key] * (operation == "get"))

        metastore = FaultyMetastore(world.metastore, choose=choose)
        async with world.client(metastore=metastore) as other, other.read_log("log", follow=True) as reader:
            async with trio.open_nursery() as nursery:
                await log.append(b"0")
                assert (await reader.receive()).data == b"0"
                before = len(gets)
                nursery.start_soon(appended_slowly, log, 500, 0.005)
                await followed(reader, 500)
            assert len(gets) - before <= 4


@pytest.mark.slow
async def test_a_follower_has_one_long_poll_at_each_bookie(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with followed_log() as (world, log, reader), trio.open_nursery() as nursery:
        world.bookies[1].wire.delay_s = 2.0
        nursery.start_soon(appended_slowly, log, 300, 0.02)
        await followed(reader, 300)
        polls = [
            sum(isinstance(each, ReadLastAddConfirmedRequest) for each in bookie.wire.seen) for bookie in world.bookies
        ]
        assert polls[1] < 10
        assert max(polls) < 700


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(8, few=1))
async def test_follower_is_never_late_when_bookies_fall_silent(
    seed: int, autojump_clock: trio.testing.MockClock
) -> None:
    """Two of five bookies are deaf, mute or slow at a time. No deadline of a read passes before another bookie is asked."""
    chance = Random(seed)
    options = ClientTuning(
        add_timeout_s=1.0, read_timeout_s=1.0, speculative_read_after_s=0.2, follow_wait_s=0.5, bookie_retry_after_s=1.0
    )
    confirmed_s: list[float] = []
    async with followed_log(5, options, quorum=Quorum(3, 3, 2)) as (world, log, reader), trio.open_nursery() as nursery:

        async def append() -> None:
            while len(confirmed_s) < 300:
                await log.append(b"%d" % len(confirmed_s))
                confirmed_s.append(trio.current_time())
                await trio.sleep(0.05)

        async def disturb() -> None:
            spoilt: list[Wire] = []
            while True:
                spoilt.append(chance.choice([each.wire for each in world.bookies if each.wire not in spoilt]))
                spoilt[-1].is_deaf, spoilt[-1].is_mute, spoilt[-1].delay_s = chance.choice(
                    ((True, False, 0.0), (False, True, 0.0), (False, False, 0.9))
                )
                await trio.sleep(4.0)
                for wire in spoilt[:-1]:
                    wire.is_deaf, wire.is_mute, wire.delay_s = False, False, 0.0
                del spoilt[:-1]

        nursery.start_soon(append)
        nursery.start_soon(disturb)
        seen_s = await followed(reader, 300)
        nursery.cancel_scope.cancel()
    lags_s = [seen - confirmed for seen, confirmed in zip(seen_s, confirmed_s, strict=True)]
    assert max(lags_s) < options.follow_wait_s + 2 * options.speculative_read_after_s


@pytest.mark.parametrize("deadline_s", [0.001, 0.02, 0.1])
async def test_follower_with_a_short_deadline_comes_past_rolls_and_takeovers(
    autojump_clock: trio.testing.MockClock, deadline_s: float
) -> None:
    """Each question takes 30 ms: with the shortest deadlines none ends in time (D1, L6)."""
    seen: list[bytes] = []
    async with followed_log() as (world, log, reader):
        for bookie in world.bookies:
            bookie.wire.delay_s = 0.03

        async def read_all(count: int) -> None:
            with trio.fail_after(60):
                while len(seen) < count:
                    with trio.move_on_after(deadline_s):
                        batch = await reader.receive_batch()
                        assert batch is not None
                        seen.extend(batch.payloads())
                        assert reader.position == [*batch][-1].position

        await log.extend([b"1", b"2"])
        await read_all(2)
        await log.roll()
        await log.append(b"3")
        await read_all(3)
        async with world.client() as next_leader, next_leader.write_log("log") as log:
            await log.append(b"4")
            await read_all(4)
    assert seen == [b"1", b"2", b"3", b"4"]


async def test_follower_of_a_ledger_with_a_short_deadline_sees_its_end(autojump_clock: trio.testing.MockClock) -> None:
    seen: list[bytes] = []
    async with cluster(3) as world, world.client() as client, world.client() as other:
        async with client.create_ledger() as writer, other.open_ledger(writer.ledger_id, follow=True) as reader:
            await writer.append(b"1")
            seen += (await anext(reader.batches())).payloads()
            for bookie in world.bookies:
                bookie.wire.delay_s = 0.03
            await writer.aclose()
            with trio.fail_after(60):
                while not reader.is_closed:
                    with trio.move_on_after(0.001):
                        seen += [entry.data async for entry in reader]
    assert seen == [b"1"]


@pytest.mark.parametrize("was_cut", [False, True])
async def test_closing_a_reader_ends_its_waits(autojump_clock: trio.testing.MockClock, was_cut: bool) -> None:
    ended: list[str] = []

    async def wait(name: str, receive: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(trio.ClosedResourceError):
            await receive()
        ended.append(name)

    async with followed_log() as (world, log, reader), world.client() as client:
        await log.append(b"1")
        await reader.receive()
        ledger_id = (await client.log_metadata("log")).segments[-1].ledger_id
        async with client.open_ledger(ledger_id, first=1, follow=True) as ledger, trio.open_nursery() as nursery:
            for receive in (reader.receive_batch, ledger.receive_batch):
                if was_cut:
                    with trio.move_on_after(0.001):
                        await receive()
            nursery.start_soon(wait, "log", reader.receive_batch)
            nursery.start_soon(wait, "ledger", ledger.receive_batch)
            await trio.sleep(10)
            await reader.aclose()
            await ledger.aclose()
            await settle()
            assert sorted(ended) == ["ledger", "log"]


async def test_reader_closed_between_two_steps_does_not_wait(autojump_clock: trio.testing.MockClock) -> None:
    async with followed_log() as (_world, log, reader):
        await log.append(b"1")
        await reader.receive()
        assert reader._scan is not None
        take = reader._scan.take

        async def closed_behind() -> None:
            assert await take() is None
            await reader.aclose()

        reader._scan.take = closed_behind  # type: ignore[method-assign]
        with trio.fail_after(1), pytest.raises(trio.ClosedResourceError):
            await reader.receive_batch()


@pytest.mark.parametrize("seed", seeds(10, few=2, fast=1))
async def test_a_follower_sees_each_entry_once_under_faults(autojump_clock: trio.testing.MockClock, seed: int) -> None:
    """Bookies that lag, are silent, come back and are replaced; the reader is cancelled now and then."""
    chance = Random(seed)
    quorum = chance.choice((Quorum(3, 3, 2), Quorum(4, 3, 2), Quorum(5, 3, 2)))
    options = ClientTuning(add_timeout_s=1.0, read_timeout_s=1.0, speculative_read_after_s=0.1, roll_entries=60)
    async with followed_log(6, options, quorum=quorum) as (world, log, reader), trio.open_nursery() as nursery:

        async def append() -> None:
            number = 0
            while number < 400:
                count = chance.choice((1, 1, 2, 7))
                await log.extend([b"%d" % each for each in range(number, min(400, number + count))])
                number += count
                await trio.sleep(chance.choice((0, 0, 0.001, 0.02, 0.2)))

        async def disturb() -> None:
            while True:
                wire = chance.choice(world.bookies).wire
                wire.delay_s = chance.choice((0.0, 0.005, 0.3))
                wire.is_mute = chance.random() < 0.1
                await trio.sleep(chance.random())
                wire.delay_s, wire.is_mute = 0.0, False

        nursery.start_soon(append)
        nursery.start_soon(disturb)
        seen: list[bytes] = []
        with trio.fail_after(600):
            while len(seen) < 400:
                with trio.move_on_after(chance.choice((0.004, 0.05, 1.0))):
                    batch = await reader.receive_batch()
                    assert batch is not None
                    seen += batch.payloads()
        assert seen == [b"%d" % each for each in range(400)]
        nursery.cancel_scope.cancel()


async def test_a_follower_reads_from_bookies_of_an_older_version(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """They skip the fields that ask for batches; those that take longer to answer a poll are of the new one."""

    def forget(request: Request) -> None:
        if isinstance(request, ReadLastAddConfirmedRequest):
            request.entry_id = request.stamp = request.bytes_max = 0

    for old in (1, 3):
        async with followed_log() as (world, log, reader), trio.open_nursery() as nursery:
            for bookie in world.bookies[:old]:
                bookie.wire.refuse = forget
            for bookie in world.bookies[old:]:
                bookie.wire.delay_s = 0.001
            nursery.start_soon(appended_slowly, log, 50, 0.1)
            await followed(reader, 50)
            assert requests(world, ReadRequest) >= 49
