"""Retention of a log by age, by bytes and by cursors; in doubt a segment stays, and all that follow it."""

from __future__ import annotations

from datetime import timedelta

import pytest
import trio
import trio.testing

import replog
from replog.config.client import ClientTuning
from replog.log.log_options import Retention
from replog.log.retention import first_kept
from replog.protocol.closed_contents import Contents
from replog.protocol.model import Position, Segment
from replog.records.paths import log_key_path
from replog.runtime.entropy import Entropy, use_entropy
from replog.testing import Fault
from tests.kit import cluster

QUICK = ClientTuning(add_timeout_s=1.0, read_timeout_s=1.0, add_quorum_timeout_s=10.0, metastore_timeout_s=2.0)
AGED = Retention(age=timedelta(milliseconds=100))
KNOWN = [Contents(2, 10, 100, 200), Contents(1, 20, 300, 300), Contents(1, 30, 400, 400), None]


@pytest.mark.parametrize(
    ("contents", "kept", "now_ms", "committed_before", "first"),
    [
        (KNOWN, AGED, 300, None, 1),
        (KNOWN, AGED, 301, None, 2),
        (KNOWN, AGED, 10_000, None, 4),
        ([KNOWN[0], None, *KNOWN[2:]], AGED, 10_000, None, 2),
        ([KNOWN[0], Contents(1, 20, 300, None), *KNOWN[2:]], AGED, 10_000, None, 2),
        ([Contents(1, 10, 900, 900), *KNOWN[1:]], AGED, 600, None, 1),
        ([Contents(0, 0), *KNOWN[1:]], AGED, 0, None, 2),
        (KNOWN, Retention(size_bytes=51), 0, None, 1),
        (KNOWN, Retention(size_bytes=50), 0, None, 2),
        (KNOWN, Retention(size_bytes=30), 0, None, 3),
        (KNOWN, Retention(size_bytes=0), 0, None, 4),
        ([KNOWN[0], None, *KNOWN[2:]], Retention(size_bytes=30), 0, None, 2),
        ([KNOWN[0], None, *KNOWN[2:]], Retention(size_bytes=31), 0, None, 1),
        ([Contents(5), *KNOWN[1:]], Retention(size_bytes=1), 0, None, 1),
        (KNOWN, Retention(committed=True), 0, None, 1),
        (KNOWN, Retention(committed=True), 0, 3, 3),
        ([None, None], Retention(committed=True), 0, 9, 2),
        (KNOWN, Retention(age=timedelta(milliseconds=100), size_bytes=30), 301, None, 3),
        ([None], Retention(size_bytes=0), 0, None, 1),
    ],
)
def test_retention_keeps_entries_within_all_limits(
    contents: list[Contents | None], kept: Retention, now_ms: int, committed_before: int | None, first: int
) -> None:
    segments = [Segment(number, 100 + number, 0, each) for number, each in enumerate(contents, 1)]
    assert first_kept(segments, kept, now_ms, committed_before) == first


async def test_old_segments_go_and_a_cursor_is_named(autojump_clock: trio.testing.MockClock) -> None:
    now_ns = [10**18]
    use_entropy(Entropy(time_ns=lambda: now_ns[0]))
    async with cluster() as world, world.client(QUICK) as client, client.write_log("log") as log:
        for _ in range(6):
            await log.append(b"0123456789")
            now_ns[0] += 10**9
            await log.roll()
        assert await client.retain_log("log", age=timedelta(hours=1)) == Position(1, 0)
        assert await client.retain_log("log", age=timedelta(seconds=5, milliseconds=500)) == Position(2, 0)
        assert await client.retain_log("log", size_bytes=30) == Position(3, 0)
        assert await client.retain_log("log", committed=True) == Position(3, 0), "there is no cursor"
        async with client.cursor("log", "billing") as cursor:
            for _ in range(2):
                await cursor.receive()
            await cursor.commit()
            with pytest.raises(replog.errors.TrimBlockedError, match="billing"):
                await client.retain_log("log", age=timedelta(0))
            assert (await client.log_metadata("log")).first_segment_number == 5
            await cursor.receive()
            await cursor.commit()
            assert await client.retain_log("log", committed=True) == Position(6, 0)
        await client.cursors.delete("log", "billing")
        # The record says nothing yet of the one that was closed last.
        assert await client.retain_log("log", age=timedelta(0)) == Position(6, 0)


