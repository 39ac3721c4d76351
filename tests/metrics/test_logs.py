"""What logs hold and how far cursors are behind comes out as Prometheus' parser wants it."""

from __future__ import annotations

import time

import pytest
import trio

from replog.errors import ConfigError
from replog.log.log_options import LogOptions
from replog.metrics import LogMetrics
from replog.records.paths import LOGS_KEY
from tests.kit import cluster
from tests.metrics.kit import samples_of

pytestmark = pytest.mark.usefixtures("autojump_clock")

Samples = dict[str, dict[tuple[str, ...], float]]


async def looked(measured: LogMetrics) -> Samples:
    await measured.look()
    return samples_of(measured.collect())


async def test_log_and_its_cursors_have_samples() -> None:
    async with cluster() as world, world.client() as client, world.client() as other:
        measured = LogMetrics(other)
        assert (await looked(measured))["replog_logs"] == {(): 0}
        async with client.write_log("orders", options=LogOptions(custom={"writer": "me"})) as writer:
            await writer.extend([b"four", b"five5", b"sixsix"])
            await writer.roll()
            await writer.append(b"seven77")
            async with client.cursor("orders", "billing") as cursor, client.cursor("orders", "fast", start="2:1"):
                await cursor.commit("1:1")
                await trio.sleep(5)  # bookies learn what is confirmed with the next entry, or after a while
                found = await looked(measured)
        log, billing, fast = ("orders",), ("billing", "orders"), ("fast", "orders")
        expected = {
            "replog_log_known": 1,
            "replog_log_entries": 4,
            "replog_log_bytes": 22,
            "replog_log_archived_bytes": 0,
            "replog_log_segments": 2,
            "replog_log_begins_segment": 1,
            "replog_log_confirmed_segment": 2,
            "replog_log_confirmed_entry": 1,
            "replog_log_cursors": 2,
            "replog_log_droppable_segments": 0,
            "replog_log_absent_bookies": 0,
            "replog_log_appended_entries_total": 0,
        }
        assert {name: found[name][log] for name in expected} == expected
        assert found["replog_log_info"] == {("orders", "open", "me"): 1}
        for name in ("replog_log_first_entry_time_seconds", "replog_log_last_entry_time_seconds"):
            assert 0 <= time.time() - found[name][log] < 600
        assert 0 <= time.time() - found["replog_cursor_committed_time_seconds"][billing] < 600
        assert found["replog_cursor_lag_entries"] == {billing: 2, fast: 0}
        assert found["replog_cursor_lag_bytes"] == {billing: 13, fast: 0}
        assert found["replog_cursor_lag_seconds"][fast] == 0
        assert found["replog_cursor_kept_segments"] == {billing: 2, fast: 1}
        assert found["replog_cursor_keeps_most"] == {billing: 1, fast: 0}
        assert found["replog_cursor_term"] == {billing: 1, fast: 1}


async def test_counters_go_on_over_rolls_and_trims() -> None:
    """Trimmed to what the last look saw, everything is counted; trimmed further, only what is known."""
    async with cluster() as world, world.client() as client:
        measured, log = LogMetrics(client), ("log",)

        async def counted() -> tuple[float, float]:
            found = await looked(measured)
            entries, size_bytes = (found[f"replog_log_appended_{what}_total"][log] for what in ("entries", "bytes"))
            return entries, size_bytes

        async with client.write_log("log") as writer:
            await writer.append(b"before anybody looks")
            assert await counted() == (0, 0)
            await writer.extend([b"12345"] * 10)
            assert await counted() == (10, 50)
            assert await counted() == (10, 50)
            await writer.extend([b"12345"] * 10)
            await writer.roll()
            await writer.extend([b"123"] * 5)
            assert await counted() == (25, 115)
            await client.trim_log("log", before="2:0")
            await writer.append(b"123")
            assert await counted() == (26, 118)
            await writer.roll()
            await client.trim_log("log", before="3:0")
            assert await counted() == (26, 118)
            await writer.append(b"1")
            assert await counted() == (27, 119)


async def test_unknown_bytes_of_an_unbounded_ledger_are_not_counted() -> None:
    async with cluster() as world, world.client() as client:
        measured, log = LogMetrics(client), ("log",)
        for _ in range(2):
            async with client.write_log("log", options=LogOptions(ledgers="unbounded")) as writer:
                await looked(measured)
                await writer.extend([b"x"] * 3)
                await writer.append(b"x")
            await trio.sleep(5)
        found = await looked(measured)
        assert found["replog_log_appended_entries_total"][log] == 8
        assert not found.keys() & {"replog_log_bytes", "replog_log_archived_bytes", "replog_log_appended_bytes_total"}


