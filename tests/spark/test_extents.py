"""What of a log may be read now (D1, L6): found without Spark, on the virtual clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

import replog
from replog.config.client import ClientTuning
from replog.errors import LedgerNotFoundError, PositionError, TrimmedError
from replog.log import rolling
from replog.protocol.chunks import HEAD_FRAGMENTS
from replog.protocol.model import Position, Segment
from replog.records.encoding import encode
from replog.records.paths import log_key_path
from replog.spark.extents import CLOSING_S, Extent, Survey, each_at_once, partitioned
from tests.kit import Cluster, cluster

QUICK = ClientTuning(read_timeout_s=2.0, speculative_read_after_s=0.5, bookie_retry_after_s=1.0)
LOG = "log"
BEGINNING = Position(1, 0)
TOLD_S = 1.0  # an idle writer has told bookies by then what is confirmed (W5)


def numbers(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


async def surveyed(client: replog.Client, start: Position = BEGINNING, closing_s: float = 0.0) -> list[Extent]:
    survey = Survey(client, LOG, b"", closing_s)
    return [extent async for extent in survey.extents(start, await survey.head())]


def shown(extents: list[Extent]) -> list[str]:
    return [f"{each.segment}:{each.first}-{each.last}{'' if each.is_closed else ' open'}" for each in extents]


async def end_of(client: replog.Client) -> Position:
    return await Survey(client, LOG, b"").end()


@asynccontextmanager
async def two_clients() -> AsyncIterator[tuple[Cluster, replog.Client, replog.Client]]:
    async with cluster(4) as world, world.client(QUICK) as client, world.client(QUICK) as other:
        yield world, client, other


async def test_extents_cover_closed_ledgers_and_confirmed_entries(autojump_clock: trio.testing.MockClock) -> None:
    async with two_clients() as (_, client, other):
        async with client.write_log(LOG) as writer:
            await writer.extend(numbers(5))
            await writer.roll()
            await writer.roll()
            await writer.extend(numbers(3))
            await trio.sleep(TOLD_S)
            assert shown(await surveyed(other)) == ["1:0-4", "2:0--1", "3:0-2 open"]
            assert shown(await surveyed(other, Position(1, 3))) == ["1:3-4", "2:0--1", "3:0-2 open"]
            assert shown(await surveyed(other, Position(3, 3))) == ["3:3-2 open"]
            assert await end_of(other) == (3, 3)
        assert shown(await surveyed(other, Position(3, 1))) == ["3:1-2"]
        assert await end_of(other) == (4, 0)  # of the next segment, which is not there yet
        assert shown(await surveyed(other, Position(4, 0))) == []


async def test_unconfirmed_entries_are_not_planned(autojump_clock: trio.testing.MockClock) -> None:
    async with two_clients() as (world, client, other):
        async with client.write_log(LOG) as writer:
            await writer.extend(numbers(5))
            await trio.sleep(TOLD_S)
            for bookie in world.bookies:
                bookie.wire.is_held = True
            writer.push_nowait(b"not confirmed")
            await trio.sleep(0.01)
            for bookie in world.bookies:
                bookie.wire.forget()
            assert await end_of(other) == (1, 5)
            assert shown(await surveyed(other)) == ["1:0-4 open"]


async def test_nothing_behind_an_open_ledger_is_planned(autojump_clock: trio.testing.MockClock) -> None:
    """A leader that died after it had added a ledger, before it closed the one before: more may stand there (L6)."""
    async with two_clients() as (_, client, other):
        async with client.create_ledger() as first, client.create_ledger() as second:
            await first.extend(numbers(4))
            await second.extend(numbers(2))
            await trio.sleep(TOLD_S)
            await begin_log(client, [first.ledger_id, second.ledger_id])
            assert shown(await surveyed(other)) == ["1:0-3 open"]
            assert await end_of(other) == (1, 4)
            started = trio.current_time()
            assert shown(await surveyed(other, closing_s=CLOSING_S)) == ["1:0-3 open"]
            assert CLOSING_S <= trio.current_time() - started < CLOSING_S + 3
            async with trio.open_nursery() as nursery:

                async def close_later() -> None:
                    await trio.sleep(TOLD_S)
                    await first.append(b"more")
                    await first.aclose()

                nursery.start_soon(close_later)
                assert shown(await surveyed(other, closing_s=CLOSING_S)) == ["1:0-4", "2:0-1 open"]


async def begin_log(client: replog.Client, ledger_ids: list[int]) -> None:
    """As a leader leaves it that has died amid a roll."""
    async with client.write_log(LOG):
        pass
    records = client._opened.logs
    head, version = await records.get(LOG)
    segments = tuple(Segment(number, each) for number, each in enumerate(ledger_ids, 1))
    wanted = attrs.evolve(head, segments=segments, next_segment_number=len(segments) + 1)
    metastore = client._opened.ledgers.records.metastore
    await metastore.put(log_key_path(LOG), encode(wanted), version)


async def test_a_takeover_goes_on_in_the_next_segment(autojump_clock: trio.testing.MockClock) -> None:
    async with two_clients() as (_, client, other):
        async with client.write_log(LOG) as writer:
            await writer.extend(numbers(3))
            await trio.sleep(TOLD_S)
            before = await end_of(other)
            async with other.write_log(LOG) as next_writer:
                await next_writer.extend(numbers(2))
                await trio.sleep(TOLD_S)
                assert before == (1, 3)
                assert shown(await surveyed(client, before)) == ["1:3-2", "2:0-1 open"]
                with pytest.raises(replog.FencedError):
                    await writer.append(b"deposed")


async def test_it_never_goes_back(autojump_clock: trio.testing.MockClock) -> None:
    """Bookies that answer now may know less than those that did before."""
    async with two_clients() as (world, client, other):
        async with client.write_log(LOG) as writer:
            await writer.extend(numbers(9))
            assert shown(await surveyed(client, Position(1, 5))) == ["1:5-8 open"]
            for bookie in world.bookies:
                bookie.wire.is_held = True
            found = await surveyed(other, Position(1, 9))
            assert shown(found) == ["1:9-8 open"]
            assert found[-1].after == (1, 9)
            for bookie in world.bookies:
                bookie.wire.release()


async def test_a_trimmed_start_raises(autojump_clock: trio.testing.MockClock) -> None:
    async with two_clients() as (_, client, other):
        async with client.write_log(LOG) as writer:
            for _ in range(3):
                await writer.extend(numbers(2))
                await writer.roll()
            await client.trim_log(LOG, before="3:0")
            for start in (Position(1, 1), Position(2, 0), Position(2, 1), Position(2, 3)):
                with pytest.raises(TrimmedError, match="was trimmed away before it was read") as caught:
                    await surveyed(other, start)
                assert caught.value.first_available == (3, 0)
                with pytest.raises(TrimmedError):
                    await Survey(other, LOG, b"").between(start, Position(3, 1))
            for read_on in (Position(3, 0), Position(2, 2)):  # the second is the end of what was trimmed
                assert shown(await surveyed(other, read_on)) == ["3:0-1", "4:0--1 open"]


async def test_nonexistent_start_raises(autojump_clock: trio.testing.MockClock) -> None:
    async with two_clients() as (_, client, other):
        async with client.write_log(LOG) as writer:
            await writer.extend(numbers(2))
        with pytest.raises(PositionError, match="its last segment is 1"):
            await surveyed(other, Position(2, 1))
        with pytest.raises(PositionError, match="that segment ends at 1"):
            await surveyed(other, Position(1, 3))
        assert await surveyed(other, Position(2, 0)) == []
        assert shown(await surveyed(other, Position(1, 2))) == ["1:2-1"]


async def test_a_trim_during_the_survey_raises_or_does_not_matter(autojump_clock: trio.testing.MockClock) -> None:
    async with two_clients() as (_, client, other):
        async with client.write_log(LOG) as writer:
            for _ in range(3):
                await writer.extend(numbers(2))
                await writer.roll()
            survey = Survey(other, LOG, b"")
            old = await survey.head()
            await client.trim_log(LOG, before="3:0")
            with pytest.raises(TrimmedError):
                _ = [extent async for extent in survey.extents(Position(1, 0), old)]
            heads = [attrs.evolve(old, next_segment_number=3, segments=old.segments[:2]), await survey.head()]

            class Stale(Survey):
                async def head(self) -> replog.LogMetadata:
                    return heads.pop(0) if heads else await super().head()

            assert await Stale(other, LOG, b"").end() == (4, 0)
            assert not heads


async def test_a_stretch_between_two_places(autojump_clock: trio.testing.MockClock) -> None:
    """As a micro-batch that is repeated finds it: the last ledger may have grown, or be closed now."""
    async with two_clients() as (_, client, other):
        async with client.write_log(LOG) as writer:
            await writer.extend(numbers(5))
            await writer.roll()
            await writer.extend(numbers(5))
            await trio.sleep(TOLD_S)
            survey = Survey(other, LOG, b"")
            for _ in range(2):
                assert shown(await survey.between(Position(1, 2), Position(2, 3))) == ["1:2-4", "2:0-2"]
                assert shown(await survey.between(Position(1, 2), Position(2, 0))) == ["1:2-4"]
                assert shown(await survey.between(Position(2, 0), Position(2, 1))) == ["2:0-0"]
                assert shown(await survey.between(Position(1, 5), Position(2, 0))) == []
                await writer.roll()
            with pytest.raises(replog.errors.MetastoreError, match="was closed, and an older record was read"):
                await survey.between(Position(2, 0), Position(5, 0))


async def test_many_segments_are_surveyed(autojump_clock: trio.testing.MockClock) -> None:
    async with two_clients() as (_, client, other):
        async with client.write_log(LOG) as writer:
            for _ in range(70):
                await writer.append(b"x")
                await writer.roll()
        found = await surveyed(other, Position(2, 0))
        assert [each.segment for each in found] == list(range(2, 72))
        assert sum(each.count for each in found) == 69
        assert found == await surveyed(other, Position(2, 0))
        between = await Survey(other, LOG, b"").between(Position(1, 0), Position(72, 0))
        assert sum(each.count for each in between) == 70


async def test_facts_in_the_log_are_not_asked_for(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed ledgers are planned from the log's record and pages; only of the last two that says nothing yet."""
    async with two_clients() as (_, client, other):
        client._opened.logs.page_segments = 4
        async with client.write_log(LOG) as writer:
            for _ in range(40):
                await writer.extend(numbers(3))
                await writer.roll()
        asked: list[int] = []
        ask_for_record, open_ledger = replog.Client.ledger_metadata, replog.Client.open_ledger

        async def ledger_metadata(self: replog.Client, ledger_id: int) -> replog.LedgerMetadata:
            asked.append(ledger_id)
            return await ask_for_record(self, ledger_id)

        def opened(self: replog.Client, ledger_id: int, **options: Any) -> Any:
            asked.append(ledger_id)
            return open_ledger(self, ledger_id, **options)

        monkeypatch.setattr(replog.Client, "ledger_metadata", ledger_metadata)
        monkeypatch.setattr(replog.Client, "open_ledger", opened)
        unknown = {each.ledger_id for each in await other.log_segments(LOG) if each.contents is None}
        assert len(unknown) == 2
        survey = Survey(other, LOG, b"")
        for found in (await surveyed(other), await survey.between(BEGINNING, Position(41, 0))):
            assert [each.count for each in found if each.count] == [3] * 40
        assert set(asked) == unknown
        asked.clear()
        measured = await survey.measured(found)
        assert [each.size_bytes for _, each in measured] == [18] * 40
        assert not asked, "the ledger's own record says the same"
        part = attrs.evolve(found[5], last=1)
        assert (await survey.measure(part)).size_bytes == 12
        assert asked == [part.ledger_id], "of a part nothing is known"
        read_ns = (await survey.measure(attrs.evolve(found[5], first=2))).last_sent_ns
        assert read_ns <= measured[5][1].last_sent_ns < read_ns + 1_000_000
        assert found[5].begun_at_ms <= read_ns // 1_000_000 < found[5].begun_at_ms + 60_000


