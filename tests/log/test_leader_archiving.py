"""A leader archives what its options say, in the background, and loses nothing by it.

The log's record does not say yet how large the segment is that was closed last (`log/retention.py`): until then it counts for
nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import attrs
import pytest
import trio
import trio.testing

import replog
from replog.config.client import ClientTuning
from replog.errors import ConfigError
from replog.protocol.archived import ObjectName
from replog.records.paths import ledger_key_path
from replog.runtime.entropy import Entropy, use_entropy
from tests.archiving import URL, MemoryArchive, release, with_archive
from tests.kit import cluster, read_log

DAY_NS = 86_400_000_000_000
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


def days_pass(store: MemoryArchive) -> Callable[[float], None]:
    """Gives this task a clock, and returns what moves it and the store's on."""
    time_ns = 20_000 * DAY_NS

    def pass_days(days: float) -> None:
        nonlocal time_ns
        time_ns += int(days * DAY_NS)
        store.clock_s += days * DAY_NS / 1e9

    use_entropy(Entropy(time_ns=lambda: time_ns))
    return pass_days


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


async def test_f6_leader_collects_garbage_once_a_day(autojump_clock: trio.testing.MockClock) -> None:
    """Rules F6 and B6: of archivings that were killed, and of a trim amid which the store was away."""
    async with cluster(3) as world:
        store = with_archive(world)
        days = days_pass(store)
        async with world.client(QUICK) as client, client.write_log("log", options=options(after_bytes=250)) as log:
            data = await write(log, 5)
            data += [b"one", b"two"]
            await log.extend(data[-2:])
            await log.roll()
            await trio.sleep(30)
            trimmed, named = store.objects_here
            parts = ObjectName.parse(named)
            assert parts is not None
            again = str(attrs.evolve(parts, copy="again"))
            of_two = (await client.log_metadata("log")).segments[5].ledger_id
            cut = str(attrs.evolve(parts, ledger_id=of_two, first_entry_id=0, last_entry_id=0))
            for each in (again, cut):
                store.put(each, [b"of an archiving that was killed"])
            store.begins = store.away
            await client.trim_log("log", before=replog.Position(2, 0))
            store.begins = lambda _call: None
            days(0.9)
            await trio.sleep(30)
            assert set(store.objects_here) == {trimmed, named, again, cut}, "they are young"
            store.clock_s += 86400
            await trio.sleep(30)
            assert len(store.objects_here) == 4, "somebody has collected on this day"
            days(1)
            await trio.sleep(30)
            assert store.objects_here == [named]
            assert len([each for each in store.contents if each.startswith("collections/")]) == 1
            assert await read_log(client) == data[1:]


async def test_b6a_leader_leaves_the_last_copy_of_older_metadata(autojump_clock: trio.testing.MockClock) -> None:
    """A metastore went back to before an archiving, and was said to be right: the objects are all there is."""
    async with cluster(3) as world:
        store = with_archive(world)
        days = days_pass(store)
        async with world.client(QUICK) as client, client.write_log("log") as log:
            data = await write(log, 2)
            segments = (await client.log_metadata("log")).segments
            key = ledger_key_path(segments[0].ledger_id)
            older = (await world.metastore.get(key)).value
            await client.admin.add_archive(URL)
            await client.admin.archive_log("log")
            await release(world)
            newer = await world.metastore.get(key)
            version = await world.metastore.put(key, older, newer.version)
        async with world.client(QUICK) as client, client.write_log("log", options=options(after_bytes=10000)):
            for _ in range(3):
                days(1)
                await trio.sleep(30)
            assert len(store.objects_here) == 2
            await world.metastore.put(key, newer.value, version)
            assert await read_log(client) == data


@pytest.mark.parametrize(
    ("limits", "problem"),
    [({}, "after= or after_bytes="), ({"after": 5}, "must be a timedelta"), ({"after_bytes": -1}, "after_bytes")],
)
def test_impossible_policy_is_refused(limits: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        options(**limits)
