"""Waiting for changes: none is missed, whatever happens to connections, servers and etcd's memory of the past."""

from typing import Any

import pytest
import trio
from etcd_servers import StartStore, Store

from replog.testing import serve_proxy
from replog_etcd.errors import EtcdRefusedError
from replog_etcd.metastore import EtcdMetastore
from replog_etcd.records import Message

SOON_S = 20.0


async def until_watching(metastore: EtcdMetastore, waits: int = 1) -> None:
    """Until so many waits have their stream."""
    with trio.fail_after(SOON_S):
        while 64 - metastore._watches._slots.value < waits:  # noqa: ASYNC110 - it has no event
            await trio.sleep(0.005)
        await trio.sleep(0.05)  # the server takes it up: no test fails if it has not


async def test_nothing_falls_between_the_look_and_the_watch(store: Store) -> None:
    """Each change comes at another moment of the wait; a wait that missed one would last until it looks again."""
    async with store.client(watch_renewal_s=600.0) as metastore, store.client() as other:
        version = await metastore.create("a", b"")
        for number in range(40):

            async def change(number: int = number, version: int = version) -> None:
                await trio.sleep(number * 0.0002)
                await other.put("a", b"%d" % number, version)

            with trio.fail_after(SOON_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(change)
                    await metastore.wait_changed("a", version)
            version = (await metastore.get("a")).version


async def test_a_wait_asks_once_and_then_listens(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async with store.client(watch_renewal_s=600.0) as metastore, store.client() as other:
        version = await metastore.create("a", b"")
        asked: list[str] = []
        call = metastore._gateway.call

        async def counting(path: str, message: Message, **options: Any) -> Any:
            asked.append(path)
            return await call(path, message, **options)

        monkeypatch.setattr(metastore._gateway, "call", counting)
        with trio.fail_after(SOON_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(metastore.wait_changed, "a", version)
                await until_watching(metastore)
                await trio.sleep(0.3)
                assert asked == ["/v3/kv/range"]
                await other.put("a", b"2", version)
        assert asked == ["/v3/kv/range"] * 2


async def test_changes_below_known_children_wake_no_waiter(store: Store) -> None:
    async with store.client(watch_renewal_s=600.0) as metastore, store.client() as other:
        await other.create("a/one", b"")
        woken = trio.Event()

        async def wait() -> None:
            await metastore.wait_children_changed("a", ["one"])
            woken.set()

        with trio.fail_after(SOON_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await until_watching(metastore)
                found = await other.get("a/one")
                await other.put("a/one", b"another", found.version)
                await other.create("a/one/below", b"")
                await trio.sleep(0.2)
                assert not woken.is_set()
                await other.create("a/two/below", b"")
                await woken.wait()
        assert await metastore.children("a") == ["one", "two"]


async def test_waits_go_on_while_the_server_is_away(start_store: StartStore) -> None:
    store = start_store()
    (server,) = store.servers
    async with store.client(request_timeout_s=1.0) as metastore, store.client() as other:
        version = await metastore.create("a", b"")
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(metastore.wait_changed, "a", version)
                nursery.start_soon(metastore.wait_children_changed, "b", [])
                await until_watching(metastore, 2)
                server.kill()
                await trio.sleep(0.3)
                assert nursery.child_tasks
                await trio.to_thread.run_sync(server.start)
                await trio.sleep(0.1)
                await other.put("a", b"2", version)
                await other.create("b/c", b"")


async def test_waits_go_on_when_their_connection_is_cut(store: Store) -> None:
    async with serve_proxy(store.servers[0].address) as proxy, store.client() as other:
        async with store.client(proxy.address, watch_renewal_s=600.0) as metastore:
            version = await metastore.create("a", b"")
            with trio.fail_after(SOON_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(metastore.wait_changed, "a", version)
                    await until_watching(metastore)
                    proxy.cut()
                    await other.put("a", b"2", version)
                    await trio.sleep(0.2)
                    assert nursery.child_tasks
                    proxy.mend()


async def test_silently_dead_connection_is_noticed(store: Store) -> None:
    async with serve_proxy(store.servers[0].address) as proxy, store.client() as other:
        async with store.client(proxy.address, watch_renewal_s=0.5, request_timeout_s=0.5) as metastore:
            version = await metastore.create("a", b"")
            with trio.fail_after(SOON_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(metastore.wait_changed, "a", version)
                    await until_watching(metastore)
                    proxy.swallow()
                    await other.put("a", b"2", version)
                    await trio.sleep(1.2)
                    assert nursery.child_tasks
                    proxy.mend()


async def test_wait_outlives_the_compaction_of_its_revision(store: Store) -> None:
    async with store.client(watch_renewal_s=0.3) as metastore, store.client() as other:
        version = await metastore.create("a", b"")
        with trio.fail_after(SOON_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(metastore.wait_changed, "a", version)
                await until_watching(metastore)
                latest = await other.create("b", b"")
                message = {"revision": str(latest), "physical": True}
                await other._gateway.call("/v3/kv/compaction", message, what="compaction", is_change=True)
                await trio.sleep(0.5)
                assert nursery.child_tasks
                await other.put("a", b"2", version)


async def test_a_watch_from_a_compacted_revision_reads_again(store: Store) -> None:
    async with store.client() as metastore:
        first = await metastore.create("a", b"")
        latest = await metastore.put("a", b"2", first)
        message = {"revision": str(latest), "physical": True}
        await metastore._gateway.call("/v3/kv/compaction", message, what="compaction", is_change=True)
        asked = {"key": metastore._layout.encode("a"), "start_revision": str(first)}
        with trio.fail_after(SOON_S):  # it ends, and the wait would look again
            await metastore._watches._watch(asked, lambda _is_deleted, _record: False, "a")


async def test_more_waits_than_connections_are_all_woken(store: Store) -> None:
    async with store.client(watches_max=3, connections_max=4) as metastore, store.client() as other:
        with trio.fail_after(SOON_S):
            async with trio.open_nursery() as nursery:
                for number in range(12):
                    nursery.start_soon(metastore.wait_changed, f"a/{number}", None)
                slots = metastore._watches._slots
                while slots.value > 0:  # noqa: ASYNC110 - until all are taken
                    await trio.sleep(0.01)
                for number in range(12):
                    await other.create(f"a/{number}", b"")
        assert metastore._watches._slots.value == 3


async def test_a_cancelled_wait_gives_its_connection_back(store: Store) -> None:
    async with store.client(watches_max=2) as metastore:
        for number in range(30):
            with trio.move_on_after(number * 0.0005):
                await metastore.wait_changed("a", None)
        assert metastore._watches._slots.value == 2


async def test_refused_wait_ends(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no passing trouble; nobody would learn why nothing happens."""
    async with store.client() as metastore:

        async def refuse(path: str, message: Message, **options: Any) -> Any:
            raise EtcdRefusedError("permission denied", 7)

        monkeypatch.setattr(metastore._gateway, "call", refuse)
        with pytest.raises(EtcdRefusedError), trio.fail_after(SOON_S):
            await metastore.wait_changed("a", None)
        monkeypatch.undo()
