"""Archiving of unbounded ledgers, and of ledgers with index chunks."""

from __future__ import annotations

import trio.testing

import replog
from replog import LogOptions
from replog.config.client import ClientTuning
from replog.repair.archiver import Archiver
from tests.archiving import URL, release, with_archive
from tests.kit import cluster, read_ledger, read_log

QUICK = ClientTuning(add_timeout_s=1.0, read_timeout_s=1.0, add_quorum_timeout_s=5.0)


def archiver_of(client: replog.Client) -> Archiver:
    opened = client._opened
    reader = opened.ledgers.context.archive_reader
    assert reader is not None
    return Archiver(opened.ledgers, opened.repairer, reader.archives)


async def entry(log: replog.LogWriter, data: bytes) -> bytes:
    await log.append(data)
    return data


async def test_unbounded_log_archives_its_closed_terms(autojump_clock: trio.testing.MockClock) -> None:
    """Of an open ledger the last fragment stays with bookies, and its writer goes on."""
    async with cluster(3) as world:
        with_archive(world)
        async with world.client(QUICK) as client:
            await client.admin.add_archive(URL)
            async with client.write_log("log", options=LogOptions(ledgers="unbounded")) as log:
                data = [await entry(log, b"%d" % each) for each in range(3)]
                await log.roll()
                data.append(await entry(log, b"3"))
                moved = await client.admin.archive_log("log")
                assert moved.fragments >= 1
                await release(world)
                data.append(await entry(log, b"4"))
                await log.roll()
                data.append(await entry(log, b"5"))
            assert await read_log(client) == data


async def test_ledger_with_index_chunks_is_archived_and_recalled(autojump_clock: trio.testing.MockClock) -> None:
    """Rule M4: most of its fragments are in chunks, which are written again."""
    async with cluster(4) as world:
        store = with_archive(world)
        async with world.client(QUICK) as client, client.create_ledger(unbounded=True) as writer:
            data = []
            for number in range(80):
                data.append(b"%d" % number)
                await writer.append(data[-1])
                await writer.roll()
            record = await client.ledger_metadata(writer.ledger_id)
            assert len(record.fragments) == 81
            await client.admin.add_archive(URL)
            archive_id = (await client.admin.archives())[0].archive_id
            archiver = archiver_of(client)
            assert (await archiver.archive(writer.ledger_id, archive_id, b"")).fragments == 80
            assert len(store.objects_here) == 80
            await release(world)
            await writer.append(b"80")
            async with client.open_ledger(writer.ledger_id) as reader:
                assert await reader.read(0, 79) == data
                assert await reader.read(41, 41) == [b"41"]
            assert (await archiver.recall(writer.ledger_id, b"")).fragments == 80
            await client.trim_ledger(writer.ledger_id, before=3)
            store.contents.clear()
            assert await read_ledger(client, writer.ledger_id) == [*data[3:], b"80"]


async def test_l7_trimming_a_ledger_deletes_objects(autojump_clock: trio.testing.MockClock) -> None:
    """Rule L7, for the fragments of an unbounded ledger."""
    async with cluster(3) as world:
        store = with_archive(world)
        async with world.client(QUICK) as client, client.create_ledger(unbounded=True) as writer:
            for number in range(4):
                await writer.append(b"%d" % number)
                await writer.roll()
            await client.admin.add_archive(URL)
            archive_id = (await client.admin.archives())[0].archive_id
            await archiver_of(client).archive(writer.ledger_id, archive_id, b"")
            assert len(store.objects_here) == 4
            await client.trim_ledger(writer.ledger_id, before=2)
            assert len(store.objects_here) == 2
            assert await read_ledger(client, writer.ledger_id) == [b"2", b"3"]
