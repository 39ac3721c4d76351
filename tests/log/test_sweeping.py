"""Sweeping what jobs left: nothing that the log names, or may come to name, is deleted; all else is, once it is given up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

import replog
from replog.config.client import ClientTuning
from replog.errors import (
    ConfigError,
    FencedError,
    JobAbandonedError,
    LedgerNotFoundError,
    LedgerRefusedError,
    LogNotFoundError,
    MetastoreCorruptError,
    MetastoreError,
)
from replog.log import sweeping
from replog.protocol.model import Position
from replog.records.paths import job_key_path
from replog.testing import Fault
from tests.kit import Cluster, cluster, read_log
from tests.lanes.seeds import some

QUICK = ClientTuning(add_timeout_s=1.0, read_timeout_s=1.0, add_quorum_timeout_s=10.0, metastore_timeout_s=2.0)
FAULTS = [Fault.ANSWER_LOST, Fault.REQUEST_LOST, Fault.ARRIVES_LATE, Fault.UNAVAILABLE, Fault.CONFLICT]


async def written(client: replog.Client, job: str, *entries: bytes, log: str = "log") -> int:
    """A closed ledger of a job."""
    async with client.create_ledger(custom={"log": log, "job": job} if job else {"log": log}) as writer:
        if entries:
            await writer.extend(list(entries))
    return writer.ledger_id


async def test_losing_attempts_of_a_committed_job_are_swept_alone(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        loser, winner = await written(client, "a", b"twice"), await written(client, "a", b"1")
        running = await written(client, "b", b"2")
        others = [await written(client, "a", log="another"), await written(client, "")]
        await client.jobs.append_ledgers("log", [winner], job="a")
        async with client.write_log("log") as log:
            await log.append(b"3")
            with pytest.raises(LedgerNotFoundError):
                async with client.create_ledger(custom={"log": "log", "job": "a"}) as zombie:
                    assert await client.jobs.sweep("log") == [loser, zombie.ledger_id]
            assert await client.jobs.sweep("log") == []
            await log.append(b"4")
        await client.jobs.append_ledgers("log", [running], job="b")
        assert await read_log(client) == [b"1", b"3", b"4", b"2"]
        assert set(others) < set(await client.ledgers())


async def test_a_job_is_given_up_when_its_youngest_ledger_is_old(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        now_ms = 10_000_000
        monkeypatch.setattr(client._opened.ledgers.entropy, "time_ms", lambda: now_ms)
        await client.jobs.append_ledgers("log", [])
        old, other = await written(client, "a", b"no"), await written(client, "b", b"no")
        now_ms += 3_000_000
        old_too = await written(client, "a", b"no")
        assert await client.jobs.sweep("log", grace_s=3001) == []
        now_ms += 1_000_000
        assert await client.jobs.sweep("log", grace_s=2000) == [other]
        now_ms += 1_000_001
        assert await client.jobs.sweep("log", grace_s=2000) == [old, old_too]
        for ledger_ids in ([old], [old_too, other]):
            with pytest.raises(LedgerNotFoundError):
                await client.jobs.append_ledgers("log", ledger_ids)
        assert await read_log(client) == []


async def test_named_job_alone_is_given_up_now(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        a, b = await written(client, "a", b"no"), await written(client, "b", b"1")
        assert await client.jobs.sweep("log", job="a", grace_s=0) == [a]
        await client.jobs.append_ledgers("log", [b], job="b")
        assert await client.jobs.sweep("log", job="b") == [], "it was committed"
        assert await read_log(client) == [b"1"]


async def test_a_sweep_creates_no_log_and_sweeps_a_deleted_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        assert await client.jobs.sweep("log", grace_s=0) == []
        assert await world.metastore.children("logs") == []
        ledger_id = await written(client, "a", b"no")
        assert await client.jobs.sweep("log", job="a") == [ledger_id]
        assert await client.logs() == []
        with pytest.raises(LogNotFoundError):
            await client.log_metadata("log")
        await client.jobs.append_ledgers("log", [await written(client, "b", b"1")])
        await client.delete_log("log")
        late = await written(client, "b", b"no")
        assert await client.jobs.sweep("log", job="b") == [late]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("operation", "under"), [("put", "ledgers"), ("put", "logs"), ("delete", "ledgers")])
async def test_answers_may_be_lost(
    fault: Fault, operation: str, under: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        winner, loser = await written(client, "a", b"1"), await written(client, "a", b"no")
        await client.jobs.append_ledgers("log", [winner])
        world.metastore.fail_next(operation, fault, under=under)
        assert await client.jobs.sweep("log") == [loser]
        assert world.metastore.planned() == 0
        assert await client.ledgers() == [winner]
        assert await read_log(client) == [b"1"]


@pytest.mark.parametrize(("operation", "under"), [("put", "ledgers"), ("put", "logs"), ("delete", "ledgers")])
async def test_interrupted_sweep_is_finished_by_the_next(
    operation: str, under: str, autojump_clock: trio.testing.MockClock
) -> None:
    """Also without the job's name or its age: nobody can use its ledgers any more."""
    async with cluster() as world, world.client(QUICK) as client:
        await client.jobs.append_ledgers("log", [])
        ledger_ids = [await written(client, "a", b"no") for _ in range(3)]
        calls = 0

        def choose(each: str, key: str) -> Fault | None:
            nonlocal calls
            calls += each == operation and key.startswith(under)
            return Fault.UNAVAILABLE if each == operation and key.startswith(under) and calls > 1 else None

        world.metastore._choose = choose
        if under == "logs":
            calls = 1
        with pytest.raises(MetastoreError):
            await client.jobs.sweep("log", job="a")
        world.metastore._choose = None
        with pytest.raises((JobAbandonedError, LedgerNotFoundError)):
            await client.jobs.append_ledgers("log", ledger_ids, job="a")
        left = [each for each in ledger_ids if each in await client.ledgers()]
        assert await client.jobs.sweep("log") == left
        assert await client.ledgers() == []


