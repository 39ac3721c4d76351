"""Logs whose lists stand in pages: written through faults, read across pages, trimmed away under readers (L3, L6)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import attrs
import pytest
import trio
import trio.testing

import replog
from replog.abc import Versioned
from replog.config.client import ClientTuning
from replog.errors import (
    LogNotFoundError,
    MetastoreCorruptError,
    MetastoreError,
    MetastoreUncertainError,
    TrimmedError,
)
from replog.hookspecs import LogTrimmed
from replog.protocol.model import Position, Segment
from replog.records.encoding import encode
from replog.records.logs import decode_log_page
from replog.records.paths import log_key_path, log_page_key_path
from replog.testing import Fault, FaultyMetastore
from tests.kit import Cluster, cluster, read_log

QUICK = ClientTuning(add_timeout_s=1.0, read_timeout_s=1.0, add_quorum_timeout_s=10.0, metastore_timeout_s=2.0)
FAULTS = [Fault.ANSWER_LOST, Fault.REQUEST_LOST, Fault.ARRIVES_LATE, Fault.UNAVAILABLE]
PAGES = "logs/log/pages"


@asynccontextmanager
async def paged(segments: int, page_segments: int = 2) -> AsyncIterator[tuple[Cluster, replog.Client]]:
    """A cluster with a log of so many segments, with one record each: its segment's number."""
    async with cluster() as world, world.client(QUICK) as client:
        client._opened.logs.page_segments = page_segments
        async with client.write_log("log") as log:
            for number in range(1, segments + 1):
                await log.append(b"%d" % number)
                if number < segments:
                    await log.roll()
        yield world, client


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


# -- writing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_answers_about_pages_may_be_lost(fault: Fault, autojump_clock: trio.testing.MockClock) -> None:
    async with paged(4) as (world, client):
        for number in range(5, 12):
            world.metastore.fail_next("create", fault, under=PAGES)
            async with client.write_log("log") as log:
                await log.append(b"%d" % number)
        assert world.metastore.planned() <= 4, "every second takeover writes a page"
        assert await read_log(client) == numbers(1, 11)
        assert len(await client.ledgers()) == 11


async def test_log_stays_unchanged_when_the_metastore_takes_no_pages(autojump_clock: trio.testing.MockClock) -> None:
    """L3: the record may not leave out what stands in no page. The current ledger goes on."""
    async with paged(4) as (world, client):
        async with client.write_log("log") as log:
            world.metastore._choose = lambda operation, key: (
                Fault.UNAVAILABLE if operation == "create" and key.startswith(PAGES) else None
            )
            with pytest.raises(MetastoreError):
                await log.roll()
            await log.append(b"5")
            assert (await client.log_metadata("log")).next_segment_number == 6
            world.metastore._choose = None
            await log.roll()
            await log.append(b"6")
        assert await read_log(client) == numbers(1, 6)
        assert [segment.number for segment in await client.log_segments("log")] == list(range(1, 7))


async def test_two_simultaneous_takeovers_write_one_page(autojump_clock: trio.testing.MockClock) -> None:
    async with paged(5) as (world, client), world.client(QUICK) as other:
        world.metastore.delay_s = 0.01

        async def lead(who: replog.Client) -> None:
            async with who.write_log("log"):
                pass

        for _ in range(6):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lead, client)
                nursery.start_soon(lead, other)
        segments = await client.log_segments("log")
        assert [segment.number for segment in segments] == list(range(1, len(segments) + 1))
        assert sorted(segment.ledger_id for segment in segments) == await client.ledgers()


