"""Which ledgers a bookie in a cluster of BookKeeper drops, without a cluster (B6)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from wire_bookie import a_bookie, fence_of

from replog.abc import Versioned
from replog.errors import KeyNotFoundError, MetastoreUnavailableError
from replog_bookkeeper.layouts import Layout, ledger_key
from replog_bookkeeper.nodes import LedgersRoot
from replog_bookkeeper.serving.garbage import Garbage
from replog_bookkeeper.serving.registration import Registration


class Nodes:
    """The nodes of ledgers; `failing` raises at this call, counted from the next one on."""

    def __init__(self, *keys: str) -> None:
        self.keys = set(keys)
        self.failing: int | None = None
        self.hidden: set[str] = set()  # from listings

    def _call(self) -> None:
        if self.failing is not None:
            self.failing -= 1
            if self.failing < 0:
                raise MetastoreUnavailableError("no answer")

    async def get(self, key: str) -> Versioned:
        self._call()
        if key not in self.keys:
            raise KeyNotFoundError(key, "it does not exist")
        return Versioned(b"", 0)

    async def children(self, key: str) -> list[str]:
        self._call()
        shown = [each.rpartition("/") for each in self.keys - self.hidden]
        return sorted(name for parent, _, name in shown if parent == key)


class AnyCluster:
    """One that is always the right one."""

    async def raise_counter(self) -> None: ...

    async def check(self) -> None: ...


@asynccontextmanager
async def collecting(nodes: Nodes, layout: Layout, *ledger_ids: int) -> AsyncIterator[tuple[Garbage, Any]]:
    """The garbage of a bookie that knows these ledgers, and its storage."""
    async with a_bookie() as bookie:
        caller = await bookie.call()
        for ledger_id in ledger_ids:
            await caller.ask(*fence_of(ledger_id=ledger_id))
        root, cluster = cast("LedgersRoot", nodes), cast("Registration", AnyCluster())
        yield Garbage(bookie.server, root, layout, cluster), bookie.server.storage


@pytest.mark.parametrize("layout", list(Layout))
async def test_only_missing_ledgers_are_dropped(layout: Layout) -> None:
    nodes = Nodes(ledger_key(layout, 5), ledger_key(layout, 1 << 31))
    async with collecting(nodes, layout, 5, 6, 1 << 31, 12345) as (garbage, storage):
        assert await garbage.collect() == []
        assert await garbage.collect() == [6, 12345]
        assert storage.ledger_ids() == [5, 1 << 31]


async def test_a_ledger_without_a_place_in_the_layout_is_kept() -> None:
    async with collecting(Nodes(), Layout.LEGACY_HIERARCHICAL, 1 << 62, 5) as (garbage, storage):
        assert await garbage.collect() == []
        assert await garbage.collect() == [5]
        assert storage.ledger_ids() == [1 << 62]


async def test_a_ledger_missing_from_listings_alone_is_kept() -> None:
    """The very node decides."""
    key = ledger_key(Layout.HIERARCHICAL, 5)
    nodes = Nodes(key)
    nodes.hidden.add(key)
    async with collecting(nodes, Layout.HIERARCHICAL, 5) as (garbage, storage):
        for _ in range(3):
            assert await garbage.collect() == []
        assert storage.ledger_ids() == [5]


async def test_an_error_anywhere_drops_nothing_more() -> None:
    async with collecting(Nodes(), Layout.HIERARCHICAL, 5, 123456) as (garbage, storage):
        nodes = cast("Nodes", garbage._root)
        for failing in (0, 1):
            nodes.failing = failing
            with pytest.raises(MetastoreUnavailableError):
                await garbage.collect()
        nodes.failing = None
        assert await garbage.collect() == [], "passes that failed do not count"
        for failing in (0, 1, 2):
            nodes.failing = failing
            with pytest.raises(MetastoreUnavailableError):
                await garbage.collect()
            assert storage.ledger_ids() == [5, 123456]
        nodes.failing = None
        assert await garbage.collect() == [5, 123456]
