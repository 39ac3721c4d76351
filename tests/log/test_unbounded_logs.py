"""Logs of unbounded ledgers as applications use them: taking over, rolling, jobs, readers, trimming, back-ups (L9)."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

import replog
from replog.config import ClientOptions
from replog.errors import ConfigError, FencedError
from replog.log import rolling
from replog.protocol.messages import AddRequest
from replog.protocol.model import LedgerState, Position
from replog.protocol.quorum import Quorum
from tests.kit import cluster, read_log, settle

UNBOUNDED = ClientOptions(log_ledgers="unbounded")


async def test_positions_go_on_over_takeovers(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, world.client() as other:
        async with client.write_log("log", options=replog.LogOptions(ledgers="unbounded")) as log:
            assert await log.append(b"0") == Position(1, 0)
            ledger_id = log.ledger_id
        async with other.write_log("log") as log:
            assert (log.last_add_pushed, log.last_add_confirmed) == (None, None), "they are another writer's"
            assert await log.append(b"1") == Position(1, 1)
            assert log.last_add_confirmed == Position(1, 1)
            assert log.ledger_id == ledger_id
        async with client.lead_log("log") as log:
            assert await log.roll() == Position(2, 0)
            assert log.last_add_confirmed is None
            assert await log.append(b"2") == Position(2, 0)
        assert (await client.ledger_metadata(ledger_id)).state is LedgerState.CLOSED
        assert await read_log(client) == [b"0", b"1", b"2"]
        head = await client.log_metadata("log")
        assert [(each.number, each.term) for each in head.segments] == [(1, 3), (2, 1)]
        assert not await client._opened.logs.pending("log")


async def test_deposed_leader_gets_term_and_positions(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.deaf_client() as client, world.client() as other:
        with pytest.raises(FencedError) as raised:
            async with client.write_log("log", options=replog.LogOptions(ledgers="unbounded")) as log:
                await log.append(b"a")
                async with other.write_log("log") as second:
                    await second.append(b"b")
                    await log.append(b"c")
        assert raised.value.term == 2
        assert list(raised.value.positions) == [Position(1, 1)]
        assert await read_log(other) == [b"a", b"b"]


async def test_deposed_leader_learns_it_on_a_roll(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.deaf_client() as client, world.client() as other:
        with pytest.raises(FencedError):
            async with client.write_log("log", options=replog.LogOptions(ledgers="unbounded")) as log:
                await log.append(b"a")
                async with other.write_log("log") as second:
                    with pytest.raises(FencedError):
                        await log.roll()
                    assert await second.append(b"b") == Position(1, 1)
                await log.append(b"c")
        assert await read_log(other) == [b"a", b"b"]
        assert len(await client.ledgers()) == 1


async def test_takeovers_at_once_end_with_one_leader(autojump_clock: trio.testing.MockClock) -> None:
    """They pause for random times: otherwise each would fence the other for ever."""
    async with cluster() as world:
        writers = []

        async def lead(number: int) -> None:
            async with world.client() as client:
                try:
                    async with client.write_log("log", options=replog.LogOptions(ledgers="unbounded")) as log:
                        await log.append(b"%d" % number)
                        writers.append(number)
                except FencedError:
                    pass

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(lead, number)
        async with world.client() as client:
            read = [int(data) for data in await read_log(client)]
        assert set(writers) <= set(read)
        assert writers


async def test_follower_crosses_takeovers_rolls_and_jobs(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(UNBOUNDED) as client, world.client() as other:
        found: list[bytes] = []

        async def follow() -> None:
            async with other.read_log("log", follow=True) as reader:
                async for record in reader:
                    found.append(record.data)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            async with client.write_log("log") as log:
                await log.append(b"0")
            async with other.write_log("log") as log:
                await log.append(b"1")
                await log.roll()
                await log.append(b"2")
            async with client.create_ledger(custom={"log": "log", "job": "j"}) as job:
                await job.append(b"3")
            await client.jobs.append_ledgers("log", [job.ledger_id], transaction=("j", 1), job="j")
            async with client.write_log("log") as log:
                await log.append(b"4")
            async with other.write_log("log") as log:
                await log.append(b"5")
            await trio.sleep(5)
            nursery.cancel_scope.cancel()
        assert found == [b"%d" % number for number in range(6)]
        numbers = [segment.number for segment in await client.log_segments("log")]
        assert numbers == [1, 2, 3, 4]
        assert (await client.ledger_metadata((await client.log_segments("log"))[-1].ledger_id)).is_unbounded
        assert (await client.jobs.append_ledgers("log", [job.ledger_id], transaction=("j", 1), job="j")).is_new is False


async def test_job_deposes_the_leader_permanently(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.deaf_client(UNBOUNDED) as client, world.client() as other:
        with pytest.raises(FencedError) as raised:
            async with client.write_log("log") as log:
                await log.append(b"0")
                async with other.create_ledger(custom={"log": "log", "job": "j"}) as job:
                    await job.append(b"1")
                await other.jobs.append_ledgers("log", [job.ledger_id], patience_s=0)
                await log.append(b"lost")
        assert raised.value.term == 2
        async with client.write_log("log") as log:
            assert await log.append(b"2") == Position(3, 0)
        assert await read_log(other) == [b"0", b"1", b"2"]


async def test_takeover_needs_no_spare_bookie(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(UNBOUNDED) as client, world.client() as other:
        async with client.write_log("log", quorum=Quorum(3, 3, 2)) as log:
            await log.append(b"0")
        await world.bookies[0].kill()
        async with other.write_log("log", quorum=Quorum(3, 3, 2)) as log:
            assert await log.append(b"1") == Position(1, 1)
        assert await read_log(other) == [b"0", b"1"]


async def test_many_takeovers_make_a_new_ledger(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolling, "FRAGMENTS_MAX", 5)
    async with cluster() as world, world.client(UNBOUNDED) as client:
        for number in range(12):
            async with client.write_log("log") as log:
                await log.append(b"%d" % number)
                await settle()
        assert await read_log(client) == [b"%d" % number for number in range(12)]
        for segment in await client.log_segments("log"):
            assert len((await client.ledger_metadata(segment.ledger_id)).fragments) <= 6


async def test_a_segment_rolls_by_its_own_age(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by its last leader's: else a log with many leaders would never roll."""
    options = ClientOptions(log_ledgers="unbounded", roll_age_s=100.0)
    async with cluster() as world, world.client(options) as client:
        chance = client._opened.ledgers.entropy
        clock_ms = chance.time_ms()
        for number in range(5):
            monkeypatch.setattr(chance, "time_ms", lambda: int(clock_ms + 1000 * trio.current_time()))
            async with client.write_log("log") as log:
                await log.append(b"%d" % number)
                await trio.sleep(60)
        assert await read_log(client) == [b"%d" % number for number in range(5)]
        assert len(await client.log_segments("log")) > 1


