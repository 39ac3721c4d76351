"""Leaving a bookie in order (C8): new ledgers, live writers, idle ones, and what is left on it."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
import trio
import trio.testing

from replog.client.ledger_writer import LedgerWriter
from replog.config import BookieOptions
from replog.config.client import ClientTuning
from replog.errors import AdministrationError, ReplogError
from replog.hookspecs import EnsembleChanged
from replog.protocol.model import LedgerState
from replog.protocol.quorum import Quorum
from replog.records.bookies import change_cookie
from tests.interleaving import Between, each_place
from tests.kit import ONE, Bookie, Cluster, cluster, read_ledger, read_log, until

QUICK = ClientTuning(add_timeout_s=1.0, add_quorum_timeout_s=10.0, bookie_retry_after_s=1.0)
TWO = Quorum(2, 2, 2)


def names(world: Cluster) -> list[str]:
    return [bookie.bookie_id for bookie in world.bookies]


async def test_c8_draining_bookie_gets_no_new_ledgers(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(4) as world, world.client(QUICK) as client:
        gone = world.bookies[1].bookie_id
        status = await client.admin.drain(gone)
        assert status.is_safe_to_stop
        for _ in range(10):
            async with client.create_ledger() as writer:
                await writer.append(b"0")
            assert gone not in writer.metadata.last_fragment.ensemble
        await client.admin.undrain(gone)
        await trio.sleep(5)
        ensembles: set[str] = set()
        for _ in range(20):
            async with client.create_ledger() as writer:
                ensembles.update(writer.metadata.last_fragment.ensemble)
        assert gone in ensembles
        assert not (await client.admin.drain_status(gone)).is_draining


async def test_c8_a_draining_bookie_is_used_when_others_are_too_few(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        await client.admin.drain(world.bookies[0].bookie_id)
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            assert set(writer.metadata.last_fragment.ensemble) == set(names(world))
            assert writer.statistics()["indices_missing"] == 0
            await trio.sleep(30)
            await writer.append(b"1")
            assert len(writer.metadata.fragments) == 1, "nobody stands in for it, so it stays"
        assert writer.metadata.gaps == ()


@pytest.mark.parametrize("is_idle", [True, False])
async def test_c8_writer_leaves_a_draining_bookie(is_idle: bool, autojump_clock: trio.testing.MockClock) -> None:
    """By an ordinary change of ensemble: nothing is lost, refused, or left without a copy."""
    async with cluster(3) as world, world.client(QUICK, TWO) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            gone = world.named(writer.metadata.last_fragment.ensemble)[0]
            await client.admin.drain(gone.bookie_id)
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


async def test_c8_two_draining_bookies_are_both_left(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(4) as world, world.client(QUICK, TWO) as client, client.create_ledger() as writer:
        await writer.append(b"0")
        before = set(writer.metadata.last_fragment.ensemble)
        for bookie_id in before:
            await client.admin.drain(bookie_id)
        await until(lambda: not before & set(writer.metadata.last_fragment.ensemble), 60)
        await writer.append(b"1")
        assert await read_ledger(client, writer.ledger_id) == [b"0", b"1"]


async def test_c8_unreachable_replacement_costs_no_copy(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(QUICK, TWO) as client, client.create_ledger() as writer:
        await writer.append(b"0")
        ensemble = writer.metadata.last_fragment.ensemble
        (spare,) = world.spare(ensemble)
        spare.wire.is_deaf = True
        await client.admin.drain(ensemble[0])
        for number in range(30):
            await writer.append(b"%d" % number)
            await trio.sleep(1)
        assert writer.statistics()["indices_missing"] == 0


async def test_strict_placement_keeps_a_draining_bookie(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(0) as world:
        for zone in "aab":
            await world.add_bookie(BookieOptions(storage="memory", labels=(f"zone={zone}",)))
        last = world.bookies[2].bookie_id
        async with world.client(QUICK, TWO, placement="zones:?strict=true") as client:
            async with client.create_ledger() as writer:
                await client.admin.drain(last)
                for number in range(20):
                    await writer.append(b"%d" % number)
                    await trio.sleep(1)
                assert last in writer.metadata.last_fragment.ensemble
                assert writer.statistics()["indices_missing"] == 0


async def test_remaining_ledgers_are_listed(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        gone = world.bookies[0].bookie_id
        async with client.create_ledger() as closed:
            await closed.append(b"0")
        async with client.create_ledger() as empty:
            pass
        async with client.write_log("orders") as log:
            await log.append(b"1")
            status = await client.admin.drain(gone)
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
            status = await client.admin.drain_status(gone)
            assert status.open_ledgers == ()
            assert status.copies == (closed.ledger_id, orders.ledger_id), "what it has stays until it is copied"
        await client.delete_ledger(closed.ledger_id)
        assert await read_log(client, "orders") == [b"1", b"2"]
        await client.delete_log("orders")
        assert (await client.admin.drain_status(gone)).is_safe_to_stop


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(3, 2, 2)])
async def test_a_repair_moves_copies_off_it(quorum: Quorum, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(4) as world, world.client(QUICK, quorum) as client:
        written = []
        for ledger in range(4):
            async with client.create_ledger() as writer:
                await writer.extend([b"%d.%d" % (ledger, number) for number in range(20)])
            written.append(writer)
        gone = world.named(written[0].metadata.last_fragment.ensemble)[0]
        assert (await client.admin.drain(gone.bookie_id)).copies
        report = await client.admin.repair()
        assert report.under_replicated == 0
        assert report.draining == {}
        assert (await client.admin.drain_status(gone.bookie_id)).is_safe_to_stop
        await gone.kill()
        for ledger, writer in enumerate(written):
            found = await read_ledger(client, writer.ledger_id)
            assert found == [b"%d.%d" % (ledger, number) for number in range(20)]
        assert (await client.admin.audit()).under_replicated == 0


async def test_copies_do_not_move_to_another_draining_bookie(autojump_clock: trio.testing.MockClock) -> None:
    """The next repair would move them on, or back. They stay until there is somebody to take them."""
    async with cluster(3) as world, world.client(QUICK, TWO) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
        (spare,) = world.spare(writer.metadata.last_fragment.ensemble)
        first = writer.metadata.last_fragment.ensemble[0]
        for bookie_id in (first, spare.bookie_id):
            await client.admin.drain(bookie_id)
        await client.admin.repair()
        assert (await client.admin.drain_status(spare.bookie_id)).is_safe_to_stop
        assert not (await client.admin.drain_status(first)).is_safe_to_stop
        await world.add_bookie()
        await client.admin.repair()
        assert (await client.admin.drain_status(first)).is_safe_to_stop
        assert await read_ledger(client, writer.ledger_id) == [b"0"]


async def test_a_ledger_without_a_writer_is_recovered_off_it(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(QUICK, TWO) as client:
        async with world.client(QUICK, TWO) as dying:
            writer = LedgerWriter(await dying._opened.ledgers.create(TWO))
            await writer.append(b"0")
        bookie_id = writer.metadata.last_fragment.ensemble[0]
        status = await client.admin.drain(bookie_id)
        assert [each.ledger_id for each in status.open_ledgers] == [writer.ledger_id]
        await client.recover_ledger(writer.ledger_id)
        assert (await client.admin.drain_status(bookie_id)).open_ledgers == ()


async def test_c8_not_safe_while_a_ledger_is_created_on_it(autojump_clock: trio.testing.MockClock) -> None:
    """By a client that does not know of the drain yet. The bookie notices it while its status is asked for."""

    async def race(make: Callable[[Cluster], Between]) -> Between:
        async with cluster(1) as world, world.client(QUICK, ONE) as client:
            bookie_id = world.bookies[0].bookie_id
            between = make(world)

            async def create() -> None:
                async with client.create_ledger() as writer:
                    await writer.append(b"0")
                await trio.sleep(5)  # it has noticed

            async with world.client(QUICK, ONE, between) as first:
                await change_cookie(world.metastore, bookie_id, lambda cookie: attrs.evolve(cookie, is_draining=True))
                between.meanwhile = create
                status = await first.admin.drain_status(bookie_id)
                between.meanwhile = None
            assert not (between.has_run and status.is_safe_to_stop)
            return between

    await each_place(race)


async def test_ledger_with_an_interrupted_recovery_is_open(autojump_clock: trio.testing.MockClock) -> None:
    """Nobody writes to it, and nobody ends it: who drains the bookie must know of it."""
    async with cluster(3) as world, world.client(QUICK, TWO) as client:
        async with world.client(QUICK, TWO) as dying:
            writer = LedgerWriter(await dying._opened.ledgers.create(TWO))
            await writer.append(b"0")
        bookie_id = writer.metadata.last_fragment.ensemble[0]
        for bookie in world.bookies:
            bookie.wire.is_deaf = True
        with pytest.raises(ReplogError):
            await client.recover_ledger(writer.ledger_id)
        for bookie in world.bookies:
            bookie.wire.is_deaf = False
        assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY
        await trio.sleep(60)
        assert [each.ledger_id for each in (await client.admin.drain(bookie_id)).open_ledgers] == [writer.ledger_id]
        await client.recover_ledger(writer.ledger_id)
        assert (await client.admin.drain_status(bookie_id)).open_ledgers == ()


async def test_unknown_bookie_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world, world.client(QUICK) as client:
        for verb in (client.admin.drain, client.admin.undrain, client.admin.drain_status):
            for unknown in ("bookie-99", ""):
                with pytest.raises(AdministrationError, match=f"does not know it.*{world.bookies[0].bookie_id}"):
                    await verb(unknown)
        assert await client.admin.known_bookies() == names(world)


async def test_absent_bookie_can_be_drained(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(2) as world, world.client(QUICK) as client:
        away: Bookie = world.bookies[0]
        await away.kill()
        assert (await client.admin.drain(away.bookie_id)).is_safe_to_stop
        await away.start()
        assert away.server.mode.is_draining


@pytest.mark.parametrize("what", ["audit", "drain", "drain_status", "pause_repairs", "rebalance", "repair", "undrain"])
async def test_exited_client_watches_nothing(what: str, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world:
        async with world.client(QUICK) as left:
            pass
        bookie_id = world.bookies[0].bookie_id
        with pytest.raises(trio.ClosedResourceError, match="was left"):
            await getattr(left.admin, what)(*([bookie_id] if what.endswith(("drain", "status", "rebalance")) else []))
        async with world.client(QUICK) as client:
            assert not (await client.admin.drain_status(bookie_id)).is_draining
