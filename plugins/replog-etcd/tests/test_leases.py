"""Who is alive, and who leads: leases, and a queue in which who came first is next. What becomes of processes that die or
stop, the conformance suite asks (`test_metastore`)."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
from etcd_servers import StartStore, Store, hasty

from replog.errors import KeyExistsError, KeyNotFoundError
from replog.testing import serve_proxy
from replog_etcd.errors import EtcdRefusedError, EtcdUnreachableError
from replog_etcd.metastore import EtcdMetastore
from replog_etcd.records import Message
from replog_etcd.refusals import NOT_FOUND

SOON_S = 30.0


async def until_announced(metastore: EtcdMetastore, key: str, expected: dict[str, bytes]) -> None:
    with trio.fail_after(SOON_S):
        while (found := await metastore.announced(key)) != expected:
            await metastore.wait_children_changed(key, sorted(found))


async def end_leases(metastore: EtcdMetastore) -> None:
    """As etcd does when nobody renewed them."""
    answer = await metastore._gateway.call("/v3/lease/leases", {}, what="leases")
    for each in answer.get("leases", ()):
        with contextlib.suppress(EtcdRefusedError):
            await metastore._gateway.call("/v3/lease/revoke", {"ID": each["ID"]}, what="ending a lease")


async def test_only_keys_under_a_lease_are_announced(store: Store) -> None:
    async with store.client() as metastore:
        await metastore.create("bookies/stone", b"")
        async with metastore.announce("bookies/one", b"here"):
            assert await metastore.announced("bookies") == {"one": b"here"}


async def test_lost_lease_is_renewed(start_store: StartStore) -> None:
    store = start_store()
    async with store.client(lease_s=2) as metastore, store.client() as other:
        async with metastore.announce("bookies/one", b"here"):
            await end_leases(other)
            await until_announced(other, "bookies", {"one": b"here"})
        assert await other.announced("bookies") == {}


async def test_removed_key_is_made_again(store: Store) -> None:
    async with store.client(lease_s=1) as metastore, store.client() as other:
        async with metastore.announce("bookies/one", b"here"):
            await other.delete("bookies/one")
            await until_announced(other, "bookies", {"one": b"here"})


async def test_key_taken_by_another_client_stays_theirs(start_store: StartStore) -> None:
    store = start_store()
    async with store.client(lease_s=1) as metastore, store.client() as other:
        async with metastore.announce("bookies/one", b"first"):
            async with taken(other, "bookies/one", b"second"):
                await trio.sleep(1.0)  # some renewals
                assert await other.announced("bookies") == {"one": b"second"}
            await until_announced(other, "bookies", {"one": b"first"})  # whose context is still open
        assert await other.announced("bookies") == {}


@contextlib.asynccontextmanager
async def taken(other: EtcdMetastore, key: str, value: bytes) -> AsyncIterator[None]:
    """Somebody's announced key is deleted and announced by another, who may have to try again: a renewal may come between."""
    async with contextlib.AsyncExitStack() as stack:
        while True:
            await other.delete(key)
            with contextlib.suppress(KeyExistsError):
                await stack.enter_async_context(other.announce(key, value))
                break
        yield


async def test_etcd_refuses_a_put_under_a_gone_lease(store: Store) -> None:
    """On this rests that a cancelled announcement can't come true later."""
    async with store.client() as metastore:
        put = {"success": [metastore._layout.put("a", b"", 12345)]}
        with pytest.raises(EtcdRefusedError) as raised:
            await metastore._gateway.call("/v3/kv/txn", put, what="a late put", is_change=True)
        assert raised.value.code == NOT_FOUND


async def test_announcement_is_found_after_a_lost_answer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve_proxy(store.servers[0].address) as proxy:
        async with store.client(proxy.address) as metastore, store.client() as other:
            await metastore.children("bookies")  # so that there is a connection
            call = metastore._gateway.call

            async def lose_one_answer(path: str, message: Message, **options: Any) -> Any:
                if path != "/v3/kv/txn":
                    return await call(path, message, **options)
                monkeypatch.undo()
                proxy.to_client.swallow()
                try:
                    with hasty(metastore, 0.5):
                        return await call(path, message, **options)
                finally:
                    with trio.fail_after(SOON_S):  # etcd may do it later than the client gave it up
                        await other.wait_changed("bookies/one", None)
                    assert await other.children("bookies") == ["one"]
                    proxy.mend()

            monkeypatch.setattr(metastore._gateway, "call", lose_one_answer)
            async with metastore.announce("bookies/one", b"here"):
                assert await other.announced("bookies") == {"one": b"here"}
            assert await other.announced("bookies") == {}


async def test_leaving_is_quick_without_answers(store: Store) -> None:
    async with serve_proxy(store.servers[0].address) as proxy:
        async with store.client(proxy.address, request_timeout_s=60.0) as metastore:
            async with metastore.announce("bookies/one", b"here"):
                proxy.swallow()
                began_s = trio.current_time()
            assert trio.current_time() - began_s < 30  # a farewell of 2 s
            proxy.mend()