# -- jobs that commit meanwhile -----------------------------------------------------------------------------------


def when(world: Cluster, operation: str, under: str, act: Callable[[], Awaitable[Any]], *, after: bool) -> None:
    """Does something once, before or after the next such call."""
    inner = getattr(world.metastore, operation)
    is_done = False

    async def call(key: str, *arguments: Any) -> Any:
        nonlocal is_done
        if is_done or not key.startswith(under):
            return await inner(key, *arguments)
        is_done = True
        if after:
            result = await inner(key, *arguments)
            await act()
            return result
        await act()
        return await inner(key, *arguments)

    setattr(world.metastore, operation, call)


MOMENTS = [
    ("children", "ledgers", False),
    ("get", "ledgers", False),
    ("get", "ledgers", True),
    ("get", "logs", True),
    ("put", "ledgers", False),
    ("put", "ledgers", True),
    ("put", "logs", False),
    ("put", "logs", True),
    ("create", "logs", False),
    ("create", "logs", True),
    ("delete", "ledgers", False),
]


@pytest.mark.parametrize("exists", some([True, False], fast=1))
@pytest.mark.parametrize(("operation", "under", "after"), MOMENTS)
async def test_a_job_commits_while_it_is_swept(
    operation: str, under: str, after: bool, exists: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """At whatever moment: either all of it is in the log and readable, or none of it, and then the commit says so."""
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        if exists:
            await client.jobs.append_ledgers("log", [await written(client, "before", b"0")])
        ledger_ids = [await written(client, "a", b"%d" % number) for number in range(1, 4)]
        outcomes: list[bool] = []

        async def commit() -> None:
            try:
                outcomes.append((await other.jobs.append_ledgers("log", ledger_ids, job="a")).is_new)
            except (JobAbandonedError, LedgerNotFoundError):
                outcomes.append(False)

        when(world, operation, under, commit, after=after)
        deleted = await client.jobs.sweep("log", job="a")
        if not outcomes:
            await commit()
        assert deleted == ([] if outcomes == [True] else ledger_ids)
        if exists or outcomes == [True]:
            assert await read_log(client) == [b"0"] * exists + [b"1", b"2", b"3"] * outcomes[0]


@pytest.mark.parametrize("exists", some([True, False], fast=1))
@pytest.mark.parametrize(
    ("operation", "under", "after"), [each for each in MOMENTS if each[0] in ("get", "put", "create")]
)
async def test_a_job_is_swept_while_it_commits(
    operation: str, under: str, after: bool, exists: bool, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        if exists:
            await client.jobs.append_ledgers("log", [await written(client, "before", b"0")])
        ledger_ids = [await written(client, "a", b"%d" % number) for number in range(1, 4)]
        deleted: list[list[int]] = []

        async def sweep() -> None:
            deleted.append(await other.jobs.sweep("log", job="a"))

        when(world, operation, under, sweep, after=after)
        try:
            is_committed = (await client.jobs.append_ledgers("log", ledger_ids, job="a")).is_new
        except (JobAbandonedError, LedgerNotFoundError):
            is_committed = False
        if not deleted:
            await sweep()
        assert deleted == [[] if is_committed else ledger_ids]
        if exists or is_committed:
            assert await read_log(client) == [b"0"] * exists + [b"1", b"2", b"3"] * is_committed


@pytest.mark.parametrize("drop", some(["trim", "delete"], fast=1))
@pytest.mark.parametrize(
    ("operation", "under", "after"), [each for each in MOMENTS if each[0] in ("get", "put", "delete")]
)
async def test_a_commit_is_repeated_while_its_ledgers_are_trimmed_away(
    operation: str, under: str, after: bool, drop: str, autojump_clock: trio.testing.MockClock
) -> None:
    """Without a transaction nothing tells that it was committed before: then it is added once more, and is there, or is not."""
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        ledger_ids = [await written(client, "a", b"%d" % number) for number in range(1, 4)]
        await client.jobs.append_ledgers("log", ledger_ids)
        await client.jobs.append_ledgers("log", [await written(client, "b", b"4")])
        outcomes: list[bool] = []

        async def commit() -> None:
            try:
                outcomes.append((await other.jobs.append_ledgers("log", ledger_ids, job="a")).is_new)
            except (JobAbandonedError, LedgerNotFoundError, LedgerRefusedError):
                outcomes.append(False)

        when(world, operation, under, commit, after=after)
        await (client.trim_log("log", before="4:0") if drop == "trim" else client.delete_log("log"))
        if not outcomes:
            await commit()
        if drop == "trim" or outcomes == [True]:
            found = await read_log(client)
            assert found == [b"4"] * (drop == "trim") + [b"1", b"2", b"3"] * outcomes[0]
        else:
            assert await client.logs() == []


async def test_leader_trims_committed_job_ledgers_and_continues(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        client._opened.logs.page_segments = 2
        for number in range(7):
            await client.jobs.append_ledgers("log", [await written(client, f"job {number}", b"%d" % number)])
        async with client.write_log("log") as log:
            await log.append(b"7")
            assert await client.trim_log("log", before="7:0") == Position(7, 0)
            assert len(await client.ledgers()) == 2
            await log.roll()
            await log.append(b"8")
            assert await client.trim_log("log", before="8:0") == Position(8, 0)
        assert await read_log(client) == [b"7", b"8"]


async def test_a_leader_goes_on_while_its_log_is_swept(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        client._opened.logs.page_segments = 2
        async with client.write_log("log") as log:
            for number in range(6):
                await log.append(b"%d" % number)
                loser = await written(other, f"job {number}", b"no")
                assert await other.jobs.sweep("log", job=f"job {number}") == [loser]
                await log.roll()
            assert await log.append(b"6") == Position(7, 0)
        assert await read_log(client) == [b"%d" % number for number in range(7)]


async def test_still_writing_zombie_never_gets_in(autojump_clock: trio.testing.MockClock) -> None:
    """Its ledger is gone, whatever it wrote: it can't even be closed."""
    async with cluster() as world, world.client(QUICK) as client:
        with pytest.raises((LedgerNotFoundError, FencedError)):
            async with client.create_ledger(custom={"log": "log", "job": "a"}) as zombie:
                await zombie.append(b"1")
                assert await client.jobs.sweep("log", job="a") == [zombie.ledger_id]
                await zombie.append(b"2")
        with pytest.raises(LedgerNotFoundError):
            await client.jobs.append_ledgers("log", [zombie.ledger_id], job="a")


# -- what it costs ------------------------------------------------------------------------------------------------


def registered(client: replog.Client, job: str) -> Awaitable[list[str]]:
    return client._opened.ledgers.records.metastore.children(job_key_path("log", job))


async def test_sweep_cost_follows_running_jobs_and_not_the_cluster(autojump_clock: trio.testing.MockClock) -> None:
    """However many ledgers there are, and however many a killed job left: constant calls after each commit."""
    async with cluster() as world, world.client(QUICK) as client:
        for _ in range(30):
            await written(client, "another log's", log="another")
            await written(client, "killed", b"no")
        costs = []
        for number in range(4):
            await client.jobs.append_ledgers("log", [await written(client, f"job {number}", b"1")])
            calls: list[str] = []
            world.metastore._choose = lambda operation, key, calls=calls: calls.append(f"{operation} {key}")
            assert await client.jobs.sweep("log") == []
            world.metastore._choose = None
            costs.append(len(calls))
            costs[-1] -= sum(call.startswith("get ledgers") for call in calls)  # of the last in the log: 16 at most
            assert await registered(client, f"job {number}") == []
        assert max(costs) == min(costs) <= 12
        assert len(await registered(client, "killed")) == 30


async def test_late_zombie_of_a_judged_job_is_swept(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is registered of its job any more: it is known by the last ledgers of the log, or waits for the grace."""
    monkeypatch.setattr(sweeping, "_NAMED_MAX", 2)
    async with cluster() as world, world.client(QUICK) as client:
        await client.jobs.append_ledgers("log", [await written(client, "a", b"1")])
        assert await client.jobs.sweep("log") == []
        zombie = await written(client, "a", b"no")
        assert await client.jobs.sweep("log") == [zombie]
        for job in ("b", "c"):
            await client.jobs.append_ledgers("log", [await written(client, job, b"2")])
        assert await client.jobs.sweep("log") == []
        late = await written(client, "a", b"no")
        # `ended` is still written for the job, because of the first one.
        assert await client.jobs.sweep("log") == [late]
        other = await written(client, "d", b"no")
        assert await client.jobs.sweep("log") == []
        assert await client.jobs.sweep("log", grace_s=0) == [other]


async def test_job_with_trimmed_ledgers_is_not_taken_for_killed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its driver was killed right after the commit, and others committed since. Ledgers that the log names are never
    deleted."""
    async with cluster() as world, world.client(QUICK) as client:
        client._opened.logs.page_segments = 2
        loser = await written(client, "a", b"no")
        await client.jobs.append_ledgers("log", [await written(client, "a", b"1")])
        for number in range(6):
            await client.jobs.append_ledgers("log", [await written(client, f"job {number}", b"2")])
        assert (await client.log_metadata("log")).first_listed_number > 1
        assert await client.jobs.sweep("log") == []
        assert await client.jobs.sweep("log", grace_s=0) == [loser]
        assert await read_log(client) == [b"1", *[b"2"] * 6]


async def test_late_created_ledger_is_found_by_the_next_sweep(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was registered before its creation, which is under way when its job is given up."""
    async with cluster() as world, world.client(QUICK) as client:
        now_ms = 10_000_000
        monkeypatch.setattr(client._opened.ledgers.entropy, "time_ms", lambda: now_ms)
        first = await written(client, "a", b"no")
        swept: list[list[int]] = []

        async def sweep() -> None:
            swept.append(await client.jobs.sweep("log", job="a"))

        when(world, "create", "ledgers", sweep, after=False)
        late = await written(client, "a", b"no")
        assert swept == [[first]]
        assert await client.jobs.sweep("log") == [late]
        assert await registered(client, "a") != []
        now_ms += 600_001
        assert await client.jobs.sweep("log") == []
        assert await registered(client, "a") == []


async def test_a_damaged_registration_is_named(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        key = f"{job_key_path('log', 'a')}/7"
        await world.metastore.create(key, b"{}")
        with pytest.raises(MetastoreCorruptError, match=key):
            await client.jobs.sweep("log")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"name": ""}, "name of a log"),
        ({"grace_s": -1}, "grace_s=-1"),
        ({"grace_s": float("inf")}, "finite"),
        ({"grace_s": float("nan")}, "finite"),
        ({"grace_s": True}, "grace_s=True"),
        ({"job": ""}, "not the name of a job"),
        ({"job": 1}, "not the name of a job"),
    ],
)
async def test_bad_arguments(arguments: dict[str, Any], problem: str, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        with pytest.raises(ConfigError, match=problem):
            await client.jobs.sweep(**{"name": "log", **arguments})


@pytest.mark.parametrize("name", ["job", "condemned"])
async def test_a_leaders_ledgers_are_never_a_jobs(name: str, autojump_clock: trio.testing.MockClock) -> None:
    """A roll adds its ledger without looking at it: no sweep may take it for a job's."""
    async with cluster() as world, world.client(QUICK) as client:
        with pytest.raises(ConfigError, match="for ledgers that jobs hand in"):
            async with client.write_log("log", options=replog.LogOptions(custom={name: "x"})):
                pass
        assert await client.logs() == []
