"""A leader that adds committers' ledgers and goes on behind them (L10): appends, rolls, patience, and what everybody sees."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import attrs
import pytest
import trio
import trio.testing

import replog
from replog.abc import Versioned
from replog.config.client import ClientTuning
from replog.errors import ConfigError, FencedError, MetastoreUnavailableError
from replog.hookspecs import LedgersSpliced
from replog.protocol.additions import Addition, AppendRequest
from replog.protocol.model import Position
from replog.records.encoding import encode
from replog.records.paths import log_leaders_key_path
from replog.testing import FaultyMetastore
from tests.kit import cluster, read_log

QUICK = ClientTuning(add_timeout_s=1.0, read_timeout_s=1.0, add_quorum_timeout_s=10.0, metastore_timeout_s=2.0)
pytestmark = pytest.mark.usefixtures("autojump_clock")


async def written(client: replog.Client, *entries: bytes) -> int:
    async with client.create_ledger(custom={"log": "log", "job": "j"}) as writer:
        await writer.extend(list(entries))
    return writer.ledger_id


async def test_leader_stays_when_ledgers_are_added() -> None:
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        async with client.lead_log("log") as log:
            assert await log.append(b"1") == Position(1, 0)
            ledger_ids = [await written(other, b"2", b"3"), await written(other, b"4")]
            started = trio.current_time()
            added = await other.jobs.append_ledgers("log", ledger_ids, transaction=("t", 1))
            assert trio.current_time() - started < 1.0
            assert (added.is_new, added.first) == (True, Position(2, 0))
            assert await log.append(b"5") == Position(4, 0)
            assert not (await other.jobs.append_ledgers("log", ledger_ids, transaction=("t", 1))).is_new
            (told,) = world.told(LedgersSpliced)
            assert told == LedgersSpliced("log", 2, tuple(ledger_ids), log.ledger_id)
            assert (await other.log_metadata("log")).requests == ()
        assert await read_log(client) == [b"1", b"2", b"3", b"4", b"5"]


class LateAnnouncements(FaultyMetastore):
    """A metastore that takes a while to announce."""

    @asynccontextmanager
    async def announce(self, key: str, value: bytes) -> AsyncIterator[None]:
        await trio.sleep(0.1)
        async with super().announce(key, value):
            yield


async def test_new_leader_stays() -> None:
    """It does not wait for its announcement, and a commit comes before that."""
    async with cluster() as world, world.client(QUICK) as client:
        async with world.client(QUICK, metastore=LateAnnouncements(world.metastore)) as leading:
            ledger_id = await written(client, b"2")
            async with leading.write_log("log") as log:
                await log.append(b"1")
                assert await world.metastore.announced(log_leaders_key_path("log")) == {}
                assert (await client.jobs.append_ledgers("log", [ledger_id])).is_new
                await log.append(b"3")
        assert await read_log(client) == [b"1", b"2", b"3"]


class LateAnswers(FaultyMetastore):
    """A metastore whose answers to changes of the log's record come late."""

    late_s = 0.0
    is_late = trio.Event()

    async def put(self, key: str, value: bytes, expected: int) -> int:
        version = await super().put(key, value, expected)
        if key == "logs/log" and self.late_s:
            self.is_late.set()
            await trio.sleep(self.late_s)
        return version


@pytest.mark.parametrize("late_s", [1.0, 8.0])
async def test_append_is_behind_a_commit_when_the_leader_hears_late(late_s: float) -> None:
    """The leader's change is written, and it goes on in the ledger before until it has the answer (L10)."""
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        slow = LateAnswers(world.metastore)
        patient = attrs.evolve(QUICK, metastore_timeout_s=20.0)
        async with world.client(patient, metastore=slow) as leading:
            with suppress(FencedError):  # if it hangs for longer than the committer has patience
                async with leading.write_log("log") as log:
                    await log.append(b"1")
                    await trio.testing.wait_all_tasks_blocked()
                    slow.late_s = late_s
                    assert (await other.jobs.append_ledgers("log", [await written(other, b"2")])).is_new
                    await log.append(b"3")
        assert await read_log(client) == [b"1", b"2", b"3"][: 3 if late_s < 5.0 else 2]


