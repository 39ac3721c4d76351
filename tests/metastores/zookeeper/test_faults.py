"""What becomes of a call when the network, the server, the program or a credential fails."""

from __future__ import annotations

import gc
import os
import re
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from replog.abc import Metastore
from replog.errors import (
    KeyNotFoundError,
    MetastoreError,
    MetastoreUncertainError,
)
from replog.metastores.zookeeper.metastore import ZooKeeperMetastore
from replog.metastores.zookeeper.options import ZooKeeperOptions, parse_place
from replog.testing import TcpProxy
from tests.failures.processes import until
from tests.metastores.zookeeper.opening import connected_through, kazoo_threads_end, opened
from tests.servers.zookeeper import ZooKeeper, url

pytestmark = pytest.mark.needs_zookeeper

DEADLINE_S = 60.0


@pytest.fixture
async def store(proxy: TcpProxy, zookeeper_chroot: str) -> AsyncIterator[ZooKeeperMetastore]:
    async with connected_through(proxy, zookeeper_chroot, lease_s=4) as store:
        yield store


@contextmanager
def hasty(store: ZooKeeperMetastore, timeout_s: float) -> Iterator[None]:
    """Shortens the timeout only of calls that must time out."""
    patient = store._options
    store._options = attrs.evolve(patient, timeout_s=timeout_s)
    try:
        yield
    finally:
        store._options = patient


async def value_of(store: Metastore, key: str) -> bytes | None:
    """None if there is none."""
    try:
        return (await store.get(key)).value
    except KeyNotFoundError:
        return None


async def lose_answer(
    store: ZooKeeperMetastore, proxy: TcpProxy, change: Awaitable[object], other: Metastore, expected: bytes | None
) -> None:
    """The change of the key "a" is made, its answer is lost, and then the connection. `other` sees it made: a reset could take
    with it what the server has not read yet."""
    await store.get("ready")  # it is connected
    proxy.to_client.swallow()

    async def make() -> None:
        with pytest.raises(MetastoreUncertainError, match="read back"):
            await change

    async with trio.open_nursery() as nursery:
        nursery.start_soon(make)
        while await value_of(other, "a") != expected:  # noqa: ASYNC110 - another client made it
            await trio.sleep(0.01)
        proxy.reset()
    proxy.mend()


async def test_change_is_not_repeated_when_its_answer_is_lost(
    store: ZooKeeperMetastore, proxy: TcpProxy, zookeeper_url: str
) -> None:
    async with opened(zookeeper_url) as other:
        with trio.fail_after(DEADLINE_S):
            await lose_answer(store, proxy, store.create("a", b"1"), other, b"1")
            first = await other.get("a")
            assert await store.get("a") == first
            await lose_answer(store, proxy, store.put("a", b"2", first.version), other, b"2")
            second = await other.get("a")
            assert (second.value, second.version) == (b"2", first.version + 1)
            await lose_answer(store, proxy, store.delete("a", second.version), other, None)
            with pytest.raises(KeyNotFoundError):
                await other.get("a")


