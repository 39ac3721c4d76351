"""What an ensemble costs: many small ledgers share one look at the announcements, and still avoid bookies that are gone."""

from __future__ import annotations

import trio
import trio.testing

import replog
from tests.kit import Cluster, cluster


def looks(world: Cluster) -> int:
    """How often announcements were read."""
    return sum(call.operation == "announced" for call in world.metastore.calls)


async def write_one(client: replog.Client) -> tuple[str, ...]:
    async with client.create_ledger() as writer:
        await writer.append(b"entry")
    return writer.metadata.fragments[0].ensemble


async def test_ledgers_of_one_second_share_a_look(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(4) as world, world.client() as client:
        await write_one(client)
        before = looks(world)
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(write_one, client)
        assert looks(world) - before <= 2  # at those that take entries, and at those that are read-only
        before = looks(world)
        await trio.sleep(1.1)
        await write_one(client)
        assert looks(world) > before


async def test_departed_bookie_is_not_chosen(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(4) as world, world.client() as client:
        await write_one(client)
        gone = world.bookies[0]
        await gone.kill()
        for _ in range(10):
            assert gone.bookie_id not in await write_one(client)


async def test_new_bookie_is_found_once_it_is_needed(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client() as client:
        await write_one(client)
        await world.bookies[0].kill()
        new = await world.add_bookie()
        assert new.bookie_id in await write_one(client)
