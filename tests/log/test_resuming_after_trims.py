"""A reader that has read all that was trimmed has missed nothing: it goes on where the log begins (L3, L6)."""

from __future__ import annotations

import pytest
import trio
import trio.testing

import replog
from replog.config.client import ClientTuning
from replog.errors import TrimmedError
from replog.protocol.model import Position
from tests.kit import cluster

QUICK = ClientTuning(read_timeout_s=1.0, follow_wait_s=1.0)


async def written(client: replog.Client, *lengths: int) -> None:
    """Segments of so many entries, each with its position as its data."""
    async with client.write_log("log") as log:
        for number, length in enumerate(lengths, 1):
            if number > 1:
                await log.roll()
            if length:
                await log.extend([b"%d:%d" % (number, entry) for entry in range(length)])


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("lengths", [(3, 1), (3, 0, 0, 1), (2, 3, 0, 1)])
async def test_reader_goes_on_after_last_trimmed_entry(
    lengths: tuple[int, ...], follow: bool, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        await written(client, *lengths)
        last = len(lengths)
        end = Position(*max((number, length - 1) for number, length in enumerate(lengths[:-1], 1) if length))
        await client.trim_log("log", before=f"{last}:0")
        async with client.read_log("log", after=end, follow=follow) as reader:
            assert reader.position == end
            assert (await reader.receive()).position == Position(last, 0)
        for missed in ("1:0", Position(end.segment, end.entry - 1), Position(end.segment, end.entry + 1)):
            with pytest.raises(TrimmedError) as caught:
                async with client.read_log("log", after=missed, follow=follow):
                    pass
            assert caught.value.first_available == Position(last, 0)


async def test_reader_goes_on_when_only_empty_segments_were_trimmed(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        await written(client, 1, 0, 0, 1)
        await client.trim_log("log", before="2:0")
        await client.trim_log("log", before="4:0")
        async with client.read_log("log", after="1:0") as reader:
            assert [record.data async for record in reader] == [b"4:0"]


@pytest.mark.parametrize("follow", [False, True])
async def test_reader_continues_when_its_read_entries_are_trimmed(
    follow: bool, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        await written(client, 2, 0, 0, 1)
        async with other.read_log("log", follow=follow) as reader:
            assert [(await reader.receive()).data for _ in range(2)] == [b"1:0", b"1:1"]
            await client.trim_log("log", before="4:0")
            for bookie in world.bookies:
                assert bookie.served is not None
                bookie.served.ask_for_collection()
            await trio.sleep(1)
            with trio.fail_after(10):
                assert (await reader.receive()).data == b"4:0"


@pytest.mark.parametrize("sleep_s", [0.0, 0.01, 3.0])
async def test_waiting_follower_goes_on_when_all_before_it_is_trimmed(
    sleep_s: float, autojump_clock: trio.testing.MockClock
) -> None:
    """A quiet log whose writer rolls by age, and drops what is old at once."""
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        found: list[bytes] = []

        async def follow() -> None:
            async with other.read_log("log", follow=True) as reader:
                async for record in reader:
                    found.append(record.data)

        async with client.write_log("log") as log, trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            for number in range(4):
                await log.append(b"%d" % number)
                await trio.sleep(3)
                begin = await log.roll()
                await trio.sleep(sleep_s)
                await client.trim_log("log", before=begin)
            await trio.sleep(3)
            nursery.cancel_scope.cancel()
        assert found == [b"0", b"1", b"2", b"3"]


async def test_position_of_a_deleted_log_is_trimmed_in_the_next_one(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        await written(client, 2, 1)
        await client.trim_log("log", before="2:0")
        await client.delete_log("log")
        await written(client, 1)
        for after in ("1:1", "2:0"):
            with pytest.raises(TrimmedError):
                async with client.read_log("log", after=after):
                    pass


async def test_cursor_moves_to_the_end_of_the_trimmed_part(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        await written(client, 2, 1)
        await client.trim_log("log", before="2:0")
        async with client.cursor("log", "billing", start="1:2") as cursor:
            assert (await cursor.receive()).data == b"2:0"
        with pytest.raises(TrimmedError):
            await client.cursors.move("log", "billing", to="1:1")
        await client.cursors.move("log", "billing", to="1:2")
        async with client.cursor("log", "billing") as cursor:
            assert (await cursor.receive()).data == b"2:0"


@pytest.mark.parametrize(("held_s", "trimmed_to"), [(0.5, Position(1, 2)), (5.0, Position(2, 0))])
async def test_trim_waits_a_second_for_a_ledger_to_be_closed(
    held_s: float, trimmed_to: Position, autojump_clock: trio.testing.MockClock
) -> None:
    """Its writer has rolled, and closes it once the last entry is confirmed: until then nobody knows where it ends."""
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        async with client.write_log("log") as log, trio.open_nursery() as nursery:
            await log.append(b"1:0")
            for bookie in world.bookies:
                bookie.wire.delay_s = held_s
            await log.push(b"1:1")
            nursery.start_soon(log.roll)
            await trio.sleep(0.1)
            assert (await other.log_metadata("log")).next_segment_number == 3
            assert await other.trim_log("log", before="2:0") == Position(2, 0)
            assert (await other.log_metadata("log")).trimmed_to == trimmed_to
            for bookie in world.bookies:
                bookie.wire.delay_s = 0.0
            nursery.cancel_scope.cancel()