async def test_sizes(autojump_clock: trio.testing.MockClock) -> None:
    async with two_clients() as (_, client, other):
        async with client.write_log(LOG) as writer:
            for _ in range(4):
                await writer.extend(numbers(10))
        survey = Survey(other, LOG, b"")
        (whole,) = await surveyed(other)
        for first, last in ((0, 39), (0, 0), (7, 7), (7, 33), (39, 39)):
            measured = await survey.measure(attrs.evolve(whole, first=first, last=last))
            assert measured.size_bytes == 6 * (last - first + 1)
            assert measured.last_sent_ns > 0
        await client.delete_ledger(whole.ledger_id)
        with pytest.raises(LedgerNotFoundError):
            await survey.measured([whole])


async def test_sizes_over_takeovers_of_an_unbounded_ledger(autojump_clock: trio.testing.MockClock) -> None:
    """T2: each writer counts its own bytes only."""
    lengths = (1000, 1, 300, 20)  # of three entries of each of the ledger's writers
    async with two_clients() as (_, client, other):
        for length in lengths:
            async with client.write_log(LOG, options=replog.LogOptions(ledgers="unbounded")) as writer:
                await writer.extend([bytes(length)] * 3)
        (whole,) = await surveyed(other)
        sizes = [length for length in lengths for _ in range(3)]
        assert whole.count == len(sizes)
        survey = Survey(other, LOG, b"")
        for first in range(len(sizes)):
            for last in range(first, len(sizes)):
                measured = await survey.measure(attrs.evolve(whole, first=first, last=last))
                assert measured.size_bytes == sum(sizes[first : last + 1]), (first, last)


