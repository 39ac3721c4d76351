"""Changes of records whose answers are lost, and ids, against nodes in memory (M1, M2)."""

from __future__ import annotations

from typing import cast

import attrs
import pytest
from golden import golden_bytes

from replog.errors import (
    ConfigError,
    KeyExistsError,
    MetastoreUncertainError,
    VersionConflictError,
)
from replog.metastores.memory import MemoryMetastore
from replog.protocol.digest import DigestType
from replog.protocol.model import Fragment, LedgerMetadata, LedgerState
from replog.protocol.quorum import Quorum
from replog_bookkeeper.digests import LedgerDigest
from replog_bookkeeper.layouts import SHORT_IDS, Layout, Target
from replog_bookkeeper.nodes import LedgersRoot
from replog_bookkeeper.records import BookKeeperRecords

LEDGER = 5
KEY = "00/0000/L0005"


class _Nodes(MemoryMetastore):
    """Nodes whose next change may lose its answer, made or not, and counters."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.place = target.place
        self.loses: str | None = None  # "before" or "behind" the change
        self.numbers: dict[str, int] = {}
        self._names: set[str] = set()  # right below the root

    def _lost(self, when: str) -> None:
        if self.loses == when:
            self.loses = None
            raise MetastoreUncertainError("the answer was lost")

    async def put(self, key: str, value: bytes, expected: int) -> int:
        self._lost("before")
        version = await super().put(key, value, expected)
        self._lost("behind")
        return version

    async def create(self, key: str, value: bytes) -> int:
        self._lost("before")
        version = await super().create(key, value)
        self._names.add(key.partition("/")[0])
        self._lost("behind")
        return version

    async def children(self, key: str) -> list[str]:
        """Also of the root, which is not a key."""
        return await super().children(key) if key else sorted(self._names)

    async def next_number(self, prefix: str) -> int:
        self._lost("before")
        number = self.numbers.get(prefix, -1) + 1
        self.numbers[prefix] = number
        return number


async def records(layout: str = "layout-Hierarchical") -> tuple[BookKeeperRecords, _Nodes]:
    target = Target.parse("zk://host/ledgers")
    nodes = _Nodes(target)
    await nodes.create("LAYOUT", golden_bytes(layout))
    return BookKeeperRecords(cast(LedgersRoot, nodes), target, 2.0), nodes


def new_ledger(token: str) -> LedgerMetadata:
    ensemble = ("one", "two", "three")
    return LedgerMetadata(LEDGER, Quorum(), DigestType.CRC32C, "", (Fragment(0, ensemble),), token=token)


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("loses", ["before", "behind"])
async def test_lost_answer_to_a_change_is_resolved_by_its_token(version: int, loses: str) -> None:
    """M1, also for a record of format 1, which has no place for a token."""
    store, nodes = await records()
    at = await nodes.create(KEY, golden_bytes(f"metadata-{version}-open"))
    before, expected = await store.get_head(LEDGER)
    assert expected == at
    proposed = attrs.evolve(before.claimed("nonce"), token="mine.1")
    nodes.loses = loses
    with pytest.raises(MetastoreUncertainError):
        await store.put(proposed, expected)
    found, found_version = await store.get_head(LEDGER)
    assert (found.token == "mine.1") == (loses == "behind") == (found_version != expected)
    assert found.state is (LedgerState.IN_RECOVERY if loses == "behind" else LedgerState.OPEN)
    if loses == "behind":
        with pytest.raises(VersionConflictError):
            await store.put(proposed, expected)


@pytest.mark.parametrize("loses", ["before", "behind"])
async def test_lost_answer_to_a_creation_is_resolved_by_its_token(loses: str) -> None:
    store, nodes = await records()
    nodes.loses = loses
    _, is_only_request = await store.create_ledger(new_ledger("mine"), LedgerDigest.CRC32C, b"", {}, 1)
    assert not is_only_request
    with pytest.raises(KeyExistsError):
        await store.create_ledger(new_ledger("another"), LedgerDigest.CRC32C, b"", {}, 2)
    assert (await store.get_head(LEDGER))[0].token == "mine"


async def test_long_ids_follow_when_short_ones_are_used_up() -> None:
    """M2: as Java's generator, whose numbers ZooKeeper gives."""
    store, nodes = await records()
    assert [await store.new_id(), await store.new_id()] == [0, 1]
    nodes.loses = "before"
    assert await store.new_id() == 2
    nodes.numbers["idgen/ID-"] = SHORT_IDS - 2
    assert await store.new_id() == SHORT_IDS - 1
    assert await store.new_id() == 1 << 32
    assert await store.new_id() == (1 << 32) + 1
    nodes.numbers["idgen-long/HOB-0000000001/ID-"] = SHORT_IDS - 1
    assert await store.new_id() == 2 << 32


async def test_ids_of_a_flat_layout_are_right_below_the_root() -> None:
    store, nodes = await records("layout-Flat")
    assert await store.new_id() == 0
    assert list(nodes.numbers) == ["ID-"]
    await nodes.create("L0000000007", b"x")
    await nodes.create("available", b"x")
    assert [each async for each in store.ledger_ids()] == [7]


async def test_layout_of_the_uri_must_be_that_of_the_cluster() -> None:
    _, nodes = await records()
    for scheme in ("flat", "longhierarchical"):
        store = BookKeeperRecords(cast(LedgersRoot, nodes), Target.parse(f"zk+{scheme}://host/ledgers"), 2.0)
        with pytest.raises(ConfigError, match="layout"):
            await store.layout()


@pytest.mark.parametrize(
    "uri",
    ["zk", "etcd://host/ledgers", "zk+other://host/ledgers", "zk://host", "zk+flat://user@host/x", "zk://h:99999/x"],
)
def test_invalid_uri_is_named(uri: str) -> None:
    with pytest.raises(ConfigError):
        Target.parse(uri)


def test_uri_is_read_as_java_reads_it() -> None:
    target = Target.parse("zk+hierarchical://one:2182;two,three/a/ledgers")
    assert target.layout is Layout.HIERARCHICAL
    assert target.place.servers == (("one", 2182), ("two", 2181), ("three", 2181))
    assert target.place.chroot == "/a/ledgers"
    assert Target.parse("zk+null://one/ledgers").layout is None
