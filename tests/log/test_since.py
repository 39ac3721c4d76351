"""Reading a log since a time: nothing at or after it is skipped, whatever the clocks of leaders did."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta, timezone

import pytest
import trio
import trio.testing

import replog
from replog.config.client import ClientTuning
from replog.protocol.messages import ReadRequest
from replog.protocol.model import Position, Segment
from replog.runtime.entropy import Entropy, use_entropy
from tests.kit import Cluster, cluster
from tests.lanes.seeds import some

QUICK = ClientTuning(add_timeout_s=1.0, read_timeout_s=1.0, add_quorum_timeout_s=10.0, metastore_timeout_s=2.0)
START = datetime(2026, 11, 23, tzinfo=UTC)
START_NS = int(START.timestamp()) * 10**9


class Clock:
    """The time of day of all that is made in this run."""

    def __init__(self) -> None:
        self.now_ns = START_NS

    def set(self, seconds: float) -> None:
        """So long after the start."""
        self.now_ns = START_NS + round(seconds * 1e9)


@pytest.fixture
def clock(autojump_clock: trio.testing.MockClock) -> Clock:
    return Clock()


@asynccontextmanager
async def world(clock: Clock, bookies: int = 3) -> AsyncIterator[Cluster]:
    use_entropy(Entropy(time_ns=lambda: clock.now_ns))
    async with cluster(bookies) as made:
        yield made


async def everything(client: replog.Client) -> list[replog.Record]:
    async with client.read_log("log") as reader:
        return [record async for record in reader]


async def found(client: replog.Client, since: datetime | timedelta) -> list[replog.Record]:
    async with client.read_log("log", since=since) as reader:
        return [record async for record in reader]


@asynccontextmanager
async def leading(client: replog.Client, quorum: replog.Quorum, ledgers: str) -> AsyncIterator[replog.LogWriter]:
    """Writes to the log like `write_log`, and may be deposed."""
    with suppress(replog.FencedError):
        async with client.write_log("log", quorum=quorum, options=replog.LogOptions(ledgers=ledgers)) as log:
            yield log


async def check(client: replog.Client, times: Sequence[datetime]) -> None:
    """A search for each of these times gives an end of the log that has all it should."""
    log = await everything(client)
    for time in times:
        time_ns = (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000
        since = await found(client, time)
        assert since == log[len(log) - len(since) :], "an end of the log"
        missed = [record for record in log[: len(log) - len(since)] if record.timestamp_ns >= time_ns]
        assert not missed, f"skipped since {time}"


async def test_reading_begins_at_the_first_entry_since(clock: Clock) -> None:
    async with world(clock) as made, made.client(QUICK) as client:
        client._opened.logs.page_segments = 2
        async with client.write_log("log") as log:
            for number in range(24):
                clock.set(number // 2)
                await log.append(b"%d" % number)
                if number % 5 == 4:
                    await log.roll()
            for seconds in (0, 1, 5, 8, 11):
                records = await found(client, START + timedelta(seconds=seconds))
                assert [int(record.data) for record in records] == list(range(2 * seconds, 24))
            clock.set(20)
            assert len(await found(client, timedelta(seconds=11))) == 6
            assert len(await found(client, START.astimezone(timezone(timedelta(hours=5))))) == 24
            assert await found(client, START + timedelta(seconds=11.5)) == []
            assert len(await found(client, timedelta(days=1_000_000))) == 24
        assert len(await found(client, START + timedelta(seconds=11))) == 2, "closed by its writer"


@pytest.mark.parametrize(
    ("seed", "ledgers"),
    some([(0, "bounded"), (3, "unbounded"), (1, "bounded"), (4, "unbounded"), (2, "bounded")], few=4, fast=2),
)
async def test_nothing_is_skipped_under_any_clock_error(clock: Clock, seed: int, ledgers: str) -> None:
    """Leaders one after the other with clocks of their own, some of which go back; some are deposed, some leave in order, and one
    client adds a job's ledger."""
    chance = random.Random(seed)
    async with world(clock, 5) as made, made.client(QUICK) as reader, AsyncExitStack() as deposed:
        reader._opened.logs.page_segments = 3
        for _ in range(6):
            quorum = chance.choice([replog.Quorum(3, 3, 2), replog.Quorum(4, 2, 2)])
            client = await deposed.enter_async_context(made.client(QUICK))
            async with AsyncExitStack() as leaving:
                stack = chance.choice([leaving, deposed])
                log = await stack.enter_async_context(leading(client, quorum, ledgers))
                for _ in range(chance.randrange(6)):
                    clock.set(chance.uniform(0, 100))
                    await log.extend([b"x"] * chance.randrange(1, 9))
                    if chance.random() < 0.4:
                        await log.roll()
            if chance.random() < 0.3:
                clock.set(chance.uniform(0, 100))
                async with client.create_ledger(custom={"log": "log", "job": str(chance.random())}) as job:
                    await job.extend([b"job"] * 3)
                await client.jobs.append_ledgers("log", [job.ledger_id])
            await check(reader, [START + timedelta(seconds=chance.uniform(-1, 101)) for _ in range(3)])
        log_times = {record.timestamp_ns // 1000 for record in await everything(reader)}
        await check(
            reader, [START + timedelta(microseconds=each - START_NS // 1000) for each in sorted(log_times)[::4]]
        )


async def test_leader_with_a_slow_clock_hides_nothing(clock: Clock) -> None:
    """The first leader's clock is ahead, the second one's is right, the third one's behind: by halving over segments, the second
    one's entries would be skipped."""
    async with world(clock) as made, made.client(QUICK) as client:
        for seconds, data in ((100, b"ahead"), (50, b"right"), (10, b"behind"), (60, b"right again")):
            clock.set(seconds)
            async with client.write_log("log") as log:
                await log.append(data)
        await client.trim_log("log", before=Position(2, 0))
        for seconds, expected in ((40, 3), (55, 1), (5, 3), (61, 0)):
            assert len(await found(client, START + timedelta(seconds=seconds))) == expected


async def test_each_term_of_a_ledger_has_its_own_clock(clock: Clock) -> None:
    """One unbounded ledger with four writers (L9). The second one's clock is right, and the others' are behind."""
    async with world(clock) as made, made.client(QUICK) as client:
        for seconds in (10, 50, 20, 15):
            async with client.write_log("log", options=replog.LogOptions(ledgers="unbounded")) as log:
                for step in range(3):
                    clock.set(seconds + step)
                    await log.append(b"x")
        assert len({segment.ledger_id for segment in await client.log_segments("log")}) == 1
        for since_s, expected in ((11, 11), (12.5, 9), (51, 8), (52.5, 0)):
            assert len(await found(client, START + timedelta(seconds=since_s))) == expected


async def test_a_search_reads_few_entries_of_a_ledger(clock: Clock) -> None:
    async with world(clock) as made, made.client(QUICK) as client, made.client(QUICK) as other:
        async with client.write_log("log") as log:
            for number in range(300):
                clock.set(number)
                await log.append(b"x")
            for bookie in made.bookies:
                bookie.wire.seen.clear()
            async with other.read_log("log", since=START + timedelta(seconds=123)) as reader:
                assert reader.position == Position(1, 122)
                asked = [each for bookie in made.bookies for each in bookie.wire.seen if isinstance(each, ReadRequest)]
                assert len(asked) <= 11, "one for the last entry, and one for each halving"
                assert (await reader.receive()).position == Position(1, 123)


async def test_a_follower_begins_where_nothing_is_known_yet(clock: Clock) -> None:
    """A time that has not come yet: the known end of the log, even if that is in the middle of an open ledger."""
    async with world(clock) as made, made.client(QUICK) as client, made.client(QUICK) as other:
        async with trio.open_nursery() as nursery:
            began = trio.Event()
            seen: list[bytes] = []

            async def follow() -> None:
                async with other.read_log("log", since=timedelta(0), follow=True) as reader:
                    began.set()
                    async for record in reader:
                        seen.append(record.data)
                        if record.data == b"last":
                            return

            async with client.write_log("earlier"):
                pass
            nursery.start_soon(follow)
            await trio.sleep(5)
            assert not began.is_set(), "it waits for the log"
            async with client.write_log("log") as log:
                await began.wait()
                await log.append(b"first")
                await log.roll()
                await log.append(b"last")
        assert seen == [b"first", b"last"]
        clock.set(10)
        async with (
            client.write_log("log") as log,
            other.read_log("log", since=START + timedelta(seconds=30), follow=True) as reader,
        ):
            # Its clock goes back: the entry is older than what is searched for, and comes all the same.
            await log.append(b"after")
            assert (await reader.receive()).data == b"after"


async def test_trim_during_the_search_is_not_an_error(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(clock) as made, made.client(QUICK) as client, made.client(QUICK) as other:
        async with client.write_log("log") as log:
            for number in range(4):
                clock.set(number)
                await log.append(b"%d" % number)
                await log.roll()
            list_segments = other._opened.logs.segments
            before = [Position(2, 0), Position(3, 0)]

            async def segments_of_before(name: str, first: int = 1, end: int | None = None) -> list[Segment]:
                listed = [each.place for each in await list_segments(name, first, end)]
                if before:
                    await client.trim_log("log", before=before.pop(0))
                return listed

            monkeypatch.setattr(other._opened.logs, "segments", segments_of_before)
            records = await found(other, START + timedelta(seconds=1))
            assert [record.data for record in records] == [b"2", b"3"]
            assert not before


@pytest.mark.parametrize("since", [START.replace(tzinfo=None), timedelta(seconds=-1), 7, "2h"], ids=str)
async def test_invalid_time_is_refused(clock: Clock, since: object) -> None:
    async with world(clock) as made, made.client(QUICK) as client, client.write_log("log"):
        with pytest.raises(replog.ConfigError, match="since="):
            await found(client, since)  # type: ignore[arg-type]


async def test_since_and_a_position_exclude_each_other(clock: Clock) -> None:
    async with world(clock) as made, made.client(QUICK) as client:
        with pytest.raises(replog.ConfigError, match=r"after='1:0' and since=.* exclude each other"):
            async with client.read_log("log", after="1:0", since=timedelta(hours=1)):
                pass
        with pytest.raises(replog.errors.LogNotFoundError):
            await found(client, timedelta(hours=1))
