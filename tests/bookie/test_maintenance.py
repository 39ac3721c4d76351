"""A bookie's work for its storage: making space, collecting garbage, reporting damage; also on demand (B5, B6, R4)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

import replog
import replog.records.paths
from replog.abc import Damage
from replog.bookie.serving import ServedBookie
from replog.config import BookieOptions
from replog.errors import MetastoreError, StorageFailedError, StorageFullError, StorageUncertainError
from replog.hookspecs import DamageFound, StorageFailed
from replog.records.bookies import READ_ONLY_BOOKIES_KEY
from replog.testing import Fault
from tests.bookie.disks import SmallStorage
from tests.kit import ONE, Bookie, Cluster, cluster, settle, until

OPTIONS = BookieOptions(storage="memory", read_only_below_bytes=10_000)
PLENTY = 1 << 30


class Small:
    """A cluster of one bookie on a small disk, and a client of it."""

    def __init__(self, world: Cluster, bookie: Bookie, client: replog.Client) -> None:
        self.world = world
        self.client = client
        self.bookie = bookie
        assert isinstance(bookie.storage, SmallStorage)
        self.storage = bookie.storage

    @property
    def served(self) -> ServedBookie:
        assert self.bookie.served is not None
        return self.bookie.served

    def count(self, name: str) -> float:
        return self.served.statistics()[name]

    async def is_announced_read_only(self) -> bool:
        return self.bookie.bookie_id in await self.world.metastore.announced(READ_ONLY_BOOKIES_KEY)

    async def write(self, size_bytes: int) -> int:
        """A ledger of so many bytes; its id."""
        async with self.client.create_ledger() as writer:
            await writer.append(bytes(size_bytes))
        return writer.ledger_id


@asynccontextmanager
async def small(left_bytes: int | None, *, is_instant: bool = True) -> AsyncIterator[Small]:
    async with cluster(0) as world, world.client(quorum=ONE) as client:
        bookie = Bookie(world, OPTIONS)
        world.bookies.append(bookie)
        bookie.storage = SmallStorage(bookie.storage.inner, left_bytes, is_instant=is_instant)
        await bookie.start()
        yield Small(world, bookie, client)


# -- making space -----------------------------------------------------------------------------------------------------


async def test_a_full_bookie_collects_compacts_and_is_writable_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """B5: by itself, long before garbage is collected the next time."""
    async with small(35_000) as one:
        ledger_id = await one.write(15_000)
        await one.client.delete_ledger(ledger_id)
        kept = await one.write(15_000)
        assert one.storage.left_bytes is not None
        assert one.storage.left_bytes < 10_000
        started = trio.current_time()
        await trio.sleep(1.5)
        assert one.storage.calls == [f"drop {ledger_id}", "major compaction"]
        assert await one.is_announced_read_only()
        one.storage.left_bytes = 20_000
        await trio.sleep(1.5)
        assert not await one.is_announced_read_only()
        assert trio.current_time() - started < 10
        await one.write(100)
        assert one.storage.ledger_ids()[0] == kept
        assert one.count("attempts_to_make_space") == 1
        assert one.count("ledgers_collected") == 1
        assert one.count("forced_compactions") == 0


async def test_space_from_compaction_is_enough(autojump_clock: trio.testing.MockClock) -> None:
    async with small(50_000) as one:
        await one.client.delete_ledger(await one.write(20_000))
        await one.write(25_000)
        await trio.sleep(5)
        assert not await one.is_announced_read_only()
        assert [type(event) for event in one.world.events if isinstance(event, StorageFailed)] == [StorageFailed]
        await one.write(100)


async def test_making_space_is_retried_at_intervals(autojump_clock: trio.testing.MockClock) -> None:
    async with small(5_000) as one:
        await trio.sleep(100)
        assert one.storage.calls == ["major compaction"] * 4
        assert one.count("attempts_to_make_space") == 4
        assert one.count("garbage_collections") == 4
        one.storage.left_bytes = PLENTY
        await trio.sleep(100)
        assert len(one.storage.calls) == 4


async def test_space_of_dropped_ledgers_is_given_back_soon(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It was deleted after the first attempt: nobody waits for the next one's time."""
    async with small(35_000) as one:
        ledger_id = await one.write(26_000)
        await trio.sleep(5)
        assert one.storage.calls == ["major compaction"]
        await one.client.delete_ledger(ledger_id)
        one.served.ask_for_collection()
        await trio.sleep(5)
        assert one.storage.calls[1:] == [f"drop {ledger_id}", "major compaction"]
        assert not await one.is_announced_read_only()


async def test_disk_is_not_made_to_wait_when_it_fills_again(autojump_clock: trio.testing.MockClock) -> None:
    async with small(35_000) as one:
        for turn in range(3):
            await one.client.delete_ledger(await one.write(26_000))
            await trio.sleep(5)
            assert not await one.is_announced_read_only()
            assert one.storage.calls.count("major compaction") == turn + 1
        assert one.count("attempts_to_make_space") == 3


