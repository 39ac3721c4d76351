"""The load: how much is written, how it ends, and that its ledgers are gone afterwards."""

from __future__ import annotations

import attrs
import pytest
import trio.testing

from replog.cli.bench.load import CUSTOM, Ledgers, Load, Settings
from replog.errors import NotEnoughBookiesError, ReplogError
from replog.protocol.messages import AddRequest
from replog.testing import Fault
from tests.kit import Cluster, cluster, read_ledger

ENTRIES = Settings(entries=1000, seconds=None, size_bytes=10, in_flight=50, batch_entries=1, ledgers=1, quorum=None)


async def ran(world: Cluster, settings: Settings, *, keeps: bool = True) -> tuple[Load, dict[int, int]]:
    """What was done, and how many entries each ledger has that is left."""
    load = Load(settings)
    async with world.client() as client:
        made = Ledgers(client, settings, keeps=keeps)
        async with made.open() as writers:
            await load.run(writers)
        return load, {each: len(await read_ledger(client, each)) for each in await client.ledgers()}


@pytest.mark.parametrize(
    "settings",
    [
        ENTRIES,
        attrs.evolve(ENTRIES, in_flight=1, entries=20),
        attrs.evolve(ENTRIES, in_flight=3, entries=10),
        attrs.evolve(ENTRIES, batch_entries=30, in_flight=90),
        attrs.evolve(ENTRIES, ledgers=3, in_flight=13),
        attrs.evolve(ENTRIES, size_bytes=0),
        attrs.evolve(ENTRIES, entries=1, in_flight=1000),
    ],
)
async def test_exactly_so_many_entries_are_confirmed(
    settings: Settings, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster(3) as world:
        load, left = await ran(world, settings)
        assert load.confirmed_entries == settings.entries
        assert len(left) == settings.ledgers
        assert sum(left.values()) == settings.entries + settings.ledgers  # one each before the clock was started
        assert 1 <= load.calls.count <= settings.entries
        assert load.elapsed_s > 0


async def test_calls_are_extends_of_so_many(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world:
        load, _ = await ran(world, attrs.evolve(ENTRIES, batch_entries=100, in_flight=300, entries=1050))
        assert load.calls.count == 11


async def test_entries_in_flight_are_bounded(autojump_clock: trio.testing.MockClock) -> None:
    settings = attrs.evolve(ENTRIES, in_flight=40, entries=5000)
    async with cluster(3) as world, world.client() as client:
        load, most = Load(settings), 0
        async with Ledgers(client, settings, keeps=True).open() as writers, trio.open_nursery() as nursery:
            (writer,) = writers

            async def watch() -> None:
                nonlocal most
                while True:
                    most = max(most, writer.last_add_pushed - writer.last_add_confirmed)
                    await trio.sleep(0.001)

            for bookie in world.bookies:
                bookie.wire.delay_s = 0.01
            nursery.start_soon(watch)
            await load.run(writers)
            nursery.cancel_scope.cancel()
        assert 20 <= most <= 40


async def test_its_ledgers_are_deleted_unless_they_are_kept(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client() as client:
        settings = attrs.evolve(ENTRIES, ledgers=4)
        for keeps in (False, True):
            made = Ledgers(client, settings, keeps=keeps)
            async with made.open() as writers:
                assert await client.ledgers() == sorted(made.ids)
                assert dict((await client.ledger_metadata(made.ids[0])).custom) == CUSTOM
                await Load(settings).run(writers)
            assert (await client.ledgers() == sorted(made.ids)) is keeps
            assert made.left == []


async def test_cancelled_load_keeps_its_counters_and_deletes_ledgers(
    autojump_clock: trio.testing.MockClock,
) -> None:
    settings = attrs.evolve(ENTRIES, entries=None, ledgers=2)
    async with cluster(3) as world, world.client() as client:
        load = Load(settings)
        with trio.move_on_after(5.0) as scope:
            async with Ledgers(client, settings, keeps=False).open() as writers:
                for bookie in world.bookies:
                    bookie.wire.delay_s = 0.1
                await load.run(writers)
        assert scope.cancelled_caught
        assert load.confirmed_entries >= 1000
        assert await client.ledgers() == []
        assert load.elapsed_s > 0


async def test_failing_cluster_ends_the_load_and_ledgers_are_deleted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    settings = attrs.evolve(ENTRIES, entries=None, ledgers=3)
    async with cluster(3) as world, world.client() as client:
        load = Load(settings)

        async def fail() -> None:
            await trio.sleep(1.0)
            for bookie in world.bookies[:2]:
                await bookie.kill()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            with pytest.raises(ReplogError):
                async with Ledgers(client, settings, keeps=False).open() as writers:
                    for bookie in world.bookies:
                        bookie.wire.delay_s = 0.01
                    await load.run(writers)
        assert load.confirmed_entries > 0
        assert await client.ledgers() == []


async def test_too_few_bookies_leave_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world, world.client() as client:
        with pytest.raises(NotEnoughBookiesError):
            async with Ledgers(client, ENTRIES, keeps=False).open():
                pytest.fail("it is open")
        assert await client.ledgers() == []


async def test_ledgers_that_cannot_be_deleted_are_listed(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client() as client:
        made = Ledgers(client, attrs.evolve(ENTRIES, ledgers=2), keeps=False)
        async with made.open():
            world.metastore.fail_next("delete", Fault.UNAVAILABLE, times=1000)
        assert (made.left, bool(made.problem)) == (made.ids, True)


async def test_entries_are_of_the_size_that_was_asked(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world:
        await ran(world, attrs.evolve(ENTRIES, entries=10, size_bytes=1234))
        sizes = {
            len(payload)
            for request in world.bookies[0].wire.seen
            if isinstance(request, AddRequest)
            for payload in request.batch.payloads()
        }
        assert sizes == {1234}
