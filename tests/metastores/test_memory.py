"""The metastore in memory: its conformance suite, and what is its own."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio

from replog.abc import Metastore
from replog.errors import KeyNotFoundError, LocalProtocolError, MetastoreError
from replog.metastores.memory import MemoryMetastore
from replog.testing import check_metastore


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.node.nodeid
    MemoryMetastore.discard(request.node.nodeid)


def clients(name: str) -> Callable[[], AbstractAsyncContextManager[Metastore]]:
    @asynccontextmanager
    async def client() -> AsyncIterator[Metastore]:
        metastore = MemoryMetastore(name)
        yield metastore
        await metastore.aclose()

    return client


async def test_it_passes_the_conformance_suite(name: str) -> None:
    await check_metastore(clients(name))


async def test_the_conformance_suite_leaves_nothing_behind(name: str) -> None:
    await check_metastore(clients(name))
    store = MemoryMetastore(name)._store
    assert (store._values, store._below, store._announced, store._waiters) == ({}, {}, set(), {})


async def test_a_name_is_shared_and_no_name_is_not(name: str) -> None:
    await MemoryMetastore(name).create("a", b"1")
    assert (await MemoryMetastore(name).get("a")).value == b"1"
    await MemoryMetastore().create("a", b"1")
    assert await MemoryMetastore().announced("a") == {}
    with pytest.raises(KeyNotFoundError):
        await MemoryMetastore().get("a")


async def test_a_store_outlives_its_clients_until_it_is_discarded(name: str) -> None:
    metastore = MemoryMetastore(name)
    await metastore.create("a", b"1")
    await metastore.aclose()
    assert (await MemoryMetastore(name).get("a")).value == b"1"
    MemoryMetastore.discard(name)
    with pytest.raises(KeyNotFoundError):
        await MemoryMetastore(name).get("a")


async def test_versions_do_not_repeat_over_a_deletion() -> None:
    metastore = MemoryMetastore()
    first = await metastore.create("a", b"")
    await metastore.delete("a")
    assert await metastore.create("a", b"") > first


async def test_an_announcement_stays_while_its_context_is_open(autojump_clock: trio.testing.MockClock) -> None:
    """It needs no heartbeat, and must not be taken for gone for having none."""
    metastore = MemoryMetastore()
    async with metastore.announce("live/a", b"1"):
        assert await metastore.announced("live") == {"a": b"1"}
        await trio.sleep(metastore.lease_s * 3)
        assert await metastore.announced("live") == {"a": b"1"}
    assert await metastore.announced("live") == {}


async def test_another_trio_run_in_another_thread_wakes_a_waiter(name: str) -> None:
    metastore = MemoryMetastore(name)
    version = await metastore.create("a", b"1")

    async def change() -> None:
        await MemoryMetastore(name).put("a", b"2", version)

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(metastore.wait_changed, "a", version)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(trio.to_thread.run_sync, lambda: trio.run(change))


def test_waiter_of_an_ended_run_does_no_harm(name: str) -> None:
    """A run that ended while its watch was still registered is no reason for another run's change to fail."""
    metastore = MemoryMetastore(name)
    store = metastore._store

    async def leave_a_waiter() -> None:
        from replog.metastores.memory import _Waiter

        store.add_waiter("a", _Waiter())

    trio.run(leave_a_waiter)
    trio.run(metastore.create, "a", b"1")
    assert store.get("a").value == b"1"


@pytest.mark.parametrize(
    "wait",
    [lambda metastore: metastore.wait_changed("a", None), lambda metastore: metastore.wait_children_changed("a", [])],
)
async def test_closing_ends_waits(wait: Callable[[Metastore], Awaitable[None]]) -> None:
    metastore = MemoryMetastore()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def waiting() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await wait(metastore)

            await trio.testing.wait_all_tasks_blocked()
            await metastore.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await metastore.get("a")


async def test_a_cancelled_wait_leaves_no_waiter() -> None:
    metastore = MemoryMetastore()
    with trio.move_on_after(0):
        await metastore.wait_changed("a", None)
    with trio.move_on_after(0.01):
        await metastore.wait_changed("a", None)
    assert not metastore._store._waiters
    assert not metastore._waiters


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "a\nb", "a/../b", ".", "\N{GREEK SMALL LETTER ALPHA}" * 300])
async def test_impossible_key_is_refused(key: str) -> None:
    metastore = MemoryMetastore()
    with pytest.raises(LocalProtocolError, match=r"is not a key|bytes"):
        await metastore.create(key, b"")
    with pytest.raises(LocalProtocolError):
        await metastore.get(key)


async def test_value_too_large_for_some_stores_is_refused() -> None:
    metastore = MemoryMetastore()
    with pytest.raises(MetastoreError, match="1000001 bytes"):
        await metastore.create("a", bytes(1_000_001))
    with pytest.raises(KeyNotFoundError):
        await metastore.get("a")


async def test_threads_counting_lose_nothing(name: str) -> None:
    store = MemoryMetastore(name)._store
    store.create("a", b"0")

    def count() -> None:
        for _ in range(500):
            while True:
                found = store.get("a")
                try:
                    store.put("a", b"%d" % (int(found.value) + 1), found.version)
                    break
                except MetastoreError:
                    continue

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.get("a").value == b"2000"
