"""Audits while ledgers are deleted, trimmed and moved, and what they say of entries that no bookie has (F1, F3)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import attrs
import trio
import trio.testing

from replog import AuditReport, Client, Quorum
from replog.bookie.garbage import collect_garbage
from replog.config import ClientOptions
from replog.protocol.messages import RangesRequest, Status
from tests.bookie.test_releasing import change, release
from tests.kit import Bookie, Cluster, cluster

QUICK = ClientOptions(add_timeout_s=1.0, add_quorum_timeout_s=10.0, read_timeout_s=1.0, recovery_timeout_s=10.0)
ENTRIES = [b"entry %d" % number for number in range(40)]


@asynccontextmanager
async def audited_world(bookies: int) -> AsyncIterator[tuple[Cluster, Client]]:
    async with cluster(bookies) as world, world.client(QUICK) as client:
        yield world, client


async def written(client: Client, quorum: Quorum, **options: object) -> int:
    async with client.create_ledger(quorum=quorum, **options) as writer:  # type: ignore[arg-type]
        for start in range(0, len(ENTRIES), 10):
            await writer.extend(ENTRIES[start : start + 10])
    await trio.testing.wait_all_tasks_blocked()
    return writer.ledger_id


async def audited_amid(client: Client, asked: Bookie, happens: Callable[[], Awaitable[object]]) -> AuditReport:
    """An audit during which something happens: after the record was read, before this bookie says what it holds."""
    asked.wire.holds = lambda request: isinstance(request, RangesRequest)
    reports: list[AuditReport] = []

    async def audit() -> None:
        reports.append(await client.audit())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(audit)
        await trio.testing.wait_all_tasks_blocked()
        assert asked.wire.is_held, "the audit asks this bookie"
        await happens()
        asked.wire.release()
    return reports[0]


async def test_deleted_amid_an_audit_lacks_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with audited_world(3) as (world, client):
        ledger_id = await written(client, Quorum(3, 3, 2))
        bookie = world.bookies[0]

        async def delete() -> None:
            await client.delete_ledger(ledger_id)
            await collect_garbage(bookie.server, world.metastore)
            assert ledger_id not in bookie.storage.ledger_ids()

        report = await audited_amid(client, bookie, delete)
        assert (report.ledgers, report.under_replicated) == (0, 0)


async def test_moved_amid_an_audit_lacks_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """F5: a bookie drops what the record names another one for now; the audit had read the record before."""
    async with audited_world(4) as (world, client):
        ledger_id = await written(client, Quorum(3, 3, 2))
        fragment = (await client.ledger_metadata(ledger_id)).last_fragment
        (former,), (other,) = world.named(fragment.ensemble[:1]), world.spare(fragment.ensemble)
        moved = attrs.evolve(fragment, ensemble=(other.bookie_id, *fragment.ensemble[1:]))
        await change(world, ledger_id, fragments=(moved,))
        assert (await client.repair()).under_replicated == 0
        await change(world, ledger_id, fragments=(fragment,))

        async def move() -> None:
            await change(world, ledger_id, fragments=(moved,))
            assert await release(world, former) == 1

        report = await audited_amid(client, former, move)
        assert (report.ledgers, report.under_replicated) == (1, 0)


async def test_trimmed_amid_an_audit_lacks_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with audited_world(3) as (world, client):
        async with client.create_ledger(unbounded=True) as writer:
            for _ in range(4):
                await writer.extend(ENTRIES)
                await writer.roll()
        bookie = world.bookies[0]

        async def trim() -> None:
            assert await client.trim_ledger(writer.ledger_id, before=100) == 80
            assert await release(world, bookie) >= 1

        report = await audited_amid(client, bookie, trim)
        assert (report.ledgers, report.fragments, report.under_replicated) == (1, 2, 0)


async def test_what_is_missing_amid_other_changes_is_told(autojump_clock: trio.testing.MockClock) -> None:
    """A record that changes at each look does not hide what it still names a bookie for."""
    async with audited_world(3) as (world, client):
        ledger_id = await written(client, Quorum(3, 3, 2))
        bookie = world.bookies[0]
        bookie.wire.refuse = lambda request: Status.UNKNOWN if isinstance(request, RangesRequest) else None

        async def keep_changing() -> None:
            while True:
                await change(world, ledger_id)
                await trio.sleep(0.01)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_changing)
            bookie.wire.delay_s = 0.05
            (lacking,) = (await client.audit()).lacking
            nursery.cancel_scope.cancel()
        assert [each.bookie_id for each in lacking.missing] == [bookie.bookie_id]
