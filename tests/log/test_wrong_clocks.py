"""Retention by age when one clock is wrong (L3a): the leader's, a former leader's, or a bookie's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import attrs
import pytest
import trio

import replog
from replog.log.log_options import Retention
from replog.log.retention import first_kept
from replog.protocol.closed_contents import Contents
from replog.protocol.model import Position, Segment
from replog.runtime.entropy import Entropy, use_entropy
from tests.kit import Cluster, cluster

MINUTE_MS, DAY_MS = 60_000, 86_400_000
YEAR = timedelta(days=365)
WEEK = timedelta(days=7)
AGE = timedelta(minutes=10)  # of most tests: days of virtual time take long
NOW_MS = 2 * 10**12


class Wall:
    """A wall clock that runs with the virtual time, and can be set."""

    def __init__(self, ahead: timedelta = timedelta(0)) -> None:
        self.ahead = ahead

    def time_ns(self) -> int:
        return NOW_MS * 1_000_000 + int((trio.current_time() + self.ahead.total_seconds()) * 10**9)

    def use(self) -> None:
        """Objects made from now on have this clock."""
        use_entropy(Entropy(time_ns=self.time_ns))


@asynccontextmanager
async def world_of(*bookies: Wall) -> AsyncIterator[Cluster]:
    """A cluster of bookies with these clocks; what is made next has a right one."""
    async with cluster(0) as world:
        for wall in bookies:
            wall.use()
            await world.add_bookie()
        Wall().use()
        yield world


async def write_segments(log: replog.LogWriter, count: int, *, each_s: float = 10.0) -> None:
    for number in range(count):
        await log.append(b"order %d" % number)
        await trio.sleep(each_s)
        await log.roll()


async def first_segment(client: replog.Client) -> int:
    return (await client.log_metadata("log")).first_segment_number


# -- the clock of the leader, or of who calls ---------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [YEAR, -YEAR, timedelta(minutes=2)])
async def test_l3a_leader_drops_nothing_while_its_clock_is_wrong(
    ahead: timedelta, caplog: pytest.LogCaptureFixture
) -> None:
    """Its clock is wrong for as long as it leads, so it never sees a jump."""
    async with world_of(Wall(), Wall(), Wall()) as world:
        async with world.client() as client, client.write_log("log") as log:
            await write_segments(log, 6)
        Wall(ahead).use()
        async with world.client() as client:
            async with client.write_log(
                "log", options=replog.LogOptions(retention=Retention(age=timedelta(seconds=90)))
            ):
                await trio.sleep(1)
                assert await first_segment(client) == 1
            assert caplog.text.count("no majority of the bookies confirms the wall clock") == 1


async def test_l3a_leader_drops_nothing_when_its_clock_jumps_briefly(caplog: pytest.LogCaptureFixture) -> None:
    """All clocks are one, as in an embedded log: the monotonic clock shows the jump."""
    wall = Wall()
    wall.use()
    async with cluster() as world, world.client() as client:
        async with client.write_log("log", options=replog.LogOptions(retention=Retention(age=AGE))) as log:
            await write_segments(log, 12, each_s=4.0)  # the second pass comes at 60 s
            await trio.sleep(5)
            wall.ahead = YEAR
            await trio.sleep(10)
            wall.ahead = timedelta(0)
            assert await first_segment(client) == 1
            assert "has jumped 365.0 days ahead" in caplog.text
            await trio.sleep(800)
            assert await first_segment(client) >= 12, "once the clock is right, the retention is enforced"


async def test_l3a_leader_continues_one_pass_after_a_clock_change() -> None:
    wall = Wall()
    wall.use()
    async with cluster() as world, world.client() as client:
        async with client.write_log("log", options=replog.LogOptions(retention=Retention(age=AGE))) as log:
            await write_segments(log, 6, each_s=1.0)
            wall.ahead = timedelta(minutes=11)
            await trio.sleep(60)
            assert await first_segment(client) == 1
            await trio.sleep(60)
            assert await first_segment(client) == 6


async def test_l3a_call_names_the_clocks_and_keeps_the_other_limits() -> None:
    async with world_of(Wall(), Wall(), Wall()) as world:
        async with world.client() as client, client.write_log("log") as log:
            await write_segments(log, 6)
        Wall(YEAR).use()
        async with world.client() as client:
            with pytest.raises(
                replog.errors.ClockMismatchError, match=r"365\.0 days ahead of that of bookie"
            ) as caught:
                await client.retain_log("log", age=timedelta(hours=1), size_bytes=14)
            assert len(caught.value.bookies) == 3
            assert await first_segment(client) == 4, "what is beyond the size has gone"


async def test_l3a_call_on_an_idle_log_drops_old_entries() -> None:
    async with world_of(Wall(), Wall(), Wall()) as world:
        async with world.client() as client, client.write_log("log") as log:
            await write_segments(log, 3)
        await trio.sleep(1000)
        async with world.client() as client:
            async with client.write_log("log"):
                pass
            assert await client.retain_log("log", age=AGE) == Position(5, 0)


async def test_l3a_call_sees_a_jump_since_the_client_was_opened() -> None:
    wall = Wall()
    wall.use()
    async with cluster() as world, world.client() as client:
        async with client.write_log("log") as log:
            await write_segments(log, 3)
        wall.ahead = YEAR
        with pytest.raises(replog.errors.ClockMismatchError, match="has jumped"):
            await client.retain_log("log", age=WEEK)
        assert await first_segment(client) == 1


# -- the clocks of bookies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "absent", "is_refused"), [(1, 0, False), (2, 0, True), (0, 1, False), (1, 1, True), (0, 2, True)]
)
async def test_l3a_majority_of_the_ensemble_must_confirm_the_clock(wrong: int, absent: int, is_refused: bool) -> None:
    async with world_of(*[Wall(YEAR)] * wrong, *[Wall()] * (3 - wrong)) as world:
        async with world.client() as client:
            async with client.write_log("log") as log:
                await write_segments(log, 3)
            for bookie in world.bookies[3 - absent :]:
                bookie.wire.is_deaf = True
            await trio.sleep(700)
            if is_refused:
                with pytest.raises(replog.errors.ClockMismatchError):
                    await client.retain_log("log", age=timedelta(minutes=10))
                assert await first_segment(client) == 1
            else:
                assert await client.retain_log("log", age=timedelta(minutes=10)) > Position(1, 0)


# -- the clock of a former leader ---------------------------------------------------------------------------------------


async def test_l3a_segment_from_the_future_is_named_with_the_remedy() -> None:
    async with world_of(Wall(), Wall(), Wall()) as world:
        Wall(10 * YEAR).use()
        async with world.client() as client, client.write_log("log") as log:
            await write_segments(log, 2)
        Wall().use()
        async with world.client() as client:
            async with client.write_log("log") as log:
                await write_segments(log, 3)
            await trio.sleep(1000)
            for _ in range(2):
                command = r"segment 1 stays.* is in the future.*`replog log trim log --before 3:0`"
                with pytest.raises(replog.errors.ClockMismatchError, match=command) as caught:
                    await client.retain_log("log", age=AGE)
                assert caught.value.segment == 1
            await client.trim_log("log", before="3:0")
            assert await client.retain_log("log", age=AGE) > Position(3, 0)


async def test_l3a_leader_names_a_segment_from_the_future_once(caplog: pytest.LogCaptureFixture) -> None:
    async with world_of(Wall(), Wall(), Wall()) as world:
        Wall(10 * YEAR).use()
        async with world.client() as client, client.write_log("log") as log:
            await write_segments(log, 2)
        Wall().use()
        async with (
            world.client() as client,
            client.write_log("log", options=replog.LogOptions(retention=Retention(age=WEEK))),
        ):
            await trio.sleep(600)
            assert caplog.text.count("replog log trim log --before 3:0") == 1


async def test_l3a_entries_of_a_leader_with_a_slow_clock_are_kept() -> None:
    async with world_of(Wall(), Wall(), Wall()) as world:
        Wall(-10 * YEAR).use()
        async with world.client() as client, client.write_log("log") as log:
            await write_segments(log, 3)
        Wall().use()
        async with world.client() as client:
            async with client.write_log("log") as log:
                await write_segments(log, 2)
            with pytest.raises(
                replog.errors.ClockMismatchError, match=r"more than a year older.*`replog log trim log --before 5:0`"
            ):
                await client.retain_log("log", age=WEEK)
            assert await first_segment(client) == 1


def segments_of(*days: float, contents: Contents | None = None) -> list[Segment]:
    """One segment for each of these days, and one that is written to; each was created a minute before its entries."""
    sent = [NOW_MS + int(day * DAY_MS) for day in days]
    closed = [
        Segment(number, 100 + number, ms - MINUTE_MS, Contents(2, 10, ms, ms)) for number, ms in enumerate(sent, 1)
    ]
    return [*closed, Segment(len(closed) + 1, 200, sent[-1] + MINUTE_MS)]


@pytest.mark.parametrize(
    ("days", "now_day", "first"),
    [
        ((0, 1, 2, 3), 9.5, 4),
        ((0, 1, -50, 3), 7.5, 2),
        ((0, 1, -50, 3), 8.5, 2),  # the third was sent after the second, which stays as a witness of that
        ((0, 1, -50, 3), 9.5, 2),
        ((0, 1, -50, -49, 3), 9.5, 2),
        ((0, 1, -50, -49, 3), 10.5, 6),
        ((0, 1, -50, 3), 10.5, 5),
        ((0, 1, 0.9999, 3), 9.5, 4),  # less than a minute
        ((0, 1, 500, 3), 9.5, 3),  # the future
        ((0, 1, 400), 410, 1),  # idle for more than a year, or a clock that was behind
        ((0, 1, 300), 310, 4),
        ((0, -3000, -2999), 10, 1),  # nobody knows when the last two were sent
    ],
)
def test_l3a_times_contradicting_the_segment_order_keep(days: tuple[float, ...], now_day: float, first: int) -> None:
    now_ms = NOW_MS + int(now_day * DAY_MS)
    assert first_kept(segments_of(*days), Retention(age=WEEK), now_ms, None) == first


def test_l3a_corrected_clock_drops_nothing_before_its_segment() -> None:
    """A machine that begins in 1970, until it has asked for the time: while it leads, or before its segment is closed."""
    segments = segments_of(-3000, -3000, 1)
    segments[2] = attrs.evolve(segments[2], created_at_ms=segments[1].created_at_ms + 1)
    assert first_kept(segments, Retention(age=WEEK), NOW_MS + 2 * DAY_MS, None) == 1
    assert first_kept(segments[:3], Retention(age=WEEK), NOW_MS + 2 * DAY_MS, None) == 1


def test_l3a_ledgers_of_a_long_job_are_as_old_as_their_commit() -> None:
    segments = segments_of(0, 1, 0.5, 2)
    segments[2] = attrs.evolve(segments[2], created_at_ms=NOW_MS + int(1.1 * DAY_MS))
    assert first_kept(segments, Retention(age=WEEK), NOW_MS + int(8.05 * DAY_MS), None) == 2
    assert first_kept(segments, Retention(age=WEEK), NOW_MS + int(8.2 * DAY_MS), None) == 4


# -- what else is dropped or forgotten by age ---------------------------------------------------------------------------


async def test_l3a_sweep_gives_up_no_job_by_a_wrong_clock() -> None:
    async with world_of(Wall(), Wall(), Wall()) as world:
        async with world.client() as client:
            async with client.write_log("log"):
                pass
            async with client.create_ledger(custom={"log": "log", "job": "a"}) as writer:
                await writer.append(b"1")
        Wall(YEAR).use()
        async with world.client() as sweeper:
            with pytest.raises(replog.errors.ClockMismatchError, match="No job was given up by its age"):
                await sweeper.jobs.sweep("log", grace_s=3600.0)
            await sweeper.jobs.append_ledgers("log", [writer.ledger_id], job="a")
            assert await sweeper.jobs.sweep("log", grace_s=3600.0) == []


async def test_l3a_sweep_by_name_or_without_grace_needs_no_clock() -> None:
    async with world_of(Wall(), Wall(), Wall()) as world:
        async with world.client() as client:
            written = []
            for job in ("a", "b"):
                async with client.create_ledger(custom={"log": "log", "job": job}) as writer:
                    written.append(writer.ledger_id)
        Wall(YEAR).use()
        async with world.client() as sweeper:
            assert await sweeper.jobs.sweep("log", job="a") == written[:1]
            assert await sweeper.jobs.sweep("log", grace_s=0.0) == written[1:]


async def test_l3a_producers_are_not_forgotten_by_a_wrong_clock() -> None:
    async with world_of(Wall(), Wall(), Wall()) as world:
        async with world.client() as client, client.write_log("log") as log:
            first = await log.append(b"1", id=("till", 1))
            await log.roll()
            Wall(YEAR).use()
            async with world.client() as operator:
                with pytest.raises(replog.errors.ClockMismatchError, match="Nothing was forgotten by age"):
                    await operator.jobs.retire_producers("log", older_than_s=3600.0)
                assert [each.name for each in await operator.jobs.producers("log")] == ["till"]
                assert await operator.jobs.retire_producers("log", ["other"]) == []
            await log.roll()
            assert await log.append(b"1", id=("till", 1)) == first


async def test_l3a_transactions_are_not_forgotten_by_a_wrong_clock() -> None:
    async with world_of(Wall(), Wall(), Wall()) as world:
        async with world.client() as client:
            await client.jobs.append_ledgers("log", [], transaction=("stream", 1))
            async with client.write_log("log"):
                pass
        Wall(YEAR).use()
        async with world.client() as operator:
            with pytest.raises(replog.errors.ClockMismatchError):
                await operator.jobs.retire_transactions("log", older_than_s=3600.0)
            assert await operator.jobs.retire_transactions("log", ["stream"]) == ["stream"]
