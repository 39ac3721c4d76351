"""A bookie that is served: its cookie, how it is announced, and its garbage (B4, B5, B6, L5)."""

from __future__ import annotations

import gc
from contextlib import AbstractAsyncContextManager, suppress

import pytest
import trio
import trio.testing

import replog
from replog.abc import Storage
from replog.backends import memory
from replog.bookie import garbage
from replog.bookie.garbage import collect_garbage
from replog.bookie.serving import Way, open_storage, serving, storage_url
from replog.config import BackendURL, BookieOptions
from replog.config.bookie import BookieTuning
from replog.config.client import ClientTuning
from replog.errors import (
    ConfigError,
    FencedError,
    MetastoreError,
    NotEnoughBookiesError,
    StorageFailedError,
    StorageFullError,
    StorageIdentityError,
    StorageUncertainError,
)
from replog.hookspecs import StorageFailed
from replog.metastores.memory import MemoryMetastore
from replog.protocol.mutations import DELETED_TERM
from replog.records.bookies import (
    BOOKIES_KEY,
    COOKIES_KEY,
    READ_ONLY_BOOKIES_KEY,
    decode_address,
)
from replog.records.paths import ledger_key_path
from replog.registry import Registry
from replog.testing import Fault
from replog.transports.memory import MemoryTransport
from tests.kit import ONE, Cluster, cluster, read_ledger, until

OPTIONS = BookieOptions(storage="memory")
QUICK = ClientTuning(add_timeout_s=1.0, bookie_retry_after_s=1.0, add_quorum_timeout_s=60.0)


async def announced(world: Cluster) -> dict[str, bool]:
    """The announced bookies, and whether they are read-only. A bookie under both keys is about to turn."""
    found = {}
    for parent in (BOOKIES_KEY, READ_ONLY_BOOKIES_KEY):
        for bookie_id, value in (await world.metastore.announced(parent)).items():
            address = decode_address(f"{parent}/{bookie_id}", value)
            assert address.read_only is (parent == READ_ONLY_BOOKIES_KEY)
            found[bookie_id] = address.read_only
    return found


# -- identity -------------------------------------------------------------------------------------------------------