@pytest.mark.parametrize(
    "limits", [{}, {"age": timedelta(-1)}, {"age": 7}, {"size_bytes": -1}, {"size_bytes": 1.5}], ids=str
)
def test_invalid_limit_is_refused(limits: dict[str, object]) -> None:
    with pytest.raises(replog.ConfigError):
        Retention(**limits)  # type: ignore[arg-type]


# -- by the writer ------------------------------------------------------------------------------------------------------


async def first_segment(client: replog.Client) -> int:
    return (await client.log_metadata("log")).first_segment_number


async def write_segments(log: replog.LogWriter, count: int) -> None:
    for _ in range(count):
        await log.append(b"0123456789")
        await log.roll()


@pytest.mark.slow
async def test_writer_keeps_to_the_retention(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster() as world, world.client() as client:
        async with client.write_log("log", options=replog.LogOptions(retention=Retention(size_bytes=30))) as log:
            await write_segments(log, 8)
            await trio.sleep(61)
            assert await first_segment(client) == 5, "the record does not say yet what segment 8 has"
            async with client.cursor("log", "billing") as cursor:
                await write_segments(log, 8)
                await trio.sleep(300)
                assert await first_segment(client) == 5
                assert [record.message for record in caplog.records].count(caplog.records[-1].message) == 1, "told once"
                assert "billing" in caplog.records[-1].message
                for _ in range(6):
                    await cursor.receive()
                await cursor.commit()
                await trio.sleep(61)
                assert await first_segment(client) == 11
            await client.cursors.delete("log", "billing")
        await trio.sleep(300)
        assert await first_segment(client) == 11, "the writer is left"
        async with client.lead_log("log", options=replog.LogOptions(retention=Retention(size_bytes=0))):
            await trio.sleep(1)
            assert await first_segment(client) == 18


@pytest.mark.slow
async def test_writer_goes_on_when_its_retention_fails(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        async with client.write_log("log", options=replog.LogOptions(retention=Retention(size_bytes=0))) as log:
            await write_segments(log, 3)
            world.metastore.fail_next("get", Fault.UNAVAILABLE, under=log_key_path("log"), times=100)
            await trio.sleep(70)
            assert "its retention could not be enforced" in caplog.text
            await log.append(b"meanwhile")
            await trio.sleep(1000)
            assert world.metastore.planned() == 0
            assert await first_segment(client) == 3
            await client.delete_log("log")
            await trio.sleep(100)
            with pytest.raises(replog.FencedError):
                await log.append(b"after all")


async def test_deposed_writer_drops_nothing() -> None:
    async with cluster() as world, world.client() as client, world.client() as other:
        async with client.write_log("log", options=replog.LogOptions(retention=Retention(size_bytes=0))) as old:
            await trio.sleep(1)
            async with other.write_log("log") as new:
                await write_segments(new, 3)
                with pytest.raises(replog.FencedError):
                    await old.append(b"late")
                await trio.sleep(300)
                assert await first_segment(client) == 1


async def test_an_error_in_the_block_is_raised_as_it_is() -> None:
    async with cluster() as world, world.client() as client:
        with pytest.raises(ZeroDivisionError):
            async with client.write_log("log", options=replog.LogOptions(retention=Retention(size_bytes=0))) as log:
                await log.append(b"kept")
                raise ZeroDivisionError
        async with client.read_log("log") as reader:
            assert (await reader.receive()).data == b"kept"
