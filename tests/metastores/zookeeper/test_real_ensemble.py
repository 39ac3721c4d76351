"""Three servers whose leaders die and hang: no read is stale, no change lost or made twice; waits and announcements go on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from replog.abc import Metastore
from replog.errors import MetastoreError
from replog.runtime.nursery import open_service_nursery
from tests.failures.processes import until
from tests.metastores.zookeeper.changes import Changer, judge
from tests.metastores.zookeeper.opening import all_opened, opened
from tests.servers.zookeeper import Ensemble, ZooKeeper

pytestmark = [pytest.mark.needs_zookeeper, pytest.mark.slow]

DEADLINE_S = 60.0  # for what takes a second or three on a quiet machine
READS, READS_LONG = 15, 400
CHANGES = 20  # that must be made after each failure


async def persistently(call: Callable[[], Awaitable[int]]) -> int:
    """Calls again while it fails, which includes that its answer is lost: only for calls that may be made twice."""
    with trio.fail_after(DEADLINE_S):
        while True:
            try:
                return await call()
            except MetastoreError:
                await trio.sleep(0.05)


async def put_anew(metastore: Metastore, key: str, value: bytes) -> int:
    """Puts the value, whatever the version is; returns the new one."""

    async def put() -> int:
        return await metastore.put(key, value, (await metastore.get(key)).version)

    return await persistently(put)


@asynccontextmanager
async def changing(ensemble: Ensemble, chroot: str) -> AsyncIterator[list[Changer]]:
    """Changers on two clients of the ensemble; afterwards they are judged."""
    async with all_opened(ensemble.url(chroot), ensemble.url(chroot)) as metastores:
        changers = [Changer(each, f"changer-{number}", tasks=3) for number, each in enumerate(metastores)]
        async with trio.open_nursery() as nursery:
            for changer in changers:
                nursery.start_soon(changer.run)
            yield changers
            for changer in changers:
                changer.stop()
        assert await judge(metastores[0], [changer.made for changer in changers]) == []


async def go_on(changers: list[Changer]) -> None:
    """Returns once each has made many more changes."""
    wanted = [changer.made.total() + CHANGES for changer in changers]
    await until(
        lambda: all(changer.made.total() >= each for changer, each in zip(changers, wanted, strict=True)),
        DEADLINE_S,
        f"{CHANGES} more changes by each",
    )


@pytest.mark.sized
async def test_reads_through_any_server_are_linearizable(
    zookeeper_ensemble: Ensemble, zookeeper_chroot: str, is_long: bool
) -> None:
    urls = [server.url(zookeeper_chroot) for server in zookeeper_ensemble.servers]
    async with all_opened(*urls) as metastores:
        version = await metastores[0].create("key", b"0")
        for number in range(READS_LONG if is_long else READS):
            writer = metastores[number % len(metastores)]
            version = await writer.put("key", b"%d" % number, version)
            async with trio.open_nursery() as nursery:
                for reader in metastores:
                    nursery.start_soon(reads_at_least, reader, version, number)


async def reads_at_least(reader: Metastore, version: int, number: int) -> None:
    found = await reader.get("key")
    assert (found.version, found.value) == (version, b"%d" % number)


async def test_formerly_sleeping_leader_answers_no_stale_read(
    zookeeper_ensemble: Ensemble, zookeeper_chroot: str
) -> None:
    """The others have elected another leader meanwhile, and changed the key; who asks the old one must not see the old value.
    (ZooKeeper's `sync` is not enough for that: a deposed leader answers it by itself.)"""
    leader = await zookeeper_ensemble.wait_leader()
    others = [server for server in zookeeper_ensemble.servers if server is not leader]
    async with (
        opened(leader.url(zookeeper_chroot)) as behind,
        all_opened(*(each.url(zookeeper_chroot) for each in others)) as ahead,
    ):
        await behind.create("key", b"old")
        leader.freeze()
        version = await put_anew(ahead[0], "key", b"new")
        answers: list[bytes | MetastoreError] = []
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(read, behind, answers)
            await trio.testing.wait_all_tasks_blocked(0.05)  # they were sent, as far as there is a connection
            leader.thaw()
        assert len(answers) == 5
        assert not [each for each in answers if each == b"old"], "stale"
        assert (await persistently(lambda: read_version(behind))) == version


async def read(metastore: Metastore, answers: list[bytes | MetastoreError]) -> None:
    try:
        answers.append((await metastore.get("key")).value)
    except MetastoreError as error:
        answers.append(error)


async def read_version(metastore: Metastore) -> int:
    return (await metastore.get("key")).version


@pytest.mark.long  # those whose answers are lost on one server are in make test: test_real_cas.py
async def test_each_change_happens_once_when_leaders_die_and_hang(
    zookeeper_ensemble: Ensemble, zookeeper_chroot: str
) -> None:
    async with changing(zookeeper_ensemble, zookeeper_chroot) as changers:
        await go_on(changers)
        killed = await zookeeper_ensemble.wait_leader()
        killed.kill()
        await go_on(changers)
        await killed.start()
        frozen = await zookeeper_ensemble.wait_leader()
        frozen.freeze()
        await another_leads(zookeeper_ensemble, frozen)
        await go_on(changers)
        frozen.thaw()
        await go_on(changers)


async def another_leads(ensemble: Ensemble, than: ZooKeeper) -> None:
    assert await ensemble.wait_leader() is not than


async def test_waits_and_elections_go_on_when_leaders_die_and_hang(
    zookeeper_ensemble: Ensemble, zookeeper_chroot: str
) -> None:
    async with (
        all_opened(*[zookeeper_ensemble.url(zookeeper_chroot)] * 3) as (first, second, observer),
        open_service_nursery() as nursery,
    ):
        version = await first.create("watched", b"old")
        changed, elected, leave = trio.Event(), trio.Event(), trio.Event()
        nursery.start_soon(wait_until_changed, second, version, changed)
        async with first.announce("live/first", b"here"):
            await nursery.start(lead, first, leave)
            nursery.start_soon(is_elected, second, elected)
            killed = await zookeeper_ensemble.wait_leader()
            killed.kill()
            await another_leads(zookeeper_ensemble, killed)
            await announces(observer, {"first": b"here"})
            await killed.start()
            frozen = await zookeeper_ensemble.wait_leader()
            frozen.freeze()
            await another_leads(zookeeper_ensemble, frozen)
            await announces(observer, {"first": b"here"})
            frozen.thaw()
            assert not changed.is_set()
            await put_anew(observer, "watched", b"new")
            with trio.fail_after(DEADLINE_S):
                await changed.wait()
            leave.set()
            with trio.fail_after(DEADLINE_S):
                await elected.wait()
        await announces(observer, {})


async def announces(observer: Metastore, expected: dict[str, bytes]) -> None:
    """Waits until this is what is announced."""
    with trio.fail_after(DEADLINE_S):
        while True:
            try:
                known = await observer.children("live")
                if await observer.announced("live") == expected:
                    return
                with trio.move_on_after(1.0):
                    await observer.wait_children_changed("live", known)
            except MetastoreError:
                await trio.sleep(0.05)


async def wait_until_changed(metastore: Metastore, version: int, changed: trio.Event) -> None:
    while True:
        await metastore.wait_changed("watched", version)  # it may return early
        try:
            found = await metastore.get("watched")
        except MetastoreError:
            continue
        if found.version != version:
            changed.set()
            return


async def lead(metastore: Metastore, leave: trio.Event, task_status: trio.TaskStatus[None]) -> None:
    async with metastore.elect("election", b"first"):
        task_status.started()
        await leave.wait()


async def is_elected(metastore: Metastore, elected: trio.Event) -> None:
    async with metastore.elect("election", b"second"):
        elected.set()
