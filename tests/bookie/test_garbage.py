"""The order in which garbage is collected, and what ends a pass (B6)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

import replog
from replog.bookie import garbage
from replog.bookie.garbage import collect_garbage
from replog.errors import KeyNotFoundError, MetastoreError, StorageError, StorageFullError
from replog.protocol.releasing import ForeignRange
from replog.records.paths import ledger_key_path
from replog.testing import Fault
from tests.kit import ONE, Bookie, Cluster, cluster, read_ledger


@pytest.fixture(params=[0, garbage.UNLISTED_MAX], ids=["listed", "looked up"])
def unlisted_max(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Ledgers here are listed; or, if they are few, looked up."""
    monkeypatch.setattr(garbage, "UNLISTED_MAX", request.param)
    return int(request.param)


@pytest.fixture
def _always_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "UNLISTED_MAX", 0)


GUARD_RAISES = ["check", "check", "raise"]  # its own cookie is read, and read again to be changed (B6a)


class Watched:
    """One bookie with ledgers, and the order of what a pass asks for."""

    def __init__(self, world: Cluster, client: replog.Client) -> None:
        self.world = world
        self.client = client
        self.bookie: Bookie = world.bookies[0]
        self.asked: list[str] = []

    async def collect(self) -> list[int]:
        return await collect_garbage(self.bookie.server, self.world.metastore)

    async def write(self) -> int:
        async with self.client.create_ledger() as writer:
            await writer.append(b"x")
        return writer.ledger_id


@asynccontextmanager
async def watched() -> AsyncIterator[Watched]:
    async with cluster(1) as world, world.client(quorum=ONE) as client:
        yield Watched(world, client)


def watch(one: Watched) -> None:
    """From now on, writes down snapshots and what the metastore is asked."""
    real, storage = one.bookie.storage.ledger_ids, one.bookie.storage

    def ledger_ids() -> list[int]:
        one.asked.append("snapshot")
        return real()

    storage.ledger_ids = ledger_ids  # type: ignore[method-assign]

    def choose(operation: str, key: str) -> Fault | None:
        if key.startswith("cookies/"):
            one.asked.append("check" if operation == "get" else "raise")
        elif key not in ("next-ledger-id", "ledgers", "long-ledgers"):
            one.asked.append(operation if operation == "children" else f"{operation} {key}")
        return None

    one.world.metastore._choose = choose


