"""How fast repairs copy, and how much of that is on its way to one bookie."""

from __future__ import annotations

import trio
import trio.testing

from replog import Quorum
from replog.config.client import ClientTuning
from replog.hookspecs import FragmentRepaired
from replog.repair.filler import Pace, Room
from tests.kit import cluster


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


async def test_cancelled_waiting_copy_takes_no_room(autojump_clock: trio.testing.MockClock) -> None:
    room = Room(1000)
    await room.take(1000)
    with trio.move_on_after(1) as waiting:
        await room.take(1)
    assert waiting.cancelled_caught
    room.give(1000)
    with trio.fail_after(1):
        await room.take(1000)


async def test_fewest_copies_are_filled_first(autojump_clock: trio.testing.MockClock) -> None:
    """One of two lost bookies had a copy of the first ledger, both had one of the second."""
    options = ClientTuning(add_timeout_s=1.0, read_timeout_s=1.0, repair_fragments_at_once=1)
    async with cluster(3) as world, world.client(options) as client:
        async with client.create_ledger(quorum=Quorum(3, 3, 2)) as writer:
            await writer.append(b"a")
        third = await world.add_bookie()
        await trio.sleep(1.1)  # a client looks once a second who is there
        first = world.named([writer.metadata.last_fragment.ensemble[0]])[0]
        while True:
            async with client.create_ledger(quorum=Quorum(3, 3, 2)) as other:
                await other.append(b"b")
            if {first.bookie_id, third.bookie_id} <= set(other.metadata.last_fragment.ensemble):
                break
            await client.delete_ledger(other.ledger_id)
        await trio.testing.wait_all_tasks_blocked()
        for bookie in (first, third):
            await bookie.kill()
        for _ in range(2):
            await world.add_bookie()
        await client.admin.repair(lost=[first.bookie_id, third.bookie_id], accept_loss=True)
        repaired = [each.ledger_id for each in world.told(FragmentRepaired)]  # type: ignore[union-attr]
        assert repaired == [other.ledger_id, writer.ledger_id]
