"""Operations on one log while another client does something else to it, at each call of the first to the metastore."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import pytest
import trio.testing

import replog
from replog.errors import FencedError, JobAbandonedError, LedgerNotFoundError, LogNotFoundError, TrimBlockedError
from replog.protocol.model import Position
from tests.interleaving import Between, each_place
from tests.kit import Cluster, cluster, read_log
from tests.lanes.seeds import some
from tests.log.test_cursors import fill

Operation = Callable[[replog.Client], Awaitable[object]]
Make = Callable[[Cluster], Between]


async def take_and_leave(client: replog.Client, name: str = "billing") -> None:
    async with client.cursor("log", name, wait=False):
        pass


OVERTAKEN = (FencedError, LedgerNotFoundError, LogNotFoundError)

FIRST: dict[str, Operation] = {
    "sweep": lambda client: client.jobs.sweep("log"),
    "trim": lambda client: client.trim_log("log", before="2:0"),
    "other cursor": partial(take_and_leave, name="other"),
    "deleting another": lambda client: client.cursors.delete("log", "old"),
    "retention": lambda client: client.retain_log("log", committed=True),
}


@pytest.mark.parametrize("what", some(FIRST, fast=2))
async def test_new_cursor_keeps_its_place_during_other_calls(what: str, autojump_clock: trio.testing.MockClock) -> None:
    """Its committed positions stay, and its uncommitted entries still exist."""

    async def race(make: Make) -> Between:
        async with cluster() as world, world.client() as client:
            await fill(client)
            await take_and_leave(client, "old")
            between = make(world)
            committed: list[Position] = []

            async def work() -> None:
                async with client.cursor("log", "billing", wait=False) as cursor:
                    for _ in range(4):
                        await cursor.receive()
                    await cursor.commit()
                    committed.append(cursor.begins_at)

            async with world.client(metastore=between) as first:
                between.meanwhile = work
                with suppress(TrimBlockedError):
                    await FIRST[what](first)
                between.meanwhile = None
            if committed:
                [record] = [each for each in await client.cursors.list("log") if each.name == "billing"]
                assert record.begins_at == committed[0]
                async with client.cursor("log", "billing", wait=False) as cursor:
                    assert (await cursor.receive()).data == b"2.1"
            return between

    await each_place(race)


@pytest.mark.parametrize("what", ["deletion", "takeover", "sweep"])
async def test_repeated_append_is_stored_once(what: str, autojump_clock: trio.testing.MockClock) -> None:
    """L11: by a producer whose log is deleted, taken over or swept just then, and which is begun again by the next append."""

    async def take_over(client: replog.Client) -> None:
        async with client.write_log("log") as log:
            await log.append(b"by another")

    operation: Operation = {
        "deletion": lambda client: client.delete_log("log"),
        "takeover": take_over,
        "sweep": lambda client: client.jobs.sweep("log"),
    }[what]

    async def race(make: Make) -> Between:
        async with cluster() as world, world.client() as client:
            async with client.write_log("log") as log:
                await log.append(b"before", id=("me", 1))
            between = make(world)
            places: list[Position] = []

            async def produce() -> None:
                with suppress(*OVERTAKEN):
                    async with client.write_log("log") as log:
                        places.append(await log.append(b"amid", id=("me", 2)))

            async with world.client(metastore=between) as first:
                between.meanwhile = produce
                with suppress(*OVERTAKEN):
                    await operation(first)
                between.meanwhile = None
            async with client.write_log("log") as log:
                again = await log.append(b"amid", id=("me", 2))
            assert (await read_log(client)).count(b"amid") == 1, f"it is there twice: at {places} and at {again}"
            return between

    await each_place(race)


async def test_abandoned_job_commits_nothing_afterwards(autojump_clock: trio.testing.MockClock) -> None:
    """Its driver writes a ledger of what its tasks have sent, looks whether the job goes on, and commits in the end."""

    async def race(make: Make) -> Between:
        async with cluster() as world, world.client() as client:
            await client._opened.ledgers.jobs.begin("log", "job")
            between = make(world)
            written: list[int] = []

            async def write() -> None:
                async with client.create_ledger(custom={"log": "log", "job": "job"}) as writer:
                    await writer.append(b"a row")
                if await client._opened.ledgers.jobs.has_begun("log", "job"):
                    written.append(writer.ledger_id)

            async with world.client(metastore=between) as first:
                between.meanwhile = write
                await first.jobs.sweep("log", job="job")
                between.meanwhile = None
            for ledger_id in written:
                with pytest.raises((JobAbandonedError, LedgerNotFoundError)):
                    await client.jobs.append_ledgers("log", [ledger_id], job="job")
            return between

    await each_place(race)


@pytest.mark.parametrize("what", ["deletion", "takeover", "sweep", "trim"])
async def test_confirmed_entry_exists_unless_the_log_was_deleted(
    what: str, autojump_clock: trio.testing.MockClock
) -> None:
    """L5: a client whose operation lasts over the appends of another one deletes none of what that was told is confirmed."""

    async def take_over(client: replog.Client) -> None:
        async with client.write_log("log"):
            pass

    operation: Operation = {
        "deletion": lambda client: client.delete_log("log"),
        "takeover": take_over,
        "sweep": lambda client: client.jobs.sweep("log"),
        "trim": lambda client: client.trim_log("log", before="2:0"),
    }[what]

    async def race(make: Make) -> Between:
        async with cluster() as world, world.client() as client:
            await fill(client, segments=2, each=1)
            between = make(world)
            confirmed: list[bytes] = []

            async def produce() -> None:
                with suppress(*OVERTAKEN):
                    async with client.write_log("log") as log:
                        for data in (b"amid", b"later"):
                            await log.append(data)
                            confirmed.append(data)
                            await log.roll()

            async with world.client(metastore=between) as first:
                between.meanwhile = produce
                with suppress(*OVERTAKEN):
                    await operation(first)
                between.meanwhile = None
            async with client.write_log("log"):
                pass  # what a writer left open is closed
            found = [data for data in await read_log(client) if data in (b"amid", b"later")]
            if found or what != "deletion":
                # Of a log that is begun again when it was deleted, all is there or nothing.
                assert found[: len(confirmed)] == confirmed
            return between

    await each_place(race)
