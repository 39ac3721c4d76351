"""A bookie's exchange with the metastore: labels, free space, draining."""

from __future__ import annotations

from functools import partial

import attrs
import trio
import trio.testing

from replog.config import BookieOptions
from replog.records.bookies import (
    BOOKIES_KEY,
    READ_ONLY_BOOKIES_KEY,
    Cookie,
    announcement_key,
    change_cookie,
    cookie_key,
    decode_address,
    decode_cookie,
)
from replog.testing import Fault
from tests.kit import Bookie, Cluster, cluster, until

LABELLED = BookieOptions(storage="memory", labels=("zone=a", "rack=r1"))


async def cookie_of(world: Cluster, bookie: Bookie) -> Cookie:
    key = cookie_key(bookie.bookie_id)
    return decode_cookie(key, (await world.metastore.get(key)).value)


async def drain(world: Cluster, bookie: Bookie, *, is_draining: bool = True) -> None:
    await change_cookie(world.metastore, bookie.bookie_id, lambda cookie: attrs.evolve(cookie, is_draining=is_draining))


async def test_labels_are_announced_and_stay_known(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1, LABELLED) as world:
        (bookie,) = world.bookies
        value = (await world.metastore.announced(BOOKIES_KEY))[bookie.bookie_id]
        assert decode_address("", value).labels == {"zone": "a", "rack": "r1"}
        await bookie.kill()
        assert (await cookie_of(world, bookie)).labels == {"zone": "a", "rack": "r1"}
        bookie._options = BookieOptions(storage="memory", labels=("zone=b",))
        await bookie.start()
        assert (await cookie_of(world, bookie)).labels == {"zone": "b"}


async def test_free_space_is_reported_when_it_has_changed_notably(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world:
        (bookie,) = world.bookies
        for free_bytes, reported in ((1000 << 20, 1000 << 20), (990 << 20, 1000 << 20), (600 << 20, 600 << 20)):
            bookie.storage.free_bytes = partial(int, free_bytes)  # type: ignore[method-assign]
            await trio.sleep(70)
            assert (await cookie_of(world, bookie)).free_bytes == reported


async def test_c8_draining_bookie_announces_it_and_takes_entries(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1, LABELLED) as world:
        (bookie,) = world.bookies
        await drain(world, bookie)
        await until(lambda: bookie.server.mode.is_draining)
        await trio.sleep(0.1)
        key = announcement_key(bookie.bookie_id, read_only=True)
        address = decode_address(key, (await world.metastore.announced(READ_ONLY_BOOKIES_KEY))[bookie.bookie_id])
        assert address.is_draining
        assert not address.read_only
        assert address.labels == {"zone": "a", "rack": "r1"}
        assert await world.metastore.announced(BOOKIES_KEY) == {}
        assert not bookie.server.is_read_only
        assert bookie.server.statistics()["draining"] == 1

        await bookie.kill()
        await bookie.start()
        assert bookie.server.mode.is_draining, "it outlives a restart"
        assert await world.metastore.announced(BOOKIES_KEY) == {}, "not even for a moment"

        await drain(world, bookie, is_draining=False)
        await until(lambda: not bookie.server.mode.is_draining)
        await trio.sleep(0.1)
        assert list(await world.metastore.announced(BOOKIES_KEY)) == [bookie.bookie_id]


async def test_draining_full_bookie_announces_both(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world:
        (bookie,) = world.bookies
        await drain(world, bookie)
        await until(lambda: bookie.server.mode.is_draining)
        bookie.storage.free_bytes = lambda: 0  # type: ignore[method-assign]
        await until(lambda: bookie.server.is_read_only)
        await trio.sleep(1)
        value = (await world.metastore.announced(READ_ONLY_BOOKIES_KEY))[bookie.bookie_id]
        address = decode_address("", value)
        assert address.is_draining
        assert address.read_only
        assert "disk full" in address.problem


async def test_failing_metastore_changes_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world:
        (bookie,) = world.bookies
        await drain(world, bookie)
        await until(lambda: bookie.server.mode.is_draining)
        key = cookie_key(bookie.bookie_id)
        await drain(world, bookie, is_draining=False)
        world.metastore.fail_next("get", Fault.UNAVAILABLE, under=key, times=3)
        await trio.sleep(20)
        assert world.metastore.planned() == 0
        assert not bookie.server.mode.is_draining, "it is looked at again"
