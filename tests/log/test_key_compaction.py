"""Compaction into a new log: the last value of each key, in order, whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

import replog
from replog.config import ClientOptions
from replog.errors import ConfigError, LogNotFoundError, MetastoreError, TrimmedError
from replog.log.key_compaction import LogCompaction
from replog.log.record_batches import Record
from replog.protocol.model import Position
from replog.testing import Fault
from tests.kit import cluster, read_log

Row = tuple[bytes | None, bytes | None]  # key and data; None is a tombstone


async def records(client: replog.Client, name: str) -> list[Record]:
    async with client.read_log(name) as reader:
        return [record async for record in reader]


async def write(client: replog.Client, rows: list[Row], headers: Mapping[str, bytes] | None = None) -> None:
    async with client.write_log("log") as log:
        for key, data in rows:
            await log.append(data, key=key, headers=headers)


async def test_compaction_keeps_the_last_value_of_each_key(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        rows: list[Row] = [(b"a", b"1"), (b"b", b"2"), (None, b"plain"), (b"a", b"3"), (b"c", b"4"), (b"b", None)]
        await write(client, rows, {"h": b"v"})
        done = await client.compact_log("log", into="new")
        assert done == replog.results.CompactedLog("log", "new", 6, 3, 3, Position(1, 5))
        found = await records(client, "new")
        assert [(each.key, each.data) for each in found] == [(None, b"plain"), (b"a", b"3"), (b"c", b"4")]
        assert {each.headers["h"] for each in found} == {b"v"}
        before = {each.data: each.timestamp_ns for each in await records(client, "log")}
        assert all(each.timestamp_ns == before[each.data] for each in found)
        assert len(before) == 6


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.none() | st.sampled_from([b"1", b"2"]))
        | st.tuples(st.none(), st.sampled_from([b"3", b"4"])),
        max_size=30,
    ),
    st.integers(1, 400),
)
@pytest.mark.slow
def test_compaction_agrees_with_a_dictionary(rows: list[Row], roll_bytes: int) -> None:
    async def main() -> None:
        async with cluster() as world, world.client(ClientOptions(roll_bytes=roll_bytes)) as client:
            async with client.write_log("log") as log:
                for number, (key, data) in enumerate(rows):
                    await log.append(data, key=key)
                    if number % 5 == 4:
                        await log.roll()
            await client.compact_log("log", into="new")
            last = {key: at for at, (key, _) in enumerate(rows)}
            expected = [
                row for at, row in enumerate(rows) if row[0] is None or (last[row[0]] == at and row[1] is not None)
            ]
            assert [(each.key, each.data) for each in await records(client, "new")] == expected

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_entries_appended_during_compaction_are_left_out(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, client.write_log("log") as log:
        await log.extend([b"1", b"2"], keys=[b"a", b"b"])
        await log.flush()

        def append_late(operation: str, key: str) -> None:
            # The compaction has read everything once, and creates its first ledger.
            if operation == "create" and key.startswith("logs/new/"):
                log.push_nowait(b"late", key=b"a")
                log.push_nowait(b"late", key=b"c")
                late.append(key)

        late: list[str] = []
        world.metastore._choose = append_late
        done = await client.compact_log("log", into="new")
        await log.flush()
        assert late
        assert done.through == Position(1, 1)
        assert [each.data for each in await records(client, "new")] == [b"1", b"2"]
        assert await log.append(b"goes on", key=b"a") > done.through


@pytest.mark.parametrize("how", ["trimmed", "deleted", "made again"])
async def test_compaction_raises_when_its_log_is_trimmed(how: str, autojump_clock: trio.testing.MockClock) -> None:
    """Between the readings: the second one begins where the log begins then, and the last values of keys are not there."""
    async with cluster() as world, world.client() as client:
        async with client.write_log("log") as log:
            for key in (b"a", b"b", b"c"):
                await log.append(b"1", key=key)
                await log.roll()
        find_last = LogCompaction._find_last

        async def find_last_then_trim(compaction: LogCompaction) -> None:
            await find_last(compaction)
            if how == "trimmed":
                await client.trim_log("log", before="2:0")
            else:
                await client.delete_log("log")
            if how == "made again":
                await write(client, [(b"z", b"other")])

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LogCompaction, "_find_last", find_last_then_trim)
            with pytest.raises(LogNotFoundError if how == "deleted" else TrimmedError):
                await client.compact_log("log", into="new")
        assert "new" not in await client.logs()
        if how == "trimmed":
            assert (await client.compact_log("log", into="new")).kept_entries == 2


async def test_compaction_refuses_an_existing_log(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        await write(client, [(b"a", b"1")])
        async with client.write_log("new") as log:
            await log.append(b"mine")
        for into in ("new", "log"):
            with pytest.raises(ConfigError, match=r"there is a log .* already"):
                await client.compact_log("log", into=into)
        assert await read_log(client, "new") == [b"mine"]
        with pytest.raises(LogNotFoundError):
            await client.compact_log("other", into="newer")
        await client.delete_log("new")
        await client.compact_log("log", into="new")
        assert await read_log(client, "new") == [b"1"]


async def test_two_compactions_at_once_make_one_log(autojump_clock: trio.testing.MockClock) -> None:
    """Both found that the name was free, and the second one added its entries to the first one's log."""
    async with cluster() as world, world.client() as client:
        await write(client, [(b"a", b"1"), (None, b"plain")])
        ended: list[object] = []

        async def compact() -> None:
            try:
                ended.append((await client.compact_log("log", into="new")).kept_entries)
            except ConfigError as error:
                ended.append("there is a log 'new' already" in str(error))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(compact)
        assert sorted(ended, key=str) == [2, True, True]
        assert await read_log(client, "new") == [b"1", b"plain"]
        assert len(await client.ledgers()) == 2, "what the others wrote was swept"


async def test_an_empty_log_is_compacted_into_an_empty_one(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        await write(client, [])
        assert (await client.compact_log("log", into="new")).through is None
        assert await read_log(client, "new") == []
        await write(client, [(b"a", b"1"), (b"a", None)])
        assert (await client.compact_log("log", into="newer")).kept_entries == 0
        assert await read_log(client, "newer") == []


async def test_cancelled_compaction_leaves_no_log_and_no_ledger(autojump_clock: trio.testing.MockClock) -> None:
    """It is cancelled when all is written, and the log's record is about to be."""
    async with cluster() as world, world.client() as client:
        await write(client, [(b"a", b"1")])
        before = await client.ledgers()

        def cancel(operation: str, key: str) -> Fault | None:
            if (operation, key) != ("create", "logs/new") or scope.cancel_called:
                return None
            scope.cancel()
            return Fault.UNAVAILABLE

        world.metastore._choose = cancel
        with trio.CancelScope() as scope:
            await client.compact_log("log", into="new")
        assert scope.cancelled_caught
        assert await client.ledgers() == before
        with pytest.raises(LogNotFoundError):
            await client.log_metadata("new")
        await client.compact_log("log", into="new")
        assert await read_log(client, "new") == [b"1"]


async def test_compaction_raises_when_the_metastore_fails(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        await write(client, [(b"a", b"1")])
        world.metastore._choose = lambda operation, key: Fault.UNAVAILABLE if operation == "create" else None
        with pytest.raises(MetastoreError):
            await client.compact_log("log", into="new")
        world.metastore._choose = None
        await client.compact_log("log", into="new")
        assert await read_log(client, "new") == [b"1"]
