"""M5: an id means one creation. Entries of another creation at bookies are never read, recovered, copied or confirmed into."""

from __future__ import annotations

import attrs
import pytest
import trio
import trio.testing

from replog.errors import EntryUnreadableError, LedgerNotFoundError, RecoveryUndecidedError, ReplogError
from replog.protocol.digest import ledger_key, ledger_key_check
from replog.protocol.model import LedgerMetadata
from replog.records.encoding import encode
from replog.records.paths import ledger_key_path
from tests.client.test_recovering import QUICK, numbers, vanished
from tests.kit import Cluster, cluster, read_ledger


async def created_again(world: Cluster, ledger_id: int, password: bytes = b"") -> LedgerMetadata:
    """Puts the record of another creation of this ledger's id in the place of its own."""
    async with world.client() as client:
        known, version = await client._opened.ledgers.records.get(ledger_id)
        check = ledger_key_check(ledger_key(ledger_id, password, "another"))
        another = attrs.evolve(known, creation="another", key_check=check)
        await world.metastore.put(ledger_key_path(ledger_id), encode(another), version)
        return another


@pytest.mark.parametrize("password", [b"", b"secret"])
async def test_entries_of_another_creation_are_never_recovered(
    password: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    """M5, R4: a refusal is neither a denial nor a copy, so the end is unknown."""
    async with cluster() as world:
        ledger_id = await vanished(world, 10, password=password)
        await created_again(world, ledger_id, password)
        async with world.client(QUICK) as client:
            with pytest.raises(RecoveryUndecidedError, match="of another creation of this id"):
                await client.recover_ledger(ledger_id, password=password)


@pytest.mark.parametrize("password", [b"", b"secret"])
async def test_entries_of_another_creation_are_never_read(
    password: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster() as world:
        ledger_id = await vanished(world, 10, password=password)
        async with world.client() as client:
            await client.recover_ledger(ledger_id, password=password)
        await created_again(world, ledger_id, password)
        async with world.client(QUICK) as client:
            with pytest.raises(EntryUnreadableError, match="of another creation of this id"):
                await read_ledger(client, ledger_id, password)


async def test_reader_asks_the_next_bookie_about_another_creation(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world:
        ledger_id = await vanished(world, 10)
        async with world.client() as client:
            await client.recover_ledger(ledger_id)
        for bookie in world.bookies[1:]:
            known = bookie.server.ledger(ledger_id)
            # As if this bookie had been given another creation's first entries, before it was restored.
            known.stored_key, known._shown_key = b"x" * 32, None
        async with world.client(QUICK) as client:
            assert await read_ledger(client, ledger_id) == numbers(9)


@pytest.mark.parametrize("password", [b"", b"secret"])
async def test_repair_never_copies_entries_of_another_creation(
    password: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    """F3, M5: a repairer has no key of a ledger with a password. The verifier from the record stands for it."""
    async with cluster(4) as world:
        ledger_id = await vanished(world, 10, password=password)
        async with world.client() as client:
            closed = await client.recover_ledger(ledger_id, password=password)
            (spare,) = world.spare(closed.last_fragment.ensemble)
            another = await created_again(world, ledger_id, password)
            (lost, *_) = world.named(another.last_fragment.ensemble)
            await lost.kill()
            report = await client.admin.repair(lost=[lost.bookie_id])
            assert report.lacking
            assert spare.storage.marks(ledger_id) is None


async def test_writer_never_confirms_into_another_creation(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world:
        old_id = await vanished(world, 10)
        async with world.client(QUICK) as client:
            await client._opened.ledgers.records.delete(old_id)
            ids = client._opened.ledgers.records._ids
            ids._taken.clear()
            ids._taken.append(old_id)
            ids._taken_at_s = trio.current_time()
            with pytest.raises(ReplogError, match="of another creation of this id") as failed:
                async with client.create_ledger() as writer:
                    await writer.append(b"new")
            assert not isinstance(failed.value, LedgerNotFoundError)
        for bookie in world.bookies:
            assert bookie.storage.ranges(old_id)[0].last_entry_id == 9
