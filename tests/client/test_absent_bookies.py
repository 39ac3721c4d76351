"""New ledgers while bookies are away (C7, C8): three bookies survive one."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio
import trio.testing

from replog.config.client import ClientTuning
from replog.errors import NotEnoughBookiesError, StorageFullError
from replog.protocol.gaps import Gap
from replog.protocol.quorum import Quorum
from replog.records.bookies import Cookie, cookie_key, encode_cookie
from tests.kit import Bookie, Cluster, cluster, read_ledger, read_log

QUICK = ClientTuning(add_timeout_s=1.0, add_quorum_timeout_s=10.0)


async def kill(bookie: Bookie) -> None:
    await bookie.kill()


async def hang(bookie: Bookie) -> None:
    """It stays announced, and answers nothing: as a machine that lost its power, until its lease ends."""
    bookie.wire.is_deaf = True


async def declare_lost(world: Cluster, bookie: Bookie) -> None:
    key = cookie_key(bookie.bookie_id)
    version = (await world.metastore.get(key)).version
    await world.metastore.put(key, encode_cookie(Cookie(is_lost=True)), version)


# -- creating -------------------------------------------------------------------------------------------------------


async def test_c7_ledger_names_the_absent_one_of_three(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world:
        await world.bookies[1].kill()
        async with world.client(QUICK) as client:
            started = trio.current_time()
            async with client.create_ledger() as writer:
                await writer.append(b"0")
                assert trio.current_time() - started < 0.1, "nobody waits for who is away"
                assert set(writer.metadata.last_fragment.ensemble) == {each.bookie_id for each in world.bookies}
                assert writer.statistics()["indices_missing"] == 1
            assert await read_ledger(client, writer.ledger_id) == [b"0"]


@pytest.mark.parametrize("quorum", [Quorum(2, 2, 1), Quorum(3, 3, 1), Quorum(4, 2, 2), Quorum(5, 2, 1)])
async def test_c7_unrecoverable_ensemble_is_not_chosen(quorum: Quorum, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(quorum.ensemble) as world, world.client(QUICK) as client:
        await world.bookies[0].kill()
        with pytest.raises(
            NotEnoughBookiesError, match=f"(?s)only .* of each write set .*{world.bookies[0].bookie_id}"
        ):
            async with client.create_ledger(quorum=quorum):
                pass


@pytest.mark.parametrize(("quorum", "dead"), [(Quorum(5, 3, 2), 1), (Quorum(5, 5, 3), 2), (Quorum(6, 3, 2), 2)])
async def test_c7_absent_bookies_are_spread_over_the_write_sets(
    quorum: Quorum, dead: int, autojump_clock: trio.testing.MockClock
) -> None:
    """E > Qw: two absent neighbours in (6,3,2) would leave write sets with one bookie."""
    async with cluster(quorum.ensemble) as world, world.client(QUICK) as client:
        for bookie in world.bookies[:dead]:
            await bookie.kill()
        for _ in range(5):
            async with client.create_ledger(quorum=quorum) as writer:
                await writer.extend([b"%d" % number for number in range(20)])
            assert (await client.recover_ledger(writer.ledger_id)).last_entry_id == 19


async def test_c7_a_second_dead_bookie_of_three_is_too_many(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        for bookie in world.bookies[:2]:
            await bookie.kill()
        with pytest.raises(NotEnoughBookiesError) as raised:
            async with client.create_ledger():
                pass
        message = str(raised.value)
        assert "only 1 can be used" in message
        assert "2 of each write set of 3 must be there" in message
        for bookie in world.bookies[:2]:
            assert bookie.bookie_id in message
            assert bookie.bookie_id in raised.value.excluded


async def test_c7_bookie_declared_lost_is_not_named(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        await world.bookies[0].kill()
        await declare_lost(world, world.bookies[0])
        with pytest.raises(NotEnoughBookiesError, match="only 2 can be used"):
            async with client.create_ledger():
                pass


async def test_c7_an_unknown_bookie_is_not_named(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(2) as world, world.client(QUICK) as client:
        with pytest.raises(NotEnoughBookiesError, match=r"only 2 can be used.*start more bookies"):
            async with client.create_ledger():
                pass


async def test_c8_present_bookie_is_preferred(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(5) as world, world.client(QUICK) as client:
        away = world.bookies[:2]
        for bookie in away:
            await bookie.kill()
        for _ in range(10):
            async with client.create_ledger() as writer:
                await writer.append(b"0")
            assert not {each.bookie_id for each in away} & set(writer.metadata.last_fragment.ensemble)


async def test_c8_a_read_only_bookie_is_preferred_to_an_absent_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster(4) as world, world.client(QUICK) as client:
        full, dead = world.bookies[:2]
        full.storage.commit_error = StorageFullError("no space", "make some")
        async with client.create_ledger(quorum=Quorum(4, 4, 2)) as writer:
            await writer.append(b"0")
            await trio.sleep(2)  # the bookie says that it is read-only now
        await dead.kill()
        async with client.create_ledger() as writer:
            await writer.append(b"0")
        ensemble = writer.metadata.last_fragment.ensemble
        assert full.bookie_id in ensemble
        assert dead.bookie_id not in ensemble


async def test_c7_announced_silent_bookie_costs_only_a_moment(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its address is known, and connecting to it goes on and on: others are not kept waiting."""
    async with cluster(3) as world:
        async with world.client(QUICK) as client:
            world.bookies[2].wire.is_deaf = True
            started = trio.current_time()
            async with client.create_ledger() as writer:
                await writer.append(b"0")
                assert trio.current_time() - started < 2
            assert await read_ledger(client, writer.ledger_id) == [b"0"]


