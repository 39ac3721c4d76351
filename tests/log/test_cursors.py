"""Cursors: durable, named places of readers, and trims that wait for them."""

from __future__ import annotations

from functools import partial

import pytest
import trio
import trio.testing

import replog
from replog.config import ClientOptions
from replog.errors import (
    ConfigError,
    CursorLostError,
    CursorNotFoundError,
    LogNotFoundError,
    MetastoreError,
    MetastoreUncertainError,
    PositionError,
    TrimBlockedError,
    TrimmedError,
)
from replog.log import cursor_catalog
from replog.protocol.model import Position
from replog.records.paths import log_cursor_key_path, log_key_path
from replog.testing import Fault
from tests.kit import Cluster, cluster, until

QUICK = ClientOptions(metastore_timeout_s=2.0)
FAULTS = [Fault.ANSWER_LOST, Fault.REQUEST_LOST, Fault.ARRIVES_LATE, Fault.UNAVAILABLE, Fault.CONFLICT]
CURSORS = log_cursor_key_path("log")


async def fill(client: replog.Client, segments: int = 3, each: int = 3, log: str = "log") -> None:
    """Segments of so many entries, and an empty one at the end: 1:0 is b"1.0"."""
    async with client.write_log(log) as writer:
        for number in range(1, segments + 1):
            await writer.extend([b"%d.%d" % (number, entry) for entry in range(each)])
            await writer.roll()


def writes(world: Cluster) -> int:
    return sum(call.operation in ("create", "put") and call.key.startswith(CURSORS) for call in world.metastore.calls)


async def test_next_worker_goes_on_after_last_commit(autojump_clock: trio.testing.MockClock) -> None:
    """A new cursor starts at the beginning. Records that were returned and not committed are returned again."""
    async with cluster() as world, world.client() as client:
        await fill(client)
        async with client.cursor("log", "billing") as cursor:
            assert [(await cursor.receive()).data for _ in range(4)] == [b"1.0", b"1.1", b"1.2", b"2.0"]
            await cursor.commit()
            assert cursor.begins_at == Position(2, 1)
            assert (await cursor.receive()).data == b"2.1"
        async with client.cursor("log", "billing") as cursor:
            assert cursor.begins_at == Position(2, 1)
            assert [record.data async for record in cursor] == [b"2.1", b"2.2", b"3.0", b"3.1", b"3.2"]
            await cursor.commit()
        async with client.cursor("log", "billing") as cursor, client.cursor("log", "other") as other:
            assert [record.data async for record in cursor] == []
            assert (await other.receive()).data == b"1.0"