async def test_a_bookie_with_ledgers_refuses_an_unknown_metastore(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """B4: it would collect them all as garbage."""
    async with cluster(1) as world, world.client(quorum=ONE) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
        (bookie,) = world.bookies
        await bookie.kill()
        storage = memory.open_storage(bookie.name)
        try:
            with pytest.raises(StorageIdentityError, match="Nothing was touched"):
                async with serving(
                    storage, MemoryMetastore(), [Way("memory", MemoryTransport(), "")], OPTIONS, world.registry.observe
                ):
                    pytest.fail("it serves")
            storage = memory.open_storage(bookie.name)
            assert storage.ledger_ids() == [writer.ledger_id]
        finally:
            storage.close()
        await bookie.start()
        assert await read_ledger(client, writer.ledger_id) == [b"0"]


@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.REQUEST_LOST, Fault.UNAVAILABLE])
async def test_a_new_bookie_leaves_its_cookie_or_does_not_serve(
    fault: Fault, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster(1) as world:
        world.metastore.fail_next("create", fault, under=COOKIES_KEY)
        if fault is not Fault.UNAVAILABLE:
            await world.add_bookie()
        else:
            with pytest.raises(MetastoreError):
                await world.add_bookie()
        for bookie_id in await announced(world):
            assert (await world.metastore.get(f"{COOKIES_KEY}/{bookie_id}")).value


async def test_a_bookie_is_announced_only_while_it_serves(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(2) as world:
        first, second = world.bookies
        assert await announced(world) == {first.bookie_id: False, second.bookie_id: False}
        await first.kill()
        assert await announced(world) == {second.bookie_id: False}
        await first.start()
        assert len(await announced(world)) == 2


async def test_storages_are_named_by_urls() -> None:
    assert str(storage_url("files", "/d/bookie-0")) == "files:/d/bookie-0"
    assert storage_url("files?a=b", "/d").options == {"a": "b"}
    with pytest.raises(ConfigError):
        storage_url("no url", "/d")
    with pytest.raises(ConfigError, match="known"):
        await open_storage(Registry(load_installed=False), BackendURL("nothing", "/d"))


# -- full disks -----------------------------------------------------------------------------------------------------


async def test_a_full_bookie_is_announced_read_only_and_comes_back(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(4) as world, world.client(QUICK) as client:
        full = world.bookies[0]
        async with client.create_ledger(quorum=replog.Quorum(4, 4, 2)) as writer:
            await writer.append(b"0")
            full.storage.commit_error = StorageFullError("no space", "make some")
            await writer.append(b"1")
            await trio.sleep(1)
            assert (await announced(world))[full.bookie_id]
            for _ in range(10):  # nobody chooses it
                async with client.create_ledger() as other:
                    assert full.bookie_id not in other.metadata.last_fragment.ensemble
            await trio.sleep(100)
            await writer.append(b"2")  # it is tried again now and then
            full.storage.commit_error = None
            await trio.sleep(100)
            await writer.append(b"3")
            await trio.sleep(10)
            assert (await announced(world)) == {bookie.bookie_id: False for bookie in world.bookies}
            assert full.storage.read(writer.ledger_id, 3, 1, 1)
        assert world.told(StorageFailed)
        assert await read_ledger(client, writer.ledger_id) == [b"0", b"1", b"2", b"3"]


async def test_append_fails_by_name_when_all_disks_stay_full(autojump_clock: trio.testing.MockClock) -> None:
    """B10: within the seconds that a bookie takes to give back what was deleted."""
    async with cluster(1) as world, world.client(QUICK, ONE) as client:
        (full,) = world.bookies
        with pytest.raises(NotEnoughBookiesError) as failed:
            async with client.create_ledger() as writer:
                await writer.append(b"0")
                full.storage.commit_error = StorageFullError("disk full: no space left", "make some")
                began_s = trio.current_time()
                await writer.append(b"1")
        assert trio.current_time() - began_s < 3
        assert isinstance(root_of(failed.value), StorageFullError)
        assert "disk full: no space left. make some" in str(root_of(failed.value))
        with pytest.raises(NotEnoughBookiesError, match="disk full") as refused:
            async with client.create_ledger():
                pass
        assert isinstance(refused.value.__cause__, StorageFullError)
        full.storage.commit_error = None
        await trio.sleep(20)
        async with client.create_ledger() as writer:
            await writer.append(b"2")


def root_of(error: BaseException) -> BaseException:
    """The first cause of an error."""
    return error if error.__cause__ is None else root_of(error.__cause__)


async def test_bookie_is_not_offered_again_after_its_storage_failed(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(4) as world, world.client(QUICK) as client:
        async with client.create_ledger(quorum=replog.Quorum(4, 4, 2)) as writer:
            await writer.append(b"0")
            world.bookies[0].storage.commit_error = StorageFailedError("a sync failed", "restart")
            await writer.append(b"1")
            world.bookies[0].storage.commit_error = None
            await trio.sleep(200)
            assert (await announced(world))[world.bookies[0].bookie_id]
            await writer.append(b"2")


async def test_a_metastore_failure_while_turning_stops_no_bookie(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster(2) as world, world.client(QUICK, replog.Quorum(2, 2, 1)) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            real = world.metastore.announce
            failures = 0

            def failing(key: str, value: bytes) -> AbstractAsyncContextManager[None]:
                nonlocal failures
                failures += 1
                if failures < 3:
                    raise MetastoreError("failed on purpose")
                return real(key, value)

            world.metastore.announce = failing  # type: ignore[assignment, method-assign]
            world.bookies[0].storage.commit_error = StorageFullError("no space", "make some")
            await writer.append(b"1")
            await trio.sleep(4)
            assert failures == 3
            assert (await announced(world))[world.bookies[0].bookie_id]


# -- garbage --------------------------------------------------------------------------------------------------------


async def test_deleted_ledgers_are_dropped_and_others_are_not(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world, world.client(quorum=ONE) as client:
        ids = []
        for _ in range(10):
            async with client.create_ledger() as writer:
                await writer.append(b"x")
                ids.append(writer.ledger_id)
        (bookie,) = world.bookies
        for ledger_id in ids[::2]:
            await client.delete_ledger(ledger_id)
        dropped = await collect_garbage(bookie.server, world.metastore)
        assert set(dropped) <= set(ids[::2]), "the others went when the bookie was told"
        assert bookie.storage.ledger_ids() == ids[1::2]
        assert await collect_garbage(bookie.server, world.metastore) == []
        for ledger_id in ids[1::2]:
            assert await read_ledger(client, ledger_id) == [b"x"]


async def test_local_snapshot_precedes_the_listing(autojump_clock: trio.testing.MockClock) -> None:
    """B6: a ledger that is created while garbage is collected is never taken for deleted."""
    async with cluster(1) as world, world.client(quorum=ONE) as client:
        world.metastore.delay_s = 0.01
        created: list[int] = []
        (bookie,) = world.bookies
        async with trio.open_nursery() as nursery:

            async def create() -> None:
                while True:
                    async with client.create_ledger() as writer:
                        await writer.append(b"x")
                        created.append(writer.ledger_id)

            for _ in range(3):
                nursery.start_soon(create)
            for _ in range(80):
                assert await collect_garbage(bookie.server, world.metastore) == []
                await trio.sleep(0.003)
            nursery.cancel_scope.cancel()
        assert len(created) > 20
        for ledger_id in created:
            assert await read_ledger(client, ledger_id) == [b"x"]


@pytest.mark.parametrize("operation", ["children", "get"])
@pytest.mark.parametrize("which", range(4))
async def test_metastore_error_drops_no_existing_ledger(
    operation: str, which: int, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "UNLISTED_MAX", 0)
    async with cluster(1) as world, world.client(quorum=ONE) as client:
        ids = []
        for _ in range(3):
            async with client.create_ledger() as writer:
                await writer.append(b"x")
                ids.append(writer.ledger_id)
        await client.delete_ledger(ids[0])
        (bookie,) = world.bookies
        asked = 0

        def choose(each: str, _key: str) -> Fault | None:
            nonlocal asked
            asked += each == operation
            return Fault.UNAVAILABLE if each == operation and asked > which else None

        world.metastore._choose = choose
        with suppress(MetastoreError):
            await collect_garbage(bookie.server, world.metastore)
        world.metastore._choose = None
        assert set(ids[1:]) <= set(bookie.storage.ledger_ids())


async def test_wrong_listing_is_checked_candidate_by_candidate(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "UNLISTED_MAX", 0)
    async with cluster(1) as world, world.client(quorum=ONE) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"x")
        (bookie,) = world.bookies

        async def nothing(key: str) -> list[str]:
            return []

        real, world.metastore.children = world.metastore.children, nothing  # type: ignore[method-assign]
        assert await collect_garbage(bookie.server, world.metastore) == []
        world.metastore.children = real  # type: ignore[method-assign]
        assert bookie.storage.ledger_ids() == [writer.ledger_id]


async def test_failed_pass_is_repeated(autojump_clock: trio.testing.MockClock) -> None:
    options = BookieTuning(storage="memory", garbage_collection_interval_s=10.0)
    async with cluster(1, options) as world, world.client(quorum=ONE) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"x")
        await client.delete_ledger(writer.ledger_id)
        (bookie,) = world.bookies
        world.metastore._choose = lambda operation, _key: Fault.UNAVAILABLE if operation == "get" else None
        await trio.sleep(25)
        assert bookie.storage.ledger_ids() == [writer.ledger_id]
        assert bookie.served is not None
        assert bookie.served.statistics()["garbage_collection_failures"] == 2
        world.metastore._choose = None
        await trio.sleep(15)
        assert bookie.storage.ledger_ids() == []
        assert bookie.served.statistics()["ledgers_collected"] == 1


async def test_a_writer_of_a_deleted_ledger_is_fenced_after_a_restart(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster(1) as world, world.client(quorum=ONE) as client:
        (bookie,) = world.bookies
        with pytest.raises(FencedError):
            async with client.create_ledger() as writer:
                await writer.append(b"x")
                await client.delete_ledger(writer.ledger_id)
                assert bookie.served is not None
                bookie.served.ask_for_collection()
                await until(lambda: bookie.storage.ledger_ids() == [])
                await bookie.kill()
                await bookie.start()
                marks = bookie.storage.marks(writer.ledger_id)
                assert marks is not None
                assert marks.fence_term == DELETED_TERM
                await writer.append(b"late")
        assert bookie.storage.ledger_ids() == []


async def test_read_reports_the_deletion_of_its_ledger(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world, world.client(quorum=ONE) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"x")
        (bookie,) = world.bookies
        bookie.storage.read_errors[writer.ledger_id] = StorageUncertainError("being dropped", "")
        await world.metastore.delete(ledger_key_path(writer.ledger_id))
        with pytest.raises(replog.errors.LedgerNotFoundError):
            await read_ledger(client, writer.ledger_id)


async def test_nothing_is_searched_for_garbage_while_a_storage_opens(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes objects for each ledger."""
    searched: list[bool] = []
    original = Registry.open_storage

    def opened(registry: Registry, url: BackendURL) -> Storage:
        searched.append(gc.isenabled())
        return original(registry, url)

    monkeypatch.setattr(Registry, "open_storage", opened)
    gc.enable()
    (await open_storage(Registry(), BackendURL("memory"))).close()
    assert searched == [False]
    assert gc.isenabled()
