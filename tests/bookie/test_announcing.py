"""How a bookie is announced: it turns without being absent, waits for its predecessor to vanish, and comes back (B4, B5)."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from replog.abc import Metastore, Versioned
from replog.config.bookie import BookieTuning
from replog.errors import MetastoreCorruptError, MetastoreError, StorageInUseError
from replog.metastores.memory import MemoryMetastore
from replog.records.bookies import (
    BOOKIES_KEY,
    COOKIES_KEY,
    READ_ONLY_BOOKIES_KEY,
    BookieAddress,
    Endpoint,
    announcement_key,
    decode_address,
    encode_address,
)
from replog.registry import Registry
from replog.testing import FaultyMetastore
from tests.kit import Bookie, Cluster, FaultyStorage, cluster, until

OTHER = encode_address(BookieAddress((Endpoint("tcp", "10.0.0.7:3181"),)))
WAITS = "is announced already"


class Watched(FaultyMetastore):
    """Writes down who comes and goes, and fails as often as it is told to."""

    def __init__(self, inner: Metastore) -> None:
        super().__init__(inner)
        self.steps: list[str] = []
        self.failures = 0  # of `announce`, still to come
        self.lost = trio.Event()  # then what is announced fails

    @asynccontextmanager
    async def announce(self, key: str, value: bytes) -> AsyncIterator[None]:
        place = key.partition("/")[0]
        if self.failures:
            self.failures -= 1
            self.steps.append(f"fails {place}")
            raise MetastoreError("failed on purpose")
        try:
            async with super().announce(key, value), trio.open_nursery() as nursery:
                self.steps.append(f"enters {place}")
                nursery.start_soon(self._lose, nursery.cancel_scope)
                try:
                    yield
                finally:
                    nursery.cancel_scope.cancel()
        finally:
            self.steps.append(f"leaves {place}")
        if self.lost.is_set():
            self.lost = trio.Event()
            raise MetastoreError("lost on purpose")

    async def _lose(self, scope: trio.CancelScope) -> None:
        await self.lost.wait()
        scope.cancel()


@asynccontextmanager
async def watched() -> AsyncIterator[tuple[Cluster, Watched, Bookie]]:
    async with cluster(0) as world:
        metastore = world.metastore = Watched(world.metastore.inner)
        yield world, metastore, await world.add_bookie()


async def fill(bookie: Bookie, is_full: bool) -> None:
    """Has the bookie see that its disk is full, or has space again."""
    bookie.storage.free_bytes = lambda: 0 if is_full else 1 << 40  # type: ignore[method-assign]
    await bookie.server._look()
    assert bookie.server.is_read_only is is_full


async def wait_written(metastore: Watched, count: int) -> list[str]:
    await until(lambda: len(metastore.steps) >= count)
    return metastore.steps


# -- turning --------------------------------------------------------------------------------------------------------


async def test_read_only_bookie_is_announced_before_its_old_key_goes(autojump_clock: trio.testing.MockClock) -> None:
    async with watched() as (_, metastore, bookie):
        await fill(bookie, True)
        steps = await wait_written(metastore, 3)
        assert steps == ["enters bookies", "enters read-only-bookies", "leaves bookies"]
        await fill(bookie, False)
        steps = await wait_written(metastore, 5)
        assert steps[3:] == ["enters bookies", "leaves read-only-bookies"]
        assert list(await metastore.announced(BOOKIES_KEY)) == [bookie.bookie_id]
        assert await metastore.announced(READ_ONLY_BOOKIES_KEY) == {}
        await bookie.kill()
        assert steps[5:] == ["leaves bookies"]


async def test_turning_back_ends_under_the_right_key(autojump_clock: trio.testing.MockClock) -> None:
    async with watched() as (_, metastore, bookie):
        metastore.delay_s = 1.0
        for is_full in (True, False, True, False, True, False):
            await fill(bookie, is_full)
            await trio.sleep(0.4)
        await trio.sleep(10)
        assert list(await metastore.announced(BOOKIES_KEY)) == [bookie.bookie_id]
        assert await metastore.announced(READ_ONLY_BOOKIES_KEY) == {}


async def test_a_failed_announcement_is_retried_and_the_old_one_stays(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with watched() as (_, metastore, bookie):
        metastore.failures = 3
        await fill(bookie, True)
        await trio.sleep(2.5)
        assert metastore.steps == ["enters bookies", *["fails read-only-bookies"] * 3]
        assert list(await metastore.announced(BOOKIES_KEY)) == [bookie.bookie_id]
        await trio.sleep(1)
        assert metastore.steps[4:] == ["enters read-only-bookies", "leaves bookies"]


async def test_lost_announcement_is_repeated(autojump_clock: trio.testing.MockClock) -> None:
    async with watched() as (_, metastore, bookie):
        metastore.failures = 1
        metastore.lost.set()
        await trio.sleep(2)
        assert metastore.steps == ["enters bookies", "leaves bookies", "fails bookies", "enters bookies"]
        assert list(await metastore.announced(BOOKIES_KEY)) == [bookie.bookie_id]


async def test_deleted_announcement_is_repeated(autojump_clock: trio.testing.MockClock) -> None:
    async with watched() as (_, metastore, bookie):
        key = announcement_key(bookie.bookie_id, read_only=False)
        for _turn in range(2):
            await metastore.delete(key)
            assert await metastore.announced(BOOKIES_KEY) == {}
            await trio.sleep(40)
            assert list(await metastore.announced(BOOKIES_KEY)) == [bookie.bookie_id]
        assert metastore.steps == ["enters bookies", *["leaves bookies", "enters bookies"] * 2]
        await trio.sleep(100)
        assert len(metastore.steps) == 5


async def test_an_announcement_stays_while_the_metastore_fails(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with watched() as (_, metastore, _bookie):
        real, failing = metastore.announced, [True]

        async def announced(key: str) -> dict[str, bytes]:
            if failing[0]:
                raise MetastoreError("failed on purpose")
            return await real(key)

        metastore.announced = announced  # type: ignore[method-assign]
        await trio.sleep(100)
        failing[0] = False
        await trio.sleep(100)
        assert metastore.steps == ["enters bookies"]


async def test_start_fails_when_the_metastore_fails(autojump_clock: trio.testing.MockClock) -> None:
    async with watched() as (_, metastore, bookie):
        await bookie.kill()
        metastore.failures = 1
        with pytest.raises(MetastoreError, match="on purpose"):
            await bookie.start()


# -- starting after somebody else -----------------------------------------------------------------------------------


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_restarted_bookie_waits_for_its_killed_predecessor(
    read_only: bool, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its session, or lease, lives on for a while."""
    caplog.set_level(logging.WARNING)
    async with cluster(1) as world:
        (bookie,) = world.bookies
        await bookie.kill()
        began_s = trio.current_time()

        async def predecessor(task_status: trio.TaskStatus[None]) -> None:
            async with world.metastore.announce(announcement_key(bookie.bookie_id, read_only=read_only), OTHER):
                task_status.started()
                await trio.sleep(10)

        await world.nursery.start(predecessor)
        await bookie.start()
        assert 10 <= trio.current_time() - began_s < 11
        value = (await world.metastore.announced(BOOKIES_KEY))[bookie.bookie_id]
        assert decode_address(BOOKIES_KEY, value).endpoints[0].scheme == "memory"
        assert await world.metastore.announced(READ_ONLY_BOOKIES_KEY) == {}
    (record,) = [each for each in caplog.records if WAITS in each.getMessage()]
    assert "tcp:10.0.0.7:3181" in record.getMessage()


