"""Polling: side by side, each within its deadline, whoever comes and goes."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from replog.cli.top import model
from replog.cli.top.logs import Logs
from replog.cli.top.model import Cluster, Row, State
from replog.cli.top.polling import LogPoller, Poller
from replog.errors import MetastoreError
from replog.log import log_looks
from tests.kit import cluster


def states(made: Cluster) -> list[State]:
    return [row.state for row in made.rows(trio.current_time())]


def named(made: Cluster, bookie_id: str) -> Row:
    return next(row for row in made.rows(trio.current_time()) if row.bookie_id == bookie_id)


async def test_one_poll_asks_everybody(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client() as client:
        made = Cluster()
        poller = Poller(client, made, interval_s=1.0, timeout_s=2.0)
        await poller.poll()
        assert states(made) == [State.WRITABLE] * 3
        async with client.create_ledger() as writer:
            await writer.extend([b"x"] * 100)
        await trio.sleep(2)
        await poller.poll()
        assert {row.figures.entries_rate for row in made.rows(trio.current_time())} == {50.0}


async def test_silent_bookie_does_not_delay_the_others(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client() as client, trio.open_nursery() as nursery:
        made = Cluster()
        world.bookies[1].wire.is_mute = True
        nursery.start_soon(Poller(client, made, interval_s=1.0, timeout_s=5.0).run)
        await trio.sleep(3.5)
        assert states(made) == [State.WRITABLE, State.UNKNOWN, State.WRITABLE]
        asked = [len(bookie.wire.seen) for bookie in world.bookies]
        assert (asked[0], asked[1], asked[2]) == (4, 1, 4)
        await trio.sleep(2)
        assert states(made) == [State.WRITABLE, State.UNREACHABLE, State.WRITABLE]
        world.bookies[1].wire.is_mute = False
        await trio.sleep(6)
        assert states(made) == [State.WRITABLE] * 3
        nursery.cancel_scope.cancel()


async def test_bookies_come_and_go(autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "FORGET_AFTER_S", 30.0)
    async with cluster(1) as world, world.client() as client, trio.open_nursery() as nursery:
        made = Cluster()
        nursery.start_soon(Poller(client, made, interval_s=1.0, timeout_s=2.0).run)
        await trio.sleep(1.5)
        newcomer = await world.add_bookie()
        await trio.sleep(1.5)
        assert states(made) == [State.WRITABLE] * 2
        await newcomer.kill()
        await trio.sleep(3.0)
        assert named(made, newcomer.bookie_id).state is State.UNREACHABLE
        await newcomer.start()
        await trio.sleep(1.5)
        assert named(made, newcomer.bookie_id).state is State.WRITABLE
        await newcomer.kill()
        await trio.sleep(40)
        assert made.bookie_ids == (world.bookies[0].bookie_id,)
        await newcomer.start()
        await trio.sleep(2.5)
        assert named(made, newcomer.bookie_id).state is State.WRITABLE
        nursery.cancel_scope.cancel()


async def test_bookies_are_polled_when_the_metastore_fails(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(2) as world, world.client() as client:
        made = Cluster()
        poller = Poller(client, made, interval_s=1.0, timeout_s=2.0)
        await poller.poll()
        announced = world.metastore.announced
        for broken, problem in ((failing, "no such host"), (hanging, "within 2 s")):
            monkeypatch.setattr(world.metastore, "announced", broken)
            await trio.sleep(1)
            await poller.poll()
            assert problem in made.problem
            assert [row.figures.entries_rate for row in made.rows(trio.current_time())] == [0.0, 0.0]
            monkeypatch.setattr(world.metastore, "announced", announced)
            await poller.poll()
            assert made.problem == ""


async def test_metastore_has_a_deadline_of_its_own(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says itself names its servers."""

    async def silent(key: str) -> dict[str, bytes]:
        await trio.sleep(10.0)
        raise MetastoreError("Members: m1")

    async with cluster(1) as world, world.client() as client:
        made = Cluster()
        monkeypatch.setattr(world.metastore, "announced", silent)
        assert not await Poller(client, made, interval_s=1.0, timeout_s=2.0, metastore_timeout_s=11.0).poll()
        assert made.problem == "Members: m1"


async def failing(key: str) -> dict[str, bytes]:
    raise MetastoreError("no such host")


async def hanging(key: str) -> dict[str, bytes]:
    await trio.sleep_forever()
    return {}


async def test_logs_are_looked_at_while_they_are_wanted(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_looks, "LOGS_MAX", 2)
    async with cluster(3) as world, world.client() as client, trio.open_nursery() as nursery:
        logs, wanted = Logs(), [False]
        poller = LogPoller(client, logs, b"", interval_s=10.0, timeout_s=2.0)
        async with client.write_log("a") as writer, client.write_log("b"), client.write_log("c"):
            nursery.start_soon(poller.run, lambda: wanted[0])
            await trio.sleep(25)
            assert logs.rows() == []
            wanted[0] = True
            poller.poll_soon()
            await trio.sleep(1)
            assert [(row.name, row.state) for row in logs.rows()] == [("a", "open"), ("b", "open")]
            assert logs.are_more
            await writer.extend([b"x"] * 50)
            await trio.sleep(10)
            assert logs.rows()[0].entries_rate == pytest.approx(5.0, rel=0.1)
        await client.delete_log("a")
        await trio.sleep(10)
        assert [(row.name, row.state) for row in logs.rows()] == [("b", "closed"), ("c", "closed")]
        nursery.cancel_scope.cancel()


async def test_failed_look_gives_the_reason(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client() as client:
        logs = Logs()
        poller = LogPoller(client, logs, b"", interval_s=1.0, timeout_s=2.0)
        async with client.write_log("log") as writer:
            await writer.append(b"x")
            await poller.poll()
            world.metastore.delay_s = 60.0
            await poller.poll()
            assert logs.problem == "the metastore did not answer within 2 s"
            world.metastore.delay_s = 1.5
            await poller.poll()
            assert (logs.problem, logs.rows()[0].problem) == ("", "not known within 2 s")
            assert logs.rows()[0].state == "open", "what was known stays"
            world.metastore.delay_s = 0.0