async def test_first_the_snapshot_then_the_listing_then_each_candidate(
    unlisted_max: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with watched() as one:
        kept, gone = await one.write(), await one.write()
        await one.world.metastore.delete(ledger_key_path(gone))
        watch(one)
        assert await one.collect() == [gone]
        assert one.asked[0] == "snapshot"
        assert one.asked.count("snapshot") == 1
        looked_up = [f"get {ledger_key_path(each)}" for each in (kept, gone)]
        listed = looked_up if unlisted_max else ["children"]  # then only what the listing lacks
        again = looked_up[1:] if not unlisted_max else []
        assert one.asked[1:] == [*GUARD_RAISES, *listed, *again, "check"], "the guard is asked last (B6a)"
        assert one.bookie.storage.ledger_ids() == [kept]


@pytest.mark.usefixtures("_always_listed")
async def test_ledger_created_after_the_snapshot_is_not_a_candidate(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Also if the listing that follows does not show it."""
    async with watched() as one:
        first = await one.write()
        watch(one)
        real, created = one.world.metastore.children, list[int]()

        async def children(key: str) -> list[str]:
            if not created:
                listing = await real(key)
                created.append(-1)
                created[0] = await one.write()
                return listing
            return [word for word in await real(key) if not ledger_key_path(created[0]).endswith(f"{key}/{word}")]

        one.world.metastore.children = children  # type: ignore[method-assign]
        assert await one.collect() == []
        assert created[0] > first
        assert f"get {ledger_key_path(created[0])}" not in one.asked
        assert set(one.bookie.storage.ledger_ids()) == {first, created[0]}


@pytest.mark.usefixtures("unlisted_max")
@pytest.mark.parametrize("hidden", [0, 2, 4])
async def test_listing_without_a_key_for_a_while_costs_no_ledger(
    hidden: int, autojump_clock: trio.testing.MockClock
) -> None:
    """A follower that lags, a store that moves keys: the candidate is read again, and is there."""
    async with watched() as one:
        ids = [await one.write() for _ in range(5)]
        await one.world.metastore.delete(ledger_key_path(ids[3]))
        real = one.world.metastore.children

        async def children(key: str) -> list[str]:
            missing = ledger_key_path(ids[hidden])
            return [word for word in await real(key) if f"{key}/{word}" != missing]

        one.world.metastore.children = children  # type: ignore[method-assign]
        watch(one)
        assert await one.collect() == [ids[3]]
        assert f"get {ledger_key_path(ids[hidden])}" in one.asked
        assert await read_ledger(one.client, ids[hidden]) == [b"x"]


@pytest.mark.usefixtures("_always_listed")
async def test_a_stale_listing_keeps_a_deleted_ledger_for_one_pass(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with watched() as one:
        ledger_id = await one.write()
        real = one.world.metastore.children
        stale = {key: await real(key) for key in ("ledgers", "ledgers/00", "ledgers/00/0000")}
        await one.world.metastore.delete(ledger_key_path(ledger_id))

        async def children(key: str) -> list[str]:
            return stale[key] if key in stale else await real(key)

        one.world.metastore.children = children  # type: ignore[method-assign]
        assert await one.collect() == []
        one.world.metastore.children = real  # type: ignore[method-assign]
        assert await one.collect() == [ledger_id]


@pytest.mark.usefixtures("_always_listed")
async def test_an_error_late_in_a_listing_drops_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Ledgers on several pages; the first page shows that one is gone, the second can't be read."""
    async with watched() as one:
        near, far = await one.write(), 20_000
        gone = await one.write()
        record = (await one.world.metastore.get(ledger_key_path(near))).value
        await one.world.metastore.delete(ledger_key_path(gone))
        await one.world.metastore.create(ledger_key_path(far), record)
        storage = one.bookie.storage
        real = storage.ledger_ids
        storage.ledger_ids = lambda: [*real(), far]  # type: ignore[method-assign]
        far_page = ledger_key_path(far).rpartition("/")[0]
        one.world.metastore._choose = lambda operation, key: (
            Fault.UNAVAILABLE if (operation, key) == ("children", far_page) else None
        )
        with pytest.raises(MetastoreError):
            await one.collect()
        assert real() == [near, gone]
        one.world.metastore._choose = None
        assert await one.collect() == [gone]


@pytest.mark.usefixtures("unlisted_max")
async def test_candidate_is_kept_when_its_lookup_fails(autojump_clock: trio.testing.MockClock) -> None:
    async with watched() as one:
        ids = [await one.write() for _ in range(2)]
        for ledger_id in ids:
            await one.world.metastore.delete(ledger_key_path(ledger_id))
        one.world.metastore.fail_next("get", Fault.UNAVAILABLE, under=ledger_key_path(ids[0]))
        with pytest.raises(MetastoreError):
            await one.collect()
        assert one.bookie.storage.ledger_ids() == ids


@pytest.mark.usefixtures("unlisted_max")
async def test_a_ledger_back_before_its_lookup_stays(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its key was missing for a moment only."""
    async with watched() as one:
        ledger_id = await one.write()
        key = ledger_key_path(ledger_id)
        record = (await one.world.metastore.get(key)).value
        await one.world.metastore.delete(key)
        real = one.world.metastore.get

        async def get(asked: str) -> object:
            if asked == key:
                await one.world.metastore.inner.create(key, record)
            return await real(asked)

        one.world.metastore.get = get  # type: ignore[assignment, method-assign]
        assert await one.collect() == []
        one.world.metastore.get = real  # type: ignore[method-assign]
        assert await read_ledger(one.client, ledger_id) == [b"x"]


# -- what a pass costs ----------------------------------------------------------------------------------------------


class Many:
    """A bookie that says it has these ledgers, and a metastore in which some of them are, and many others."""

    def __init__(self, one: Watched, here: list[int]) -> None:
        self.one = one
        self.here = here
        self.dropped: list[int] = []
        self.under_way = self.most_under_way = 0
        one.bookie.storage.ledger_ids = lambda: sorted(set(here) - set(self.dropped))  # type: ignore[method-assign]
        one.bookie.server.drop = self._drop  # type: ignore[method-assign]

    async def exist(self, ledger_ids: Iterable[int]) -> None:
        for ledger_id in ledger_ids:
            await self.one.world.metastore.inner.create(ledger_key_path(ledger_id), b"")

    async def _drop(self, ledger_id: int, entries: ForeignRange | None = None) -> None:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await trio.sleep(0.1)
        finally:
            self.under_way -= 1
        self.dropped.append(ledger_id)


@pytest.mark.parametrize("elsewhere", [0, 5_000])
async def test_a_pass_lists_each_leaf_once(elsewhere: int, autojump_clock: trio.testing.MockClock) -> None:
    here = [*range(0, 40_000, 20), *range(10**11, 10**11 + 10)]
    async with watched() as one:
        many = Many(one, here)
        await many.exist({*here, *range(7, 40_000, 40_000 // elsewhere if elsewhere else 40_000)})
        watch(one)
        assert await one.collect() == []
        assert one.asked == ["snapshot", *GUARD_RAISES, *["children"] * 5]


async def test_a_bookie_with_few_ledgers_reads_only_those(autojump_clock: trio.testing.MockClock) -> None:
    few = garbage.UNLISTED_MAX
    here = [*range(0, few), *range(20_000, 20_001 + few), 10**12]
    async with watched() as one:
        many = Many(one, here)
        await many.exist(here)
        watch(one)
        assert await one.collect() == []
        expected = ["children", *(f"get {ledger_key_path(each)}" for each in here if not 20_000 <= each < 30_000)]
        assert one.asked == ["snapshot", *GUARD_RAISES, *expected]


async def test_garbage_is_dropped_some_at_a_time(autojump_clock: trio.testing.MockClock) -> None:
    """Side by side, so that commits take several; but not more than that at once."""
    async with watched() as one:
        many = Many(one, list(range(100)))
        await many.exist(range(0, 100, 2))
        began_s = trio.current_time()
        assert await one.collect() == list(range(1, 100, 2))
        assert sorted(many.dropped) == list(range(1, 100, 2))
        assert many.most_under_way == 8
        assert trio.current_time() - began_s < 1


@pytest.mark.parametrize("error", [MetastoreError("on purpose"), StorageFullError("on purpose")])
async def test_failure_ends_the_pass_and_the_next_one_continues(
    error: Exception, autojump_clock: trio.testing.MockClock
) -> None:
    async with watched() as one:
        many = Many(one, list(range(50)))
        real, failures = many._drop, [error]

        async def drop(ledger_id: int, entries: ForeignRange | None = None) -> None:
            if ledger_id >= 20 and failures:
                raise failures.pop()
            await real(ledger_id, entries)

        one.bookie.server.drop = drop  # type: ignore[method-assign]
        with pytest.raises((MetastoreError, StorageError), match="on purpose"):
            await one.collect()
        assert 0 < len(many.dropped) < 50
        rest = sorted(set(range(50)) - set(many.dropped))
        assert await one.collect() == rest


async def test_a_pass_can_be_cancelled_anywhere(autojump_clock: trio.testing.MockClock) -> None:
    for after_s in (0.005, 0.015, 0.025, 0.15, 0.35):
        async with watched() as one:
            one.world.metastore.delay_s = 0.01
            many = Many(one, list(range(50)))
            await many.exist([17])
            with trio.move_on_after(after_s) as scope:
                await one.collect()
            assert scope.cancelled_caught
            left = set(range(50)) - {17} - set(many.dropped)
            assert left
            assert set(await one.collect()) == left
            with pytest.raises(KeyNotFoundError):
                await one.world.metastore.get(ledger_key_path(16))
