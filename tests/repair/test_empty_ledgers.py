"""Repairs of ledgers that were closed without an entry: their records stop naming bookies that are lost or drain (F1, F4)."""

from __future__ import annotations

import attrs
import pytest
import trio
import trio.testing

from replog.config.client import ClientTuning
from replog.protocol.model import LedgerMetadata
from replog.protocol.quorum import Quorum
from replog.records.encoding import encode
from replog.records.paths import ledger_key_path
from replog.testing import Fault
from tests.kit import cluster

QUICK = ClientTuning(add_timeout_s=1.0, add_quorum_timeout_s=10.0, read_timeout_s=1.0, recovery_timeout_s=10.0)
TWO = Quorum(2, 2, 2)
FAULTS = [None, Fault.ANSWER_LOST, Fault.REQUEST_LOST, Fault.ARRIVES_LATE, Fault.CONFLICT]


@pytest.mark.parametrize("is_unbounded", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
async def test_lost_bookie_leaves_an_empty_ledger(
    fault: Fault | None, is_unbounded: bool, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster(4) as world, world.client(QUICK) as client:
        async with client.create_ledger(unbounded=is_unbounded) as writer:
            await writer.finish()
        before = await client.ledger_metadata(writer.ledger_id)
        lost = world.named(before.last_fragment.ensemble)[1]
        await lost.kill()
        (empty,) = (await client.admin.repair()).idle
        assert (empty.leaving, empty.away) == ((), (lost.bookie_id,)), "one that is merely away keeps its place"
        assert await client.ledger_metadata(writer.ledger_id) == before
        await client.admin.declare_lost([lost.bookie_id])
        (empty,) = (await client.admin.audit()).idle
        assert (empty.ledger_id, empty.leaving, empty.away) == (writer.ledger_id, (lost.bookie_id,), ())
        if fault is not None:
            world.metastore.fail_next("put", fault, under=ledger_key_path(writer.ledger_id))
        report = await client.admin.repair()
        assert world.metastore.planned() == 0
        assert (report.idle, report.under_replicated) == ((), 0)
        after = await client.ledger_metadata(writer.ledger_id)
        (spare,) = world.spare(before.last_fragment.ensemble)
        kept = [before.last_fragment.ensemble[0], spare.bookie_id, before.last_fragment.ensemble[2]]
        assert list(after.last_fragment.ensemble) == kept
        assert after.revision == before.revision + 1
        assert after.token != before.token
        async with client.open_ledger(writer.ledger_id) as reader:
            assert [entry async for entry in reader] == []


async def test_draining_bookie_leaves_an_empty_ledger(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(QUICK, TWO) as client:
        async with client.create_ledger() as writer:
            pass
        gone = writer.metadata.last_fragment.ensemble[0]
        assert (await client.admin.drain(gone)).is_safe_to_stop, "it holds nothing"
        assert [each.leaving for each in (await client.admin.audit()).idle] == [(gone,)]
        assert (await client.admin.repair()).idle == ()
        assert gone not in (await client.ledger_metadata(writer.ledger_id)).last_fragment.ensemble


async def test_absent_named_bookie_leaves_an_empty_ledger(autojump_clock: trio.testing.MockClock) -> None:
    """As it leaves fragments with entries."""
    async with cluster(4) as world, world.client(QUICK, TWO) as client:
        async with client.create_ledger() as writer:
            pass
        away = world.named(writer.metadata.last_fragment.ensemble)[0]
        await away.kill()
        await client.admin.repair()
        assert away.bookie_id in (await client.ledger_metadata(writer.ledger_id)).last_fragment.ensemble
        await client.admin.repair(away=[away.bookie_id])
        assert away.bookie_id not in (await client.ledger_metadata(writer.ledger_id)).last_fragment.ensemble


async def test_open_ledger_keeps_its_bookies(autojump_clock: trio.testing.MockClock) -> None:
    """F2: its writer, or who recovers it, decides."""
    async with cluster(4) as world, world.client(QUICK, TWO) as client, client.create_ledger() as writer:
        before = await client.ledger_metadata(writer.ledger_id)
        lost = world.named(before.last_fragment.ensemble)[0]
        await lost.kill()
        assert (await client.admin.repair(lost=[lost.bookie_id])).idle == ()


async def test_empty_ledger_stays_and_is_reported_without_a_spare(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster(2) as world, world.client(QUICK, TWO) as client:
        async with client.create_ledger() as writer:
            pass
        lost = world.bookies[0]
        await lost.kill()
        report = await client.admin.repair(lost=[lost.bookie_id])
        assert [each.ledger_id for each in report.idle] == [writer.ledger_id]
        await world.add_bookie()
        assert (await client.admin.repair()).idle == ()


async def test_pause_holds_for_empty_ledgers(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(QUICK, TWO) as client:
        async with client.create_ledger() as writer:
            pass
        await client.admin.drain(writer.metadata.last_fragment.ensemble[0])
        await client.admin.pause_repairs()
        assert len((await client.admin.repair()).idle) == 1
        await client.admin.resume_repairs()
        assert (await client.admin.repair()).idle == ()


async def test_concurrent_change_of_the_record_is_kept(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """M1: the replacement was chosen for other bookies than the record names by then."""
    async with cluster(4) as world, world.client(QUICK, TWO) as client:
        async with client.create_ledger() as writer:
            pass
        before = await client.ledger_metadata(writer.ledger_id)
        lost = world.named(before.last_fragment.ensemble)[0]
        await lost.kill()
        await client.admin.declare_lost([lost.bookie_id])
        key = ledger_key_path(writer.ledger_id)
        spares = [each.bookie_id for each in world.spare(before.last_fragment.ensemble)]
        theirs = _with_ensemble(before, (spares[0], spares[1]))
        choose = client._opened.repairer.relocation.without

        async def choose_late(*args: object) -> dict[int, str]:
            chosen = await choose(*args)  # type: ignore[arg-type]
            if await client.ledger_metadata(writer.ledger_id) == before:
                await world.metastore.put(key, encode(theirs), (await world.metastore.get(key)).version)
            return chosen

        client._opened.repairer.relocation.without = choose_late  # type: ignore[method-assign,assignment]
        await client.admin.repair()
        assert await client.ledger_metadata(writer.ledger_id) == theirs


def _with_ensemble(metadata: LedgerMetadata, ensemble: tuple[str, ...]) -> LedgerMetadata:
    fragment = attrs.evolve(metadata.last_fragment, ensemble=ensemble)
    return attrs.evolve(metadata, fragments=(fragment,), token="somebody.1", revision=metadata.revision + 1)


async def test_lost_bookie_without_entries_is_replaced(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """F1: one entry on three of five bookies. A second loss is no more than one, and is accepted."""
    quorum = Quorum(5, 3, 2)
    async with cluster(7) as world, world.client(QUICK, quorum) as client:
        async with client.create_ledger(quorum=quorum) as writer:
            await writer.append(b"0")
        ensemble = world.named(writer.metadata.last_fragment.ensemble)
        idle, stores = ensemble[4], ensemble[0]
        await idle.kill()
        await client.admin.declare_lost([idle.bookie_id])
        report = await client.admin.audit()
        assert report.under_replicated == 0
        assert [(each.first_entry_id, each.leaving) for each in report.idle] == [(0, (idle.bookie_id,))]
        assert (await client.admin.repair()).idle == ()
        assert idle.bookie_id not in (await client.ledger_metadata(writer.ledger_id)).last_fragment.ensemble
        await stores.kill()
        assert (await client.admin.repair(lost=[stores.bookie_id])).under_replicated == 0


@pytest.mark.parametrize(("entries", "is_at_risk"), [(1, False), (5, True)])
async def test_write_sets_without_entries_are_at_no_risk(
    entries: int, is_at_risk: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """B8a: the bookies at 3 and 4 are an ack quorum of entries 2 and 3, and store one copy of entry 0 together, or none."""
    quorum = Quorum(5, 3, 2)
    async with cluster(7) as world, world.client(QUICK, quorum) as client:
        async with client.create_ledger(quorum=quorum) as writer:
            await writer.extend([b"%d" % number for number in range(entries)])
        lost = [each.bookie_id for each in world.named(writer.metadata.last_fragment.ensemble)[3:]]
        for bookie in world.named(lost):
            await bookie.kill()
        at_risk = await client.admin.declare_lost(lost, accept_loss=True)
        assert [each.ledger_id for each in at_risk] == [writer.ledger_id] * is_at_risk
