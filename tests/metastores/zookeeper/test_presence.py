"""Announcements and elections in ZooKeeper: what ephemeral nodes make of them, and what stays of none."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from kazoo.client import KazooClient

from replog.abc import Metastore
from replog.errors import KeyExistsError
from replog.metastores.zookeeper.metastore import ZooKeeperMetastore
from replog.testing import NetworkConditions, TcpProxy
from replog.testing.proxy import CALM
from tests.failures.processes import until
from tests.metastores.zookeeper.opening import connected_through, opened
from tests.servers.zookeeper import ZooKeeper

pytestmark = pytest.mark.needs_zookeeper

DEADLINE_S = 60.0


@pytest.fixture
async def store(proxy: TcpProxy, zookeeper_chroot: str) -> AsyncIterator[ZooKeeperMetastore]:
    async with connected_through(proxy, zookeeper_chroot, lease_s=8) as store:
        yield store


@pytest.fixture
async def other(zookeeper_url: str) -> AsyncIterator[Metastore]:
    async with opened(zookeeper_url) as other:
        yield other


async def lose_next_answer(proxy: TcpProxy) -> None:
    """What is sent from now on reaches the server; its answer is lost, and then the connection."""
    proxy.to_client.swallow()
    before = proxy.to_bookie.forwarded_bytes
    await until(lambda: proxy.to_bookie.forwarded_bytes > before, DEADLINE_S, "something is sent")
    await trio.sleep(0.05)
    proxy.reset()
    proxy.mend()


async def test_announcement_is_recognized_after_a_lost_answer(
    store: ZooKeeperMetastore, other: Metastore, proxy: TcpProxy
) -> None:
    await store.create("live/there", b"")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lose_next_answer, proxy)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(DEADLINE_S):
            async with store.announce("live/me", b"here"):
                assert await other.announced("live") == {"me": b"here"}
            assert await other.announced("live") == {}


def expire(zookeeper: ZooKeeper, store: ZooKeeperMetastore) -> None:
    """Ends the session at once: whoever knows its password may take it over, and close it."""
    driver = store._session._link.driver
    assert driver is not None
    known = driver._kazoo
    thief = KazooClient(zookeeper.address, client_id=(known._session_id, known._session_passwd))
    thief.start()
    thief.stop()
    thief.close()


async def test_announcements_return_after_a_session_expired(
    store: ZooKeeperMetastore, other: Metastore, zookeeper: ZooKeeper
) -> None:
    async with store.announce("live/me", b"here"), store.elect("leader", b"me"):
        for lost in (1, 2):
            session_id = store._session.session_id
            await trio.to_thread.run_sync(expire, zookeeper, store)
            with trio.fail_after(DEADLINE_S):
                await store._session.wait_another(session_id)
                while (known := await other.announced("live")) != {"me": b"here"}:
                    await other.wait_children_changed("live", list(known))
                await candidates(other, 1)
            assert store._session.sessions_lost == lost
        assert (await store.get("ready")).value == b""
    assert await other.announced("live") == {}
    assert await other.children("leader") == []


async def test_an_announcement_waits_when_its_key_was_taken_meanwhile(
    store: ZooKeeperMetastore, other: Metastore, zookeeper: ZooKeeper, proxy: TcpProxy
) -> None:
    with trio.fail_after(DEADLINE_S):
        async with store.announce("live/me", b"here"):
            proxy.cut()
            await trio.to_thread.run_sync(expire, zookeeper, store)
            while await other.announced("live"):
                await other.wait_children_changed("live", ["me"])
            async with other.announce("live/me", b"elsewhere"):
                session_id = store._session.session_id
                proxy.mend()
                await store._session.wait_another(session_id)
                await trio.sleep(0.1)
                assert await other.announced("live") == {"me": b"elsewhere"}
            while (known := await other.announced("live")) != {"me": b"here"}:
                await other.wait_children_changed("live", list(known))
    assert await other.announced("live") == {}


async def test_a_leader_with_an_expired_session_queues_last(
    store: ZooKeeperMetastore, other: Metastore, zookeeper: ZooKeeper
) -> None:
    async with trio.open_nursery() as nursery:
        led = trio.Event()

        async def follow() -> None:
            async with other.elect("leader", b"second"):
                led.set()
                await trio.sleep_forever()

        with trio.fail_after(DEADLINE_S):
            async with store.elect("leader", b"first"):
                nursery.start_soon(follow)
                await candidates(other, 2)
                await trio.to_thread.run_sync(expire, zookeeper, store)
                await led.wait()
                await candidates(other, 2)
                queue = await other.values("leader")
                first = min(queue, key=lambda name: name[-10:])
                assert queue[first].value == b"second"
            await candidates(other, 1)
        nursery.cancel_scope.cancel()


async def test_one_client_announces_a_key_once(store: ZooKeeperMetastore) -> None:
    async with store.announce("live/me", b"here"):
        with pytest.raises(KeyExistsError):
            async with store.announce("live/me", b"again"):
                pass
        assert await store.announced("live") == {"me": b"here"}
    async with store.announce("live/me", b"again"):
        assert await store.announced("live") == {"me": b"again"}


async def test_a_plain_key_is_not_announced(store: ZooKeeperMetastore) -> None:
    version = await store.create("live/me", b"a value")
    await store.create("live/them/below", b"")
    for key in ("live/me", "live/them"):
        with pytest.raises(KeyExistsError):
            async with store.announce(key, b""):
                pass
    assert (await store.get("live/me")).version == version
    assert await store.announced("live") == {}


async def test_announcements_are_known_without_reading_them_again(store: ZooKeeperMetastore, other: Metastore) -> None:
    async with other.announce("live/1", b"1"), other.announce("live/2", b"2"):
        assert await store.announced("live") == {"1": b"1", "2": b"2"}
        driver = store._session._link.driver
        assert driver is not None
        before = driver.submitted
        for _ in range(10):
            assert await store.announced("live") == {"1": b"1", "2": b"2"}
        assert driver.submitted - before == 10  # one barrier each
        await other.put("live/1", b"changed", 0)
        assert await store.announced("live") == {"1": b"changed", "2": b"2"}
    assert await store.announced("live") == {}
    assert await store.announced("none") == {}
    async with other.announce("none/yet", b""):
        assert await store.announced("none") == {"yet": b""}


async def test_the_cache_of_announcements_is_bounded(store: ZooKeeperMetastore, other: Metastore) -> None:
    async with other.announce("live/1", b"1"):
        for number in range(40):
            assert await store.announced(f"none/{number}") == {}
        assert await store.announced("live") == {"1": b"1"}
    assert len(store._watches._wakes) < 40


async def test_leaving_without_a_connection_removes_the_node_later(
    store: ZooKeeperMetastore, other: Metastore, proxy: TcpProxy
) -> None:
    with trio.fail_after(DEADLINE_S):
        async with store.announce("live/me", b""), store.elect("leader", b"me"):
            assert await other.announced("live") == {"me": b""}
            proxy.cut()
        assert await other.announced("live") == {"me": b""}  # the session lives
        proxy.mend()
        while await other.announced("live"):
            await other.wait_children_changed("live", ["me"])
        while known := await other.children("leader"):
            await other.wait_children_changed("leader", known)


async def candidates(observer: Metastore, number: int) -> None:
    """Waits until there are so many."""
    with trio.fail_after(DEADLINE_S):
        while len(known := await observer.children("leader")) != number:
            await observer.wait_children_changed("leader", known)


# -- elections ----------------------------------------------------------------------------------------------------


async def test_a_candidate_with_a_lost_answer_queues_once(
    store: ZooKeeperMetastore, other: Metastore, proxy: TcpProxy
) -> None:
    elected = trio.Event()

    async def be_elected() -> None:
        async with store.elect("leader", b"second"):
            elected.set()

    async with other.elect("leader", b"first"), trio.open_nursery() as nursery:
        proxy.to_client.conditions = NetworkConditions(delay_s=0.5)
        nursery.start_soon(be_elected)
        await candidates(other, 2)  # it stands there, and does not know it yet
        proxy.to_client.swallow()
        proxy.reset()
        proxy.to_client.conditions = CALM
        proxy.mend()
        await until(lambda: len(store._watches._wakes) == 1, DEADLINE_S, "it waits for the one before it")
        assert len(await other.children("leader")) == 2
        assert not elected.is_set()
        nursery.cancel_scope.cancel()
    assert await other.children("leader") == []


async def test_candidates_are_elected_in_order_and_one_end_wakes_one(
    store: ZooKeeperMetastore, other: Metastore
) -> None:
    elected: list[int] = []
    leaving = [trio.Event() for _ in range(5)]

    async def lead(number: int, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        async with (store if number % 2 else other).elect("leader", b"%d" % number):
            elected.append(number)
            await leaving[number].wait()

    async with trio.open_nursery() as nursery:
        for number in range(5):
            await nursery.start(lead, number)
            await candidates(other, number + 1)
        for number in range(5):
            wanted = list(range(number + 1))
            await until(lambda wanted=wanted: elected == wanted, DEADLINE_S, f"{number} is elected")  # type: ignore[misc]
            values = [each.value for each in (await other.values("leader")).values()]
            assert sorted(values) == [b"%d" % each for each in range(number, 5)]
            leaving[number].set()
    assert await other.children("leader") == []


async def test_cancelled_candidate_leaves_the_queue(store: ZooKeeperMetastore, other: Metastore) -> None:
    async with other.elect("leader", b"first"):
        for number in range(20):
            with trio.move_on_after(number * 0.0005):
                async with store.elect("leader", b"second"):
                    raise AssertionError("two lead")
            with trio.fail_after(DEADLINE_S):
                assert len(await other.children("leader")) == 1


async def test_a_candidate_is_elected_when_one_in_the_middle_gives_up(
    store: ZooKeeperMetastore, other: Metastore
) -> None:
    elected = trio.Event()

    async def last() -> None:
        async with store.elect("leader", b"last"):
            elected.set()

    async with trio.open_nursery() as nursery:
        async with other.elect("leader", b"first"):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as inner:

                    async def middle() -> None:
                        async with store.elect("leader", b"middle"):
                            raise AssertionError("two lead")

                    inner.start_soon(middle)
                    await candidates(other, 2)
                    nursery.start_soon(last)
                    await candidates(other, 3)
                    await until(lambda: len(store._watches._wakes) == 2, DEADLINE_S, "each waits for another one")
                    scope.cancel()
            await candidates(other, 2)
            await trio.sleep(0.1)
            assert not elected.is_set()
        with trio.fail_after(DEADLINE_S):
            await elected.wait()