async def test_recreated_log_counts_on() -> None:
    async with cluster() as world, world.client() as client:
        measured = LogMetrics(client)
        for _ in range(2):
            async with client.write_log("log") as writer:
                await looked(measured)
                await writer.extend([b"x"] * 3)
            await looked(measured)
            await client.delete_log("log")
            assert "replog_log_entries" not in await looked(measured)
        async with client.write_log("log"):
            assert (await looked(measured))["replog_log_appended_entries_total"] == {("log",): 6}


async def test_unknown_value_has_no_sample() -> None:
    async with cluster() as world, world.client() as client:
        measured = LogMetrics(client)
        async with client.write_log("log") as writer:
            await writer.append(b"x")
            found = await looked(measured)
            assert found["replog_log_entries"] == {("log",): 1}
            for bookie in world.bookies:
                await bookie.kill()
            async with world.client() as other:
                measured = LogMetrics(other)
                found = await looked(measured)
                assert found["replog_log_known"] == {("log",): 0}
                assert not found.keys() & {"replog_log_entries", "replog_log_bytes", "replog_log_confirmed_entry"}
                assert found["replog_log_segments"] == {("log",): 1}
            for bookie in world.bookies:
                await bookie.start()


async def test_absent_bookie_of_an_open_log_is_counted() -> None:
    async with cluster(3) as world, world.client() as client:
        measured = LogMetrics(client)
        async with client.write_log("log") as writer:
            await writer.append(b"x")
            await world.bookies[0].kill()
            found = await looked(measured)
            assert found["replog_log_absent_bookies"] == {("log",): 1}
            await world.bookies[0].start()
        found = await looked(measured)
        assert found["replog_log_absent_bookies"] == {("log",): 0}, "nobody writes to it"


async def test_failing_or_hanging_metastore_leaves_no_old_numbers() -> None:
    async with cluster() as world, world.client() as client:
        async with client.write_log("log") as writer:
            await writer.append(b"x")
        measured = LogMetrics(client, timeout_s=4.0)
        assert (await looked(measured))["replog_logs_listed"] == {(): 1}
        world.metastore.delay_s = 60.0
        began_s = trio.current_time()
        found = await looked(measured)
        assert found == {"replog_logs_listed": {(): 0}}
        assert trio.current_time() - began_s <= 4.0
        assert "did not answer" in measured.problem
        world.metastore.delay_s = 1.5
        found = await looked(measured)
        assert (found["replog_logs_listed"], found.get("replog_log_entries")) == ({(): 1}, None)
        assert found["replog_log_known"] == {("log",): 0}
        world.metastore.delay_s = 0.0
        assert (await looked(measured))["replog_log_entries"] == {("log",): 1}
        assert measured.problem == ""


async def test_simultaneous_scrapes_share_a_look() -> None:
    """One that comes while a look is under way waits for the next, which began after it asked; and a look that is cancelled
    gives nobody half of what it found."""
    async with cluster() as world, world.client() as client:
        async with client.write_log("log"):
            pass
        measured = LogMetrics(client)
        world.metastore.delay_s = 0.1

        async def looks(*askers: int) -> int:
            """How often the logs are listed, when so many ask at the same time, some more a moment later, and so on."""
            before = len(world.metastore.calls)
            async with trio.open_nursery() as nursery:
                for count in askers:
                    for _ in range(count):
                        nursery.start_soon(measured.look)
                    await trio.sleep(0.15)
            calls = world.metastore.calls[before:]
            return len([call for call in calls if (call.operation, call.key) == ("values_page", LOGS_KEY)])

        assert await looks(1) == 1
        assert await looks(10) == 1
        assert await looks(1, 10) == 2
        with trio.move_on_after(0.25):
            await measured.look()
        assert samples_of(measured.collect())["replog_log_known"] == {("log",): 1}, "the look before"
        assert await looks(1) == 1


async def test_requested_names_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replog.log.log_looks.LOGS_MAX", 2)
    async with cluster() as world, world.client() as client:
        for name in "abcd":
            async with client.write_log(name):
                pass
        found = await looked(LogMetrics(client))
        assert (found["replog_logs"], found["replog_logs_left_out"]) == ({(): 2}, {(): 1})
        found = await looked(LogMetrics(client, ["d", "c", "b", "absent"]))
        assert sorted(found["replog_log_known"]) == [("b",), ("c",), ("d",)]
        assert found["replog_logs_left_out"] == {(): 0}


async def test_impossible_name_is_refused_at_once() -> None:
    async with cluster() as world, world.client() as client:
        with pytest.raises(ConfigError):
            LogMetrics(client, [""])
