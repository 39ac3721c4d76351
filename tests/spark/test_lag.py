"""How far a stream is behind: counted once for each closed segment, and right at each position; on the virtual clock."""

from __future__ import annotations

import trio
import trio.testing

import replog
from replog.protocol.model import Position
from replog.spark.extents import Survey, _Found
from replog.spark.lag import Backlog, Lag
from tests.kit import cluster

LOG = "log"
TOLD_S = 1.0  # an idle writer has told bookies by then what is confirmed (W5)


async def behind(client: replog.Client, backlog: Backlog, start: Position) -> tuple[int, int, Position]:
    survey = Survey(client, LOG, b"")
    lag, end = await backlog.behind(survey, await survey.head(), start, client._opened.ledgers.entropy.time_ns())
    return lag.entries, lag.size_bytes, end


async def test_lag_is_the_same_however_it_was_counted(autojump_clock: trio.testing.MockClock) -> None:
    """One backlog that goes along, and one that begins at each position."""
    async with cluster(3) as world, world.client() as client, world.client() as other:
        async with client.write_log(LOG) as writer:
            for _ in range(3):
                await writer.extend([b"12345678"] * 4)
                await writer.roll()
            await writer.roll()  # an empty segment
            await writer.extend([b"12345678"] * 2)
            await trio.sleep(TOLD_S)
            going = Backlog()
            for segment, entry, left in (
                (1, 0, 14),
                (1, 3, 11),
                (2, 0, 10),
                (3, 1, 5),
                (3, 1, 5),
                (5, 0, 2),
                (5, 2, 0),
            ):
                start = Position(segment, entry)
                expected = (left, 8 * left, Position(5, 2))
                assert await behind(other, going, start) == expected
                assert await behind(other, Backlog(), start) == expected
            await writer.append(b"x")
            await trio.sleep(TOLD_S)
            assert await behind(other, going, Position(5, 2)) == (1, 1, Position(5, 3))
        assert await behind(other, going, Position(5, 3)) == (0, 0, Position(6, 0))
        assert await behind(other, going, Position(6, 0)) == (0, 0, Position(6, 0))


async def test_lag_in_seconds_follows_the_first_entry(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client() as client:
        async with client.write_log(LOG) as writer:
            await writer.append(b"first")
            await writer.append(b"second")
        backlog, survey = Backlog(), Survey(client, LOG, b"")
        head = await survey.head()
        sent_ns = client._opened.ledgers.entropy.time_ns()
        lag, _ = await backlog.behind(survey, head, Position(1, 0), sent_ns + 7_000_000_000)
        assert 7 <= lag.seconds < 8
        assert (await backlog.behind(survey, head, Position(2, 0), sent_ns))[0] == Lag()


async def test_closed_segments_are_looked_up_once(autojump_clock: trio.testing.MockClock) -> None:
    """A progress of a query that is far behind must not cost what it is behind."""
    async with cluster(3) as world, world.client() as client:
        async with client.write_log(LOG) as writer:
            for _ in range(40):
                await writer.append(b"x")
                await writer.roll()
        looked_up: list[tuple[int, int]] = []

        class Counting(Survey):
            async def _looked_up(self, first: int, end: int) -> list[_Found]:
                looked_up.append((first, end))
                return await super()._looked_up(first, end)

        backlog, survey = Backlog(), Counting(client, LOG, b"")
        head = await survey.head()
        assert (await backlog.behind(survey, head, Position(1, 0), 0))[0].entries == 40
        assert looked_up
        looked_up.clear()
        assert (await backlog.behind(survey, head, Position(7, 0), 0))[0].entries == 34
        assert looked_up == []


def test_lags_of_many_logs_are_added() -> None:
    assert Lag.of_all([Lag(1, 10, 5.0), Lag(2, 20, 3.0)]) == Lag(3, 30, 5.0)
    assert Lag.of_all([]) == Lag()
    assert Lag(1, 2, 3.00049).as_offset() == {"entries": 1, "bytes": 2, "seconds": 3.0}