# -- taking in who comes back ----------------------------------------------------------------------------------------


async def test_c7_returning_bookie_is_used(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        late = world.bookies[1]
        await late.kill()
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            await late.start()
            await trio.sleep(2 * QUICK.bookie_retry_after_s)
            await writer.append(b"1")
            assert writer.statistics()["indices_missing"] == 0
            assert [add.batch.first_entry_id for add in late.adds(writer.ledger_id)] == [1]
            assert len(writer.metadata.fragments) == 1


async def test_c7_new_bookie_replaces_the_absent_one(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        await world.bookies[1].kill()
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            added = await world.add_bookie()
            await trio.sleep(2 * QUICK.bookie_retry_after_s)
            await writer.append(b"1")
            assert added.bookie_id in writer.metadata.last_fragment.ensemble
            assert writer.metadata.last_fragment.first_entry_id == 1


async def test_c7_appends_do_not_wait_for_a_replacement_search(autojump_clock: trio.testing.MockClock) -> None:
    """C1 freezes completions while an ensemble changes: no change is begun for a bookie that is still away."""
    async with cluster(3) as world, world.client(QUICK) as client:
        await world.bookies[1].kill()
        async with client.create_ledger() as writer:
            slowest_s = 0.0
            for number in range(300):
                started = trio.current_time()
                await writer.append(b"%d" % number)
                slowest_s = max(slowest_s, trio.current_time() - started)
                await trio.sleep(0.1)
            assert slowest_s < 0.05
            assert len(writer.metadata.fragments) == 1


# -- logs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", [kill, hang])
async def test_c7_a_log_works_with_one_of_three_bookies_away(
    harm: object, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        async with client.write_log("log") as log:
            await log.append(b"0")
        await harm(world.bookies[0])  # type: ignore[operator]
        async with world.client(QUICK) as other:
            with trio.fail_after(20):
                async with other.write_log("log") as log:
                    await log.append(b"1")
                    await log.roll()
                    await log.append(b"2")
                assert await read_log(other) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("harm", [kill, hang])
async def test_c7_the_leader_dies_with_its_own_bookie(harm: object, autojump_clock: trio.testing.MockClock) -> None:
    """The mission's scenario: each machine has a bookie and a candidate, and the leader's machine goes."""
    async with cluster(3) as world, trio.open_nursery() as nursery:
        leading = trio.Event()

        async def lead_until_cancelled(task_status: trio.TaskStatus[trio.CancelScope]) -> None:
            with trio.CancelScope() as scope:
                async with world.client(QUICK) as client, client.lead_log("log") as log:
                    for number in range(10):
                        await log.append(b"%d" % number)
                    leading.set()
                    task_status.started(scope)
                    await trio.sleep_forever()

        scope = await nursery.start(lead_until_cancelled)
        await leading.wait()
        await harm(world.bookies[0])  # type: ignore[operator]
        scope.cancel()
        with trio.fail_after(30):
            async with world.client(QUICK) as client:
                async with client.lead_log("log") as log:
                    await log.append(b"10")
                    await log.roll()
                    await log.append(b"11")
                assert await read_log(client) == [b"%d" % number for number in range(12)]


async def test_c7_nothing_is_lost_when_the_absent_bookie_changes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Each of three bookies is away for a while: each takeover recovers what the last one wrote on the two others."""
    async with cluster(3) as world:
        for number in range(9):
            victim = world.bookies[number % 3]
            await victim.kill()
            async with world.client(QUICK) as client, client.write_log("log") as log:
                await log.append(b"%d" % number)
            await victim.start()
        async with world.client(QUICK) as client:
            assert await read_log(client) == [b"%d" % number for number in range(9)]


# -- what the absent ones lack (W7) ----------------------------------------------------------------------------------


async def test_w7_metadata_records_a_bookies_missing_entries(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        late = world.bookies[1]
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            await trio.sleep(1)
            await late.kill()
            for number in range(1, 5):
                await writer.append(b"%d" % number)
            await late.start()
            await trio.sleep(3 * QUICK.bookie_retry_after_s)
            await writer.append(b"5")
            await trio.sleep(1)
        index = writer.metadata.last_fragment.ensemble.index(late.bookie_id)
        assert writer.metadata.gaps == (Gap(index, 1, 4),)
        assert [bool(late.storage.read(writer.ledger_id, entry_id, 1, 0)) for entry_id in (0, 1, 4, 5)] == [
            True,
            False,
            False,
            True,
        ]
        assert await read_ledger(client, writer.ledger_id) == [b"%d" % number for number in range(6)]


async def test_w7_a_ledger_created_without_a_bookie_records_it_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """So it is known even if its writer dies."""
    async with cluster(3) as world, world.client(QUICK) as client:
        await world.bookies[1].kill()
        async with client.create_ledger() as writer:
            (gap,) = writer.metadata.gaps
            assert gap == Gap(writer.metadata.last_fragment.ensemble.index(world.bookies[1].bookie_id), 0)
            await writer.append(b"0")
            await writer.append(b"1")
            assert (await client.recover_ledger(writer.ledger_id)).gaps == (Gap(gap.index, 0, 1),)


@pytest.mark.slow
async def test_c7_many_ledgers_look_for_a_missing_bookie_together(autojump_clock: trio.testing.MockClock) -> None:
    """A hundred writers that each asked the metastore would be a load that grows with an outage."""
    async with cluster(3) as world, world.client(QUICK) as client:
        late = world.bookies[1]
        await late.kill()
        async with AsyncExitStack() as stack:
            writers = [await stack.enter_async_context(client.create_ledger()) for _ in range(100)]
            calls = len(world.metastore.calls)
            await trio.sleep(30)
            assert len(world.metastore.calls) - calls < 4 * 30
            await late.start()
            await trio.sleep(3 * QUICK.bookie_retry_after_s)
            assert not any(writer.statistics()["indices_missing"] for writer in writers)
