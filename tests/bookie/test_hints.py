"""Clients tell bookies which ledgers they deleted; the metastore alone decides whether that is so (B6)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

import replog
from replog.bookie import hints
from replog.config.bookie import BookieTuning
from replog.config.client import ClientTuning
from replog.protocol.messages import AdminCommand, AdminRequest, Request, Response, Status
from replog.records.paths import ledger_key_path
from replog.testing import Fault
from tests.kit import ONE, Bookie, Cluster, cluster, read_ledger

NEVER = BookieTuning(storage="memory", garbage_collection_interval_s=1e9)


def asked_for(world: Cluster) -> list[str]:
    """Keeps which ledgers' records the metastore is asked for from now on."""
    found: list[str] = []

    def choose(operation: str, key: str) -> Fault | None:
        if operation == "get" and key.startswith("ledgers/"):
            found.append(key)
        return None

    world.metastore._choose = choose
    return found


async def write(client: replog.Client, entries: int = 1) -> int:
    async with client.create_ledger() as writer:
        await writer.extend([b"x"] * entries)
    return writer.ledger_id


def hint(bookie: Bookie, *ledger_ids: int) -> list[Response]:
    """Says that these were deleted, whether they were or not; returns the answers."""
    answers: list[Response] = []
    requests = [AdminRequest(number, AdminCommand.LEDGER_DELETED, each) for number, each in enumerate(ledger_ids, 1)]
    bookie.server.handle(requests, answers.extend)
    return answers


@asynccontextmanager
async def one_bookie() -> AsyncIterator[tuple[Cluster, replog.Client, Bookie]]:
    async with cluster(1, NEVER) as world, world.client(quorum=ONE) as client:
        yield world, client, world.bookies[0]


async def test_deleted_ledger_is_dropped_within_a_second(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(4, NEVER) as world, world.client() as client:
        kept, gone = await write(client), await write(client)
        async with world.client() as other:  # which knows no bookie yet
            await other.delete_ledger(gone)
        await trio.sleep(1)
        assert {each for bookie in world.bookies for each in bookie.storage.ledger_ids()} == {kept}
        assert await read_ledger(client, kept) == [b"x"]


async def test_trimmed_segments_are_dropped_within_a_second(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3, NEVER) as world, world.client() as client, client.write_log("log") as log:
        for _ in range(5):
            await log.append(b"x")
            await log.roll()
        position = await log.append(b"x")
        await client.trim_log("log", before=position)
        await trio.sleep(1)
        named = set(await client.ledgers())
        assert 1 <= len(named) <= 3
        for bookie in world.bookies:
            assert set(bookie.storage.ledger_ids()) <= named


async def test_often_trimmed_log_takes_bounded_space(autojump_clock: trio.testing.MockClock) -> None:
    options = ClientTuning(roll_entries=10)
    async with cluster(3, NEVER) as world, world.client(options) as client, client.write_log("log") as log:
        for turn in range(200):
            position = await log.append(b"x")
            if turn % 25 == 24:
                await client.trim_log("log", before=position)
                await trio.sleep(1.5)
                assert all(len(bookie.storage.ledger_ids()) <= 3 for bookie in world.bookies)


async def test_hint_drops_no_existing_ledger(autojump_clock: trio.testing.MockClock) -> None:
    """B6: only what the metastore says is absent is dropped, however often somebody says that it was deleted."""
    async with one_bookie() as (world, client, bookie):
        kept = await write(client)
        gets = asked_for(world)
        for _ in range(5):
            assert [each.status for each in hint(bookie, *[kept] * 20)] == [Status.OK] * 20
            await trio.sleep(10)
        assert bookie.storage.ledger_ids() == [kept]
        # Whether it exists; and whose its entries are, since it does.
        assert gets == [ledger_key_path(kept)] * 10


async def test_hint_of_unknown_or_dropped_ledger_is_ignored(autojump_clock: trio.testing.MockClock) -> None:
    async with one_bookie() as (world, client, bookie):
        gone = await write(client)
        await client.delete_ledger(gone)
        await trio.sleep(5)
        gets = asked_for(world)
        hint(bookie, gone, 10**6, (1 << 63) - 1, *range(100, 300))
        await trio.sleep(60)
        assert gets == []


async def test_hints_are_looked_up_at_a_bounded_rate(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many a client sends, the metastore is asked a few times in a second, and memory stays bounded."""
    monkeypatch.setattr(hints, "DROPS_MAX", 3)
    monkeypatch.setattr(hints, "WAITING_MAX", 20)
    async with one_bookie() as (world, client, bookie):
        ids = [await write(client) for _ in range(30)]
        gets = asked_for(world)
        for _ in range(10):
            hint(bookie, *ids)
        await trio.sleep(1.1)
        assert len(gets) == 2 * 15
        await trio.sleep(60)
        assert len(gets) == 2 * 20
        assert bookie.storage.ledger_ids() == ids


async def test_a_failed_lookup_drops_nothing_and_later_hints_count(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with one_bookie() as (world, client, bookie):
        first, second = await write(client), await write(client)
        await world.metastore.delete(ledger_key_path(first))
        world.metastore.fail_next("get", Fault.UNAVAILABLE, under=ledger_key_path(first))
        hint(bookie, first)
        await trio.sleep(5)
        assert bookie.storage.ledger_ids() == [first, second]
        hint(bookie, first)
        await trio.sleep(5)
        assert bookie.storage.ledger_ids() == [second]


async def test_absent_or_older_bookie_does_not_block_deletion(autojump_clock: trio.testing.MockClock) -> None:
    """An older bookie does not know the command, and says so."""

    def know_no_hint(request: Request) -> Status | None:
        return Status.BAD_REQUEST if isinstance(request, AdminRequest) else None

    async with cluster(3, NEVER) as world, world.client() as client:
        gone = await write(client)
        away, old, current = world.bookies
        await away.kill()
        old.wire.refuse = know_no_hint
        with trio.fail_after(2):
            await client.delete_ledger(gone)
        await trio.sleep(1)
        assert old.storage.ledger_ids() == [gone]
        assert current.storage.ledger_ids() == []
        assert await client.ledgers() == []


async def test_ledger_is_deleted_when_its_record_is_unreadable(autojump_clock: trio.testing.MockClock) -> None:
    async with one_bookie() as (world, client, bookie):
        gone = await write(client)
        key = ledger_key_path(gone)
        await world.metastore.put(key, b"damaged", (await world.metastore.get(key)).version)
        await client.delete_ledger(gone)
        assert await client.ledgers() == []
        await trio.sleep(5)
        assert bookie.storage.ledger_ids() == [gone]  # until its next collection
