"""Reads of archived entries: ahead of scans, within a bound, and few for a single entry."""

from __future__ import annotations

import pytest
import trio
import trio.testing

import replog
from replog.client import archive_reading
from replog.client.archive_reading import ArchiveReader
from replog.client.archives import Archives
from replog.client.ledger_records import LedgerRecords
from replog.errors import ArchiveError
from replog.metastores.memory import MemoryMetastore
from replog.protocol import archiving
from replog.protocol.archived import pack
from replog.protocol.batch import Batch, build
from replog.protocol.digest import Digest, DigestType
from replog.runtime.threads import use_threads
from tests.archiving import URL, InlineThreads, MemoryArchive, release, with_archive
from tests.kit import cluster, read_log

COPY = "9c02"


def batch(first: int, size: int = 900) -> Batch:
    return build(
        Digest(DigestType.CRC32C, 7, b"", ""),
        ledger_id=7,
        first_entry_id=first,
        stride=1,
        payloads=[b"%04d" % first + b"." * size],
        last_add_confirmed=first - 1,
        stamp=1,
        timestamp_ns=0,
        cumulative_length=0,
    )


class World:
    """A copy of 60 entries in six objects, and a reader of it, with blocks of 2,000 bytes and a cache of 8,000."""

    def __init__(self, nursery: trio.Nursery) -> None:
        use_threads(InlineThreads())
        self.store = MemoryArchive()
        self.archives = Archives(LedgerRecords(MemoryMetastore(), 5.0), lambda _url: self.store)
        self.reader = ArchiveReader(self.archives, nursery)
        self.archive = ""
        self.batches = [batch(each) for each in range(60)]

    async def write(self) -> None:
        record = await self.archives.add(URL)
        self.archive = f"{record.archive_id}/{COPY}"
        for first in range(0, 60, 10):
            name, pieces = pack(7, COPY, first, first + 9, self.batches[first : first + 10])
            self.store.put(str(name), pieces)
        await self.archives.opened(record.archive_id)
        self.store.calls.clear()

    async def read(self, entry_id: int, bytes_max: int) -> list[Batch]:
        return await self.reader.read(7, self.archive, entry_id, bytes_max)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_reading, "BLOCK_BYTES", 2000)
    monkeypatch.setattr(archive_reading, "CACHE_BYTES_MAX", 12_000)
    monkeypatch.setattr(archive_reading, "SCAN_BYTES_MIN", 1800)
    monkeypatch.setattr(archive_reading, "_ROW_BYTES", 1)


async def test_scan_reads_ahead_and_keeps_its_bound(small: None, nursery: trio.Nursery) -> None:
    world = World(nursery)
    await world.write()
    found: list[Batch] = []
    while len(found) < 60:
        found += await world.read(len(found), 2000)
        await trio.testing.wait_all_tasks_blocked()
        assert world.reader._cached_bytes <= 12_000
        assert world.reader._cached_bytes == sum(each.size_bytes for each in world.reader._cache.values())
    assert found == world.batches
    objects = [each for each in world.store.contents if each.startswith("ledgers/")]
    blocks = sum(-(-len(world.store.contents[each]) // 2000) for each in objects)
    assert world.store.calls.count("read") <= blocks + len(objects), "each block and each index once"
    assert world.store.calls.count("objects") == 1


async def test_first_read_of_a_scan_begins_the_next_blocks(small: None, nursery: trio.Nursery) -> None:
    world = World(nursery)
    await world.write()
    await world.read(8, 2000)
    await trio.testing.wait_all_tasks_blocked()
    begun = {(name.first_entry_id, block) for name, block in world.reader._cache if block >= 0}
    assert {(0, 4), (0, 5), (10, 0)} <= begun, "of this object, and of the one behind it"


async def test_one_entry_costs_three_requests_and_then_one(small: None, nursery: trio.Nursery) -> None:
    world = World(nursery)
    await world.write()
    assert await world.read(33, 0) == [world.batches[33]]
    assert world.store.calls == ["objects", "read", "read"]
    assert await world.read(34, 0) == [world.batches[34]]
    assert world.store.calls == ["objects", "read", "read", "read"]


async def test_readers_of_the_same_block_share_one_read(small: None, nursery: trio.Nursery) -> None:
    world = World(nursery)
    await world.write()
    async with trio.open_nursery() as many:
        for _ in range(8):
            many.start_soon(world.read, 0, 2000)
    await trio.testing.wait_all_tasks_blocked()
    assert world.store.calls.count("read") <= 6


async def test_bytes_damaged_on_their_way_are_read_again(small: None, nursery: trio.Nursery) -> None:
    world = World(nursery)
    await world.write()
    name = min(each for each in world.store.contents if each.startswith("ledgers/"))
    right = world.store.contents[name]
    world.store.contents[name] = right[:500] + b"\xff" + right[501:]
    with pytest.raises(ArchiveError, match="the batch of entry 0, at byte 0, is damaged: put the object back"):
        await world.read(0, 2000)
    reads = 0

    def mends(call: str) -> None:
        nonlocal reads
        reads += call == "read"
        if reads == 2:  # the second attempt
            world.store.contents[name] = right

    world.store.begins = mends
    assert await world.read(0, 2000) == world.batches[:2]


async def test_failed_read_is_tried_again_by_the_next_one(small: None, nursery: trio.Nursery) -> None:
    world = World(nursery)
    await world.write()
    world.store.begins = world.store.away
    for _ in range(2):
        with pytest.raises(ArchiveError, match="does not answer"):
            await world.read(0, 2000)
    world.store.begins = lambda _call: None
    assert await world.read(0, 2000) == world.batches[:2]


async def test_striped_log_is_scanned_from_its_archive(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of several rotations are beside each other in an object, whichever index is asked (W1)."""
    monkeypatch.setattr(archiving, "OBJECT_BYTES_MAX", 3000)
    async with cluster(5) as world:
        with_archive(world)
        async with world.client() as client:
            data = [b"%d" % each + b"." * 200 for each in range(100)]
            async with client.write_log("log", quorum=replog.Quorum(5, 3, 2)) as log:
                for first in range(0, 100, 7):
                    await log.extend(data[first : first + 7])
                await log.roll()
            await client.admin.add_archive(URL)
            await client.admin.archive_log("log")
            await release(world)
            assert await read_log(client) == data
            async with client.read_log("log", after=replog.Position(1, 41)) as reader:
                assert [record.data async for record in reader] == data[42:]
            assert (await client.admin.recall_log("log")).fragments == 1
            assert await read_log(client) == data
            assert (await client.admin.audit()).under_replicated == 0