class LateWaits(FaultyMetastore):
    """A metastore that tells late what has changed."""

    async def wait_changed(self, key: str, version: int | None) -> None:
        await super().wait_changed(key, version)
        await trio.sleep(1.0)


class LostSessions(FaultyMetastore):
    """A metastore that loses the session of who first waits for a key with such a beginning, and is away for a while."""

    lost_below = "ledgers/"
    away_until_s = 0.0

    async def wait_changed(self, key: str, version: int | None) -> None:
        if not key.startswith(self.lost_below) or self.away_until_s:
            return await super().wait_changed(key, version)
        await trio.sleep(0.1)
        self.away_until_s = trio.current_time() + 0.5
        raise MetastoreUnavailableError("the session was lost while it waited")

    async def get(self, key: str) -> Versioned:
        if trio.current_time() < self.away_until_s:
            raise MetastoreUnavailableError("not connected")
        return await super().get(key)


async def test_append_waits_behind_a_commit_of_a_lost_session() -> None:
    """It is done when the leader's ledger before is closed, and not because it could not look for a moment (L10).

    Seed 70000105 of the shells, strategy requests, in a swarm."""
    async with cluster() as world, world.client(QUICK) as client:
        late, lossy = LateAnswers(world.metastore), LostSessions(world.metastore)
        patient = attrs.evolve(QUICK, metastore_timeout_s=20.0)
        async with world.client(patient, metastore=late) as leading, world.client(QUICK, metastore=lossy) as other:
            ledger_id = await written(client, b"2")
            async with leading.write_log("log") as log:
                await log.append(b"1")
                await trio.testing.wait_all_tasks_blocked()
                late.late_s = 2.0
                assert (await other.jobs.append_ledgers("log", [ledger_id])).is_new
                assert lossy.away_until_s, "its session was lost"
                await log.append(b"3")
        assert await read_log(client) == [b"1", b"2", b"3"]


async def test_leader_answers_a_committer_without_its_session() -> None:
    """It has asked, so it must not say that nothing was changed; it looks again."""
    async with cluster() as world, world.client(QUICK) as client:
        lossy = LostSessions(world.metastore)
        lossy.lost_below = "logs/"
        slow = LateWaits(world.metastore)
        async with world.client(QUICK, metastore=slow) as leading, world.client(QUICK, metastore=lossy) as other:
            ledger_id = await written(client, b"2")
            async with leading.write_log("log") as log:
                await log.append(b"1")
                await trio.testing.wait_all_tasks_blocked()
                assert (await other.jobs.append_ledgers("log", [ledger_id])).is_new
                assert lossy.away_until_s, "its session was lost"
                await log.append(b"3")
            assert len(world.told(LedgersSpliced)) == 1
        assert await read_log(client) == [b"1", b"2", b"3"]


async def test_ledgers_are_added_when_closing_earlier_ones_is_slow() -> None:
    """The leader has added them and has not heard of it; no bookie answers to the committer that wants to close its ledger."""
    slowly = attrs.evolve(QUICK, read_timeout_s=60.0, takeover_timeout_s=3.0)
    async with cluster() as world, world.client(slowly) as other:
        slow = LateAnswers(world.metastore)
        patient = attrs.evolve(QUICK, metastore_timeout_s=200.0)
        async with world.client(patient, metastore=slow) as leading:
            with suppress(FencedError):
                async with leading.write_log("log") as log:
                    await log.append(b"1")
                    await trio.testing.wait_all_tasks_blocked()
                    ledger_ids = [await written(other, b"2")]
                    slow.late_s, slow.is_late = 100.0, trio.Event()
                    async with trio.open_nursery() as nursery:

                        @nursery.start_soon
                        async def hold() -> None:
                            await slow.is_late.wait()
                            for bookie in world.bookies:
                                bookie.wire.is_held = True

                        added = await other.jobs.append_ledgers("log", ledger_ids, transaction=("t", 1), patience_s=2.0)
                    assert (added.is_new, added.first) == (True, Position(2, 0))
                    for bookie in world.bookies:
                        bookie.wire.release()


