"""The contents of closed ledgers in a log's record: entries, bytes and times, from the client that closed them; and
searches by time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import attrs
import trio
import trio.testing

import replog
from replog.config.client import ClientTuning
from replog.protocol.closed_contents import Contents
from replog.protocol.messages import ReadRequest
from replog.protocol.model import LogMetadata, Position
from tests.kit import cluster

QUICK = ClientTuning(add_timeout_s=1.0, read_timeout_s=1.0, add_quorum_timeout_s=10.0, metastore_timeout_s=2.0)
MS = 1_000_000


async def said(client: replog.Client) -> list[Contents | None]:
    return [segment.contents for segment in await client.log_segments("log")]


async def true(client: replog.Client, segment: int) -> Contents:
    """The contents that a reader finds in the segment."""
    async with client.read_log("log") as reader:
        records = [record async for record in reader if record.position.segment == segment]
    times = [record.timestamp_ns for record in records]
    return Contents(len(records), sum(len(each.data) for each in records), min(times) // MS, -(-max(times) // MS))


async def test_segment_describes_its_closed_ledger(autojump_clock: trio.testing.MockClock) -> None:
    """A roll writes what the leader closed before it; a takeover what its predecessor closed last."""
    async with cluster() as world, world.client(QUICK) as client:
        client._opened.logs.page_segments = 2
        async with client.write_log("log") as log:
            await log.extend([b"1", b"22"])
            await log.append(b"333")
            await log.roll()
            assert await said(client) == [None, None], "the first ledger was closed after the change"
            await log.roll()
            assert await said(client) == [await true(client, 1), None, None]
            await log.append(b"4444")
        async with client.write_log("log"):
            first, *rest = await said(client)
            assert first == await true(client, 1)
            assert rest == [Contents(0, 0), await true(client, 3), None]
        for _ in range(5):
            async with client.write_log("log") as log:
                await log.append(b"5")
        head = await client.log_metadata("log")
        assert head.first_listed_number > 2, "the first are in pages"
        assert (await said(client))[:3] == [first, *rest[:2]]


async def test_added_ledgers_describe_their_contents(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        async with client.write_log("log") as log:
            await log.append(b"1")
        async with client.create_ledger(custom={"log": "log", "job": "j"}) as writer:
            await writer.extend([b"22", b"333"])
        await client.jobs.append_ledgers("log", [writer.ledger_id])
        assert await said(client) == [await true(client, 1), await true(client, 2)]


async def test_recovery_states_only_known_contents(autojump_clock: trio.testing.MockClock) -> None:
    """R4: it reads behind the last add confirmed, and copies what it finds."""
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        async with client.write_log("log") as log:
            await log.append(b"1")
            async with other.write_log("log"):
                one, _ = await said(other)
                assert one == await true(other, 1), "nothing told the bookies that it is confirmed"
        async with client.write_log("log") as log:
            await log.append(b"1")
            await log.append(b"22")
            async with other.write_log("log"):
                _, _, both, _ = await said(other)
                found = await true(other, 3)
                assert both == attrs.evolve(found, first_sent_ms=None), "it began behind the first one"
        async with client.write_log("log") as log:
            await log.append(b"1")
            await trio.sleep(60)
            async with other.write_log("log"):
                *_, idle, _ = await said(other)
                assert idle == Contents(1), "it copied nothing"


async def test_a_search_by_time_asks_no_bookie(autojump_clock: trio.testing.MockClock) -> None:
    """Of segments that the record rules out. One of the others is asked: when its last entry was sent."""
    async with cluster() as world, world.client(QUICK) as client:
        client._opened.logs.page_segments = 2
        async with client.write_log("log") as log:
            for _ in range(6):
                await log.append(b"1")
                await trio.sleep(1)
                await log.roll()
        async with client.read_log("log") as reader:
            times = [record.timestamp_ns async for record in reader]
        ledgers = [segment.ledger_id for segment in await client.log_segments("log")]
        for sought, time_ns in enumerate(times[:5]):
            for bookie in world.bookies:
                bookie.wire.seen.clear()
            time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_ns // 1000)
            async with client.read_log("log", since=time) as found:
                assert found.position == Position(sought + 1, -1)
            asked = [each for bookie in world.bookies for each in bookie.wire.seen if isinstance(each, ReadRequest)]
            assert {each.ledger_id for each in asked} == {ledgers[sought]}


def test_completely_known_contents_stay() -> None:
    log = LogMetadata("log").with_ledgers([7, 8, 9], 0)
    known = log.with_contents({7: Contents(3), 8: Contents(0, 0)})
    assert [each.contents for each in known.segments] == [Contents(3), Contents(0, 0), None]
    more = known.with_contents({7: Contents(3, 30, 1, 2), 8: Contents(5)})
    assert [each.contents for each in more.segments] == [Contents(3, 30, 1, 2), Contents(0, 0), None]
    assert more == log, "segments are the same ones, whatever is known of them"


def test_dropped_segment_keeps_no_contents() -> None:
    log = LogMetadata("log").with_ledgers([7, 8, 9], 0).with_contents({7: Contents(3, 30, 1, 2), 8: Contents(5)})
    for changed, count in ((log.trimmed_before(3), 2), (log.deleted(1), 3)):
        assert [(each.ledger_id, each.contents) for each in changed.dropped] == [(7, None), (8, None), (9, None)][
            :count
        ]
