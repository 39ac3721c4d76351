"""A metastore in a real ZooKeeper: the conformance suite, and what stands in the nodes."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
import trio
from kazoo.client import KazooClient

from replog.abc import Metastore
from replog.errors import (
    ConfigError,
    KeyNotFoundError,
    LocalProtocolError,
    MetastoreCorruptError,
    MetastoreError,
    VersionConflictError,
)
from replog.records.ledgers import list_ledger_ids
from replog.records.paths import ledger_key_path
from replog.runtime.keys import KEY_BYTES_MAX, VALUE_BYTES_MAX
from replog.testing import check_metastore
from tests.metastores.zookeeper.opening import opened
from tests.servers.zookeeper import Ensemble, ZooKeeper

pytestmark = pytest.mark.needs_zookeeper

FLAT = "ignore:.*layout=flat is deprecated:DeprecationWarning"


@pytest.fixture
async def store(zookeeper_url: str) -> AsyncIterator[Metastore]:
    async with opened(zookeeper_url) as store:
        yield store


@contextmanager
def looking(zookeeper: ZooKeeper, chroot: str) -> Iterator[KazooClient]:
    """Somebody with `zkCli`, as it were. Blocks: only for a moment."""
    client = KazooClient(zookeeper.address)
    client.start()
    client.chroot = chroot
    try:
        yield client
    finally:
        client.stop()
        client.close()


async def test_it_passes_the_conformance_suite(zookeeper_url: str) -> None:
    await check_metastore(lambda: opened(zookeeper_url))


@pytest.mark.filterwarnings(FLAT)
@pytest.mark.long(is_sampled=False)
async def test_the_flat_layout_passes_the_conformance_suite(zookeeper_url: str) -> None:
    await check_metastore(lambda: opened(f"{zookeeper_url}?layout=flat"))


@pytest.mark.slow
@pytest.mark.long(is_sampled=False)
async def test_clients_of_different_servers_pass_the_conformance_suite(
    zookeeper_ensemble: Ensemble, zookeeper_chroot: str
) -> None:
    """Each is connected to another one, so what is answered by one has to be known to all."""
    servers = itertools.cycle(zookeeper_ensemble.servers)
    await check_metastore(lambda: opened(next(servers).url(zookeeper_chroot)))


async def test_nodes_show_keys_and_values_as_they_are(
    store: Metastore, zookeeper: ZooKeeper, zookeeper_chroot: str
) -> None:
    await store.create("logs/orders/pages", b'{"format": 1}')
    await store.create("empty/value", b"")
    with looking(zookeeper, zookeeper_chroot) as client:
        assert client.get("/logs/orders/pages")[0] == b'{"format": 1}'
        assert client.get("/logs/orders")[0] == b""
        assert client.get("/empty/value")[0] == b"\0"
        assert json.loads(client.get("/layout")[0]) == {"format": 1, "layout": "hierarchical"}


async def test_a_placeholder_is_not_a_key_until_it_is_created(store: Metastore) -> None:
    await store.create("a/b", b"below")
    with pytest.raises(KeyNotFoundError):
        await store.get("a")
    with pytest.raises(KeyNotFoundError):
        await store.put("a", b"", 7)
    for expected in (None, 7):
        with pytest.raises(KeyNotFoundError):
            await store.delete("a", expected)
    version = await store.create("a", b"above")
    assert (await store.get("a")).version == version
    await store.delete("a", version)
    with pytest.raises(KeyNotFoundError):
        await store.get("a")
    assert (await store.get("a/b")).value == b"below"


async def test_placeholders_go_with_their_children(
    store: Metastore, zookeeper: ZooKeeper, zookeeper_chroot: str
) -> None:
    await store.create("a/b/c/d", b"")
    await store.create("a/x", b"")
    await store.delete("a/b/c/d")
    with looking(zookeeper, zookeeper_chroot) as client:
        assert client.get_children("/a") == ["x"]
    await store.delete("a/x")
    with looking(zookeeper, zookeeper_chroot) as client:
        assert client.get_children("/") == ["layout"]


async def test_keys_are_made_while_others_remove_their_parents(store: Metastore) -> None:
    async def make_and_remove(name: str) -> None:
        for _ in range(30):
            version = await store.create(f"a/b/{name}", b"")
            assert (await store.get(f"a/b/{name}")).version == version
            await store.delete(f"a/b/{name}", version)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(make_and_remove, str(number))
    assert await store.children("a") == []


@pytest.mark.parametrize("expected", [-1, -2, 1 << 31, 1 << 40])
async def test_no_version_means_any(store: Metastore, expected: int) -> None:
    version = await store.create("a", b"")
    with pytest.raises(VersionConflictError):
        await store.put("a", b"x", expected)
    with pytest.raises(VersionConflictError):
        await store.delete("a", expected)
    assert await store.put("a", b"x", version) != version
    with pytest.raises(KeyNotFoundError):
        await store.put("b", b"x", expected)


async def test_conflict_names_the_present_version(store: Metastore) -> None:
    version = await store.create("a", b"")
    actual = await store.put("a", b"", version)
    with pytest.raises(VersionConflictError, match=f"expected version {version}, found {actual}"):
        await store.put("a", b"", version)


@pytest.mark.parametrize("key", ["layout", "zookeeper/config", "\U0001f600/\ufffd", "a\\b", "a" * KEY_BYTES_MAX])
async def test_any_key_does(store: Metastore, key: str) -> None:
    await store.create(key, b"x")
    assert (await store.get(key)).value == b"x"
    first, _, rest = key.partition("/")
    assert not rest or await store.children(first) == [rest]
    await store.delete(key)


async def test_the_largest_value_at_the_longest_and_deepest_key(store: Metastore) -> None:
    key = "a/" * (KEY_BYTES_MAX // 2 - 1) + "a"
    value = b"\0" * VALUE_BYTES_MAX
    version = await store.create(key, value)
    assert (await store.get(key)).value == value
    assert (await store.values(key.rpartition("/")[0]))["a"].value == value
    await store.put(key, value, version)
    await store.delete(key)


async def test_oversized_value_is_not_sent(store: Metastore) -> None:
    version = await store.create("a", b"")
    for change in (
        lambda: store.put("a", b"x" * (VALUE_BYTES_MAX + 1), version),
        lambda: store.create("b", b"x" * (VALUE_BYTES_MAX + 1)),
    ):
        with pytest.raises(MetastoreError, match="exceed"):
            await change()
    with pytest.raises(LocalProtocolError):
        await store.get("a" * (KEY_BYTES_MAX + 1))
    assert (await store.get("a")).version == version


async def test_values_of_many_keys_are_read_together(store: Metastore) -> None:
    for number in range(150):
        await store.create(f"many/{number}", b"%d" % number)
    await store.create("many/only/leads", b"")
    found = await store.values("many")
    assert {word: each.value for word, each in found.items()} == {str(n): b"%d" % n for n in range(150)}
    assert found["7"] == await store.get("many/7")
    assert await store.values("none") == {}


# -- layouts ------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings(FLAT)
async def test_a_flat_layout_has_one_directory(zookeeper: ZooKeeper, zookeeper_url: str, zookeeper_chroot: str) -> None:
    ids = [0, 7, 10_000, 123_456_789, 9_999_999_999, 10**10, (1 << 63) - 1]
    async with opened(f"{zookeeper_url}?layout=flat") as store:
        for ledger_id in ids:
            await store.create(ledger_key_path(ledger_id), b"x")
        assert await list_ledger_ids(store) == ids
        await store.delete(ledger_key_path(7))
        assert await list_ledger_ids(store) == [0, *ids[2:]]
        assert {word: each.value for word, each in (await store.values("ledgers/00/0000")).items()} == {"0000": b"x"}
    with looking(zookeeper, zookeeper_chroot) as client:
        assert "L0123456789" in client.get_children("/ledgers")
        assert "L9223372036854775807" in client.get_children("/long-ledgers")


@pytest.mark.filterwarnings(FLAT)
async def test_children_of_a_flat_layout_are_waited_for(zookeeper_url: str) -> None:
    async with opened(f"{zookeeper_url}?layout=flat") as store, trio.open_nursery() as nursery:
        changed = trio.Event()

        async def wait() -> None:
            while await store.children("ledgers/00") != ["0000"]:
                await store.wait_children_changed("ledgers/00", [])
            changed.set()

        nursery.start_soon(wait)
        await store.create(ledger_key_path(10_000_000_00), b"")  # below another one
        await store.create(ledger_key_path(5), b"")
        with trio.fail_after(30):
            await changed.wait()


@pytest.mark.filterwarnings(FLAT)
async def test_another_layout_than_there_is_is_refused(zookeeper_url: str) -> None:
    async with opened(zookeeper_url) as store:
        await store.create("a", b"")
    async with opened(f"{zookeeper_url}?layout=flat") as store:
        for _ in range(2):
            with pytest.raises(ConfigError, match="its layout is hierarchical, and layout=flat was asked for"):
                await store.get("a")


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (b'{"format": 2, "layout": "spiral"}', "has format 2, and this version of replog reads up to 1"),
        (b'{"format": 1, "layout": "spiral"}', "names no layout"),
        (b"hierarchical\n3", "is not replog's"),
        (b'{"layout": "flat"}', "is not replog's"),
        (b"[]", "is not replog's"),
        (b"", "is not replog's"),
    ],
)
async def test_unknown_layout_is_refused(
    zookeeper: ZooKeeper, zookeeper_url: str, zookeeper_chroot: str, record: bytes, problem: str
) -> None:
    with looking(zookeeper, zookeeper_chroot) as client:
        client.create("/layout", record, makepath=True)
    async with opened(zookeeper_url) as store:
        with pytest.raises(MetastoreCorruptError, match=re.escape(problem)):
            await store.create("a", b"")
    with looking(zookeeper, zookeeper_chroot) as client:
        assert client.get("/layout")[0] == record
        assert client.exists("/a") is None


async def test_clients_creating_one_chroot_together_agree(zookeeper_url: str) -> None:
    made: list[int] = []

    async def begin(number: int) -> None:
        async with opened(zookeeper_url) as store:
            made.append(await store.create(f"a/b/{number}", b""))

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(begin, number)
    assert len(made) == 5
