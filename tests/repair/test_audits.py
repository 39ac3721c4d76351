"""Audits while ledgers are deleted, trimmed and moved, and what they say of entries that no bookie has (F1, F3)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

from replog import Client, DigestType, LedgerWriter, Quorum
from replog.bookie.garbage import collect_garbage
from replog.config.client import ClientTuning
from replog.hookspecs import FragmentRepaired
from replog.protocol.batch import Batch, build
from replog.protocol.digest import Digest
from replog.protocol.messages import CopyReadRequest, RangesRequest, Request, Response, Status
from replog.protocol.mutations import DropEntries
from replog.results import AuditReport
from tests.bookie.test_releasing import change, release
from tests.kit import Bookie, Cluster, cluster

QUICK = ClientTuning(add_timeout_s=1.0, add_quorum_timeout_s=10.0, read_timeout_s=1.0, recovery_timeout_s=10.0)
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
        reports.append(await client.admin.audit())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(audit)
        await trio.testing.wait_all_tasks_blocked()
        assert asked.wire.is_held, "the audit asks this bookie"
        await happens()
        asked.wire.release()
    return reports[0]


async def test_copies_left_are_those_of_the_worst_entry(autojump_clock: trio.testing.MockClock) -> None:
    """Two bookies that lack different entries leave two copies of each; that lack the same ones, one of these."""
    async with audited_world(3) as (world, client):
        ledger_id = await written(client, Quorum(3, 3, 2))
        one, other, _ = world.named((await client.ledger_metadata(ledger_id)).last_fragment.ensemble)
        one.storage.inner.commit([DropEntries(ledger_id, 1, 0, 9)])
        other.storage.inner.commit([DropEntries(ledger_id, 1, 30, 39)])
        assert [each.copies_left for each in (await client.admin.audit()).lacking] == [2]
        one.storage.inner.commit([DropEntries(ledger_id, 1, 20, 39)])
        assert [each.copies_left for each in (await client.admin.audit()).lacking] == [1]


async def test_ledger_deleted_during_an_audit_lacks_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with audited_world(3) as (world, client):
        ledger_id = await written(client, Quorum(3, 3, 2))
        bookie = world.bookies[0]

        async def delete() -> None:
            await client.delete_ledger(ledger_id)
            await collect_garbage(bookie.server, world.metastore)
            assert ledger_id not in bookie.storage.ledger_ids()

        report = await audited_amid(client, bookie, delete)
        assert (report.ledgers, report.under_replicated) == (0, 0)


async def test_fragment_moved_during_an_audit_lacks_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """F5: a bookie drops what the record names another one for now; the audit had read the record before."""
    async with audited_world(4) as (world, client):
        ledger_id = await written(client, Quorum(3, 3, 2))
        fragment = (await client.ledger_metadata(ledger_id)).last_fragment
        (former,), (other,) = world.named(fragment.ensemble[:1]), world.spare(fragment.ensemble)
        moved = attrs.evolve(fragment, ensemble=(other.bookie_id, *fragment.ensemble[1:]))
        await change(world, ledger_id, fragments=(moved,))
        assert (await client.admin.repair()).under_replicated == 0
        await change(world, ledger_id, fragments=(fragment,))

        async def move() -> None:
            await change(world, ledger_id, fragments=(moved,))
            assert await release(world, former) == 1

        report = await audited_amid(client, former, move)
        assert (report.ledgers, report.under_replicated) == (1, 0)


async def test_ledger_trimmed_during_an_audit_lacks_nothing(autojump_clock: trio.testing.MockClock) -> None:
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


async def test_missing_entries_are_reported_during_other_changes(autojump_clock: trio.testing.MockClock) -> None:
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
            (lacking,) = (await client.admin.audit()).lacking
            nursery.cancel_scope.cancel()
        assert [each.bookie_id for each in lacking.missing] == [bookie.bookie_id]


def without_copies(report: AuditReport) -> dict[int, tuple[str, ...]]:
    """Each entry that no bookie has which was asked, and who did not answer."""
    return {
        entry_id: each.awaited
        for each in report.without_copies
        for entry_id in range(each.first_entry_id, each.last_entry_id + 1, each.stride)
    }


@pytest.mark.parametrize(
    ("quorum", "password", "digest"),
    [
        (Quorum(4, 2, 2), b"", DigestType.CRC32C),
        (Quorum(4, 2, 2), b"secret", DigestType.HMAC_SHA256),
        (Quorum(5, 3, 2), b"secret", DigestType.CRC32C),
        (Quorum(3, 3, 1), b"secret", DigestType.HMAC_SHA256),
        (Quorum(3, 3, 3), b"", DigestType.HMAC_SHA256),
        (Quorum(2, 2, 1), b"", DigestType.CRC32C),
    ],
)
async def test_two_simultaneous_losses_cost_only_their_own_copies(
    quorum: Quorum, password: bytes, digest: DigestType, autojump_clock: trio.testing.MockClock
) -> None:
    """F1: what anybody has is on its whole write set again, and what nobody has is named entry by entry."""
    async with audited_world(8) as (world, client):
        ledger_id = await written(client, quorum, password=password, digest_type=digest)
        ensemble = (await client.ledger_metadata(ledger_id)).last_fragment.ensemble
        victims = world.named(ensemble[:2])
        for each in victims:
            await each.kill()
        names = tuple(sorted(ensemble[:2]))
        gone = {entry_id for entry_id in range(len(ENTRIES)) if set(quorum.write_set(entry_id)) <= {0, 1}}

        assert without_copies(await client.admin.audit()) == dict.fromkeys(gone, names), "they may come back"
        after = await client.admin.repair(lost=names, accept_loss=True)
        assert without_copies(after) == dict.fromkeys(gone, ())
        assert all(each.is_gone for each in after.without_copies)
        for fragment in after.lacking:
            assert all(each.entries == each.nowhere for each in fragment.missing), "all else is copied"
        repaired = (await client.ledger_metadata(ledger_id)).last_fragment.ensemble
        assert not set(names) & set(repaired)

        # One copy of each write set is enough from now on.
        await world.named(repaired)[0].kill()
        async with client.open_ledger(ledger_id, password=password) as reader:
            for entry_id in set(range(len(ENTRIES))) - gone:
                assert await reader.read(entry_id, entry_id) == [ENTRIES[entry_id]]


async def test_last_keyed_copy_is_reported_as_unverified(autojump_clock: trio.testing.MockClock) -> None:
    """F3: without the password its code cannot be checked."""
    async with audited_world(5) as (world, client):
        ledger_id = await written(client, Quorum(3, 3, 1), password=b"secret", digest_type=DigestType.HMAC_SHA256)
        ensemble = (await client.ledger_metadata(ledger_id)).last_fragment.ensemble
        for each in world.named(ensemble[:2]):
            await each.kill()
        assert (await client.admin.repair(lost=ensemble[:2], accept_loss=True)).under_replicated == 0
        (told,) = world.told(FragmentRepaired)
        assert isinstance(told, FragmentRepaired)
        assert told.unverified_batches == 4


async def test_differing_copies_are_reported_until_repaired(autojump_clock: trio.testing.MockClock) -> None:
    """F3: neither is copied. Once one of them is away, the other one is all there is."""
    async with audited_world(5) as (world, client):
        ledger_id = await written(client, Quorum(3, 3, 2), password=b"secret", digest_type=DigestType.HMAC_SHA256)
        ensemble = (await client.ledger_metadata(ledger_id)).last_fragment.ensemble
        lost, liar, _ = world.named(ensemble)
        liar.wire.alter = falsified
        await lost.kill()
        report = await client.admin.repair(lost=[lost.bookie_id])
        assert report.under_replicated == 1
        spans = [(each.ledger_id, each.first_entry_id, each.last_entry_id) for each in report.differing]
        assert spans == [(ledger_id, first, first + 9) for first in range(0, 40, 10)]
        assert (await client.admin.audit()).differing == report.differing
        await liar.kill()
        after = await client.admin.repair(lost=[liar.bookie_id], accept_loss=True)
        assert (after.under_replicated, after.differing) == (0, ())


def falsified(request: Request, response: Response) -> Response:
    """Other bytes, whose damage check is right."""
    if not isinstance(request, CopyReadRequest) or not response.batches:
        return response
    return attrs.evolve(response, batches=tuple(map(other_bytes, response.batches)))


def other_bytes(batch: Batch) -> Batch:
    return build(
        Digest(batch.digest_type, batch.ledger_id, b"secret"),
        ledger_id=batch.ledger_id,
        first_entry_id=batch.first_entry_id,
        stride=batch.stride,
        payloads=[b"falsified"] * len(batch.payloads()),
        last_add_confirmed=batch.last_add_confirmed,
        stamp=batch.stamp,
        timestamp_ns=batch.timestamp_ns,
        cumulative_length=batch.cumulative_length,
    )


async def test_audit_leaves_most_of_the_time_to_its_clients_writer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster(3) as world:
        async with world.client(QUICK) as client:
            for _ in range(10):
                await written(client, Quorum(3, 3, 2))
        for bookie in world.bookies:
            # Virtual time passes only while somebody waits: it stands for what a look takes.
            bookie.wire.delay_s = 0.002
        took_s = []
        for is_writing in (False, True):
            # A new client each time: it knows nothing of what another one has audited.
            async with world.client(QUICK) as client, client.create_ledger() as writer, trio.open_nursery() as nursery:

                async def write(writer: LedgerWriter) -> None:
                    while True:
                        await writer.append(b"entry")

                if is_writing:
                    nursery.start_soon(write, writer)
                began_s = trio.current_time()
                assert (await client.admin.audit()).ledgers >= 11
                took_s.append(trio.current_time() - began_s)
                nursery.cancel_scope.cancel()
        assert took_s[1] > 3 * took_s[0] > 0
