"""Leaving a bookie in order (C8): new ledgers, live writers, idle ones, and what is left on it."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from replog.config import BookieOptions, ClientOptions
from replog.errors import AdministrationError
from replog.hookspecs import EnsembleChanged
from replog.protocol.quorum import Quorum
from tests.kit import Bookie, Cluster, cluster, read_ledger, read_log, until

QUICK = ClientOptions(add_timeout_s=1.0, add_quorum_timeout_s=10.0, bookie_retry_after_s=1.0)
TWO = Quorum(2, 2, 2)


def names(world: Cluster) -> list[str]:
    return [bookie.bookie_id for bookie in world.bookies]


async def test_c8_a_bookie_that_drains_gets_no_new_ledgers(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(4) as world, world.client(QUICK) as client:
        gone = world.bookies[1].bookie_id
        status = await client.drain_bookie(gone)
        assert status.is_safe_to_stop
        for _ in range(10):
            async with client.create_ledger() as writer:
                await writer.append(b"0")
            assert gone not in writer.metadata.last_fragment.ensemble
        await client.undrain_bookie(gone)
        await trio.sleep(5)
        ensembles: set[str] = set()
        for _ in range(20):
            async with client.create_ledger() as writer:
                ensembles.update(writer.metadata.last_fragment.ensemble)
        assert gone in ensembles
        assert not (await client.drain_status(gone)).is_draining


async def test_c8_a_draining_bookie_is_used_when_others_are_too_few(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        await client.drain_bookie(world.bookies[0].bookie_id)
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            assert set(writer.metadata.last_fragment.ensemble) == set(names(world))
            assert writer.statistics()["indices_missing"] == 0
            await trio.sleep(30)
            await writer.append(b"1")
            assert len(writer.metadata.fragments) == 1, "nobody stands in for it, so it stays"
        assert writer.metadata.gaps == ()


@pytest.mark.parametrize("is_idle", [True, False])
async def test_c8_a_writer_leaves_a_bookie_that_drains(is_idle: bool, autojump_clock: trio.testing.MockClock) -> None:
    """By an ordinary change of ensemble: nothing is lost, refused, or left without a copy."""
    async with cluster(3) as world, world.client(QUICK, TWO) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            gone = world.named(writer.metadata.last_fragment.ensemble)[0]
            await client.drain_bookie(gone.bookie_id)
            count = 1
            while gone.bookie_id in writer.metadata.last_fragment.ensemble:
                assert count < 300, "the writer stays"
                if not is_idle:
                    started_s = trio.current_time()
                    await writer.append(b"%d" % count)
                    assert trio.current_time() - started_s < 1.0
                count += 1
                await trio.sleep(0.1)
            await writer.append(b"last")
            assert writer.statistics()["indices_missing"] == 0
        assert writer.metadata.gaps == ()
        assert len(world.told(EnsembleChanged)) == 1
        await gone.kill()
        found = await read_ledger(client, writer.ledger_id)
        assert found == ([b"0"] if is_idle else [b"%d" % number for number in range(count)]) + [b"last"]


async def test_c8_two_that_drain_are_both_left(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(4) as world, world.client(QUICK, TWO) as client, client.create_ledger() as writer:
        await writer.append(b"0")
        before = set(writer.metadata.last_fragment.ensemble)
        for bookie_id in before:
            await client.drain_bookie(bookie_id)
        await until(lambda: not before & set(writer.metadata.last_fragment.ensemble), 60)
        await writer.append(b"1")
        assert await read_ledger(client, writer.ledger_id) == [b"0", b"1"]


async def test_c8_a_replacement_that_cannot_be_reached_costs_no_copy(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(QUICK, TWO) as client, client.create_ledger() as writer:
        await writer.append(b"0")
        ensemble = writer.metadata.last_fragment.ensemble
        (spare,) = world.spare(ensemble)
        spare.wire.is_deaf = True
        await client.drain_bookie(ensemble[0])
        for number in range(30):
            await writer.append(b"%d" % number)
            await trio.sleep(1)
        assert writer.statistics()["indices_missing"] == 0


async def test_a_strict_placement_keeps_a_bookie_that_drains(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(0) as world:
        for zone in "aab":
            await world.add_bookie(BookieOptions(storage="memory", labels=(f"zone={zone}",)))
        last = world.bookies[2].bookie_id
        async with world.client(QUICK, TWO, placement="zones:?strict=true") as client:
            async with client.create_ledger() as writer:
                await client.drain_bookie(last)
                for number in range(20):
                    await writer.append(b"%d" % number)
                    await trio.sleep(1)
                assert last in writer.metadata.last_fragment.ensemble
                assert writer.statistics()["indices_missing"] == 0


async def test_what_is_left_on_it_is_listed(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        gone = world.bookies[0].bookie_id
        async with client.create_ledger() as closed:
            await closed.append(b"0")
        async with client.create_ledger() as empty:
            pass
        async with client.write_log("orders") as log:
            await log.append(b"1")
            status = await client.drain_bookie(gone)
            assert status.is_draining
            assert status.is_noticed
            assert not status.is_safe_to_stop
            (orders,) = status.open_ledgers
            assert orders.log == "orders"
            assert status.copies == (closed.ledger_id, orders.ledger_id)
            assert empty.ledger_id not in status.copies
            await world.add_bookie()
            await trio.sleep(10)
            await log.append(b"2")
            status = await client.drain_status(gone)
            assert status.open_ledgers == ()
            assert status.copies == (closed.ledger_id, orders.ledger_id), "what it has stays until it is copied"
        await client.delete_ledger(closed.ledger_id)
        assert await read_log(client, "orders") == [b"1", b"2"]
        await client.delete_log("orders")
        assert (await client.drain_status(gone)).is_safe_to_stop


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(3, 2, 2)])
async def test_a_repair_moves_copies_off_it(quorum: Quorum, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(4) as world, world.client(QUICK, quorum) as client:
        written = []
        for ledger in range(4):
            async with client.create_ledger() as writer:
                await writer.extend([b"%d.%d" % (ledger, number) for number in range(20)])
            written.append(writer)
        gone = world.named(written[0].metadata.last_fragment.ensemble)[0]
        assert (await client.drain_bookie(gone.bookie_id)).copies
        report = await client.repair()
        assert report.under_replicated == 0
        assert report.draining == {}
        assert (await client.drain_status(gone.bookie_id)).is_safe_to_stop
        await gone.kill()
        for ledger, writer in enumerate(written):
            found = await read_ledger(client, writer.ledger_id)
            assert found == [b"%d.%d" % (ledger, number) for number in range(20)]
        assert (await client.audit()).under_replicated == 0


async def test_a_ledger_without_a_writer_is_recovered_off_it(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(QUICK, TWO) as client:
        async with world.client(QUICK, TWO) as dying:
            writer = await dying._ledgers.create(TWO)
            await writer.append(b"0")
        bookie_id = writer.metadata.last_fragment.ensemble[0]
        status = await client.drain_bookie(bookie_id)
        assert [each.ledger_id for each in status.open_ledgers] == [writer.ledger_id]
        await client.recover_ledger(writer.ledger_id)
        assert (await client.drain_status(bookie_id)).open_ledgers == ()


async def test_a_bookie_that_nobody_knows(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world, world.client(QUICK) as client:
        for verb in (client.drain_bookie, client.undrain_bookie, client.drain_status):
            for unknown in ("bookie-99", ""):
                with pytest.raises(AdministrationError, match=f"does not know it.*{world.bookies[0].bookie_id}"):
                    await verb(unknown)
        assert await client.known_bookies() == names(world)


async def test_a_bookie_that_is_away_can_be_drained(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(2) as world, world.client(QUICK) as client:
        away: Bookie = world.bookies[0]
        await away.kill()
        assert (await client.drain_bookie(away.bookie_id)).is_safe_to_stop
        await away.start()
        assert away.server.mode.is_draining


@pytest.mark.parametrize(
    "what", ["audit", "drain_bookie", "drain_status", "pause_repairs", "rebalance", "repair", "undrain_bookie"]
)
async def test_a_client_that_was_left_looks_after_nothing(what: str, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world:
        async with world.client(QUICK) as left:
            pass
        bookie_id = world.bookies[0].bookie_id
        with pytest.raises(trio.ClosedResourceError, match="was left"):
            await getattr(left, what)(*([bookie_id] if what.endswith(("bookie", "status", "rebalance")) else []))
        async with world.client(QUICK) as client:
            assert not (await client.drain_status(bookie_id)).is_draining
