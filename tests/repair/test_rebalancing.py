"""Moving copies onto a bookie that has few (F1, F4)."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from replog import Quorum
from replog.config import BookieOptions
from replog.config.client import ClientTuning
from replog.errors import AdministrationError
from replog.repair.progress import RepairProgress
from tests.kit import cluster, read_ledger

QUICK = ClientTuning(add_timeout_s=1.0, add_quorum_timeout_s=10.0, read_timeout_s=1.0)
ENTRIES = [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(3, 2, 2)])
async def test_new_bookie_gets_its_share(quorum: Quorum, autojump_clock: trio.testing.MockClock) -> None:
    told: list[RepairProgress] = []
    async with cluster(3) as world, world.client(QUICK) as client:
        written = []
        for number in range(12):
            async with client.create_ledger(quorum=quorum) as writer:
                await writer.extend(ENTRIES[: 5 + number])
            written.append(writer.ledger_id)
        await trio.testing.wait_all_tasks_blocked()
        new = (await world.add_bookie()).bookie_id
        report = await client.admin.rebalance(new, progress=told.append)
        assert report.planned == report.moved > 0
        assert 0.8 * report.share <= report.entries <= report.share
        assert (told[-1].stage, told[-1].done, told[-1].total) == ("move", report.moved, report.moved)
        assert (await client.admin.audit()).under_replicated == 0
        named = [each for each in written if new in (await client.ledger_metadata(each)).last_fragment.ensemble]
        assert len(named) == report.moved
        for number, ledger_id in enumerate(written):
            assert await read_ledger(client, ledger_id) == ENTRIES[: 5 + number]
        again = await client.admin.rebalance(new)
        assert (again.planned, again.entries) == (0, report.entries)


async def test_few_large_fragments_are_shared(autojump_clock: trio.testing.MockClock) -> None:
    """Segments of logs are of one size: a giver may fall below its share by a part of one, or the new bookie stays empty."""
    async with cluster(3) as world, world.client(QUICK) as client:
        for count in (20, 20, 20, 5):
            async with client.create_ledger() as writer:
                await writer.extend(ENTRIES[:count])
        new = (await world.add_bookie()).bookie_id
        report = await client.admin.rebalance(new)
        assert (report.share, report.entries, report.moved) == (48, 45, 3)
        assert (await client.admin.audit()).under_replicated == 0
        assert (await client.admin.rebalance(new)).planned == 0


async def test_no_bookie_is_left_with_less_than_the_new_one(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        async with client.create_ledger() as writer:
            await writer.extend(ENTRIES)
        new = (await world.add_bookie()).bookie_id
        report = await client.admin.rebalance(new)
        assert (report.share, report.moved) == (15, 0), "it would only change who has none"


async def test_rebalancing_keeps_to_the_zones(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(0) as world:
        for zone in "ab":
            await world.add_bookie(BookieOptions(storage="memory", labels=(f"zone={zone}",)))
        two = Quorum(2, 2, 2)
        async with world.client(QUICK, two, placement="zones:?at_least=2&strict=true") as client:
            for _ in range(6):
                async with client.create_ledger() as writer:
                    await writer.extend(ENTRIES)
            await trio.testing.wait_all_tasks_blocked()
            new = (await world.add_bookie(BookieOptions(storage="memory", labels=("zone=a",)))).bookie_id
            report = await client.admin.rebalance(new)
            assert report.moved > 0
            audit = await client.admin.audit()
            assert (audit.misplaced, audit.under_replicated) == ((), 0)


async def test_absent_or_draining_bookie_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(2) as world, world.client(QUICK) as client:
        one, other = world.bookies
        await client.admin.drain(one.bookie_id)
        with pytest.raises(AdministrationError, match="it is to be left"):
            await client.admin.rebalance(one.bookie_id)
        await other.kill()
        with pytest.raises(AdministrationError, match="it is not announced"):
            await client.admin.rebalance(other.bookie_id)


async def test_writers_go_on_while_copies_move(autojump_clock: trio.testing.MockClock) -> None:
    """F2: the last fragment of an open ledger stays where it is."""
    async with cluster(3) as world, world.client(QUICK) as client:
        async with client.create_ledger() as writer:
            await writer.extend(ENTRIES[:10])
            new = (await world.add_bookie()).bookie_id
            assert (await client.admin.rebalance(new)).planned == 0
            await writer.extend(ENTRIES[10:])
        assert await read_ledger(client, writer.ledger_id) == ENTRIES
