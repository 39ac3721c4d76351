"""The content of a log, and the lag of its cursors."""

from __future__ import annotations

import random

import pytest
import trio

import replog
from replog.errors import LogNotFoundError, PositionError
from replog.log import log_summaries
from replog.log.log_summaries import CursorLag
from replog.protocol.model import LedgerState, Position
from replog.runtime.entropy import Entropy, use_entropy
from tests.kit import Cluster, cluster

pytestmark = pytest.mark.usefixtures("autojump_clock")


async def fill(client: replog.Client, segments: int, seconds_between: float = 10.0) -> None:
    """Closed segments of three entries of 3 bytes, one batch each, some seconds apart; and an empty one."""
    async with client.write_log("log") as writer:
        for number in range(1, segments + 1):
            for entry in range(3):
                await writer.append(b"%d.%d" % (number, entry))
                await trio.sleep(seconds_between)
            await writer.roll()


def follow_virtual_clock() -> None:
    """The time of day goes on with trio's."""
    use_entropy(Entropy(random.Random(7), lambda: int((1_700_000_000 + trio.current_time()) * 1e9)))


def reads(world: Cluster) -> int:
    return len([call for call in world.metastore.calls if call.operation in ("get", "children", "values")])


async def test_lag_counts_entries_bytes_and_seconds() -> None:
    """Within a segment, at its end, across segments, and at the log's end."""
    follow_virtual_clock()
    async with cluster() as world, world.client() as client:
        await fill(client, 3)
        async with client.cursor("log", "billing") as cursor:
            now = await cursor.lag()
            assert (now.entries, now.size_bytes) == (9, 27)
            assert now.age_s == pytest.approx(90, abs=1)
            for done, age_s in ((1, 80), (3, 60), (4, 50), (8, 10)):
                while cursor.position is None or (cursor.position.segment - 1) * 3 + cursor.position.entry + 1 < done:
                    await cursor.receive()
                await cursor.commit()
                now = await cursor.lag()
                assert (now.entries, now.size_bytes) == (9 - done, 3 * (9 - done))
                assert now.age_s == pytest.approx(age_s, abs=1)
            await cursor.receive()
            assert (await cursor.lag()).entries == 1, "it was returned, and not committed"
            await cursor.commit()
            assert await cursor.lag() == CursorLag(0, 0, 0.0)


async def test_lag_counts_entries_of_an_open_ledger() -> None:
    follow_virtual_clock()
    async with cluster() as world, world.client() as client, world.client() as other:
        async with (
            client.write_log("log", options=replog.LogOptions(custom={"writer": "me"})) as writer,
            other.cursor("log", "billing") as cursor,
        ):
            assert await cursor.lag() == CursorLag(0, 0, 0.0)
            await writer.extend([b"four", b"five5", b"sixsix"])
            await trio.sleep(100)
            now = await cursor.lag()
            assert (now.entries, now.size_bytes) == (3, 15)
            assert now.age_s == pytest.approx(100, abs=1)
            await cursor.commit("1:1")
            now = await cursor.lag()
            assert (now.entries, now.size_bytes) == (1, 6), "amid a stored batch, too"
            summary = await other.log_summary("log")
            assert (summary.state, summary.writer, summary.end) == (LedgerState.OPEN, "me", Position(1, 3))
            assert (summary.entries, summary.size_bytes, summary.problem) == (3, 15, None)
            assert summary.lags == {"billing": now}


async def test_bytes_are_unknown_after_several_unbounded_writers() -> None:
    """T2: each writer counts its own bytes only."""
    async with cluster() as world, world.client() as client:
        async with client.write_log("log", options=replog.LogOptions(ledgers="unbounded")) as log:
            await log.append(b"a" * 1000)
        async with client.cursor("log", "billing") as cursor:
            assert (await cursor.lag()).size_bytes == 1000
            async with client.write_log("log") as log:
                await log.append(b"b")
            lag = await cursor.lag()
            assert (lag.entries, lag.size_bytes) == (2, None), "it was the last writer's byte alone"


async def test_commit_beyond_the_end_changes_nothing() -> None:
    async with cluster() as world, world.client() as client:
        await fill(client, 2)
        async with client.cursor("log", "billing") as cursor:
            for beyond in ("9:99", "4:0", "3:0", "2:3", "1:7"):
                with pytest.raises(PositionError, match="nothing was committed"):
                    await cursor.commit(beyond)
                with pytest.raises(PositionError, match="nothing was committed"):
                    cursor.commit_nowait(beyond)
            assert cursor.begins_at == Position(1, 0)
            await cursor.commit("2:2")
            assert cursor.begins_at == Position(2, 3)
            cursor.commit_nowait("1:7")  # before what is committed: nothing to do
        assert [each.begins_at for each in await client.cursors.list("log")] == [Position(2, 3)]


async def test_unknown_is_none_when_bookies_are_away() -> None:
    """The facts about closed segments in the log's record need no bookie."""
    async with cluster() as world, world.client() as client:
        await fill(client, 2)
        async with client.write_log("log") as writer:
            await writer.append(b"last")
            async with client.cursor("log", "early"), client.cursor("log", "amid", start="1:1"):
                pass
            for bookie in world.bookies:
                await bookie.kill()
            async with world.client() as other:
                summary = await other.log_summary("log")
            assert (summary.entries, summary.size_bytes, summary.end, summary.last_sent_ms) == (None,) * 4
            assert summary.first_sent_ms is not None
            assert summary.problem
            early, amid = summary.lags["early"], summary.lags["amid"]
            assert (early.entries, early.size_bytes, amid) == (None, None, CursorLag())
            assert early.age_s is not None
            for bookie in world.bookies:
                await bookie.start()


async def test_long_log_costs_no_more_than_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded, the reads of the metastore do not grow; what was not read is None."""
    monkeypatch.setattr(log_summaries, "_PAGES_MAX", 2)
    async with cluster() as world, world.client() as client:
        client._opened.logs.page_segments = 2
        found = {}
        for segments in (7, 20):
            await fill(client, segments, seconds_between=0)
            async with client.cursor("log", "billing"):
                pass
            before = reads(world)
            found[segments] = await client.log_summary("log", bounded=True)
            costs = reads(world) - before
            assert costs <= 10
        assert found[20].entries is None
        assert found[20].lags["billing"] == CursorLag()
        assert found[20].end is not None
        assert (await client.log_summary("log")).entries == 81


async def test_slowest_cursor_limits_droppable_entries() -> None:
    async with cluster() as world, world.client() as client:
        await fill(client, 3, seconds_between=0)
        assert (await client.log_summary("log")).droppable_segments is None
        async with client.cursor("log", "fast", start="4:0"), client.cursor("log", "slow", start="3:1"):
            pass
        summary = await client.log_summary("log")
        assert summary.slowest_cursor is not None
        assert (summary.slowest_cursor.name, summary.droppable_segments) == ("slow", 2)
        await client.trim_log("log", before="3:0", ignore_cursors=True)
        await client.cursors.move("log", "slow", to="3:2")
        assert (await client.log_summary("log")).lags["slow"].entries == 1
        with pytest.raises(LogNotFoundError):
            await client.log_summary("absent")


async def test_cursor_behind_the_trimmed_has_no_known_lag() -> None:
    async with cluster() as world, world.client() as client:
        await fill(client, 2, seconds_between=0)
        async with client.cursor("log", "billing"):
            pass
        await client.trim_log("log", before="2:0", ignore_cursors=True)
        summary = await client.log_summary("log")
        assert summary.lags == {"billing": CursorLag()}
        assert summary.entries == 3
