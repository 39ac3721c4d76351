"""The reader of a log: across rolls and takeovers, following, resuming, trimmed away (L3, L4, L6, D1)."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
import trio.testing

import replog
from replog.config.client import ClientTuning
from replog.errors import (
    EntryUnreadableError,
    FencedError,
    LedgerNotFoundError,
    LogNotFoundError,
    MetastoreError,
    PositionError,
    ReplogError,
    TrimmedError,
    UnauthorizedError,
)
from replog.log.log_reader import LogReader
from replog.protocol.model import Position
from replog.testing import Fault
from tests.kit import Cluster, cluster, read_log, until
from tests.lanes.seeds import some

QUICK = ClientTuning(add_timeout_s=1.0, read_timeout_s=1.0, add_quorum_timeout_s=10.0, bookie_retry_after_s=1.0)


def numbers(last: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


async def written(client: replog.Client, *lengths: int) -> None:
    """A log with segments of so many entries, which are numbered."""
    async with client.write_log("log") as log:
        number = 0
        for place, length in enumerate(lengths):
            if place:
                await log.roll()
            if length:
                await log.extend([b"%d" % (number + entry) for entry in range(length)])
            number += length


async def collect(reader: LogReader, found: list[bytes]) -> None:
    async for record in reader:
        found.append(record.data)


# -- to the end -----------------------------------------------------------------------------------------------------


async def test_it_crosses_segments_in_order_also_empty_ones(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        await written(client, 3, 0, 0, 4, 1, 0)
        async with client.read_log("log") as reader:
            records = [record async for record in reader]
        assert [record.data for record in records] == numbers(7)
        assert [str(record.position) for record in records] == ["1:0", "1:1", "1:2", "4:0", "4:1", "4:2", "4:3", "5:0"]
        assert records[0].timestamp.tzinfo is not None
        async with client.read_log("log") as reader:
            batches = [batch async for batch in reader.batches()]
        assert [payload for batch in batches for payload in batch.payloads()] == numbers(7)
        assert [str(batch.last_position) for batch in batches] == ["1:2", "4:3", "5:0"]
        assert b"".join(batches[1].to_arrow().to_pylist()) == b"3456"


async def test_batch_leaves_out_the_rest_of_the_one_before(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        await written(client, 3, 3, 3)
        async with client.read_log("log") as reader:
            assert (await reader.receive()).data == b"0"
            batch = await reader.receive_batch()
            assert batch is not None
            assert batch.payloads() == numbers(5, first=3)
            assert reader.position == batch.last_position
            assert (await reader.receive()).data == b"6"


async def test_second_task_is_refused_while_one_reads(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        await written(client, 3)
        async with client.read_log("log", follow=True) as reader, trio.open_nursery() as nursery:
            await reader.receive_batch()
            nursery.start_soon(reader.receive_batch)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError):
                await reader.receive_batch()
            nursery.cancel_scope.cancel()


async def test_it_resumes_after_any_position(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        await written(client, 3, 0, 4)
        async with client.read_log("log") as reader:
            records = [record async for record in reader]
        for place, record in enumerate(records):
            for after in (record.position, str(record.position)):
                async with client.read_log("log", after=after) as reader:
                    assert [each.data async for each in reader] == numbers(6)[place + 1 :]


async def test_batches_and_records_can_be_received_by_turns(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        await written(client, 5, 5)
        async with client.read_log("log") as reader:
            batch = await reader.receive_batch()
            assert batch is not None
            assert batch.first_position == Position(1, 0)
            assert batch.last_position == Position(1, 4)
            assert (await reader.receive()).data == b"5"
            for _ in range(4):
                await reader.receive()
            for _ in range(2):
                with pytest.raises(trio.EndOfChannel):
                    await reader.receive()


async def test_a_reader_ends_at_an_open_or_abandoned_ledger(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        async with world.client(QUICK) as dying:
            log_context = dying.write_log("log")
            log = await log_context.__aenter__()
            await log.append(b"0")
            await trio.sleep(1)
            assert await read_log(client) == [b"0"]
            for bookie in world.bookies:
                bookie.wire.delay_s = 0.05
            async with trio.open_nursery() as nursery:
                nursery.start_soon(log.roll)
                log.push_nowait(b"1")
                await until(lambda: log.segment == 2)
                log._background.cancel()  # it dies before it closes the first ledger
                nursery.cancel_scope.cancel()
            for writer in list(dying._opened.ledgers._writers.values()):
                writer.leave()
            with suppress(trio.ClosedResourceError, FencedError):
                await log_context.__aexit__(None, None, None)
        started = trio.current_time()
        found = await read_log(client)
        assert found in ([b"0"], [b"0", b"1"])
        assert trio.current_time() - started < 10
        async with client.write_log("log") as log:
            await log.append(b"2")
        assert (await read_log(client))[-1] == b"2"


async def test_missing_log_raises(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        with pytest.raises(LogNotFoundError, match="log"):
            await read_log(client)


async def test_a_wrong_password_reads_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        async with client.write_log("log", password=b"right") as log:
            await log.append(b"0")
        with pytest.raises(UnauthorizedError):
            async with client.read_log("log", password=b"wrong") as reader:
                await reader.receive()
        with pytest.raises(UnauthorizedError):
            async with client.write_log("log", password=b"wrong"):
                pass
        async with client.read_log("log", password=b"right") as reader:
            assert (await reader.receive()).data == b"0"


async def test_the_same_reader_can_retry_after_a_transient_error(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        await written(client, 2, 2)
        async with client.read_log("log") as reader:
            assert [(await reader.receive()).data for _ in range(2)] == numbers(1)
            for bookie in world.bookies:
                bookie.wire.is_deaf = True
            for _ in range(2):
                with trio.fail_after(30), pytest.raises(EntryUnreadableError):
                    await reader.receive()
            for bookie in world.bookies:
                bookie.wire.is_deaf = False
            assert [record.data async for record in reader] == numbers(3, 2)


# -- positions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", ["", "1", "1:", "a:b", "1:2:3", "-1:0", "1:-1", "¹:0", "9" * 30 + ":0"])
async def test_unparsable_position_raises(after: str, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world, world.client(quorum=replog.Quorum(1, 1, 1)) as client:
        await written(client, 1)
        for verb in (
            lambda: client.read_log("log", after=after).__aenter__(),
            lambda: client.trim_log("log", before=after),
        ):
            with pytest.raises(PositionError, match="17:42"):
                await verb()


@pytest.mark.parametrize("wrong", [5, 5.0, b"1:2", ("1", "2"), (1,), object()])
async def test_an_invalid_position_is_refused(wrong: object, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world, world.client(quorum=replog.Quorum(1, 1, 1)) as client:
        await written(client, 1)
        with pytest.raises(PositionError):
            async with client.read_log("log", after=wrong):  # type: ignore[arg-type]
                pass
        with pytest.raises(PositionError):
            await client.trim_log("log", before=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("follow", [False, True])
async def test_positions_of_another_log_are_refused(follow: bool, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        await written(client, 3, 3)
        for after in ("3:0", "17:42", "1:3", "2:100", "0:0"):
            with pytest.raises(PositionError):
                async with client.read_log("log", after=after, follow=follow):
                    pass


# -- trimming -------------------------------------------------------------------------------------------------------


async def test_a_trimmed_position_raises_with_the_first_available(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client() as client:
        await written(client, 3, 3, 3)
        assert await client.trim_log("log", before="3:1") == Position(3, 0)
        assert await read_log(client) == numbers(8, 6)
        with pytest.raises(TrimmedError) as caught:
            async with client.read_log("log", after="1:1"):
                pass
        assert caught.value.first_available == Position(3, 0)


@pytest.mark.parametrize("follow", [False, True])
async def test_a_reader_raises_when_a_trim_overtakes_it(follow: bool, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        await written(client, 3, 3, 3, 3)
        async with client.read_log("log", follow=follow) as reader:
            assert (await reader.receive()).data == b"0"
            await client.trim_log("log", before="3:0")
            await collected(world)
            assert [(await reader.receive()).data for _ in range(2)] == numbers(2, 1)
            with pytest.raises(TrimmedError) as caught:
                await reader.receive()
            assert caught.value.first_available == Position(3, 0)


async def collected(world: Cluster) -> None:
    """Lets the bookies drop what was deleted."""
    for bookie in world.bookies:
        assert bookie.served is not None
        bookie.served.ask_for_collection()
    await trio.sleep(1)


async def test_a_follower_raises_when_the_metastore_fails_and_goes_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """And the error is in no group."""
    options = ClientTuning(metastore_timeout_s=2.0, follow_wait_s=0.5)
    async with cluster() as world, world.client(options) as client, world.client(options) as other:
        async with client.write_log("log") as log, other.read_log("log", follow=True) as reader:
            await log.append(b"0")
            assert (await reader.receive()).data == b"0"
            world.metastore._choose = lambda _operation, _key: Fault.UNAVAILABLE
            for _ in range(3):
                with trio.fail_after(10), pytest.raises(MetastoreError):
                    await reader.receive()
            world.metastore._choose = None
            await log.append(b"1")
            with trio.fail_after(10):
                assert (await reader.receive()).data == b"1"


async def test_a_waiting_follower_raises_when_its_ledger_is_deleted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        with pytest.raises(LedgerNotFoundError):
            async with client.write_log("log") as log, other.read_log("log", follow=True) as reader:
                await log.append(b"0")
                assert (await reader.receive()).data == b"0"
                await trio.sleep(3.3)
                await client.delete_ledger(log.ledger_id)
                with trio.fail_after(10), pytest.raises(LedgerNotFoundError):
                    await reader.receive()


async def test_a_follower_raises_when_its_log_is_deleted(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        await written(client, 2)
        async with other.read_log("log", follow=True) as reader:
            for _ in range(2):
                await reader.receive()

            async def delete() -> None:
                await trio.sleep(3)
                await client.delete_log("log")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(delete)
                with trio.fail_after(10):
                    try:
                        await reader.receive()
                    except LogNotFoundError:
                        pass
                    else:
                        pytest.fail("it read what was deleted")


# -- following ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.slow
async def test_a_follower_sees_entries_soon_across_rolls_and_takeovers(
    beside: bool, autojump_clock: trio.testing.MockClock
) -> None:
    options = ClientTuning(roll_entries=20)
    async with cluster() as world, world.client(options) as client, world.client(options) as other:
        found: list[bytes] = []
        lags: list[float] = []
        async with trio.open_nursery() as nursery:
            sent: dict[bytes, float] = {}

            async def follow() -> None:
                async with (client if beside else other).read_log("log", follow=True) as reader:
                    async for record in reader:
                        found.append(record.data)
                        lags.append(trio.current_time() - sent[record.data])

            nursery.start_soon(follow)
            await trio.sleep(1)  # there is no log yet
            for turn in range(4):
                async with client.write_log("log") as log:
                    for number in range(50):
                        data = b"%d" % (50 * turn + number)
                        sent[data] = trio.current_time()
                        await log.append(data)
                        await trio.sleep(0.02 if number % 10 else 1.0)
            await until(lambda: len(found) == 200)
            nursery.cancel_scope.cancel()
        assert found == numbers(199)
        assert max(lags) < 0.5, "a follower hears of idle writers by their explicit last add confirmed"


@pytest.mark.parametrize("step_s", some([0.011, 0.3, 0.003, 0.05, 1.1], fast=2))
async def test_repeatedly_cancelled_waits_lose_nothing(step_s: float, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        for bookie in world.bookies:
            bookie.wire.delay_s = 0.01
        found: list[bytes] = []
        async with trio.open_nursery() as nursery:

            async def write() -> None:
                async with client.write_log("log") as log:
                    for number in range(60):
                        await log.append(b"%d" % number)
                        if number % 15 == 14:
                            await log.roll()
                        await trio.sleep(0.03)

            nursery.start_soon(write)
            async with other.read_log("log", follow=True) as reader:
                with trio.fail_after(200):
                    patience_s = step_s
                    while len(found) < 60:
                        with trio.move_on_after(patience_s) as scope:
                            found.append((await reader.receive()).data)
                        patience_s = patience_s * 1.3 if scope.cancelled_caught else step_s
        assert found == numbers(59)


@pytest.mark.slow
async def test_many_followers_and_readers_see_the_same(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(5) as world, world.client(ClientTuning(roll_entries=30), replog.Quorum(5, 3, 2)) as client:
        followed: list[list[bytes]] = [[] for _ in range(5)]
        async with trio.open_nursery() as nursery:

            async def follow(found: list[bytes]) -> None:
                async with world.client() as other, other.read_log("log", follow=True) as reader:
                    await collect(reader, found)

            for found in followed:
                nursery.start_soon(follow, found)
            async with client.write_log("log") as log:
                for number in range(100):
                    await log.append(b"%d" % number)
                    if number == 40:
                        await world.bookies[0].kill()
                    if number == 80:
                        await world.bookies[0].start()
                    if number % 10 == 0:
                        await trio.sleep(0.1)
                        whole = await read_log(client)
                        assert whole == numbers(len(whole) - 1)
            await until(lambda: all(len(found) == 100 for found in followed))
            nursery.cancel_scope.cancel()
        assert all(found == numbers(99) for found in followed)


@pytest.mark.slow
async def test_a_follower_waits_without_asking_all_the_time(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, world.client() as other:
        async with client.write_log("log") as log, other.read_log("log", follow=True) as reader:
            await log.append(b"0")
            await reader.receive()
            for down in range(3):
                if down:
                    await world.bookies[down].kill()
                before = sum(len(bookie.wire.seen) for bookie in world.bookies) + len(world.metastore.calls)
                with trio.move_on_after(100):
                    await reader.receive()
                asked = sum(len(bookie.wire.seen) for bookie in world.bookies) + len(world.metastore.calls) - before
                assert asked < 1000


async def test_a_closed_reader_says_so(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        await written(client, 3)
        async with client.read_log("log") as reader:
            await reader.receive()
        for verb in (reader.receive, reader.receive_batch):
            with pytest.raises(trio.ClosedResourceError):
                await verb()
        await reader.aclose()


async def test_a_readers_block_raises_exceptions_as_they_are(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client() as client:
        await written(client, 3)
        with pytest.raises(ZeroDivisionError):
            async with client.read_log("log", follow=True) as reader:
                async for _ in reader:
                    raise ZeroDivisionError


async def test_log_does_not_seem_to_end_while_all_bookies_are_away(autojump_clock: trio.testing.MockClock) -> None:
    """D2: nobody says how far the last segment is confirmed. The reader ended, as if the log were empty."""
    async with cluster(3) as world, world.client() as client, client.write_log("numbers") as log:
        await log.append(b"0")
        for each in world.bookies:
            await each.kill()
        async with world.client() as other, other.read_log("numbers") as reader:
            with pytest.raises(EntryUnreadableError, match="says how far the ledger is confirmed"):
                await anext(reader)
        with pytest.raises(ReplogError):
            await log.append(b"1")
