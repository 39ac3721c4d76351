"""Ledgers whose records have index chunks: everybody who looks at fragments finds those that left the record, too (M4).

A record keeps two fragments here, and a chunk has three items, so that few rolls make several levels."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

import replog
from replog.abc import Versioned
from replog.config.client import ClientTuning
from replog.errors import LedgerTrimmedError, MetastoreCorruptError, VersionConflictError
from replog.metastores.memory import MemoryMetastore
from replog.protocol import chunks as index
from replog.protocol.chunks import new_chunks
from replog.protocol.gaps import Gap
from replog.protocol.model import Durability, LedgerMetadata, LedgerState
from replog.protocol.releasing import ForeignRange
from replog.records.chunks import read_whole_ledger
from replog.records.encoding import encode
from replog.records.ledgers import decode_ledger
from replog.records.paths import CHUNKS_KEY, chunk_key_path, ledger_key_path
from replog.testing import Fault
from tests.kit import Bookie, Cluster, read_ledger
from tests.kit import cluster as unwatched_cluster
from tests.named_chunks import NamedChunks

SMALL = ClientTuning(write_quorum_timeout_s=20.0)
ROLLS = 20


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock) -> None:
    monkeypatch.setattr(index, "HEAD_FRAGMENTS", 2)
    monkeypatch.setattr(index, "CHUNK_ITEMS", 3)


@asynccontextmanager
async def cluster(bookies: int) -> AsyncIterator[Cluster]:
    """A cluster whose chunks are looked at whenever a key of its metastore changes."""
    problems: list[str] = []
    async with unwatched_cluster(bookies) as world:
        inner = world.metastore.inner
        assert isinstance(inner, MemoryMetastore)
        watched = NamedChunks(inner, problems.append)
        yield world
        assert problems == []
        assert watched.created


async def rolled(client: replog.Client, count: int = ROLLS, **options: object) -> int:
    """A ledger of so many fragments with one entry each, and of an empty one."""
    async with client.create_ledger(unbounded=True, **options) as writer:  # type: ignore[arg-type]
        for number in range(count):
            await writer.append(b"%d" % number)
            await writer.roll()
    return writer.ledger_id


def numbers(end: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


async def head(world: Cluster, ledger_id: int) -> LedgerMetadata:
    key = ledger_key_path(ledger_id)
    return decode_ledger(key, (await world.metastore.get(key)).value)


async def names(world: Cluster, ledger_id: int) -> list[str]:
    return sorted(await world.metastore.children(chunk_key_path(ledger_id)))


def held(bookie: Bookie, ledger_id: int) -> list[int]:
    """The entries that it stores."""
    stored = bookie.storage.ranges(ledger_id)
    return [each for found in stored for each in range(found.first_entry_id, found.last_entry_id + 1)]


async def check_named(world: Cluster, client: replog.Client, ledger_id: int) -> None:
    """All chunks that the metastore has are named, and all that are named are there."""
    metadata, _ = await client._opened.ledgers.records.get(ledger_id)
    assert await names(world, ledger_id) == sorted(chunk.name for chunk in metadata.unnamed)


async def test_readers_find_every_fragment_of_a_chunked_ledger() -> None:
    async with cluster(5) as world, world.client() as client, world.client() as other:
        ledger_id = await rolled(client)
        metadata = await head(world, ledger_id)
        assert len(metadata.fragments) < 5
        assert metadata.chunks[0].level == 2
        assert await read_ledger(other, ledger_id) == numbers(ROLLS)
        for first in range(ROLLS):
            async with other.open_ledger(ledger_id, first=first) as reader:
                batch = await reader.receive_batch()
                assert batch is not None
                assert next(iter(batch)).data == b"%d" % first
        shown = await other.ledger_metadata(ledger_id)
        assert [each.first_entry_id for each in shown.fragments] == list(range(ROLLS + 1))
        await check_named(world, client, ledger_id)


async def test_follower_reads_on_while_its_fragments_leave_the_record() -> None:
    async with cluster(5) as world, world.client() as client, world.client() as other:
        found: list[bytes] = []
        async with client.create_ledger(unbounded=True) as writer, trio.open_nursery() as nursery:

            async def follow() -> None:
                async with other.open_ledger(writer.ledger_id, follow=True) as reader:
                    async for entry in reader:
                        found.append(entry.data)
                        await trio.sleep(0.3)  # so that it falls behind

            nursery.start_soon(follow)
            for number in range(ROLLS):
                await writer.append(b"%d" % number)
                await writer.roll()
            await writer.finish()
        assert found == numbers(ROLLS)


async def test_takeovers_and_recovery_go_on_with_a_chunked_ledger() -> None:
    async with cluster(5) as world, world.client() as client, world.client() as other:
        ledger_id = await rolled(client)
        for number in range(ROLLS, ROLLS + 8):
            async with (other if number % 2 else client).take_over_ledger(ledger_id) as writer:
                assert writer.last_add_confirmed == number - 1
                await writer.append(b"%d" % number)
        metadata = await other.recover_ledger(ledger_id)
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, ROLLS + 7)
        assert [each.first_entry_id for each in metadata.fragments] == list(range(ROLLS + 8))
        assert await read_ledger(client, ledger_id) == numbers(ROLLS + 8)
        await check_named(world, client, ledger_id)


@pytest.mark.parametrize("before", [1, 5, 9, ROLLS - 1, ROLLS + 5])
async def test_trim_drops_chunks_and_their_keys(before: int) -> None:
    async with cluster(5) as world, world.client() as client:
        ledger_id = await rolled(client)
        left = await client.trim_ledger(ledger_id, before=before)
        assert left == min(before, ROLLS)
        assert await client.trim_ledger(ledger_id, before=0) == left, "what is trimmed stays so"
        async with client.open_ledger(ledger_id) as reader:
            assert [entry.data async for entry in reader] == numbers(ROLLS, left)
        with pytest.raises(LedgerTrimmedError):
            async with client.open_ledger(ledger_id, first=left - 1):
                pass
        await check_named(world, client, ledger_id)


async def test_repair_replaces_a_bookie_in_fragments_of_chunks() -> None:
    async with cluster(5) as world, world.client() as client:
        ledger_id = await rolled(client)
        before = await client.ledger_metadata(ledger_id)
        gone = world.named([before.fragments[0].ensemble[0]])[0]
        await gone.kill()
        report = await client.admin.repair([gone.bookie_id], accept_loss=True)
        assert not report.lacking
        after = await client.ledger_metadata(ledger_id)
        assert [each.first_entry_id for each in after.fragments] == [each.first_entry_id for each in before.fragments]
        assert all(gone.bookie_id not in each.ensemble for each in after.fragments[:-1])
        assert await read_ledger(client, ledger_id) == numbers(ROLLS)
        await client.admin.repair()  # what fillings left that lost their compare-and-sets to each other
        await check_named(world, client, ledger_id)


async def test_gap_of_a_fragment_moves_to_its_chunk_and_back() -> None:
    async with cluster(4) as world, world.client() as client:
        async with client.create_ledger(unbounded=True) as writer:
            away = world.named(writer.metadata.last_fragment.ensemble)[0]
            await writer.append(b"0")
            spare = world.spare(writer.metadata.last_fragment.ensemble)[0]
            await spare.kill()
            await away.kill()
            await writer.append(b"1")
            await writer.roll()
            for number in range(2, 12):
                await writer.append(b"%d" % number)
                await writer.roll()
            await away.start()
            await spare.start()
        metadata = await client.ledger_metadata(writer.ledger_id)
        assert any(gap.first_entry_id <= 1 for gap in metadata.gaps)
        assert not any(gap.first_entry_id <= 1 for gap in (await head(world, writer.ledger_id)).gaps)
        report = await client.admin.repair()
        assert not report.lacking
        assert not (await client.ledger_metadata(writer.ledger_id)).ended_gaps
        await client.admin.repair()
        await check_named(world, client, writer.ledger_id)


async def test_bookies_drop_trimmed_entries_of_a_chunked_ledger() -> None:
    async with cluster(3) as world, world.client() as client:
        ledger_id = await rolled(client)
        await client.trim_ledger(ledger_id, before=7)
        for bookie in world.bookies:
            assert bookie.served is not None
            await bookie.served.collect_garbage()
            assert held(bookie, ledger_id) == list(range(7, ROLLS))
        assert await read_ledger(client, ledger_id) == numbers(ROLLS, 7)


async def test_bookie_drops_moved_entries_of_chunked_fragments() -> None:
    """F5: a bookie that looks at the head only would keep it permanently."""
    async with cluster(4) as world, world.client() as client:
        ledger_id = await rolled(client)
        (leaving,) = world.named([(await client.ledger_metadata(ledger_id)).fragments[0].ensemble[0]])
        await client.admin.drain(leaving.bookie_id)
        await client.admin.repair()
        last = (await client.ledger_metadata(ledger_id)).last_fragment.first_entry_id
        assert len(held(leaving, ledger_id)) > 3
        assert leaving.served is not None
        await leaving.served.collect_garbage()
        assert [each for each in held(leaving, ledger_id) if each < last] == []
        assert await read_ledger(client, ledger_id) == numbers(ROLLS)


async def test_write_quorum_is_waited_for_in_fragments_of_chunks() -> None:
    """W8: closes that failed left fragments short, and these are in chunks by the time a takeover completes the ledger."""
    async with cluster(3) as world, world.client(SMALL) as client:
        ledger_id = await rolled(client)
        metadata, version = await client._opened.ledgers.records.get(ledger_id)
        full = attrs.evolve(metadata, durability=Durability.WRITE_QUORUM, full_before=0)
        await client._opened.ledgers.records.put(full, version)
        bookie = world.bookies[0]
        await bookie.server.drop(ledger_id, ForeignRange(1, 3, 4))
        assert len(held(bookie, ledger_id)) == ROLLS - 2
        async with client.take_over_ledger(ledger_id) as writer:
            assert writer.metadata.chunks
            assert len(held(bookie, ledger_id)) == ROLLS
            await writer.append(b"%d" % ROLLS)
            await writer.roll()
            assert writer.metadata.full_before == ROLLS
        await check_named(world, client, ledger_id)


async def test_deletion_takes_the_chunks_along() -> None:
    async with cluster(3) as world, world.client() as client:
        ledger_id = await rolled(client)
        assert await names(world, ledger_id)
        await client.delete_ledger(ledger_id)
        assert await names(world, ledger_id) == []


# -- what goes wrong ------------------------------------------------------------------------------------------------


FAULTS = [
    ("create", Fault.REQUEST_LOST),
    ("create", Fault.ANSWER_LOST),
    ("create", Fault.ARRIVES_LATE),
    ("put", Fault.ANSWER_LOST),
    ("put", Fault.ARRIVES_LATE),
    ("put", Fault.REQUEST_LOST),
]


@pytest.mark.parametrize(("operation", "fault"), FAULTS)
async def test_lost_answers_lose_no_fragment(operation: str, fault: Fault) -> None:
    async with cluster(5) as world, world.client() as client:
        async with client.create_ledger(unbounded=True) as writer:
            for number in range(ROLLS):
                under = CHUNKS_KEY if operation == "create" else ledger_key_path(writer.ledger_id)
                if number % 3 == 2 and not world.metastore.planned():
                    world.metastore.fail_next(operation, fault, under=under)
                await writer.append(b"%d" % number)
                await writer.roll()
        assert await read_ledger(client, writer.ledger_id) == numbers(ROLLS)
        metadata = await client.ledger_metadata(writer.ledger_id)
        assert [each.first_entry_id for each in metadata.fragments] == list(range(ROLLS + 1))
        await client.admin.repair()
        await check_named(world, client, writer.ledger_id)


async def test_crash_between_chunk_and_record_leaves_garbage() -> None:
    async with cluster(3) as world, world.client() as client:
        ledger_id = await rolled(client)
        known = await names(world, ledger_id)
        records = client._opened.ledgers.records
        metadata, version = await records.get_head(ledger_id, at=5)
        for chunk in new_chunks(metadata.trimmed(5).packed(version).chunks):
            assert chunk.contents is not None
            await records.create_key(chunk_key_path(ledger_id, chunk.name), encode(chunk.contents))
        left = await names(world, ledger_id)
        assert set(left) > set(known), "the client that trims is killed before its compare-and-set"
        await client.admin.repair()
        assert await names(world, ledger_id) == left, (
            "the record is as it was: a compare-and-set on it may still arrive"
        )
        async with client.take_over_ledger(ledger_id):
            pass
        await client.admin.repair()
        await check_named(world, client, ledger_id)
        assert not set(await names(world, ledger_id)) & (set(left) - set(known))
        assert await read_ledger(client, ledger_id) == numbers(ROLLS)


async def test_chunks_of_a_deleted_ledger_are_deleted() -> None:
    async with cluster(3) as world, world.client() as client:
        ledger_id = await rolled(client)
        await world.metastore.delete(ledger_key_path(ledger_id))
        await client.admin.repair()
        assert await names(world, ledger_id) == []


async def test_record_is_reread_when_a_trim_deletes_its_chunk() -> None:
    async with cluster(3) as world, world.client() as client:
        ledger_id = await rolled(client)
        trimmed: list[int] = []

        async def get(key: str) -> Versioned:
            if key.startswith(CHUNKS_KEY) and not trimmed:
                trimmed.append(await client.trim_ledger(ledger_id, before=ROLLS))
            return await world.metastore.get(key)

        metadata, found = await read_whole_ledger(get, ledger_id)
        assert metadata.trim_to == trimmed[0] == ROLLS
        assert found == await world.metastore.get(ledger_key_path(ledger_id))


async def test_two_changes_upon_one_version_share_no_chunk() -> None:
    """M1: the one that loses its compare-and-set has written its chunks, and the record must not name them."""
    async with cluster(3) as world, world.client() as client:
        ledger_id = await rolled(client)
        records = client._opened.ledgers.records
        (one, version), (other, _) = await records.get_head(ledger_id, at=4), await records.get_head(ledger_id, at=4)

        def with_gap(metadata: LedgerMetadata, index: int) -> LedgerMetadata:
            return metadata.with_gaps([*metadata.gaps, Gap(index, 4, 4)])

        lost = with_gap(other, 1).packed(version)
        for chunk in new_chunks(lost.chunks):
            assert chunk.contents is not None
            await records.create_key(chunk_key_path(ledger_id, chunk.name), encode(chunk.contents))
        await records.put(with_gap(one, 0), version)
        with pytest.raises(VersionConflictError):
            await records.put(lost, version)
        assert (await client.ledger_metadata(ledger_id)).gaps == (Gap(0, 4, 4),)
        await client._opened.ledgers.records.delete_unnamed_chunks()
        await check_named(world, client, ledger_id)


async def test_missing_chunk_is_named_and_nothing_is_guessed() -> None:
    async with unwatched_cluster(3) as world, world.client() as client:
        ledger_id = await rolled(client)
        victim = (await head(world, ledger_id)).chunks[0]
        await world.metastore.delete(chunk_key_path(ledger_id, victim.name))
        for attempt in (read_ledger(client, ledger_id), client.ledger_metadata(ledger_id), client.admin.audit()):
            with pytest.raises(MetastoreCorruptError, match=victim.name):
                await attempt
        async with client.take_over_ledger(ledger_id) as writer:
            assert await writer.append(b"on") == ROLLS, "the end of the ledger needs no old fragment"


@pytest.mark.slow
async def test_trims_rolls_and_fillings_at_once_keep_the_record_whole() -> None:
    async with cluster(6) as world, world.client() as client, world.client() as other, world.client() as third:
        async with client.create_ledger(unbounded=True) as writer:
            await writer.append(b"0")
            await writer.roll()

            async def roll() -> None:
                for number in range(1, 40):
                    await writer.append(b"%d" % number)
                    await writer.roll()
                    await trio.sleep(0.05)

            async def trim() -> None:
                for before in range(1, 20):
                    await other.trim_ledger(writer.ledger_id, before=before)
                    await trio.sleep(0.11)

            async def leave() -> None:
                for bookie in world.bookies[:2]:
                    await third.admin.drain(bookie.bookie_id)
                    await third.admin.repair()

            async def read() -> None:
                while True:
                    metadata = await other.ledger_metadata(writer.ledger_id)
                    starts = [each.first_entry_id for each in metadata.fragments]
                    assert starts == list(range(metadata.trim_to, starts[-1] + 1))
                    await trio.sleep(0.03)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                async with trio.open_nursery() as busy:
                    for each in (roll, trim, leave):
                        busy.start_soon(each)
                nursery.cancel_scope.cancel()
        metadata = await client.ledger_metadata(writer.ledger_id)
        assert await read_ledger(other, writer.ledger_id) == numbers(40, metadata.trim_to)
        await client.admin.repair()
        await check_named(world, client, writer.ledger_id)
