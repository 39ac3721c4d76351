"""Writers that compress: what bookies hold, and what readers, successors and repairs make of it (W3)."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import trio
import trio.testing

import replog
from replog.config import ClientOptions
from replog.errors import ConfigError
from replog.protocol import batch as batches
from replog.protocol import compression
from replog.protocol.batch import Batch
from replog.protocol.digest import DigestType
from replog.protocol.quorum import Quorum
from tests.kit import Cluster, cluster, read_ledger, read_log

ZSTD = ClientOptions(compression="zstd")
ORDERS = [b'{"order": %d, "status": "shipped"}' % number for number in range(300)]


def stored(world: Cluster, ledger_id: int) -> Iterator[list[Batch]]:
    """The batches that each bookie got of a ledger."""
    for bookie in world.bookies:
        yield [add.batch for add in bookie.adds(ledger_id)]


@pytest.mark.parametrize("digest_type", [DigestType.CRC32C, DigestType.HMAC_SHA256])
@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(3, 2, 2)], ids=["plain", "striped"])
async def test_bookies_get_compressed_batches_and_readers_the_entries(
    quorum: Quorum, digest_type: DigestType, autojump_clock: trio.testing.MockClock
) -> None:
    """Striped and with either code; also an end amid a batch, and Arrow, which see the same."""
    async with cluster() as world, world.client(quorum=quorum) as client:
        async with client.create_ledger(password=b"pw", digest_type=digest_type, compression="zstd") as writer:
            await writer.extend(ORDERS)
            assert writer.length_bytes == sum(map(len, ORDERS)), "lengths are those that were appended"
        got = list(stored(world, writer.ledger_id))
        assert all(batch.is_compressed for each in got for batch in each)
        copies = sum(len(batch.data) for each in got for batch in each)
        assert copies < sum(map(len, ORDERS)) * quorum.write / 2
        assert await read_ledger(client, writer.ledger_id, b"pw") == ORDERS
        async with client.open_ledger(writer.ledger_id, first=17, password=b"pw") as reader:
            found = [batch async for batch in reader.batches()]
        assert [data for batch in found for data in batch.payloads()] == ORDERS[17:]
        assert [data for batch in found for data in batch.to_arrow().to_pylist()] == ORDERS[17:]
        longest = max(found, key=len)
        end = longest.first_entry_id + 4
        assert [entry.data for entry in longest.through(end - 1)] == ORDERS[longest.first_entry_id : end]
        if quorum.stride == 1:
            assert longest.through(end - 1).ledger_bytes == sum(map(len, ORDERS[:end]))


async def test_batch_is_expanded_once_however_often_it_is_read(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    expanded: list[int] = []

    def counting(frame: memoryview, size_bytes: int) -> bytes:
        expanded.append(size_bytes)
        return expand(frame, size_bytes)

    expand = compression.expand
    monkeypatch.setattr(batches, "expand", counting)
    async with cluster() as world, world.client(ZSTD) as client:
        async with client.create_ledger() as writer:
            await writer.extend(ORDERS)
        assert not expanded, "neither the writer nor a bookie expands"
        async with client.open_ledger(writer.ledger_id) as reader:
            async for batch in reader.batches():
                assert batch.payloads() == batch.to_arrow().to_pylist() == [entry.data for entry in batch] == ORDERS
    assert len(expanded) == 1


async def test_log_holds_compressed_and_plain_batches(autojump_clock: trio.testing.MockClock) -> None:
    """Each writer chooses for itself, and each batch is as it is worth: across rolls and takeovers, also in one ledger (L9)."""
    noise = [os.urandom(1000)]
    async with cluster() as world, world.client() as plain, world.client(ZSTD) as client:
        async with client.write_log("log", options=replog.LogOptions(ledgers="unbounded")) as log:
            await log.extend(ORDERS)
            await log.extend(noise)
            await log.roll()
            await log.extend(ORDERS)
            ledger_id = log.ledger_id
        kinds = [batch.is_compressed for batch in next(stored(world, ledger_id))]
        async with plain.write_log("log") as log:
            await log.extend(ORDERS)
            assert log.ledger_id == ledger_id
        async with plain.write_log("log", options=replog.LogOptions(compression="zstd")) as log:
            await log.extend(ORDERS)
        async with client.write_log("log", options=replog.LogOptions(compression="none")) as log:
            await log.extend(ORDERS)
        kinds = [batch.is_compressed for batch in next(stored(world, ledger_id))]
        assert kinds[-3:] == [False, True, False]
        assert await read_log(plain) == [*ORDERS, *noise, *ORDERS * 4]


async def test_recovery_copies_compressed_batches_as_they_are(autojump_clock: trio.testing.MockClock) -> None:
    """W3, R6: also from a writer that died with a batch on one bookie only."""
    async with cluster() as world, world.client(ZSTD) as client:
        async with client.create_ledger() as writer:
            await writer.extend(ORDERS)
            ledger_id = writer.ledger_id
            for bookie in world.bookies[1:]:
                await bookie.kill()
            writer.push_nowait(b"a" * 2000)
            await trio.testing.wait_all_tasks_blocked()
            for bookie in world.bookies[1:]:
                await bookie.start()
            async with world.client() as other:
                await other.recover_ledger(ledger_id)
                found = await read_ledger(other, ledger_id)
            with pytest.raises(replog.FencedError):
                await writer.flush()
            writer._entries.leave()
    assert found in ([*ORDERS], [*ORDERS, b"a" * 2000])
    by_first: dict[int, set[bytes]] = {}
    for each in stored(world, ledger_id):
        for batch in each:
            by_first.setdefault(batch.first_entry_id, set()).add(batch.data)
    assert all(len(copies) == 1 for copies in by_first.values()), "replicas are identical byte by byte"


async def test_unknown_compression_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        with pytest.raises(ConfigError, match="compression='gzip': there are 'none', 'zstd'"):
            async with client.create_ledger(compression="gzip"):
                pass
        for opening in (client.write_log, client.lead_log):
            with pytest.raises(ConfigError, match="compression='gzip'"):
                async with opening("log", options=replog.LogOptions(compression="gzip")):
                    pass
        assert await client.ledgers() == []
    with pytest.raises(ConfigError, match="compression: 'gzip' is not one of"):
        ClientOptions(compression="gzip")
