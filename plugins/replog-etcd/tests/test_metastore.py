"""The promises of a metastore, kept by one real etcd."""

import base64
import os
from collections.abc import Awaitable

import pytest
import trio
from etcd_servers import StartStore, Store

from replog.errors import (
    KeyExistsError,
    KeyNotFoundError,
    LocalProtocolError,
    MetastoreCorruptError,
    MetastoreError,
    VersionConflictError,
)
from replog.testing import check_metastore, check_metastore_leases
from replog_etcd.errors import EtcdRefusedError


async def test_it_passes_the_conformance_suite(store: Store) -> None:
    await check_metastore(store.client)


@pytest.mark.slow
async def test_it_passes_the_conformance_suite_of_leases(store: Store) -> None:
    await check_metastore_leases(f"{store.url()}?lease_s=2", lease_s=2.0)


async def test_how_keys_and_values_stand_in_etcd(store: Store) -> None:
    async with store.client() as metastore:
        version = await metastore.create("ledgers/00/0000/0001", b"\0\xffvalue")
        await metastore.create("logs/\N{SNOWMAN}", b"")
        raw = f"/{store.prefix}/ledgers/00/0000/0001".encode()
        asked = {"key": base64.b64encode(raw).decode()}
        answer = await metastore._gateway.call("/v3/kv/range", asked, what="a look")
        (found,) = answer["kvs"]
        assert base64.b64decode(found["value"]) == b"\0\xffvalue"
        assert found["mod_revision"] == str(version)
        everything = {
            "key": base64.b64encode(f"/{store.prefix}/".encode()).decode(),
            "range_end": base64.b64encode(f"/{store.prefix}0".encode()).decode(),
        }
        answer = await metastore._gateway.call("/v3/kv/range", everything, what="a look")
        keys = [base64.b64decode(each["key"]).decode() for each in answer["kvs"]]
        assert keys == [f"/{store.prefix}/ledgers/00/0000/0001", f"/{store.prefix}/logs/\N{SNOWMAN}"]


async def test_versions_never_repeat_even_for_a_remade_key(store: Store) -> None:
    async with store.client() as metastore:
        first = await metastore.create("a", b"1")
        await metastore.delete("a")
        second = await metastore.create("a", b"2")
        assert second > first
        with pytest.raises(VersionConflictError, match=f"expected version {first}, found {second}"):
            await metastore.put("a", b"3", first)


@pytest.mark.parametrize("expected", [0, -1, 1, 1 << 62])
async def test_no_version_lets_a_put_or_delete_make_a_key(store: Store, expected: int) -> None:
    async with store.client() as metastore:
        for change in (metastore.put("a", b"", expected), metastore.delete("a", expected)):
            with pytest.raises(KeyNotFoundError):
                await change
        assert await metastore.children("a") == []
        await metastore.create("a", b"")
        with pytest.raises(VersionConflictError):
            await metastore.put("a", b"", expected)


async def test_values_of_the_largest_size_come_back(store: Store) -> None:
    async with store.client() as metastore:
        value = os.urandom(1_000_000)
        version = await metastore.create("large", value)
        version = await metastore.put("large", value[::-1], version)
        assert (await metastore.get("large")).value == value[::-1]
        with pytest.raises(VersionConflictError):
            await metastore.put("large", value, version - 1)
        with pytest.raises(MetastoreError, match="nothing was written"):
            await metastore.create("larger", value + b"x")


async def test_many_large_values_are_read_in_parts(store: Store) -> None:
    async with store.client(response_bytes_max=4 << 20) as metastore:
        values = {f"{number:02}": bytes([number]) * 900_000 for number in range(6)}
        for word, value in values.items():
            await metastore.create(f"large/{word}", value)
        assert {word: found.value for word, found in (await metastore.values("large")).items()} == values


