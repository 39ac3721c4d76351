"""Services that repair: whom they wait for, how they share the work, and what they survive (M3, F6, B8a)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from replog import BookieConfig, Client, Quorum, serve_bookie, serve_repairs
from replog.config.bookie import BookieTuning
from replog.config.client import ClientTuning
from replog.protocol.messages import CopyRequest
from replog.repair.audit_report import AuditReport
from replog.repair.shares import Share
from replog.testing import Fault
from tests.kit import Bookie, Cluster, cluster, read_ledger, until

QUICK = ClientTuning(add_timeout_s=1.0, add_quorum_timeout_s=10.0, read_timeout_s=1.0)


async def written(client: Client) -> int:
    async with client.create_ledger(quorum=Quorum(3, 3, 2)) as writer:
        await writer.extend([b"a", b"b", b"c"])
    await trio.testing.wait_all_tasks_blocked()
    return writer.ledger_id


async def members(world: Cluster, client: Client, ledger_id: int) -> list[Bookie]:
    return world.named((await client.ledger_metadata(ledger_id)).last_fragment.ensemble)


@asynccontextmanager
async def repairing(client: Client, reports: list[AuditReport] | None = None) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        kept = [] if reports is None else reports
        nursery.start_soon(lambda: serve_repairs(client, reported=kept.append))
        yield
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_absent_bookie_is_replaced_after_the_delay(autojump_clock: trio.testing.MockClock) -> None:
    """A restart costs nothing: a bookie that is back in time keeps its place."""
    async with cluster(4) as world, world.client(QUICK) as client, repairing(client):
        ledger_id = await written(client)
        before = await client.ledger_metadata(ledger_id)
        victim = world.named(before.last_fragment.ensemble)[0]
        await victim.kill()
        await trio.sleep(590)
        await victim.start()
        await trio.sleep(590)
        assert await client.ledger_metadata(ledger_id) == before
        await victim.kill()
        await trio.sleep(590)
        assert await client.ledger_metadata(ledger_id) == before
        await trio.sleep(30)
        assert victim not in await members(world, client, ledger_id)
        assert (await client.admin.audit()).under_replicated == 0


async def test_b8a_bookie_declared_lost_is_replaced_at_once(autojump_clock: trio.testing.MockClock) -> None:
    reports: list[AuditReport] = []
    async with cluster(4) as world, world.client(QUICK) as client, repairing(client, reports):
        ledger_id = await written(client)
        victim = (await members(world, client, ledger_id))[0]
        await victim.kill()
        await client.admin.declare_lost([victim.bookie_id])
        await trio.sleep(10)
        assert victim not in await members(world, client, ledger_id)
        assert [each.under_replicated for each in reports[-2:]] == [1, 0]


async def test_service_has_empty_ledgers_leave_a_lost_bookie(autojump_clock: trio.testing.MockClock) -> None:
    """F1: though nothing lacks copies."""
    async with cluster(4) as world, world.client(QUICK) as client, repairing(client):
        async with client.create_ledger(quorum=Quorum(3, 3, 2)) as writer:
            pass
        victim = (await members(world, client, writer.ledger_id))[0]
        await victim.kill()
        await client.admin.declare_lost([victim.bookie_id])
        await trio.sleep(10)
        assert victim not in await members(world, client, writer.ledger_id)


async def test_two_services_share_the_ledgers(autojump_clock: trio.testing.MockClock) -> None:
    """M3: each copies its own share, and all when the other one has died."""
    async with cluster(4) as world, world.client(QUICK) as client, world.client(QUICK) as other:
        ledger_ids = [await written(client) for _ in range(24)]
        of_one: list[AuditReport] = []
        of_other: list[AuditReport] = []
        async with repairing(client, of_one):
            async with repairing(other, of_other):
                await trio.sleep(30)
                assert of_one[-1].ledgers + of_other[-1].ledgers == 24
                assert min(of_one[-1].ledgers, of_other[-1].ledgers) > 0
                victim = (await members(world, client, ledger_ids[0]))[0]
                await victim.kill()
                await client.admin.declare_lost([victim.bookie_id])
                await trio.sleep(30)
                assert (await client.admin.audit()).under_replicated == 0
                copies = [
                    (bookie.bookie_id, each.ledger_id, each.batch.first_entry_id)
                    for bookie in world.bookies
                    for each in bookie.wire.seen
                    if isinstance(each, CopyRequest)
                ]
                assert len(copies) == len(set(copies)), "nothing is copied twice"
            await trio.sleep(60)
            assert of_one[-1].ledgers == 24


async def test_failing_metastore_is_awaited(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(4) as world, world.client(QUICK) as client, repairing(client):
        ledger_id = await written(client)
        victim = (await members(world, client, ledger_id))[0]
        await victim.kill()
        await client.admin.declare_lost([victim.bookie_id])
        world.metastore.fail_next("announced", Fault.UNAVAILABLE, times=5)
        await until(lambda: not world.metastore.planned(), 300)
        await trio.sleep(90)
        assert victim not in await members(world, client, ledger_id)


async def test_lost_bookie_cuts_a_slow_filling(autojump_clock: trio.testing.MockClock) -> None:
    """What is most endangered now comes first, whatever was under way."""
    slow = ClientTuning(add_timeout_s=1.0, add_quorum_timeout_s=10.0, read_timeout_s=1.0, repair_bytes_per_s=20)
    async with cluster(6) as world, world.client(slow) as client:
        ledger_ids = [await written(client) for _ in range(10)]
        one, other = (await members(world, client, ledger_ids[0]))[:2]
        await one.kill()
        await client.admin.declare_lost([one.bookie_id])
        async with repairing(client):
            await trio.sleep(20)
            await other.kill()
            await client.admin.declare_lost([other.bookie_id], accept_loss=True)
            with trio.fail_after(1000):
                while (await client.admin.audit()).under_replicated:  # noqa: ASYNC110 - bookies have no event
                    await trio.sleep(10)
        for ledger_id in ledger_ids:
            assert await read_ledger(client, ledger_id) == [b"a", b"b", b"c"]


async def test_loss_during_a_filling_changes_the_order(autojump_clock: trio.testing.MockClock) -> None:
    """Ledgers that have lost two copies by then are whole again while others still lack the one that they lost first."""
    slow = ClientTuning(add_timeout_s=1.0, add_quorum_timeout_s=10.0, read_timeout_s=1.0, repair_bytes_per_s=20)
    async with cluster(6) as world, world.client(slow) as client:
        ledger_ids: list[int] = []
        one, other = (bookie.bookie_id for bookie in world.bookies[:2])

        async def ensembles() -> dict[int, set[str]]:
            return {each: set((await client.ledger_metadata(each)).last_fragment.ensemble) for each in ledger_ids}

        found: dict[int, set[str]] = {}
        while (
            sum({one, other} <= each for each in found.values()) < 6
            or sum(one in each and other not in each for each in found.values()) < 12
        ):
            ledger_ids.append(await written(client))
            found = await ensembles()

        await world.named([one])[0].kill()
        await client.admin.declare_lost([one])
        async with repairing(client):
            await trio.sleep(20)
            await world.named([other])[0].kill()
            await client.admin.declare_lost([other], accept_loss=True)
            found = await ensembles()
            endangered = [each for each in ledger_ids if {one, other} <= found[each]]
            less = [each for each in ledger_ids if one in found[each] and other not in found[each]]
            assert endangered
            assert len(less) > 4
            with trio.fail_after(2000):
                while any({one, other} & found[each] for each in endangered):
                    await trio.sleep(1)
                    found = await ensembles()
            # The one that was under way may have ended before the service looked.
            assert sum(one not in found[each] for each in less) <= 2, "the filling that was under way went on"


@pytest.mark.slow
async def test_bookies_with_repair_auto_replace_a_lost_one() -> None:
    """Three bookies repair without an operator; each reports what it has done."""
    auto = BookieTuning(storage="memory", repair="auto", repair_interval_s=60.0)
    async with cluster(1) as world, trio.open_nursery() as nursery:
        served = []

        async def serve(number: int, task_status: trio.TaskStatus[None]) -> None:
            name = f"auto-{number}"
            config = BookieConfig(directory=name, metastore=world.metastore, options=auto, client=QUICK)
            async with serve_bookie(config, registry=world.registry) as bookie:
                served.append(bookie)
                task_status.started()
                await trio.sleep_forever()

        for number in range(3):
            await nursery.start(serve, number)
        async with world.client(QUICK) as client:
            victim = world.bookies[0]
            ledger_ids = [await written(client) for _ in range(12)]
            await victim.kill()
            await client.admin.declare_lost([victim.bookie_id])
            await until(lambda: sum(each.statistics().get("repair_audits", 0) for each in served) >= 6, 300)
            for ledger_id in ledger_ids:
                assert victim.bookie_id not in (await client.ledger_metadata(ledger_id)).last_fragment.ensemble
                assert await read_ledger(client, ledger_id) == [b"a", b"b", b"c"]
            shares = [each.statistics() for each in served]
            assert sum(each["repair_audited_ledgers"] for each in shares) == 12
            assert sum(each["repair_under_replicated"] for each in shares) == 0
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_shares_divide_the_ledgers_evenly(count: int) -> None:
    ids = [f"repairer-{number}" for number in range(count)]
    shares = [Share(each, ids) for each in ids]
    sizes = [sum(share.has(ledger_id) for ledger_id in range(10_000)) for share in shares]
    assert sum(sizes) == 10_000
    assert min(sizes) > 0.8 * 10_000 / count
    fewer = [Share(each, ids[:-1]) for each in ids[:-1]]
    for share, before in zip(fewer, shares, strict=False):
        assert all(share.has(ledger_id) for ledger_id in range(10_000) if before.has(ledger_id))
