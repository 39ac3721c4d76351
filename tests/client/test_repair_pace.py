"""How fast repairs copy, and how much of that is on its way to one bookie."""

from __future__ import annotations

import trio
import trio.testing

from replog.client.repair_pace import Pace, Room


async def test_copies_are_spread_over_time(autojump_clock: trio.testing.MockClock) -> None:
    pace = Pace(100)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(pace.spend, 200)
    assert trio.current_time() == 8.0


async def test_room_is_given_to_one_after_the_other(autojump_clock: trio.testing.MockClock) -> None:
    room, under_way, most = Room(1000), 0, 0

    async def copy(size_bytes: int) -> None:
        nonlocal under_way, most
        await room.take(size_bytes)
        under_way += size_bytes
        most = max(most, under_way)
        try:
            await trio.sleep(1)
        finally:
            under_way -= size_bytes
            room.give(size_bytes)

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(copy, 400)
        await trio.sleep(0.5)
        nursery.start_soon(copy, 5000)
    assert most == 5000, "one that is too large goes alone"
    assert trio.current_time() == 6.0


async def test_waiting_copy_that_is_cancelled_takes_no_room(autojump_clock: trio.testing.MockClock) -> None:
    room = Room(1000)
    await room.take(1000)
    with trio.move_on_after(1) as waiting:
        await room.take(1)
    assert waiting.cancelled_caught
    room.give(1000)
    with trio.fail_after(1):
        await room.take(1000)
