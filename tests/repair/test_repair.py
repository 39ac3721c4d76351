"""Audits and repairs by clients, over bookies in memory (F1-F6, B8a)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

from replog import Client, DigestType, Quorum
from replog.config.client import ClientTuning
from replog.errors import AdministrationError, LossNotAcceptedError
from replog.protocol.messages import CopyReadRequest, CopyRequest, FenceRequest, RangesRequest, Status
from replog.protocol.mutations import DropEntries
from replog.records.bookies import cookie_key, decode_cookie
from tests.kit import Bookie, Cluster, cluster, read_ledger
from tests.lanes.seeds import some

QUICK = ClientTuning(add_timeout_s=1.0, add_quorum_timeout_s=10.0, read_timeout_s=1.0, recovery_timeout_s=10.0)
ENTRIES = [b"entry %d" % number for number in range(40)]


async def written(
    client: Client, quorum: Quorum | None = None, password: bytes = b"", digest: DigestType = DigestType.CRC32C
) -> int:
    """A closed ledger of several batches."""
    async with client.create_ledger(quorum=quorum or Quorum(3, 3, 2), password=password, digest_type=digest) as writer:
        for start in range(0, len(ENTRIES), 10):
            await writer.extend(ENTRIES[start : start + 10])
    # What the third bookie has not acknowledged yet is on its way.
    await trio.testing.wait_all_tasks_blocked()
    return writer.ledger_id


@asynccontextmanager
async def repaired_world(bookies: int = 4) -> AsyncIterator[tuple[Cluster, Client]]:
    async with cluster(bookies) as world, world.client(QUICK) as client:
        yield world, client


def of(world: Cluster, bookie_id: str) -> Bookie:
    return next(each for each in world.bookies if each.bookie_id == bookie_id)


async def members(world: Cluster, client: Client, ledger_id: int) -> list[Bookie]:
    metadata = await client.ledger_metadata(ledger_id)
    return [of(world, bookie_id) for bookie_id in metadata.last_fragment.ensemble]


async def test_healthy_ledgers_lack_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with repaired_world() as (_, client):
        for _ in range(3):
            await written(client)
        report = await client.admin.audit()
        assert (report.ledgers, report.fragments, report.open_ledgers) == (3, 3, 0)
        assert report.under_replicated == 0
        assert await client.admin.repair() == report


@pytest.mark.parametrize("digest", list(DigestType))
@pytest.mark.parametrize("password", some([b"secret", b""], fast=1))
@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(4, 3, 2), Quorum(2, 2, 2)])
async def test_lost_bookie_is_replaced(
    quorum: Quorum, password: bytes, digest: DigestType, autojump_clock: trio.testing.MockClock
) -> None:
    """F1, F3, B8a: another one is lost afterwards, and everything is still read."""
    async with repaired_world(6) as (world, client):
        ledger_ids = [await written(client, quorum, password, digest) for _ in range(4)]
        first = (await members(world, client, ledger_ids[0]))[0]
        await first.kill()
        report = await client.admin.audit()
        assert report.under_replicated >= 1
        states = {(each.bookie_id, each.state) for lacking in report.lacking for each in lacking.missing}
        assert states == {(first.bookie_id, "away")}
        after = await client.admin.repair(lost=[first.bookie_id], accept_loss=True)
        assert after.under_replicated == 0, after
        second = (await members(world, client, ledger_ids[0]))[1]
        await second.kill()
        for ledger_id in ledger_ids:
            assert first.bookie_id not in (await client.ledger_metadata(ledger_id)).last_fragment.ensemble
            async with client.open_ledger(ledger_id, password=password) as reader:
                assert [entry.data async for entry in reader] == ENTRIES


async def test_absent_bookie_is_not_replaced_and_catches_up(autojump_clock: trio.testing.MockClock) -> None:
    """W7: what it missed is lacking until it is back and a repair has filled it; its gaps leave the record."""
    async with repaired_world(3) as (world, client):
        async with client.create_ledger() as writer:
            await writer.append(ENTRIES[0])
            away = of(world, writer.metadata.last_fragment.ensemble[2])
            await away.kill()
            await writer.extend(ENTRIES[1:])
        report = await client.admin.repair()
        (lacking,) = [each for fragment in report.lacking for each in fragment.missing]
        assert (lacking.bookie_id, lacking.state) == (away.bookie_id, "away")
        await away.start()
        (fragment,) = (await client.admin.audit()).lacking
        (lacking,) = fragment.missing
        assert (lacking.state, lacking.entries, lacking.is_recorded) == ("missing", ((1, 39),), True)
        assert fragment.copies_left == 2
        assert (await client.admin.repair()).under_replicated == 0
        metadata = await client.ledger_metadata(writer.ledger_id)
        assert not metadata.gaps
        assert away.bookie_id in metadata.last_fragment.ensemble
        assert not [each for each in away.wire.seen if isinstance(each, FenceRequest)]


async def test_absent_bookie_keeps_its_place_unless_it_is_named(autojump_clock: trio.testing.MockClock) -> None:
    """A restart costs nothing, even if there is a spare bookie."""
    async with repaired_world(4) as (world, client):
        ledger_id = await written(client)
        before = await client.ledger_metadata(ledger_id)
        absent = of(world, before.last_fragment.ensemble[0])
        await absent.kill()
        assert (await client.admin.repair()).under_replicated == 1
        assert await client.ledger_metadata(ledger_id) == before
        assert (await client.admin.repair(away=[absent.bookie_id])).under_replicated == 0
        after = await client.ledger_metadata(ledger_id)
        assert absent.bookie_id not in after.last_fragment.ensemble
        await absent.start()
        assert (await client.admin.repair(away=[absent.bookie_id])).under_replicated == 0
        assert await client.ledger_metadata(ledger_id) == after


async def test_declared_lost_before_and_unknown(autojump_clock: trio.testing.MockClock) -> None:
    """B8a: what `replog bookies lost` declared is repaired by any repair."""
    async with repaired_world(4) as (world, client):
        ledger_id = await written(client)
        victim = (await members(world, client, ledger_id))[0]
        with pytest.raises(AdministrationError, match="the metastore does not know it"):
            await client.admin.repair(lost=["bookie-nobody"])
        with pytest.raises(AdministrationError, match="it is announced"):
            await client.admin.repair(lost=[victim.bookie_id])
        await victim.kill()
        await client.admin.declare_lost([victim.bookie_id])
        assert (await client.admin.repair()).under_replicated == 0
        assert (await client.admin.repair(lost=[victim.bookie_id])).under_replicated == 0


async def test_unaccepted_loss_repairs_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with repaired_world(5) as (world, client):
        ledger_id = await written(client)
        one, other, _ = await members(world, client, ledger_id)
        await one.kill()
        await other.kill()
        with pytest.raises(LossNotAcceptedError):
            await client.admin.repair(lost=[one.bookie_id, other.bookie_id])
        assert (await client.admin.audit()).under_replicated == 1
        report = await client.admin.repair(lost=[one.bookie_id, other.bookie_id], accept_loss=True)
        assert report.under_replicated == 0
        assert await read_ledger(client, ledger_id) == ENTRIES


async def test_losses_one_after_the_other_add_up(autojump_clock: trio.testing.MockClock) -> None:
    """B8a: the first costs nothing, the second may: by whichever client, at whatever time."""
    async with repaired_world(3) as (world, client):
        ledger_id = await written(client)
        first, second, _ = await members(world, client, ledger_id)
        await first.kill()
        await client.admin.declare_lost([first.bookie_id])
        await second.kill()
        async with world.client(QUICK) as other:
            with pytest.raises(LossNotAcceptedError, match="Nothing was declared"):
                await other.admin.declare_lost([second.bookie_id])
            (lacking,) = (await other.admin.audit()).lacking
            assert {each.bookie_id: each.state for each in lacking.missing} == {
                first.bookie_id: "lost",
                second.bookie_id: "away",
            }
            await other.admin.declare_lost([second.bookie_id], accept_loss=True)
            # Once more, when nothing is at risk any more: that takes nothing back.
            await other.delete_ledger(ledger_id)
            await other.admin.declare_lost([second.bookie_id])
            key = cookie_key(second.bookie_id)
            cookie = decode_cookie(key, (await world.metastore.get(key)).value)
            assert (cookie.is_lost, cookie.is_loss_accepted) == (True, True)


async def test_without_a_spare_bookie_the_ledger_stays_short(autojump_clock: trio.testing.MockClock) -> None:
    async with repaired_world(3) as (world, client):
        ledger_id = await written(client)
        victim = (await members(world, client, ledger_id))[1]
        await victim.kill()
        report = await client.admin.repair(lost=[victim.bookie_id])
        assert [each.state for each in report.lacking[0].missing] == ["lost"]
        await world.add_bookie()
        assert (await client.admin.repair()).under_replicated == 0


async def test_writers_go_on_and_are_not_fenced(autojump_clock: trio.testing.MockClock) -> None:
    """F2, F4: a writer changes its ensemble and appends while earlier fragments are repaired."""
    async with repaired_world(5) as (world, client):
        async with client.create_ledger(quorum=Quorum(3, 3, 2)) as writer:
            await writer.extend(ENTRIES[:20])
            victim = of(world, writer.metadata.last_fragment.ensemble[0])
            await victim.kill()
            await writer.extend(ENTRIES[20:30])
            report = await client.admin.repair(lost=[victim.bookie_id])
            assert (report.under_replicated, report.open_ledgers) == (0, 1)
            await writer.extend(ENTRIES[30:])
        metadata = await client.ledger_metadata(writer.ledger_id)
        assert len(metadata.fragments) >= 2
        assert all(victim.bookie_id not in fragment.ensemble for fragment in metadata.fragments)
        assert await read_ledger(client, writer.ledger_id) == ENTRIES
        assert (await client.admin.repair()).under_replicated == 0


async def test_silent_and_refusing_bookies_are_named(autojump_clock: trio.testing.MockClock) -> None:
    """W6: a bookie that answers nothing, and one that knows no repairer."""
    async with repaired_world(3) as (world, client):
        ledger_id = await written(client, password=b"secret")
        silent, refusing, _ = await members(world, client, ledger_id)
        silent.wire.is_deaf = True
        refusing.wire.refuse = lambda request: Status.UNAUTHORIZED if isinstance(request, RangesRequest) else None
        report = await client.admin.repair()
        problems = {each.bookie_id: (each.state, each.problem) for each in report.lacking[0].missing}
        assert problems.keys() == {silent.bookie_id, refusing.bookie_id}
        assert "in time" in problems[silent.bookie_id][1]
        assert "unauthorized" in problems[refusing.bookie_id][1]


async def test_refusing_target_keeps_the_record(autojump_clock: trio.testing.MockClock) -> None:
    """F1: no replacement is named that did not take everything; the next repair goes on."""
    async with repaired_world(4) as (world, client):
        ledger_id = await written(client)
        metadata = await client.ledger_metadata(ledger_id)
        victim = of(world, metadata.last_fragment.ensemble[0])
        (spare,) = [each for each in world.bookies if each.bookie_id not in metadata.last_fragment.ensemble]
        await victim.kill()
        spare.wire.refuse = lambda request: Status.READ_ONLY if isinstance(request, CopyRequest) else None
        assert (await client.admin.repair(lost=[victim.bookie_id])).under_replicated == 1
        assert await client.ledger_metadata(ledger_id) == metadata
        spare.wire.refuse = lambda _request: None
        assert (await client.admin.repair()).under_replicated == 0
        assert not [each for each in spare.wire.seen if isinstance(each, CopyReadRequest)]


async def test_lost_answers_of_a_target_are_made_up_for_by_asking(autojump_clock: trio.testing.MockClock) -> None:
    """F3: it stored the copies, and says so when it is asked what it holds."""
    async with repaired_world(4) as (world, client):
        ledger_id = await written(client)
        victim = (await members(world, client, ledger_id))[0]
        await victim.kill()
        for bookie in world.bookies:
            bookie.wire.lose_answer = lambda request: isinstance(request, CopyRequest)
        assert (await client.admin.repair(lost=[victim.bookie_id])).under_replicated == 0


async def test_copies_are_sent_no_faster_than_asked_for(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(4) as world, world.client(attrs.evolve(QUICK, repair_bytes_per_s=100)) as client:
        ledger_id = await written(client)
        victim = (await members(world, client, ledger_id))[0]
        await victim.kill()
        started_s = trio.current_time()
        assert (await client.admin.repair(lost=[victim.bookie_id])).under_replicated == 0
        size_bytes = sum(
            len(each.batch.data)
            for bookie in world.bookies
            for each in bookie.wire.seen
            if isinstance(each, CopyRequest)
        )
        # The last copy may be sent as soon as those before it are paid for.
        assert trio.current_time() - started_s >= size_bytes / 100 / 2


async def test_two_repairs_at_once_harm_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """F4, F6."""
    async with repaired_world(6) as (world, client), world.client(QUICK) as other:
        ledger_ids = [await written(client) for _ in range(12)]
        victim = (await members(world, client, ledger_ids[0]))[0]
        await victim.kill()
        await client.admin.declare_lost([victim.bookie_id])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.admin.repair)
            nursery.start_soon(other.admin.repair)
        assert (await client.admin.repair()).under_replicated == 0
        for ledger_id in ledger_ids:
            assert await read_ledger(client, ledger_id) == ENTRIES


async def test_cancelled_repair_goes_on_from_where_it_was(autojump_clock: trio.testing.MockClock) -> None:
    """F6: cut off after each so many requests, it ends in the end."""
    async with repaired_world(5) as (world, client):
        ledger_ids = [await written(client) for _ in range(6)]
        victim = (await members(world, client, ledger_ids[0]))[0]
        await victim.kill()
        await client.admin.declare_lost([victim.bookie_id])
        for bookie in world.bookies:
            bookie.wire.delay_s = 0.01
        for limit_s in range(1, 40):
            with trio.move_on_after(0.01 * limit_s) as scope:
                await client.admin.repair()
            if not scope.cancelled_caught:
                break
        assert (await client.admin.audit()).under_replicated == 0
        for ledger_id in ledger_ids:
            assert await read_ledger(client, ledger_id) == ENTRIES


@pytest.mark.parametrize("trouble", ["cut", "gone", "deaf"])
async def test_failed_repair_does_not_delay_the_others(trouble: str, autojump_clock: trio.testing.MockClock) -> None:
    """W6: what was on its way to a bookie takes no room before it any more, however that ended."""
    async with cluster(4) as world, world.client(attrs.evolve(QUICK, repair_in_flight_bytes_max=1 << 10)) as client:
        ledger_id = await written(client)
        first, *others = await members(world, client, ledger_id)
        (spare,) = world.spare((await client.ledger_metadata(ledger_id)).last_fragment.ensemble)
        await first.kill()
        await client.admin.declare_lost([first.bookie_id])
        for _ in range(3):
            if trouble == "cut":
                spare.wire.holds = lambda request: isinstance(request, CopyRequest)
                with trio.move_on_after(0.5) as scope:
                    await client.admin.repair()
                assert scope.cancelled_caught
                spare.wire.forget()
                spare.wire.holds = lambda _request: False
            elif trouble == "gone":
                for bookie in others:
                    bookie.wire.holds = lambda request: isinstance(request, CopyReadRequest)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(client.admin.repair)
                    await trio.sleep(0.5)
                    await spare.kill()
                    for bookie in others:
                        bookie.wire.release()
                await spare.start()
            else:
                spare.wire.refuse = lambda _request: None
                spare.wire.is_deaf = True
                assert (await client.admin.repair()).under_replicated == 1
                spare.wire.is_deaf = False
            await trio.sleep(5)
        with trio.fail_after(60):
            assert (await client.admin.repair()).under_replicated == 0
        await others[0].kill()
        assert await read_ledger(client, ledger_id) == ENTRIES


async def test_silent_member_is_not_taken_for_an_empty_one(autojump_clock: trio.testing.MockClock) -> None:
    """F1: one member is lost, another one lacks entries, and the third, which has all, does not tell for a while. Then nobody is
    named who lacks them, and the next repair finds them."""
    async with repaired_world(4) as (world, client):
        ledger_id = await written(client)
        metadata = await client.ledger_metadata(ledger_id)
        lost, short, silent = await members(world, client, ledger_id)
        await lost.kill()
        short.storage.inner.commit([DropEntries(ledger_id, metadata.last_fragment.term, 20, 39)])
        silent.wire.refuse = lambda request: Status.TOO_BUSY if isinstance(request, RangesRequest) else None
        assert (await client.admin.repair([lost.bookie_id], accept_loss=True)).under_replicated == 1
        assert (await client.ledger_metadata(ledger_id)).fragments == metadata.fragments
        silent.wire.refuse = lambda _request: None
        assert (await client.admin.repair()).under_replicated == 0
        await silent.kill()
        assert await read_ledger(client, ledger_id) == ENTRIES


async def test_deleted_ledgers_and_empty_ones_are_passed_over(autojump_clock: trio.testing.MockClock) -> None:
    async with repaired_world(4) as (world, client):
        async with client.create_ledger() as writer:
            pass
        ledger_id = await written(client)
        victim = (await members(world, client, ledger_id))[0]
        await victim.kill()
        await client.delete_ledger(ledger_id)
        report = await client.admin.repair(lost=[victim.bookie_id])
        assert (report.ledgers, report.fragments, report.under_replicated) == (1, 0, 0)
        assert writer.metadata.last_entry_id in (None, -1)
