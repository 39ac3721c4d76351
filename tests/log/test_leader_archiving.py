"""A leader archives what its options say, in the background, and loses nothing by it.

The log's record does not say yet how large the segment is that was closed last (`log/retention.py`): until then it counts for
nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest
import trio
import trio.testing

import replog
from replog.config.client import ClientTuning
from replog.errors import ConfigError
from tests.archiving import URL, with_archive
from tests.kit import cluster, read_log

QUICK = ClientTuning(add_timeout_s=1.0, retention_interval_s=10.0)


def options(**limits: object) -> replog.LogOptions:
    return replog.LogOptions(archive=replog.Archiving(URL, **limits))  # type: ignore[arg-type]


async def write(log: replog.LogWriter, segments: int) -> list[bytes]:
    data = []
    for number in range(segments):
        data.append(b"%d" % number + b"." * 100)
        await log.append(data[-1])
        await log.roll()
    return data


async def archived(client: replog.Client) -> list[bool]:
    """By segment."""
    found = []
    for segment in (await client.log_metadata("log")).segments:
        record = await client.ledger_metadata(segment.ledger_id)
        found.append(any(each.archive for each in record.fragments))
    return found


async def test_leader_archives_segments_before_so_many_bytes(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world:
        store = with_archive(world)
        async with (
            world.client(QUICK) as client,
            client.write_log("log", options=options(after_bytes=250)) as log,
        ):
            data = await write(log, 6)
            await trio.sleep(30)
            assert await archived(client) == [True, True, False, False, False, False, False]
            puts = store.calls.count("put")
            await trio.sleep(60)
            assert store.calls.count("put") == puts, "nothing is archived twice"
            data += await write(log, 1)
            await trio.sleep(30)
            assert (await archived(client)).count(True) == 3
            assert await read_log(client) == data


async def test_next_leader_goes_on_behind_the_last_archived_one(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world:
        store = with_archive(world)
        async with world.client(QUICK) as client:
            async with client.write_log("log", options=options(after_bytes=0)) as log:
                data = await write(log, 3)
                await trio.sleep(30)
            assert (await archived(client)).count(True) == 2
            async with client.write_log("log", options=options(after_bytes=0)) as log:
                data += await write(log, 2)
                await trio.sleep(30)
            # The first leader left a segment without entries.
            assert (await archived(client))[:5] == [True, True, True, False, True]
            assert len(store.objects_here) >= 4
            assert await read_log(client) == data


async def test_young_segments_stay_with_bookies(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world:
        with_archive(world)
        async with world.client(QUICK) as client:
            async with client.write_log("log", options=options(after=timedelta(days=1))) as log:
                await write(log, 3)
                await trio.sleep(60)
                assert not any(await archived(client))


async def test_absent_store_is_logged_once(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(3) as world:
        store = with_archive(world)
        store.begins = store.away
        async with world.client(QUICK) as client:
            async with client.write_log("log", options=options(after_bytes=0)) as log:
                data = await write(log, 3)
                await trio.sleep(60)
                assert [each for each in caplog.messages if "its segments stay with bookies" in each] == [
                    "log 'log': its segments stay with bookies; tried again: archive test:bucket: the store does not answer: "
                    "try again"
                ]
                data += await write(log, 1)
                store.begins = lambda _call: None
                await trio.sleep(30)
                assert all((await archived(client))[:3])
            assert await read_log(client) == data


async def test_deposed_leader_archives_no_more(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world:
        store = with_archive(world)
        async with world.client(QUICK) as one, world.client(QUICK) as other:
            async with one.write_log("log", options=options(after_bytes=0)) as log:
                await write(log, 1)
                await trio.sleep(30)
                async with other.write_log("log") as later:
                    await write(later, 2)
                    await trio.sleep(30)
                    assert len(store.objects_here) <= 2
                    assert not any((await archived(other))[2:])


@pytest.mark.parametrize(
    ("limits", "problem"),
    [({}, "after= or after_bytes="), ({"after": 5}, "must be a timedelta"), ({"after_bytes": -1}, "after_bytes")],
)
def test_impossible_policy_is_refused(limits: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        options(**limits)