async def test_sizes_where_fragments_are_in_chunks(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M4: a ledger that many writers have taken over names the first of them in chunks only."""
    monkeypatch.setattr(rolling, "FRAGMENTS_MAX", 1000)
    writers = 3 * HEAD_FRAGMENTS + 2
    async with two_clients() as (_, client, other):
        for _ in range(writers):
            async with client.write_log(LOG, options=replog.LogOptions(ledgers="unbounded")) as writer:
                await writer.extend(numbers(2))
        (whole,) = await surveyed(other)
        async with other.open_ledger(whole.ledger_id) as reader:
            assert reader.metadata.chunks
        assert whole.count == 2 * writers
        survey = Survey(other, LOG, b"")
        for first, last in ((0, whole.last), (3, whole.last - 2), (7, 7)):
            measured = await survey.measure(attrs.evolve(whole, first=first, last=last))
            assert measured.size_bytes == 6 * (last - first + 1)


def extent(count: int, segment: int = 1) -> Extent:
    return Extent(segment, 100 + segment, 0, count - 1, True)


MIB = 1 << 20


@pytest.mark.parametrize(
    ("sizes_mib", "partition_mib", "wanted"),
    [
        ([], 128, []),
        ([100], 128, ["1:0-999"]),
        ([100], 50, ["1:0-499", "1:500-999"]),
        ([100], 30, ["1:0-249", "1:250-499", "1:500-749", "1:750-999"]),
        ([1, 1, 1, 1, 1], 128, ["1:0-999 2:0-999 3:0-999 4:0-999", "5:0-999"]),
        ([1, 100, 1, 1], 64, ["1:0-999", "2:0-499", "2:500-999", "3:0-999 4:0-999"]),
        ([1, 1, 1], 2, ["1:0-999 2:0-999", "3:0-999"]),
    ],
)
def test_portions(sizes_mib: list[int], partition_mib: int, wanted: list[str]) -> None:
    extents = [extent(1000, segment) for segment in range(1, len(sizes_mib) + 1)]
    found = partitioned(extents, [size * MIB for size in sizes_mib], partition_mib * MIB)
    assert [" ".join(f"{each.segment}:{each.first}-{each.last}" for each in portion) for portion in found] == wanted


def test_a_task_opens_so_many_ledgers_at_most() -> None:
    extents = [extent(1, segment) for segment in range(1, 1101)]
    assert [len(each) for each in partitioned(extents, [100] * 1100, 128 * MIB)] == [512, 512, 76]


def test_an_entry_is_not_cut() -> None:
    assert len(partitioned([extent(3)], [1000 * MIB], MIB)) == 3


async def test_the_first_error_is_raised(autojump_clock: trio.testing.MockClock) -> None:
    under_way = 0
    most = 0

    async def ask(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await trio.sleep(1)
        under_way -= 1
        if number == 50:
            raise PositionError("fifty")
        return number

    assert await each_at_once(range(40), ask) == list(range(40))
    assert most == 16
    with pytest.raises(PositionError, match="fifty"):
        await each_at_once(range(100), ask)