async def test_values_are_those_right_below(store: Store) -> None:
    async with store.client() as metastore:
        await metastore.create("root", b"itself")
        await metastore.create("root/b/below", b"deep")
        version = await metastore.create("root/a", b"1")
        await metastore.create("root/a/below", b"deep")
        await metastore.create("rooted/c", b"")
        found = await metastore.values("root")
        assert {word: (each.value, each.version) for word, each in found.items()} == {"a": (b"1", version)}


async def test_impossible_key_is_refused_before_it_is_sent(store: Store) -> None:
    async with store.client("127.0.0.1:1") as metastore:  # where nobody is
        for call in (metastore.get(""), metastore.children("a/../b"), metastore.wait_changed("a//b", None)):
            with pytest.raises(LocalProtocolError):
                await call


async def test_foreign_binary_key_is_named(store: Store) -> None:
    async with store.client() as metastore:
        key = base64.b64encode(f"/{store.prefix}/logs/".encode() + b"\xff\xfe").decode()
        await metastore._gateway.call("/v3/kv/put", {"key": key, "value": ""}, what="a foreign key", is_change=True)
        with pytest.raises(MetastoreCorruptError, match="not UTF-8"):
            await metastore.children("logs")


async def test_pending_calls_end_on_closing(store: Store) -> None:
    async with store.client() as metastore:
        ended: list[str] = []

        async def wait(name: str, call: Awaitable[None]) -> None:
            with pytest.raises(trio.ClosedResourceError):
                await call
            ended.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, "wait_changed", metastore.wait_changed("never", None))
            nursery.start_soon(wait, "wait_children_changed", metastore.wait_children_changed("never", []))
            while metastore._watches._slots.value > 62:  # noqa: ASYNC110 - until both have their stream
                await trio.sleep(0.01)
            await metastore.aclose()
        assert sorted(ended) == ["wait_changed", "wait_children_changed"]
        for call in (metastore.get("a"), metastore.create("a", b""), metastore.wait_changed("a", None)):
            with pytest.raises(trio.ClosedResourceError):
                await call
        with pytest.raises(trio.ClosedResourceError):
            async with metastore.announce("a", b""):
                pass


async def test_a_fork_is_refused_by_name(store: Store) -> None:
    async with store.client() as metastore:
        await metastore.create("a", b"")
        metastore._gateway._pid += 1
        with pytest.raises(MetastoreError, match="in its fork"):
            await metastore.get("a")
        metastore._gateway._pid -= 1
        assert (await metastore.get("a")).value == b""


async def test_a_hundred_tasks_share_a_few_connections(store: Store) -> None:
    async with store.client(connections_max=4) as metastore:
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(metastore.create, f"many/{number:03}", b"%d" % number)
        found = await metastore.values("many")
        assert [int(each.value) for each in found.values()] == list(range(100))
        (idle,) = metastore._gateway._connections._idle.values()
        assert 1 <= len(idle) <= 4


async def test_cancelled_calls_leave_a_usable_client(store: Store) -> None:
    async with store.client(connections_max=2) as metastore:
        version = await metastore.create("a", b"0")
        cancelled = 0
        for number in range(60):
            with trio.move_on_after(number * 0.00005) as scope:
                await metastore.get("a")
            cancelled += scope.cancelled_caught
        assert cancelled
        assert await metastore.get("a") == await metastore.get("a")
        with pytest.raises(KeyExistsError):
            await metastore.create("a", b"1")
        assert (await metastore.get("a")).version == version


async def test_full_etcd_reports_it_and_the_remedy(start_store: StartStore) -> None:
    async with start_store(1, "--quota-backend-bytes", str(2 << 20)).client() as metastore:
        with pytest.raises(EtcdRefusedError, match="etcdctl alarm disarm") as raised:
            for number in range(20):
                await metastore.create(f"a/{number}", os.urandom(500_000))
        assert raised.value.code == 8
        assert await metastore.children("a")  # reads go on
        await metastore.delete("a/0")  # and deletions