async def test_read_is_repeated_when_its_answer_is_lost(store: ZooKeeperMetastore, proxy: TcpProxy) -> None:
    version = await store.create("a/b", b"1")
    reads: list[Callable[[], Awaitable[object]]] = [
        lambda: store.get("a/b"),
        lambda: store.children("a"),
        lambda: store.values("a"),
        lambda: store.announced("a"),
    ]
    for read in reads:
        proxy.to_client.swallow()
        answers: list[object] = []

        async def ask(read: Callable[[], Awaitable[object]] = read, answers: list[object] = answers) -> None:
            answers.append(await read())

        with trio.fail_after(DEADLINE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await trio.sleep(0.02)
                proxy.reset()
                proxy.mend()
        assert len(answers) == 1
    assert (await store.get("a/b")).version == version


async def test_change_waiting_for_a_connection_was_not_sent(
    proxy: TcpProxy, zookeeper_url: str, zookeeper_chroot: str
) -> None:
    store = ZooKeeperMetastore(parse_place(f"{proxy.address}{zookeeper_chroot}"), ZooKeeperOptions(lease_s=4))
    try:
        await store.create("a", b"")
        proxy.cut()
        await until(lambda: not store._session.is_connected, DEADLINE_S, "it is known that there is no connection")
        await until(lambda: bool(re.search("refused|reset", store._session.problem)), DEADLINE_S, "it is known why")
        for call in (lambda: store.put("a", b"lost", 0), lambda: store.get("a"), lambda: store.create("b", b"")):
            with (
                pytest.raises(MetastoreError, match=r"not connected: .*refused|not connected: .*reset") as raised,
                hasty(store, 0.3),
            ):
                await call()
            assert not isinstance(raised.value, MetastoreUncertainError)
        with trio.move_on_after(0.05) as scope:
            await store.create("c", b"")
        assert scope.cancelled_caught
        proxy.mend()
        async with opened(zookeeper_url) as other:
            await until(lambda: store._session.is_connected, DEADLINE_S, "connected again")
            assert (await store.get("a")).value == b""
            assert await other.children("a") == []
            for key in ("b", "c"):
                with pytest.raises(KeyNotFoundError):
                    await other.get(key)
    finally:
        await store.aclose()


async def test_no_answer_in_time_is_uncertain_for_changes_alone(own_zookeeper: ZooKeeper) -> None:
    store = ZooKeeperMetastore(parse_place(f"{own_zookeeper.address}/a"), ZooKeeperOptions())
    try:
        version = await store.create("a", b"")
        own_zookeeper.freeze()
        with hasty(store, 0.5):
            with pytest.raises(MetastoreUncertainError, match=r"key 'a': no answer within 0\.5 s"):
                await store.put("a", b"x", version)
            with pytest.raises(MetastoreError, match="ZooKeeper did not answer") as raised:
                await store.get("a")
        assert not isinstance(raised.value, MetastoreUncertainError)
        own_zookeeper.thaw()
        with trio.fail_after(DEADLINE_S):
            assert (await store.get("a")).value == b"x"
    finally:
        own_zookeeper.thaw()
        await store.aclose()


async def test_waits_last_while_the_server_is_away(
    store: ZooKeeperMetastore, proxy: TcpProxy, zookeeper_url: str
) -> None:
    version = await store.create("a/b", b"")
    woken: list[str] = []

    async def wait_value() -> None:
        while (await store.get("a/b")).version == version:
            await store.wait_changed("a/b", version)
        woken.append("value")

    async def wait_children() -> None:
        while await store.children("a") == ["b"]:
            await store.wait_children_changed("a", ["b"])
        woken.append("children")

    async with opened(zookeeper_url) as other, trio.open_nursery() as nursery:
        nursery.start_soon(wait_value)
        nursery.start_soon(wait_children)
        await trio.testing.wait_all_tasks_blocked(0.1)
        proxy.cut()
        await until(lambda: not store._session.is_connected, DEADLINE_S, "it is known that there is no connection")
        await other.put("a/b", b"x", version)  # nobody can tell them of this
        await other.create("a/c", b"")
        assert woken == []
        proxy.mend()
        await until(lambda: len(woken) == 2, DEADLINE_S, "both are woken")


async def test_impossible_answer_counts_as_a_lost_one(zookeeper_chroot: str) -> None:
    connections: list[int] = []

    async def serve(stream: trio.SocketStream) -> None:
        connections.append(1)
        with suppress(trio.BrokenResourceError):  # who leaves an answer unread resets the connection
            await stream.receive_some()
            await stream.send_all(struct.pack("!iiiqi16s?", 37, 0, 4000, 7, 16, b"password", False))
            async for _ in stream:
                await stream.send_all(struct.pack("!iiqi", 16, 999, 1, 0))  # to a request that nobody made

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        options = ZooKeeperOptions(timeout_s=1.5)
        store = ZooKeeperMetastore(parse_place(f"127.0.0.1:{port}{zookeeper_chroot}"), options)
        try:
            for call in (lambda: store.get("a"), lambda: store.create("a", b"")):
                with pytest.raises(MetastoreError, match=r"kazoo's thread failed|ZooKeeper did not answer"):
                    await call()
        finally:
            await store.aclose()
        assert 2 <= len(connections) <= 6  # it is tried again, and not without end
        nursery.cancel_scope.cancel()


async def test_error_names_the_address_without_a_server(zookeeper_chroot: str) -> None:
    async with opened(f"zookeeper://nobody.invalid{zookeeper_chroot}?timeout_s=0.3") as store:
        with pytest.raises(MetastoreError, match=r"nobody\.invalid.*not connected: no server answers"):
            await store.get("a")


# -- the end ------------------------------------------------------------------------------------------------------


async def test_closing_ends_waits_and_calls(store: ZooKeeperMetastore) -> None:
    closed: list[str] = []

    async def wait(name: str, call: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(trio.ClosedResourceError):
            await call()
        closed.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "changed", lambda: store.wait_changed("none", None))
        nursery.start_soon(wait, "children", lambda: store.wait_children_changed("none", []))
        await trio.testing.wait_all_tasks_blocked(0.05)
        await store.aclose()
    await store.aclose()
    for call in (lambda: store.get("a"), lambda: store.create("a", b""), lambda: store.announced("a")):
        with pytest.raises(trio.ClosedResourceError):
            await call()
    assert sorted(closed) == ["changed", "children"]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_nothing_is_left_behind(zookeeper_url: str) -> None:
    async with opened(zookeeper_url) as store:
        await store.create("a", b"")
    gc.collect()
    threads, files = threading.active_count(), descriptors()
    for _ in range(3):
        async with opened(zookeeper_url) as store, store.announce("b", b""), store.elect("c", b""):
            await store.get("a")
    gc.collect()
    trio_threads = [each for each in threading.enumerate() if each.name.startswith("Trio")]
    await kazoo_threads_end()
    assert threading.active_count() <= threads + len(trio_threads)
    assert descriptors() == files


@pytest.mark.parametrize("is_frozen", [True, False])
async def test_closing_takes_seconds_at_most_when_no_server_answers(own_zookeeper: ZooKeeper, is_frozen: bool) -> None:
    store = ZooKeeperMetastore(parse_place(f"{own_zookeeper.address}/a"), ZooKeeperOptions(lease_s=10))
    await store.create("a", b"")
    if is_frozen:
        own_zookeeper.freeze()
    else:
        own_zookeeper.kill()
    with trio.fail_after(6):  # kazoo alone would take two thirds of the session and more, and sometimes for ever
        await store.aclose()
    own_zookeeper.thaw()
    await kazoo_threads_end()


async def test_an_unused_metastore_closes_at_once() -> None:
    store = ZooKeeperMetastore(parse_place("127.0.0.1:1/a"), ZooKeeperOptions())
    await store.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await store.get("a")


async def test_a_fork_raises_when_used(store: ZooKeeperMetastore) -> None:
    assert "used in its fork" in told_in_a_fork(store)
    assert (await store.get("ready")).value == b""


def told_in_a_fork(store: ZooKeeperMetastore) -> str:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        told = "nothing"
        try:
            store.get("a").send(None)
        except MetastoreError as error:
            told = str(error)
        finally:
            os.write(writer, told.encode())
            os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return told


# -- cancelling ---------------------------------------------------------------------------------------------------


async def test_a_change_may_be_cancelled_at_any_moment(store: ZooKeeperMetastore) -> None:
    version = await store.create("a", b"0")
    for number in range(60):
        with trio.move_on_after(number * 0.00002):
            await store.put("a", b"%d" % number, version)
        found = await store.get("a")
        assert found.value in (b"%d" % number, b"again")
        version = await store.put("a", b"again", found.version)
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert store._session._budget._calls == 0
    assert store._session._budget._bytes == 0


async def test_cancelled_waits_leave_no_watchers(store: ZooKeeperMetastore) -> None:
    for number in range(50):
        with trio.move_on_after(0.003 if number % 2 else 0.05):
            await store.wait_changed(f"none/{number}", None)
        with trio.move_on_after(0.003 if number % 2 else 0.05):
            await store.wait_children_changed(f"none/{number}", [])
    with trio.fail_after(DEADLINE_S):
        for _ in range(3):  # kazoo's thread has something to do, and looks what it may forget
            await store.get("ready")
    assert store._watches._wakes == {}
    assert store._session._link.driver is not None
    assert store._session._link.driver.watched_paths() == set()


async def test_a_thousand_calls_at_once_are_all_answered(zookeeper_url: str) -> None:
    """kazoo's wake-up pipe would be full after some 270, and would stop this thread."""
    done: list[int] = []

    async def change(client: Metastore, number: int) -> None:
        await client.create(f"many/{number}", b"x" * 1000)
        done.append(number)

    async with opened(f"{zookeeper_url}?timeout_s={DEADLINE_S}") as client:
        async with trio.open_nursery() as nursery:
            for number in range(1000):
                nursery.start_soon(change, client, number)
        assert len(done) == 1000
        assert len(await client.children("many")) == 1000


async def test_hanging_server_never_stops_this_thread(own_zookeeper: ZooKeeper) -> None:
    """What is more than sockets and kazoo's wake-up pipe take waits here."""
    pauses: list[float] = []

    async def tick() -> None:
        while True:
            before_s = trio.current_time()
            await trio.sleep(0.01)
            pauses.append(trio.current_time() - before_s)

    async def change(client: Metastore, number: int) -> None:
        with pytest.raises(MetastoreError):
            await client.create(f"many/{number}", bytes(15_000))

    async with opened(own_zookeeper.url("/a", timeout_s=4, lease_s=40)) as client:
        await client.create("a", b"")
        own_zookeeper.freeze()
        async with trio.open_nursery() as ticking:
            ticking.start_soon(tick)
            async with trio.open_nursery() as nursery:
                for number in range(1000):
                    nursery.start_soon(change, client, number)
            ticking.cancel_scope.cancel()
        own_zookeeper.thaw()
    assert max(pauses) < 10  # it would be until kazoo gives the connection up, after more than 20 s


# -- credentials --------------------------------------------------------------------------------------------------


def credentials(directory: Path, mechanism: str, user: str, password: str) -> dict[str, str]:
    file = directory / f"{mechanism}-{user}"
    file.write_text(f"{password}\n")
    return {"user": user, "password_file": str(file), "mechanism": mechanism}


async def test_only_the_creator_may_use_private_nodes(
    zookeeper: ZooKeeper, zookeeper_chroot: str, tmp_path: Path
) -> None:
    ann = credentials(tmp_path, "digest", "ann", "secret")
    bob = credentials(tmp_path, "digest", "bob", "guess")
    async with opened(url(zookeeper.address, zookeeper_chroot, acl="creator", **ann)) as store:
        await store.create("a/b", b"mine")
        async with opened(url(zookeeper.address, zookeeper_chroot, **bob)) as other:
            with pytest.raises(MetastoreError, match="ZooKeeper does not allow it"):
                await other.get("a/b")
        async with opened(url(zookeeper.address, zookeeper_chroot, **ann)) as again:
            assert (await again.get("a/b")).value == b"mine"


async def test_everybody_may_read_readable_nodes(zookeeper: ZooKeeper, zookeeper_chroot: str, tmp_path: Path) -> None:
    ann = credentials(tmp_path, "digest", "ann", "secret")
    async with opened(url(zookeeper.address, zookeeper_chroot, acl="readable", **ann)) as store:
        version = await store.create("a/b", b"mine")
        async with opened(zookeeper.url(zookeeper_chroot)) as other:
            assert (await other.get("a/b")).value == b"mine"
            assert await other.children("a") == ["b"]
            for change in (lambda: other.put("a/b", b"", version), lambda: other.create("a/c", b"")):
                with pytest.raises(MetastoreError, match="ZooKeeper does not allow it") as raised:
                    await change()
                assert not isinstance(raised.value, MetastoreUncertainError)