async def test_page_contradicting_the_record_raises(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It came out of an old backup, or by hand: to go on would lose what the record names."""
    async with paged(5) as (world, client):
        before = await client.log_metadata("log")
        page = attrs.evolve(before.split()[0][0], segments=(Segment(2, 4711), before.segments[1]))
        await world.metastore.create(log_page_key_path("log", 1), encode(page))
        with pytest.raises(MetastoreCorruptError, match=r"'logs/log/pages/1'.*does not name.*restore"):
            async with client.write_log("log"):
                pass
        assert await client.log_metadata("log") == before


# -- reading -------------------------------------------------------------------------------------------------------


async def test_it_is_read_and_resumed_across_pages(autojump_clock: trio.testing.MockClock) -> None:
    async with paged(13, page_segments=3) as (world, client):
        assert len((await client.log_metadata("log")).segments) < 6
        assert await read_log(client) == numbers(1, 13)
        for number in range(1, 14):
            async with client.read_log("log", after=f"{number}:0") as reader:
                assert [record.data async for record in reader] == numbers(number + 1, 13)
        gets = [call.key for call in world.metastore.calls if call.operation == "get" and call.key.startswith(PAGES)]
        world.metastore.calls.clear()
        await read_log(client)
        gets = [call.key for call in world.metastore.calls if call.operation == "get" and call.key.startswith(PAGES)]
        assert gets == sorted(set(gets)), "each page is read once"
        assert len(gets) == 3


async def test_it_is_followed_while_pages_fill(autojump_clock: trio.testing.MockClock) -> None:
    async with paged(3) as (_, client):
        found: list[bytes] = []

        async def follow() -> None:
            async with client.read_log("log", follow=True) as reader:
                async for record in reader:
                    found.append(record.data)
                    await trio.sleep(0.3)  # the log runs away
                    if len(found) == 20:
                        return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            async with client.write_log("log") as log:
                for number in range(4, 21):
                    await log.append(b"%d" % number)
                    await log.roll()
        assert found == numbers(1, 20)


async def test_a_reader_raises_when_its_next_page_was_trimmed(autojump_clock: trio.testing.MockClock) -> None:
    async with paged(13, page_segments=3) as (_, client), client.read_log("log") as reader:
        assert (await reader.receive()).data == b"1"
        await client.trim_log("log", before="8:0")
        with pytest.raises(TrimmedError) as caught:
            async for _record in reader:
                pass
        assert caught.value.first_available == Position(8, 0)
        async with client.read_log("log", after="8:0") as other:
            assert [record.data async for record in other] == numbers(9, 13)
        with pytest.raises(TrimmedError):
            async with client.read_log("log", after="6:0"):
                pass
        async with client.read_log("log", after="7:0") as other:  # it has read all that was trimmed (L6)
            assert [record.data async for record in other] == numbers(8, 13)


async def test_lost_page_is_named(autojump_clock: trio.testing.MockClock) -> None:
    async with paged(8) as (world, client):
        await world.metastore.delete(log_page_key_path("log", 1))
        for look in (lambda: read_log(client), lambda: client.log_segments("log")):
            with pytest.raises(MetastoreCorruptError, match=r"segment 2 .*is missing.*'logs/log/pages/1'.*restore"):
                await look()
        async with client.read_log("log", after="5:0") as reader:
            assert [record.data async for record in reader] == numbers(6, 8)


async def test_segments_are_listed_from_and_to_where_one_likes(autojump_clock: trio.testing.MockClock) -> None:
    async with paged(13, page_segments=3) as (_, client):
        await client.trim_log("log", before="2:0")
        for first in range(0, 17):
            for end in (None, *range(0, 17)):
                found = [segment.number for segment in await client.log_segments("log", first=first, end=end)]
                assert found == list(range(max(2, first), min(14, 14 if end is None else end))), (first, end)
        assert [each.ledger_id for each in await client.log_segments("log")] == await client.ledgers()


# -- trimming ------------------------------------------------------------------------------------------------------


async def test_a_trim_in_the_middle_of_a_page_and_across_pages(autojump_clock: trio.testing.MockClock) -> None:
    async with paged(13, page_segments=3) as (world, client):
        for first, pages in ((2, [0, 1, 2]), (4, [1, 2]), (5, [1, 2]), (11, []), (13, [])):
            segments = await client.log_segments("log")
            dropped = tuple(segment.ledger_id for segment in segments if segment.number < first)
            assert await client.trim_log("log", before=Position(first, 0)) == Position(first, 0)
            assert [int(word) for word in await world.metastore.children(PAGES)] == pages
            assert await read_log(client) == numbers(first, 13)
            assert len(await client.ledgers()) == 14 - first
            told = world.told(LogTrimmed)[-1]
            assert (told.first_segment, told.ledger_ids) == (first, dropped)  # type: ignore[union-attr]


@pytest.mark.parametrize("under", ["ledgers/", PAGES])
@pytest.mark.parametrize("fault", FAULTS)
async def test_the_answers_of_a_trim_of_pages_may_be_lost(
    fault: Fault, under: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with paged(9) as (world, client):
        world.metastore.fail_next("delete", fault, under=under, times=2)
        assert await client.trim_log("log", before="8:0") == Position(8, 0)
        assert world.metastore.planned() == 0
        assert len(await client.ledgers()) == 2
        assert await world.metastore.children(PAGES) == []


async def test_next_trim_deletes_leftovers_in_pages(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with paged(9) as (world, client):
        world.metastore._choose = lambda operation, key: (
            Fault.UNAVAILABLE if operation == "delete" and key.startswith("ledgers/") else None
        )
        with pytest.raises(MetastoreError):
            await client.trim_log("log", before="6:0")
        world.metastore._choose = None
        assert len(await client.ledgers()) == 9
        assert await client.trim_log("log", before="6:0") == Position(6, 0)
        assert await read_log(client) == numbers(6, 9)
        assert len(await client.ledgers()) == 4


async def test_orphaned_page_is_removed(autojump_clock: trio.testing.MockClock) -> None:
    async with paged(9) as (world, client):
        key = log_page_key_path("log", 0)
        late = (await world.metastore.get(key)).value
        assert decode_log_page(key, late).segments[0].number == 1
        await client.trim_log("log", before="4:0")
        await world.metastore.create(key, late)
        assert await read_log(client) == numbers(4, 9)
        await client.trim_log("log", before="4:0")
        assert await world.metastore.children(PAGES) == ["2"]


async def test_trims_of_pages_at_the_same_time(autojump_clock: trio.testing.MockClock) -> None:
    async with paged(16) as (world, client), world.client(QUICK) as other:
        world.metastore.delay_s = 0.001
        async with trio.open_nursery() as nursery:
            for number in (3, 13, 7, 10, 4):
                for who in (client, other):
                    nursery.start_soon(partial(who.trim_log, "log", before=Position(number, 0)))
        assert await read_log(client) == numbers(13, 16)
        assert len(await client.ledgers()) == 4
        await client.trim_log("log", before="13:0")
        assert await world.metastore.children(PAGES) == ["6"], "that of 12 and 13"


@pytest.mark.slow
async def test_many_ledgers_are_trimmed_at_once_and_resumably(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Page by page: whoever trims again goes on where it was cut short."""
    async with paged(1, page_segments=100) as (world, client):
        log = await client.log_metadata("log")
        for number in range(2, 2000):
            pages, log = log.split()
            for page in pages:
                await world.metastore.create(log_page_key_path("log", page.number), encode(page))
            log = log.with_ledger(1_000_000 + number, 0).open_from(number)
        found = await world.metastore.get(log_key_path("log"))
        await world.metastore.put(log_key_path("log"), encode(log), found.version)
        deletions = 0

        def choose(operation: str, key: str) -> Fault | None:
            nonlocal deletions
            is_deletion = operation == "delete" and key.startswith("ledgers/")
            deletions += is_deletion
            return Fault.UNAVAILABLE if is_deletion and 1000 < deletions < 2000 else None

        world.metastore._choose = choose
        with pytest.raises(MetastoreError):
            await client.trim_log("log", before="1999:0")
        left = await world.metastore.children(PAGES)
        assert 0 < len(left) < 18
        deletions = 2000
        await client.trim_log("log", before="1999:0")
        assert await world.metastore.children(PAGES) == []


# -- what happens between two calls ----------------------------------------------------------------------------------


class Interrupted(FaultyMetastore):
    """Lets something happen around one call."""

    before_get: tuple[str, Callable[[], Awaitable[object]]] | None = None  # of this key, once
    after_put: tuple[str, Callable[[], Awaitable[object]]] | None = None  # then its answer is lost

    async def get(self, key: str) -> Versioned:
        if self.before_get is not None and self.before_get[0] == key:
            (_, happens), self.before_get = self.before_get, None
            await happens()
        return await super().get(key)

    async def put(self, key: str, value: bytes, expected: int) -> int:
        version = await super().put(key, value, expected)
        if self.after_put is not None and self.after_put[0] == key:
            (_, happens), self.after_put = self.after_put, None
            await happens()
            raise MetastoreUncertainError("its answer was lost")
        return version


async def test_ledger_named_in_a_page_is_not_deleted(autojump_clock: trio.testing.MockClock) -> None:
    """L1: whoever took over lost its answer, and slept while others took over: is its ledger the log's?"""
    async with paged(3) as (world, client):
        metastore = Interrupted(world.metastore)

        async def others() -> None:
            for _ in range(6):
                async with client.write_log("log"):
                    pass

        metastore.after_put = (log_key_path("log"), others)
        async with world.client(QUICK, metastore=metastore) as slow:
            async with slow.write_log("log") as log:
                await log.append(b"4")
        assert metastore.after_put is None
        segments = await client.log_segments("log")
        assert [segment.number for segment in segments] == list(range(1, 12))
        assert [segment.ledger_id for segment in segments] == await client.ledgers()
        assert await read_log(client) == numbers(1, 4)


async def test_list_trimmed_while_it_is_read_has_no_gap(autojump_clock: trio.testing.MockClock) -> None:
    async with paged(13, page_segments=3) as (world, client):
        metastore = Interrupted(world.metastore)
        async with world.client(QUICK, metastore=metastore) as other:
            metastore.before_get = (log_page_key_path("log", 2), lambda: client.trim_log("log", before="9:0"))
            assert [segment.number for segment in await other.log_segments("log")] == [9, 10, 11, 12, 13]
            metastore.before_get = (log_key_path("log"), lambda: client.trim_log("log", before="12:0"))
            assert [segment.number for segment in await other.log_segments("log")] == [12, 13]


async def test_listing_survives_deletion_and_recreation_of_the_log(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with paged(13, page_segments=3) as (world, client):
        metastore = Interrupted(world.metastore)

        async def anew() -> None:
            await client.delete_log("log")
            async with client.write_log("log"):
                pass

        async with world.client(QUICK, metastore=metastore) as other:
            metastore.before_get = (log_page_key_path("log", 2), anew)
            assert [segment.number for segment in await other.log_segments("log")] == [14]
            metastore.before_get = (log_key_path("log"), lambda: client.delete_log("log"))
            with pytest.raises(LogNotFoundError):
                await other.log_segments("log")