async def test_presumed_space_is_not_searched_all_the_time(autojump_clock: trio.testing.MockClock) -> None:
    """Of this disk nothing is known: entries are tried every few seconds, but compaction is not."""
    async with small(5_000) as one:
        one.storage.tells_space = False
        one.storage.calls.clear()
        await trio.sleep(100)
        one.storage.left_bytes = 0
        async with one.client.create_ledger() as writer:
            with pytest.raises(replog.ReplogError):
                await writer.append(bytes(6_000))
            assert 1 <= one.count("attempts_to_make_space") <= 3


async def test_attempts_go_on_without_a_metastore_or_space(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with small(PLENTY) as one:
        one.world.metastore._choose = lambda operation, _key: Fault.UNAVAILABLE if operation == "get" else None
        one.storage.compact_error = StorageFullError("no room to work", "make some")
        one.storage.left_bytes = 5_000
        await trio.sleep(65)
        assert one.count("garbage_collection_failures") == 0  # nothing is here, so nothing was listed
        assert one.count("compaction_failures") == 3
        one.storage.compact_error = None
        await trio.sleep(30)
        assert one.storage.calls == ["major compaction"]


async def test_failed_pass_does_not_prevent_compaction(autojump_clock: trio.testing.MockClock) -> None:
    async with small(30_000) as one:
        await one.write(1_000)
        one.world.metastore._choose = lambda operation, _key: Fault.UNAVAILABLE if operation == "get" else None
        one.storage.left_bytes = 5_000
        await trio.sleep(5)
        assert one.count("garbage_collection_failures") == 1
        assert one.storage.calls == ["major compaction"]


async def test_a_storage_failure_while_making_space_stops_the_bookie(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with small(30_000) as one:
        one.storage.compact_error = StorageFailedError("a sync failed", "restart")
        one.storage.left_bytes = 5_000
        await trio.sleep(100)
        one.storage.left_bytes, one.storage.compact_error = PLENTY, None
        await trio.sleep(100)
        assert isinstance(one.served._server.failure, StorageFailedError)
        assert await one.is_announced_read_only()
        assert one.count("attempts_to_make_space") == 1


# -- on demand ----------------------------------------------------------------------------------------------------------


async def test_garbage_is_collected_on_demand_and_counted(autojump_clock: trio.testing.MockClock) -> None:
    async with small(None) as one:
        assert "last_garbage_collection_s" not in one.served.statistics()
        ids = [await one.write(10) for _ in range(3)]
        for ledger_id in ids[:2]:
            await one.world.metastore.delete(replog.records.paths.ledger_key_path(ledger_id))
        one.world.metastore.delay_s = 0.5
        assert await one.served.collect_garbage() == ids[:2]
        assert one.storage.ledger_ids() == ids[2:]
        assert one.count("last_garbage_collection_s") >= 0.5
        await trio.sleep(10)
        assert one.count("since_garbage_collection_s") == pytest.approx(10)
        assert await one.served.collect_garbage() == []
        assert one.count("forced_garbage_collections") == 2
        assert one.count("garbage_collections") == 2
        assert one.count("ledgers_collected") == 2


async def test_ledgers_dropped_in_a_failed_pass_are_counted(autojump_clock: trio.testing.MockClock) -> None:
    async with small(None) as one:
        ids = [await one.write(10) for _ in range(30)]
        for ledger_id in ids:
            await one.world.metastore.delete(replog.records.paths.ledger_key_path(ledger_id))
        asked: list[str] = []

        def choose(operation: str, key: str) -> Fault | None:
            asked.extend([key] if operation == "get" else [])
            return Fault.UNAVAILABLE if operation == "get" and len(asked) == 35 else None

        one.world.metastore._choose = choose
        with pytest.raises(MetastoreError):
            await one.served.collect_garbage()
        await trio.sleep(1)  # drops that were under way happen all the same
        left = one.storage.ledger_ids()
        assert 0 < len(left) < 30
        assert one.count("ledgers_collected") == 30 - len(left)
        assert one.count("garbage_collection_failures") == 1


async def test_compaction_and_scrubbing_on_demand(autojump_clock: trio.testing.MockClock) -> None:
    async with small(None) as one:
        await one.served.compact()
        await one.served.compact(is_major=True)
        assert await one.served.scrub() == ()
        assert one.storage.calls == ["minor compaction", "major compaction", "scrub"]
        assert one.count("forced_compactions") == 2
        assert one.count("forced_scrubs") == 1
        one.storage.compact_error = StorageFullError("no room to work", "make some")
        with pytest.raises(StorageFullError, match="room"):
            await one.served.compact()
        assert not one.served._server.is_read_only
        one.storage.compact_error = OSError("bare")
        with pytest.raises(StorageFailedError, match="contract"):
            await one.served.compact()
        assert isinstance(one.served._server.failure, StorageFailedError)
        assert one.count("compaction_failures") == 2


async def test_one_run_of_a_kind_at_a_time_delays_no_others() -> None:
    async with small(None, is_instant=False) as one, trio.open_nursery() as nursery:
        scrubbing = one.storage.hang("scrub")
        compacting = one.storage.hang("compact")
        for start in (one.served.scrub, one.served.compact, one.served.compact):
            nursery.start_soon(start)
        await until(lambda: all(one.storage.begun[name].is_set() for name in ("scrub", "compact")))
        assert one.served._server.calls._long == 2
        assert await one.served.collect_garbage() == []
        await one.write(10)  # commits go on
        compacting.set()
        await until(lambda: one.storage.calls == ["minor compaction"] * 2)
        assert one.served._server.calls._long == 1
        scrubbing.set()


async def test_a_run_goes_on_when_its_caller_is_cancelled() -> None:
    async with small(None, is_instant=False) as one:
        gate = one.storage.hang("compact")
        with trio.move_on_after(0.05) as scope:
            await one.served.compact(is_major=True)
        assert scope.cancelled_caught
        with trio.move_on_after(0.05) as scope:
            await one.served.compact()
        assert scope.cancelled_caught
        assert one.served._server.calls._long == 1
        gate.set()
        await until(lambda: one.storage.calls == ["major compaction", "minor compaction"])


@pytest.mark.real
@pytest.mark.parametrize("what", ["collect_garbage", "compact", "scrub"])
async def test_a_caller_gets_closed_when_the_bookie_is_left(what: str) -> None:
    async with small(None, is_instant=False) as one, trio.open_nursery() as nursery:
        await one.write(10)
        one.storage.hang(what)
        one.world.metastore.delay_s = 60.0 if what == "collect_garbage" else 0.0
        run: Callable[[], Awaitable[object]] = getattr(one.served, what)
        told = trio.Event()

        async def wait() -> None:
            with pytest.raises(trio.ClosedResourceError, match="was left"):
                await run()
            told.set()

        nursery.start_soon(wait)
        await trio.sleep(0.05)
        one.world.metastore.delay_s = 0.0
        with trio.fail_after(5):
            await one.bookie.kill()
            await told.wait()
        with pytest.raises(trio.ClosedResourceError):
            await run()


# -- damage -------------------------------------------------------------------------------------------------------------


def rot(ledger_id: int, first: int = 0, last: int = 0, description: str = "a bad sector") -> Damage:
    return Damage(ledger_id, 1, first, last, description)


async def test_damage_is_reported_once_and_again_after_a_repair(autojump_clock: trio.testing.MockClock) -> None:
    async with small(None) as one:
        one.storage.rotten = [rot(1), rot(1, 1, 9)]
        await trio.sleep(100)
        expected = [
            DamageFound(one.bookie.bookie_id, 1, 1, 0, 0, "a bad sector"),
            DamageFound(one.bookie.bookie_id, 1, 1, 1, 9, "a bad sector"),
        ]
        assert one.world.told(DamageFound) == expected
        assert one.count("damaged_batches") == 2
        one.storage.rotten.append(rot(2))
        await trio.sleep(11)
        assert len(one.world.told(DamageFound)) == 3
        mended = one.storage.rotten.pop(0)
        await trio.sleep(11)
        assert one.count("damaged_batches") == 2
        one.storage.rotten.append(mended)
        await trio.sleep(11)
        assert one.world.told(DamageFound)[3:] == expected[:1]


async def test_damage_found_by_scrubbing_is_reported_and_returned(autojump_clock: trio.testing.MockClock) -> None:
    async with small(None) as one:
        await settle()
        one.storage.found_by_scrubbing = [rot(7, 3, 4)]
        assert await one.served.scrub() == (rot(7, 3, 4),)
        assert one.world.told(DamageFound) == [DamageFound(one.bookie.bookie_id, 7, 1, 3, 4, "a bad sector")]
        assert await one.served.scrub() == (rot(7, 3, 4),)
        assert len(one.world.told(DamageFound)) == 1


async def test_much_damage_does_not_keep_others_waiting(autojump_clock: trio.testing.MockClock) -> None:
    async with small(None) as one:
        one.storage.found_by_scrubbing = [rot(ledger_id) for ledger_id in range(5000)]
        turns = 0

        async def take_turns() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_turns)
            await one.served.scrub()
            nursery.cancel_scope.cancel()
        assert len(one.world.told(DamageFound)) == 5000
        assert turns >= 50


async def test_damage_is_asked_again_when_a_storage_cannot_tell_now(autojump_clock: trio.testing.MockClock) -> None:
    async with small(None) as one:
        real, errors = one.storage.damage, [StorageUncertainError("not now", "later")]

        def damage() -> object:
            if errors:
                raise errors.pop()
            return real()

        one.storage.damage = damage  # type: ignore[assignment, method-assign]
        one.storage.rotten = [rot(1)]
        await trio.sleep(25)
        assert not errors
        assert len(one.world.told(DamageFound)) == 1