async def test_unannounced_key_is_named(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world:
        (bookie,) = world.bookies
        await bookie.kill()
        key = announcement_key(bookie.bookie_id, read_only=False)
        former, world.metastore = world.metastore, FaultyMetastore(Leased())
        for known in (f"{COOKIES_KEY}/{bookie.bookie_id}", "ledgers"):
            await world.metastore.create(known, (await former.get(known)).value)
        await world.metastore.create(key, b"what somebody put there")
        with pytest.raises(StorageInUseError, match=f"no process that is seen to live.*{key}"):
            await bookie.start()


@pytest.mark.parametrize("read_only", [False, True])
async def test_two_copies_of_one_directory_are_distinguished(
    read_only: bool, autojump_clock: trio.testing.MockClock
) -> None:
    options = BookieTuning(storage="memory", announce_timeout_s=20.0)
    async with cluster(1, options) as world:
        (bookie,) = world.bookies
        await bookie.kill()
        key = announcement_key(bookie.bookie_id, read_only=read_only)
        async with world.metastore.announce(key, OTHER):
            began_s = trio.current_time()
            with pytest.raises(StorageInUseError, match=r"tcp:10\.0\.0\.7:3181.*20 s.*copy of this directory"):
                await bookie.start()
            assert 20 <= trio.current_time() - began_s < 21
            parent, _, word = key.partition("/")
            assert await world.metastore.announced(parent) == {word: OTHER}
        await bookie.start()


async def test_waiting_start_can_be_cancelled(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world:
        (bookie,) = world.bookies
        await bookie.kill()
        async with world.metastore.announce(announcement_key(bookie.bookie_id, read_only=False), OTHER):
            with trio.move_on_after(5) as scope:
                await bookie.start()
            assert scope.cancelled_caught
        await bookie.start()


class Leased(MemoryMetastore):
    """One that knows nothing of who is alive: what the seam brings must do."""

    announce = Metastore.announce
    announced = Metastore.announced


async def test_with_leases_a_dead_predecessor_is_gone_after_the_lease(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(0) as world:
        world.metastore = FaultyMetastore(Leased())
        key = announcement_key("bookie-00", read_only=False)
        async with world.metastore.announce(key, OTHER):
            left_behind = (await world.metastore.get(key)).value
        await world.metastore.create(key, left_behind)
        began_s = trio.current_time()
        await world.add_bookie()
        assert Leased.lease_s <= trio.current_time() - began_s < 1.5 * Leased.lease_s


# -- after a process that held the same lock ---------------------------------------------------------------------


def locked(name: str | None, read_only: bool = False) -> bytes:
    return encode_address(BookieAddress((Endpoint("tcp", "10.0.0.7:3181"),), read_only, name))


async def leave_behind(world: Cluster, key: str, value: bytes) -> None:
    """Leaves the announcement of a killed process in a store that has leases."""
    async with world.metastore.announce(key, value):
        left_behind = (await world.metastore.get(key)).value
    await world.metastore.create(key, left_behind)


@pytest.mark.parametrize("read_only", [False, True])
async def test_predecessor_under_the_same_lock_is_not_waited_for(
    read_only: bool, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can hold no lock that this bookie holds: so it is gone, whatever its lease says."""
    monkeypatch.setattr(FaultyStorage, "lock_name", lambda _self: "here")
    async with cluster(0) as world:
        world.metastore = FaultyMetastore(Leased())
        key = announcement_key("bookie-00", read_only=read_only)
        await leave_behind(world, key, locked("here", read_only))
        began_s = trio.current_time()
        await world.add_bookie()
        assert trio.current_time() == began_s
        value = (await world.metastore.announced(BOOKIES_KEY))["bookie-00"]
        assert decode_address(BOOKIES_KEY, value).lock == "here"
        assert await world.metastore.announced(READ_ONLY_BOOKIES_KEY) == {}


@pytest.mark.parametrize(("mine", "theirs"), [("here", "there"), ("here", None), (None, "here"), (None, None)])
async def test_predecessor_under_another_lock_is_waited_for(
    mine: str | None, theirs: str | None, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may live, and serve a copy of the directory (B4)."""
    monkeypatch.setattr(FaultyStorage, "lock_name", lambda _self: mine)
    async with cluster(0) as world:
        world.metastore = FaultyMetastore(Leased())
        key = announcement_key("bookie-00", read_only=False)
        await leave_behind(world, key, locked(theirs))
        began_s = trio.current_time()
        await world.add_bookie()
        assert trio.current_time() - began_s >= Leased.lease_s


@pytest.mark.parametrize("is_before", [False, True])
async def test_copy_made_before_the_deletion_is_not_deleted(
    is_before: bool, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy takes the key over while this bookie looks: what was seen is not what would be deleted."""
    monkeypatch.setattr(FaultyStorage, "lock_name", lambda _self: "here")
    options = BookieTuning(storage="memory", announce_timeout_s=20.0)
    async with cluster(0, options) as world:
        world.metastore = FaultyMetastore(Leased())
        key = announcement_key("bookie-00", read_only=False)
        await leave_behind(world, key, locked("here"))
        found, get = await world.metastore.get(key), world.metastore.get

        async def announce_copy(task_status: trio.TaskStatus[None]) -> None:
            await world.metastore.delete(key, found.version)
            async with world.metastore.announce(key, locked("there")):
                task_status.started()
                await trio.sleep_forever()

        async def get_late(asked: str) -> Versioned:
            if asked != key:
                return await get(asked)
            world.metastore.get = get  # type: ignore[method-assign]
            version = None if is_before else await get(asked)
            await world.nursery.start(announce_copy)
            return version or await get(asked)

        world.metastore.get = get_late  # type: ignore[method-assign, assignment]
        with pytest.raises(StorageInUseError, match=r"tcp:10\.0\.0\.7:3181.*copy of this directory"):
            await world.add_bookie()
        assert (await world.metastore.announced(BOOKIES_KEY))["bookie-00"] == locked("there")


async def test_a_bookie_waits_in_stores_with_their_own_announcements(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FaultyStorage, "lock_name", lambda _self: "here")
    options = BookieTuning(storage="memory", announce_timeout_s=3.0)
    async with cluster(0, options) as world:
        announced = world.metastore.announced

        async def announced_elsewhere(key: str) -> dict[str, bytes]:
            return {"bookie-00": locked("here")} if key == BOOKIES_KEY else await announced(key)

        world.metastore.announced = announced_elsewhere  # type: ignore[method-assign]
        with pytest.raises(StorageInUseError):
            await world.add_bookie()


@pytest.mark.parametrize("scheme", ["files", "lmdb"])
def test_lock_name_belongs_to_one_directory_and_no_copies(scheme: str, tmp_path: Path) -> None:
    registry = Registry(load_installed=False)
    names = []
    for _ in range(2):
        with contextlib.closing(registry.open_storage(f"{scheme}:{tmp_path}/one")) as storage:
            names.append(storage.lock_name())
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    (tmp_path / "one").rename(tmp_path / "moved")
    for name in ("copy", "moved"):
        with contextlib.closing(registry.open_storage(f"{scheme}:{tmp_path}/{name}")) as storage:
            names.append(storage.lock_name())
    first, again, copy, moved = names
    assert first is not None
    assert first == again == moved
    assert copy not in (None, first)


# -- cookies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b'{"format": 2}', "format is 2, and this version of replog reads up to 1.*upgrade"),
        (b'{"format": 1, "required": ["cluster"]}', "'cluster'.*upgrade"),
        (b"yes", "not JSON"),
        (b"{}", "format is None"),
        (b'{"format": 1, "lost": 1}', r"1 is not of type bool @ \$\.lost"),
    ],
)
async def test_a_bookie_with_an_unknown_cookie_does_not_serve(
    value: bytes, words: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster(1) as world:
        (bookie,) = world.bookies
        await bookie.kill()
        key = f"{COOKIES_KEY}/{bookie.bookie_id}"
        found = await world.metastore.get(key)
        await world.metastore.put(key, value, found.version)
        with pytest.raises(MetastoreCorruptError, match=f"(?s){key}.*{words}"):
            await bookie.start()
        assert (await world.metastore.get(key)).value == value