async def test_an_error_in_the_body_is_raised_alone_and_ends_the_key(store: Store) -> None:
    async with store.client() as metastore:
        for error in (ZeroDivisionError("mine"), ExceptionGroup("mine", [ValueError()]), KeyboardInterrupt()):
            with pytest.raises(type(error)) as raised:
                async with metastore.announce("bookies/one", b""):
                    raise error
            assert raised.value is error
        assert await metastore.announced("bookies") == {}


async def test_closing_the_client_ends_its_announcements_with_an_error(store: Store) -> None:
    async with store.client(lease_s=1) as metastore:
        with pytest.raises(trio.ClosedResourceError):
            async with metastore.announce("bookies/one", b""):
                await metastore.aclose()
                await trio.sleep(SOON_S)


async def test_a_body_with_a_nursery_is_cancelled_from_outside(store: Store) -> None:
    async with store.client() as metastore:
        with trio.move_on_after(0.1) as scope:
            async with metastore.announce("bookies/one", b""):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trio.sleep_forever)
        assert scope.cancelled_caught
        assert await metastore.announced("bookies") == {}


# -- elections ----------------------------------------------------------------------------------------------------


async def test_first_comer_is_elected_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """And who leaves wakes one, not all: each looks who stands before when it comes, and when that one has left."""
    led: list[int] = []
    everybody_waits = trio.Event()
    looks = 0
    async with store.client() as metastore:
        call = metastore._gateway.call

        async def counting(path: str, message: Message, **options: Any) -> Any:
            nonlocal looks
            looks += "max_create_revision" in message
            return await call(path, message, **options)

        monkeypatch.setattr(metastore._gateway, "call", counting)

        async def run(number: int) -> None:
            async with metastore.elect("elections/log", b"%d" % number):
                await everybody_waits.wait()
                led.append(number)
                assert (await metastore.get("elections/log")).value == b"%d" % number
                assert await metastore.announced("elections") == {"log": b"%d" % number}

        with trio.fail_after(SOON_S):
            async with trio.open_nursery() as nursery:
                for number in range(8):
                    nursery.start_soon(run, number)
                    while len(await metastore.announced("elections/log")) <= number:  # noqa: ASYNC110
                        await trio.sleep(0.001)
                everybody_waits.set()
        assert led == list(range(8))
        assert looks <= 2 * 8
        assert await metastore.children("elections") == []


async def test_one_leads_at_a_time(store: Store) -> None:
    leading = most = terms = 0
    async with store.client() as one, store.client() as other:

        async def run(metastore: EtcdMetastore) -> None:
            nonlocal leading, most, terms
            for _ in range(3):
                async with metastore.elect("elections/log", b""):
                    leading += 1
                    terms += 1
                    most = max(most, leading)
                    await trio.sleep(0.002)
                    leading -= 1

        with trio.fail_after(SOON_S):
            async with trio.open_nursery() as nursery:
                for number in range(6):
                    nursery.start_soon(run, one if number % 2 else other)
        assert (most, terms) == (1, 18)


async def test_withdrawing_candidate_leaves_the_queue(store: Store) -> None:
    async with store.client() as metastore:
        async with metastore.elect("elections/log", b"first"):
            for _ in range(3):
                with trio.move_on_after(0.1):
                    async with metastore.elect("elections/log", b"impatient"):
                        raise AssertionError("two lead")
            assert len(await metastore.announced("elections/log")) == 1
        with trio.fail_after(SOON_S):
            async with metastore.elect("elections/log", b"next"):
                pass


async def test_candidate_is_elected_after_it_lost_its_place(start_store: StartStore) -> None:
    store = start_store()
    async with store.client(lease_s=2) as metastore, store.client() as other:
        async with other.elect("elections/log", b"leader"):
            with trio.fail_after(SOON_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(be_elected, metastore, nursery)
                    while len(await other.announced("elections/log")) < 2:  # noqa: ASYNC110
                        await trio.sleep(0.01)
                    for word, each in (await other.values("elections/log")).items():
                        if each.value == b"candidate":
                            await other.delete(f"elections/log/{word}")
                    await trio.sleep(0.2)
                    await end_leases(other)
        with pytest.raises(KeyNotFoundError):
            await other.get("elections/log")


async def be_elected(metastore: EtcdMetastore, nursery: trio.Nursery) -> None:
    async with metastore.elect("elections/log", b"candidate"):
        nursery.cancel_scope.cancel()


async def test_election_without_answers_fails_by_name(store: Store) -> None:
    async with store.client("127.0.0.1:1") as metastore:
        with pytest.raises(EtcdUnreachableError, match="refused"):
            async with metastore.elect("elections/log", b""):
                pass