async def test_trimmed_backed_up_restored_audited_deleted(
    autojump_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    async with cluster() as world, world.client(UNBOUNDED) as client:
        for number in range(3):
            async with client.write_log("log") as log:
                await log.append(b"%d" % number)
        async with client.write_log("log") as log:
            await log.roll()
            await log.append(b"3")
            await log.roll()
            assert await client.trim_log("log", before=Position(2, 0)) == Position(2, 0)
            await client.admin.backup(tmp_path / "saved")
        report = await client.admin.audit()
        assert not report.lacking
        assert await read_log(client) == [b"3"]
        await client.delete_log("log")
        assert await client.ledgers() == []
    async with cluster() as world, world.client(UNBOUNDED) as client:
        await client.admin.restore(tmp_path / "saved")
        assert await read_log(client) == [b"3"]
        assert (await client.log_metadata("log")).is_unbounded
        for number in (4, 5):
            async with client.write_log("log") as log:
                assert await log.append(b"%d" % number) == Position(3, number - 4)
        assert await read_log(client) == [b"3", b"4", b"5"]


async def test_other_kinds_are_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        with pytest.raises(ConfigError, match="'bounded' or 'unbounded'"):
            async with client.write_log("log", options=replog.LogOptions(ledgers="endless")):
                pass
        with pytest.raises(ConfigError, match="not one of 'bounded', 'unbounded'"):
            ClientOptions(log_ledgers="endless")
        assert await client.logs() == []


async def test_a_ledger_of_a_log_is_not_trimmed_or_taken_over_alone(autojump_clock: trio.testing.MockClock) -> None:
    """The log would lack positions, or its leader would be deposed by somebody who does not lead."""
    async with cluster() as world, world.client(UNBOUNDED) as client:
        async with client.write_log("log") as log:
            await log.append(b"0")
            with pytest.raises(ConfigError, match="belongs to log 'log'"):
                await client.trim_ledger(log.ledger_id, before=1)
            with pytest.raises(ConfigError, match="belongs to log 'log'"):
                async with client.take_over_ledger(log.ledger_id):
                    pass
            assert await log.append(b"1") == Position(1, 1)


async def test_entries_confirmed_late_are_read_the_same(autojump_clock: trio.testing.MockClock) -> None:
    """The deposed leader's entry is on all bookies, and nobody told it: the takeover keeps it, under its own stamp."""
    async with cluster() as world, world.client(UNBOUNDED) as client, world.client() as other:
        with pytest.raises(FencedError) as raised:
            async with client.write_log("log") as log:
                await log.append(b"0")
                for bookie in world.bookies:
                    bookie.wire.lose_answer = lambda request: isinstance(request, AddRequest) and request.term == 1
                log.push_nowait(b"1")
                await trio.sleep(0.5)
                async with other.write_log("log") as second:
                    assert await second.append(b"2") == Position(1, 2)
                for bookie in world.bookies:
                    bookie.wire.lose_answer = lambda _request: False
                await log.flush()
        assert list(raised.value.positions) == [Position(1, 1)]
        assert await read_log(other) == [b"0", b"1", b"2"]


async def test_a_log_keeps_its_kind_until_another_is_asked_for(autojump_clock: trio.testing.MockClock) -> None:
    """A client whose option says bounded goes on with an unbounded log; asked for it, it changes the log."""
    async with cluster() as world, world.client(UNBOUNDED) as client, world.client() as other:
        async with client.write_log("log"):
            pass
        async with other.write_log("log") as log:
            assert log.segment == 1
        async with other.write_log("log", options=replog.LogOptions(ledgers="bounded")) as log:
            assert log.segment == 2
        async with client.write_log("log") as log:
            assert log.segment == 3
        states = [await kind_and_state(client, each.ledger_id) for each in await client.log_segments("log")]
        assert states == [(True, LedgerState.CLOSED), (False, LedgerState.CLOSED), (False, LedgerState.CLOSED)]


async def kind_and_state(client: replog.Client, ledger_id: int) -> tuple[bool, LedgerState]:
    metadata = await client.ledger_metadata(ledger_id)
    return metadata.is_unbounded, metadata.state
