"""Cursors whose workers, deletions and metastore get in each other's way."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import trio
import trio.testing

from replog.errors import CursorLostError, LogNotFoundError, MetastoreError
from replog.protocol.model import Position
from replog.records.paths import log_cursor_key_path
from replog.testing import Fault
from tests.kit import Cluster, cluster
from tests.lanes.seeds import seeds
from tests.log.test_cursors import CURSORS, QUICK, fill


def forgets_no_cursor(world: Cluster) -> None:
    world.metastore._choose = lambda operation, key: (
        Fault.UNAVAILABLE if operation == "delete" and key.startswith(CURSORS) else None
    )


@pytest.mark.parametrize("what", ["cursor", "log"])
async def test_new_cursor_ends_one_left_half_deleted(what: str, autojump_clock: trio.testing.MockClock) -> None:
    """The record of the old one was left behind by a deletion cut short: its worker must not commit beside the new one's."""
    async with cluster() as world, world.client(QUICK) as client:
        await fill(client)
        async with client.cursor("log", "billing") as old:
            await old.receive()
            forgets_no_cursor(world)
            with pytest.raises(MetastoreError):
                await (client.cursors.delete("log", "billing") if what == "cursor" else client.delete_log("log"))
            world.metastore._choose = None
            assert len(await world.metastore.children(CURSORS)) == 1
            if what == "log":
                await fill(client)
            async with client.cursor("log", "billing", wait=False) as new:
                await new.receive()
                await new.commit()
                with pytest.raises(CursorLostError, match="deleted"):
                    await old.commit()
        assert len(await world.metastore.children(CURSORS)) == 1


async def test_sweep_of_a_log_deletes_left_cursors(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        await fill(client)
        async with client.cursor("log", "billing"), client.cursor("log", "kept"):
            pass
        forgets_no_cursor(world)
        with pytest.raises(MetastoreError):
            await client.cursors.delete("log", "billing")
        world.metastore._choose = None
        await client.jobs.sweep("log")
        [kept] = (await client.log_metadata("log")).cursors
        assert await world.metastore.children(CURSORS) == [kept.cursor_id]
        forgets_no_cursor(world)
        with pytest.raises(MetastoreError):
            await client.delete_log("log")
        world.metastore._choose = None
        await client.jobs.sweep("log")
        assert await world.metastore.children(CURSORS) == []


async def test_lost_cursor_does_not_deny_a_lost_answer(autojump_clock: trio.testing.MockClock) -> None:
    """The commit was written, its answer was lost, and another worker was faster than the look: who is told "not written"
    would take back work that nobody does again."""
    async with cluster() as world, world.client() as client, world.client() as other:
        await fill(client)
        async with client.cursor("log", "billing") as cursor:
            await cursor.receive()
            [known] = (await client.log_metadata("log")).cursors
            key = log_cursor_key_path("log", known.cursor_id)
            taken: list[bool] = []
            get = world.metastore.inner.get

            async def take_over_then_get(asked: str) -> object:
                if asked == key and not taken:
                    taken.append(True)
                    async with other.cursor("log", "billing", wait=False) as next_one:
                        assert next_one.begins_at == Position(1, 1)
                return await get(asked)

            world.metastore.fail_next("put", Fault.ANSWER_LOST, under=key)
            world.metastore.inner.get = take_over_then_get  # type: ignore[method-assign, assignment]
            with pytest.raises(CursorLostError, match="may be written") as lost:
                await cursor.commit()
            assert "not written" not in str(lost.value)
            assert taken


@pytest.mark.parametrize("seed", seeds(4, fast=2))
async def test_workers_share_nothing_when_they_take_over_at_once(
    seed: int, autojump_clock: trio.testing.MockClock
) -> None:
    """Five take the same cursor again and again, each without waiting: what is committed is never given out again, and no
    record is left out."""
    async with cluster() as world, world.client() as client:
        await fill(client, segments=2, each=10)
        world.metastore.delay_s = 0.01
        committed: list[Position] = []
        given: list[list[Position]] = []

        async def work(number: int) -> None:
            for turn in range(6):
                await trio.sleep(0.003 * ((seed + 7 * number + 3 * turn) % 11))
                with trio.move_on_after(5):
                    try:
                        async with client.cursor("log", "billing", wait=False) as cursor:
                            begins_at = cursor.begins_at
                            assert all(each < begins_at for each in committed), "it was committed before this began"
                            mine: list[Position] = []
                            given.append(mine)
                            for _ in range(2):
                                mine.append((await cursor.receive()).position)
                                await cursor.commit()
                                committed.append(mine[-1])
                    except (CursorLostError, trio.EndOfChannel):
                        continue

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(work, number)
        assert len(committed) == len(set(committed)), "one record was committed by two workers"
        [record] = await client.cursors.list("log")
        everything = [Position(segment, entry) for segment in (1, 2) for entry in range(10)]
        assert [each for each in everything if each < record.begins_at] == sorted(
            {each for mine in given for each in mine if each < record.begins_at}
        )


async def test_commit_after_cancelled_iteration(autojump_clock: trio.testing.MockClock) -> None:
    """It is cancelled at each checkpoint in turn: the commit covers what was returned, and the next one reads on there."""
    async with cluster() as world, world.client() as client:
        await fill(client, segments=1, each=5)
        async with client.cursor("log", "billing", follow=True) as cursor:
            seen: list[bytes] = []
            for pause_s in (0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0):
                with trio.move_on_after(pause_s):
                    seen.append((await cursor.receive()).data)
                await cursor.commit()
                assert cursor.begins_at == Position(1, len(seen))
            assert seen == [b"1.%d" % number for number in range(5)]
            with trio.move_on_after(math.nextafter(0, 1)):
                await cursor.receive()
            await cursor.commit()
            assert cursor.begins_at == Position(1, 5)


async def test_restored_log_has_its_cursors(autojump_clock: trio.testing.MockClock, tmp_path: Path) -> None:
    async with cluster() as world, world.client() as client:
        await fill(client)
        async with client.cursor("log", "billing") as cursor:
            await cursor.commit("2:0")
        await client.admin.backup(tmp_path / "backup")
    async with cluster() as world, world.client() as client:
        with pytest.raises(LogNotFoundError):
            await client.cursors.list("log")
        await client.admin.restore(tmp_path / "backup")
        async with client.cursor("log", "billing", start="1:0") as cursor:
            assert (await cursor.receive()).data == b"2.1", "where it was, not where a new one would begin"