async def test_commit_covers_returned_and_not_fetched(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        await fill(client, segments=1, each=10)
        async with client.cursor("log", "billing") as cursor:
            await cursor.commit()
            assert cursor.begins_at == Position(1, 0)
            await cursor.receive()
            await cursor.commit()
            assert cursor.position == Position(1, 0)
            assert cursor.begins_at == Position(1, 1)
            batch = await cursor.receive_batch()
            assert batch is None or batch.first_position > Position(1, 0)
            await cursor.commit("1:4")
            assert cursor.begins_at == Position(1, 5)
            await cursor.commit("1:2")
            assert cursor.begins_at == Position(1, 5), "a commit never goes back"


async def test_start_and_after_say_where_it_begins(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        await fill(client)
        async with client.cursor("log", "late", start="2:1") as cursor:
            assert (await cursor.receive()).data == b"2.1"
        async with client.cursor("log", "late", start="3:0") as cursor:
            assert (await cursor.receive()).data == b"2.1", "it exists: start= is for new ones"
        async with client.cursor("log", "late", after="3:0") as cursor:
            assert (await cursor.receive()).data == b"3.1"
            assert cursor.begins_at == Position(2, 1)
        with pytest.raises(PositionError):
            async with client.cursor("log", "beyond", start="17:0"):
                pass
        with pytest.raises(LogNotFoundError):
            async with client.cursor("absent", "billing"):
                pass
        for bad in ("", 7):
            with pytest.raises(ConfigError, match="name of a cursor"):
                async with client.cursor("log", bad):  # type: ignore[arg-type]
                    pass
        assert [each.name for each in await client.cursors.list("log")] == ["late"]


async def test_follower_waits_for_log_and_records(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, world.client() as other:
        seen = []

        async def follow() -> None:
            async with other.cursor("log", "billing", follow=True) as cursor:
                async for record in cursor:
                    seen.append(record.data)
                    await cursor.commit()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await trio.sleep(5)
            await fill(client, segments=2, each=1)
            await until(lambda: len(seen) == 2)
            await until(lambda: writes(world) >= 3)
            nursery.cancel_scope.cancel()
        assert [each.begins_at for each in await client.cursors.list("log")] == [Position(2, 1)]


# -- one of several workers ---------------------------------------------------------------------------------------------


async def test_second_worker_waits_for_the_first(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, world.client() as other:
        await fill(client)
        order = []

        async def work(client: replog.Client, name: str) -> None:
            async with client.cursor("log", "billing") as cursor:
                order.append((name, (await cursor.receive()).data))
                await trio.sleep(50)
                await cursor.commit()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, client, "first")
            await trio.sleep(1)
            nursery.start_soon(work, other, "second")
        assert order == [("first", b"1.0"), ("second", b"1.1")]


async def test_paused_worker_loses_the_cursor_when_it_commits_late(autojump_clock: trio.testing.MockClock) -> None:
    """A commit with a lower term raises, writes nothing, and every later verb raises again."""
    async with cluster() as world, world.client() as client, world.client() as other:
        await fill(client)
        async with client.cursor("log", "billing") as paused:
            for _ in range(5):
                await paused.receive()
            async with other.cursor("log", "billing", wait=False) as cursor:
                assert cursor.term == paused.term + 1
                assert (await cursor.receive()).data == b"1.0"
                await cursor.commit()
                with pytest.raises(CursorLostError, match="in term 2"):
                    await paused.commit()
                with pytest.raises(CursorLostError):
                    await paused.receive()
                with pytest.raises(CursorLostError):
                    paused.commit_nowait()
                assert (await cursor.receive()).data == b"1.1"
                await cursor.commit()
        assert [each.begins_at for each in await client.cursors.list("log")] == [Position(1, 2)]


async def test_loss_seen_only_in_the_background_is_raised(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        await fill(client)
        with pytest.raises(CursorLostError):
            async with client.cursor("log", "billing") as cursor:
                await cursor.receive()
                await client.cursors.move("log", "billing", to="2:0")
                cursor.commit_nowait()
                await trio.sleep(1)
        assert [each.begins_at for each in await client.cursors.list("log")] == [Position(2, 0)]


# -- batches of commits -------------------------------------------------------------------------------------------------


async def test_commits_of_many_tasks_share_writes(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        await fill(client, segments=1, each=1000)
        async with client.cursor("log", "billing") as cursor:
            world.metastore.delay_s = 0.01
            before = writes(world)
            async with trio.open_nursery() as nursery:
                async for record in cursor:
                    nursery.start_soon(cursor.commit, record.position)
            world.metastore.delay_s = 0.0
            assert cursor.begins_at == Position(1, 1000)
            assert writes(world) - before <= 3


async def test_noted_commits_cost_ten_writes_a_second(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        await fill(client, segments=1, each=3000)
        async with client.cursor("log", "billing") as cursor:
            before = writes(world)
            async for record in cursor:
                cursor.commit_nowait()
                if record.entry % 3 == 0:
                    await trio.sleep(0.001)
            assert 3 <= writes(world) - before <= 12
            cursor.commit_nowait()
        assert [each.begins_at for each in await client.cursors.list("log")] == [Position(1, 3000)]


async def test_noted_commits_survive_a_failing_metastore(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        await fill(client)
        async with client.cursor("log", "billing") as cursor:
            await cursor.receive()
            world.metastore._choose = lambda operation, key: Fault.UNAVAILABLE if operation == "put" else None
            cursor.commit_nowait()
            await trio.sleep(10)
            with pytest.raises(MetastoreError):
                await cursor.commit()
            world.metastore._choose = None
            await trio.sleep(10)
            assert cursor.begins_at == Position(1, 1)


@pytest.mark.parametrize("fault", FAULTS)
async def test_answers_about_a_cursor_may_be_lost(fault: Fault, autojump_clock: trio.testing.MockClock) -> None:
    """M1: creating, acquiring, committing, moving and deleting."""
    async with cluster() as world, world.client(QUICK) as client:
        await fill(client)
        world.metastore.fail_next("put", fault, under=log_key_path("log"))
        world.metastore.fail_next("create", Fault.UNAVAILABLE if fault is Fault.CONFLICT else fault, under=CURSORS)
        async with client.cursor("log", "billing") as cursor:
            assert cursor.term == 1
            await cursor.receive()
            world.metastore.fail_next("put", fault, under=CURSORS)
            await cursor.commit()
            await cursor.receive()
            await cursor.commit()
        assert world.metastore.planned() == 0
        [found] = await client.cursors.list("log")
        assert (found.term, found.begins_at) == (1, Position(1, 2))
        world.metastore.fail_next("put", fault, under=CURSORS)
        world.metastore.fail_next("put", fault, under=log_key_path("log"))
        moved = await client.cursors.move("log", "billing", to="1:1")
        assert (moved.term, moved.begins_at) == (2, Position(1, 1))
        world.metastore.fail_next("put", fault, under=log_key_path("log"))
        world.metastore.fail_next("delete", Fault.UNAVAILABLE if fault is Fault.CONFLICT else fault, under=CURSORS)
        await client.cursors.delete("log", "billing")
        assert world.metastore.planned() == 0
        assert await client.cursors.list("log") == []
        assert await world.metastore.children(CURSORS) == []


async def test_cursor_is_not_put_behind_the_end_of_a_closed_segment() -> None:
    async with cluster() as world, world.client() as client:
        await fill(client, segments=2)
        [first, *_] = (await client.log_metadata("log")).segments
        behind = (await client.ledger_metadata(first.ledger_id)).last_entry_id
        assert behind is not None
        with pytest.raises(PositionError, match="that segment ends at"):
            async with client.cursor("log", "billing", start=Position(1, behind + 2)):
                pass
        assert await client.cursors.list("log") == [], "it was not created"
        async with client.cursor("log", "billing", start=Position(1, behind + 1)):
            pass
        with pytest.raises(PositionError, match="cursor 'billing' was not changed"):
            await client.cursors.move("log", "billing", to=Position(1, 99))
        [cursor] = await client.cursors.list("log")
        assert cursor.begins_at == Position(1, behind + 1)


async def test_commit_of_an_unwritten_position_skips_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, client.write_log("log") as log:
        await log.extend([b"0", b"1"])
        async with client.cursor("log", "billing", follow=True) as cursor:
            for _ in range(2):
                await cursor.receive()
            await cursor.commit()
            assert cursor.begins_at == Position(1, 2)
            with pytest.raises(PositionError):
                await cursor.commit("1:2")
            with pytest.raises(PositionError):
                cursor.commit_nowait("1:2")
        await log.append(b"2")
        async with client.cursor("log", "billing", follow=True) as cursor:
            assert (await cursor.receive()).data == b"2"


# -- trims --------------------------------------------------------------------------------------------------------------


async def test_trim_waits_for_the_slowest_cursor_and_names_it(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        await fill(client, segments=5)
        async with client.cursor("log", "fast") as fast, client.cursor("log", "slow") as slow:
            await fast.commit("4:1")
            await slow.commit("2:1")
            with pytest.raises(TrimBlockedError, match=r"'slow'.*2:2") as blocked:
                await client.trim_log("log", before="4:0")
            assert (blocked.value.cursor_name, blocked.value.needed_from) == ("slow", Position(2, 2))
            assert blocked.value.begins_at == Position(2, 0)
            assert [each.number for each in await client.log_segments("log")] == [2, 3, 4, 5, 6]
            assert await client.trim_log("log", before="2:0") == Position(2, 0)
            await slow.commit("2:2")
            # It has all of segment 2, which is closed: what it needs begins with the next one.
            assert await client.trim_log("log", before="3:0") == Position(3, 0)
        await client.cursors.delete("log", "slow")
        assert await client.trim_log("log", before="4:0") == Position(4, 0)
        with pytest.raises(TrimBlockedError, match="'fast'"):
            await client.trim_log("log", before="6:0")
        assert await client.trim_log("log", before="6:0", ignore_cursors=True) == Position(6, 0)
        assert len(await client.ledgers()) == 1


@pytest.mark.parametrize("ignore_cursors", [False, True])
async def test_cursor_continues_at_the_end_of_the_trimmed_part(
    ignore_cursors: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """Its worker had committed all of the segment that was dropped, so nothing is lost; nor is a later trim blocked."""
    async with cluster() as world, world.client(QUICK) as client:
        await fill(client)
        async with client.cursor("log", "billing") as cursor, client.cursor("log", "waits", start="2:0"):
            for _ in range(3):
                await cursor.receive()
            await cursor.commit()
            before = cursor.position
            await client.trim_log("log", before="2:0", ignore_cursors=ignore_cursors)
            assert (await cursor.lag()).entries == 6
            # The one that has it goes on.
            assert (await cursor.receive()).data == b"2.0"
            await cursor.commit("2:2")
            await client.cursors.move("log", "waits", to="3:0")
            await client.trim_log("log", before="3:0", ignore_cursors=ignore_cursors)
        for after in (None, Position(2, 2)):  # as a store of the worker's own has it
            async with client.cursor("log", "billing", after=after) as cursor:
                assert (await cursor.receive()).data == b"3.0"
        assert before == Position(1, 2)
        with pytest.raises(TrimmedError):
            await client.cursor("log", "billing", after=before).__aenter__()  # that store is behind the last commit
        async with client.cursor("log", "billing") as cursor:
            await cursor.commit("3:2")
        await fill(client, segments=1)
        assert await client.retain_log("log", committed=True) == Position(3, 0), "the other cursor needs it"


async def test_cursor_at_the_end_of_empty_segments_goes_on(autojump_clock: trio.testing.MockClock) -> None:
    """One that was never acquired, and one that is behind several segments that were trimmed since."""
    async with cluster() as world, world.client(QUICK) as client:
        async with client.write_log("log") as log:
            await log.append(b"x")
        async with client.cursor("log", "old") as cursor:
            assert [record.data async for record in cursor] == [b"x"]
            await cursor.commit()
        for number in (2, 3, 4):
            async with client.write_log("log"):
                pass
            assert await client.retain_log("log", committed=True) == Position(number, 0)
        async with client.cursor("log", "new"):
            pass
        async with client.write_log("log") as log:
            await log.append(b"y")
        assert await client.retain_log("log", committed=True) == Position(5, 0)
        for name, after in (("old", None), ("old", "1:0"), ("new", None)):
            async with client.cursor("log", name, after=after) as cursor:
                assert [record.data async for record in cursor] == [b"y"]


async def test_cursor_commits_again_when_a_trim_came_between(autojump_clock: trio.testing.MockClock) -> None:
    """The answer to its commit was lost, and it writes again."""
    async with cluster() as world, world.client(QUICK) as client:
        await fill(client)
        async with client.cursor("log", "billing") as cursor:
            put = world.metastore.inner.put

            async def trim_then_fail(key: str, value: bytes, expected: int) -> int:
                if not key.startswith(CURSORS):
                    return await put(key, value, expected)
                world.metastore.inner.put = put  # type: ignore[method-assign]
                await put(key, value, expected)
                await client.trim_log("log", before="2:0")
                raise MetastoreUncertainError("the answer was lost")

            world.metastore.inner.put = trim_then_fail  # type: ignore[method-assign]
            await cursor.commit("1:2")
            assert cursor.begins_at == Position(1, 3)
        async with client.cursor("log", "billing") as cursor:
            assert (await cursor.receive()).data == b"2.0"


async def test_cursor_before_the_first_available_says_where(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        await fill(client)
        async with client.cursor("log", "billing"):
            pass
        await client.trim_log("log", before="3:0", ignore_cursors=True)
        with pytest.raises(TrimmedError, match="move the cursor") as trimmed:
            async with client.cursor("log", "billing"):
                pass
        assert trimmed.value.first_available == Position(3, 0)
        for verb in (
            lambda: client.cursors.move("log", "billing", to="2:0"),
            lambda: client.cursor("log", "new", start="2:0").__aenter__(),
        ):
            with pytest.raises(TrimmedError):
                await verb()
        await client.cursors.move("log", "billing", to="3:0")
        async with client.cursor("log", "billing") as cursor:
            assert (await cursor.receive()).data == b"3.0"


async def test_creating_a_cursor_conflicts_with_a_trim(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cursor is created after the trim has looked for cursors, and before it cuts the list: the trim looks again."""
    async with cluster() as world, world.client() as client, world.client() as other:
        await fill(client)
        needed = cursor_catalog.CursorCatalog.needed
        created: list[bool] = []

        async def needed_then_created(self: cursor_catalog.CursorCatalog, head: replog.LogMetadata) -> object:
            found = await needed(self, head)
            if not created:
                created.append(True)
                async with other.cursor("log", "billing", start="2:1"):
                    pass
            return found

        monkeypatch.setattr(cursor_catalog.CursorCatalog, "needed", needed_then_created)
        with pytest.raises(TrimBlockedError):
            await client.trim_log("log", before="4:0")
        async with client.cursor("log", "billing") as cursor:
            assert (await cursor.receive()).data == b"2.1"


async def test_moving_back_conflicts_with_a_trim(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cursor is moved back after the trim has read it: it keeps its place, or who moves it learns that the place is gone."""
    async with cluster() as world, world.client() as client, world.client() as other:
        await fill(client)
        async with client.cursor("log", "billing") as cursor:
            await cursor.commit("3:0")
        needed = cursor_catalog.CursorCatalog.needed
        moved: list[object] = []

        async def needed_then_moved(self: cursor_catalog.CursorCatalog, head: replog.LogMetadata) -> object:
            found = await needed(self, head)
            if not moved:
                moved.append(await other.cursors.move("log", "billing", to="1:1"))
            return found

        monkeypatch.setattr(cursor_catalog.CursorCatalog, "needed", needed_then_moved)
        with pytest.raises(TrimBlockedError):
            await client.trim_log("log", before="3:0")
        async with client.cursor("log", "billing") as cursor:
            assert (await cursor.receive()).data == b"1.1"


async def test_move_reports_an_overtaking_trim(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, world.client() as other:
        await fill(client)
        async with client.cursor("log", "billing") as cursor:
            await cursor.commit("3:0")
        [known] = (await client.log_metadata("log")).cursors
        key = log_cursor_key_path("log", known.cursor_id)

        async def trim_then_put(put_key: str, value: bytes, expected: int) -> int:
            if put_key == key and not trimmed:
                trimmed.append(await other.trim_log("log", before="3:0"))
            return await put(put_key, value, expected)

        trimmed: list[Position] = []
        put, world.metastore.inner.put = world.metastore.inner.put, trim_then_put  # type: ignore[method-assign, assignment]
        with pytest.raises(TrimmedError):
            await client.cursors.move("log", "billing", to="1:1")
        assert trimmed == [Position(3, 0)]


# -- deleting -----------------------------------------------------------------------------------------------------------


async def test_worker_of_a_deleted_cursor_has_lost_it(autojump_clock: trio.testing.MockClock) -> None:
    """Deleted, and created again under its name: it is another one."""
    async with cluster() as world, world.client() as client:
        await fill(client)
        async with client.cursor("log", "billing") as cursor:
            await cursor.receive()
            await cursor.commit()
            await client.cursors.delete("log", "billing")
            async with client.cursor("log", "billing", wait=False) as again:
                assert again.term == 1
                await again.receive()
                await again.commit()
                await cursor.receive()
                with pytest.raises(CursorLostError, match="deleted"):
                    await cursor.commit()
        for verb in (client.cursors.delete, partial(client.cursors.move, to="1:0")):
            with pytest.raises(CursorNotFoundError, match="the log has billing"):
                await verb("log", "absent")


async def test_cursors_end_with_their_log(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        await fill(client)
        async with client.cursor("log", "billing") as cursor:
            await cursor.receive()
            await client.delete_log("log")
            with pytest.raises(CursorLostError, match="deleted"):
                await cursor.commit()
        assert await world.metastore.children(CURSORS) == []
        with pytest.raises(LogNotFoundError):
            await client.cursors.list("log")
        await fill(client)
        assert await client.cursors.list("log") == []


async def test_records_left_by_deletions_cut_short_are_swept(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        await fill(client)
        async with client.cursor("log", "billing"), client.cursor("log", "kept"):
            pass
        world.metastore._choose = lambda operation, key: (
            Fault.UNAVAILABLE if operation == "delete" and key.startswith(CURSORS) else None
        )
        with pytest.raises(MetastoreError):
            await client.cursors.delete("log", "billing")
        assert [each.name for each in await client.cursors.list("log")] == ["kept"]
        with pytest.raises(MetastoreError):
            await client.delete_log("log")
        world.metastore._choose = None
        assert len(await world.metastore.children(CURSORS)) == 2
        with pytest.raises(LogNotFoundError):
            await client.delete_log("log")
        assert await world.metastore.children(CURSORS) == []


async def test_acquiring_races_with_deleting(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cursor is deleted after it was found, and before its record is written: the worker gets a cursor that exists."""
    async with cluster() as world, world.client() as client, world.client() as other:
        await fill(client)
        create = cursor_catalog.CursorCatalog.create
        deleted: list[bool] = []

        async def create_then_delete(self: cursor_catalog.CursorCatalog, *args: object) -> object:
            found = await create(self, *args)  # type: ignore[arg-type]
            if not deleted:
                deleted.append(True)
                await other.cursors.delete("log", "billing")
            return found

        monkeypatch.setattr(cursor_catalog.CursorCatalog, "create", create_then_delete)
        async with client.cursor("log", "billing") as cursor:
            await cursor.receive()
            await cursor.commit()
        assert [each.begins_at for each in await client.cursors.list("log")] == [Position(1, 1)]
        assert len(await world.metastore.children(CURSORS)) == 1


async def test_a_log_has_a_bounded_number_of_cursors(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursor_catalog, "CURSORS_MAX", 2)
    async with cluster() as world, world.client() as client:
        await fill(client)
        for name in ("a", "b", "a"):
            async with client.cursor("log", name):
                pass
        with pytest.raises(ConfigError, match="delete one"):
            async with client.cursor("log", "c"):
                pass