@pytest.mark.parametrize("ledgers", ["bounded", "unbounded"])
async def test_appends_keep_their_order_while_jobs_commit(ledgers: str) -> None:
    """Entries in flight at a splice are confirmed before those that were appended after it (L2)."""
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        appended: list[tuple[Position, bytes]] = []
        is_over = False

        async def lead() -> None:
            async with client.write_log("log", options=replog.LogOptions(ledgers=ledgers)) as log:
                while not is_over:
                    data = b"%d" % len(appended)
                    appended.append((await log.append(data), data))
                    await trio.sleep(0.003)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lead)
            await trio.sleep(0.1)
            for number in range(5):
                job = [await written(other, b"job %d" % number)]
                assert (await other.jobs.append_ledgers("log", job, transaction=("t", number))).is_new
            await trio.sleep(0.1)
            is_over = True
        assert [position for position, _ in appended] == sorted(position for position, _ in appended)
        entries = await read_log(client)
        assert [each for each in entries if not each.startswith(b"job")] == [data for _, data in appended]
        assert [each for each in entries if each.startswith(b"job")] == [b"job %d" % number for number in range(5)]
        assert not entries[0].startswith(b"job")
        assert not entries[-1].startswith(b"job")


async def test_positions_are_right_when_a_splice_overtakes_pushes() -> None:
    """The previous segment's number is not the current one less one: the job's ledgers are in between."""
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        async with client.write_log("log") as log:
            positions = [log.push_nowait(b"%d" % number) for number in range(20)]
            job = [await written(other, b"a"), await written(other, b"b")]
            await other.jobs.append_ledgers("log", job)
            positions += [log.push_nowait(b"%d" % number) for number in range(20, 40)]
            await log.flush()
            assert log.last_add_confirmed == log.last_add_pushed == positions[-1]
            assert {position.segment for position in positions} == {1, 4}
        async with client.read_log("log") as reader:
            found = {record.position: record.data async for record in reader}
        assert [found[position] for position in positions] == [b"%d" % number for number in range(40)]


async def test_hanging_leader_is_deposed_when_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        with pytest.raises(FencedError):
            async with client.write_log("log") as log:
                await log.append(b"1")
                await trio.testing.wait_all_tasks_blocked()
                monkeypatch.setattr(log._rolling, "roll", trio.sleep_forever)
                started = trio.current_time()
                assert (await other.jobs.append_ledgers("log", [await written(other, b"2")])).is_new
                assert 5.0 <= trio.current_time() - started < 8.0
                assert (await other.log_metadata("log")).requests == ()
                await log.append(b"lost")
        assert await read_log(client) == [b"1", b"2"]


async def test_absent_leader_is_not_awaited() -> None:
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        async with client.write_log("log") as log:
            await log.append(b"1")
            await trio.testing.wait_all_tasks_blocked()
            assert len(await world.metastore.announced(log_leaders_key_path("log"))) == 1
        assert await world.metastore.announced(log_leaders_key_path("log")) == {}
        started = trio.current_time()
        await other.jobs.append_ledgers("log", [await written(other, b"2")])
        assert trio.current_time() - started < 1.0


async def test_request_of_a_dead_committer_is_answered_or_ended() -> None:
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        job = await written(other, b"2")

        async def ask(ledger_id: int) -> None:
            head, version = await other._opened.logs.get("log")
            asked = head.with_request(AppendRequest("dead", Addition((ledger_id,))))
            await world.metastore.put("logs/log", encode(asked), version)

        async with client.write_log("log") as log:
            await log.append(b"1")
            await ask(job)
            await trio.sleep(1.0)
            assert log.segment == 3
        await ask(await written(other, b"nobody"))
        async with client.write_log("log") as log:
            assert (await client.log_metadata("log")).requests == ()
        assert await read_log(client) == [b"1", b"2"]


async def test_two_jobs_at_once_are_both_added_by_the_leader() -> None:
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        async with client.write_log("log") as log, trio.open_nursery() as nursery:
            await log.append(b"1")
            for number in range(4):
                job = [await written(other, b"job %d" % number)]
                nursery.start_soon(other.jobs.append_ledgers, "log", job)
        assert sorted(await read_log(client)) == [b"1", b"job 0", b"job 1", b"job 2", b"job 3"]


@pytest.mark.parametrize("patience_s", [-1, float("inf"), float("nan"), "5", True])
async def test_patience_is_refused_when_it_is_not_a_time(patience_s: object) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        with pytest.raises(ConfigError, match="patience_s"):
            await client.jobs.append_ledgers("log", [], patience_s=patience_s)  # type: ignore[arg-type]
