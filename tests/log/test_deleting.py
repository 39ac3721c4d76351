"""Logs that are deleted and begun anew: no position means two records, and no reader mixes them (L4, L6, M1)."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
import trio.testing

import replog
from replog.bookie.garbage import collect_garbage
from replog.config.client import ClientTuning
from replog.errors import (
    FencedError,
    LedgerDeletedError,
    LogNotFoundError,
    MetastoreError,
    NotEnoughBookiesError,
    PositionError,
    RecoveryUndecidedError,
    TrimmedError,
)
from replog.log.log_reader import LogReader
from replog.protocol.model import Position
from replog.records.paths import ledger_key_path, log_key_path
from replog.testing import Fault
from tests.kit import cluster, read_log, settle, until

QUICK = ClientTuning(
    add_timeout_s=1.0,
    read_timeout_s=1.0,
    add_quorum_timeout_s=4.0,
    metastore_timeout_s=2.0,
    recovery_timeout_s=4.0,
    takeover_timeout_s=10.0,
)


async def write(client: replog.Client, *data: bytes) -> list[Position]:
    """Appends these, each to a segment of its own."""
    positions = []
    async with client.write_log("log") as log:
        for place, each in enumerate(data):
            if place:
                await log.roll()
            positions.append(await log.append(each))
    return positions


async def test_a_log_created_again_continues_segment_numbers(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        old = await write(client, b"a", b"b", b"c")
        await client.delete_log("log")
        new = await write(client, b"d", b"e")
        assert new == [Position(4, 0), Position(5, 0)]
        assert await read_log(client) == [b"d", b"e"]
        metadata = await client.log_metadata("log")
        assert (metadata.deletions, metadata.is_deleted, metadata.segment_count) == (1, False, 2)
        for position in old:  # they are nobody's any more
            with pytest.raises(TrimmedError) as caught:
                async with client.read_log("log", after=position):
                    pass
            assert caught.value.first_available == Position(4, 0)
        await client.delete_log("log")
        assert await write(client, b"f") == [Position(6, 0)]
        assert len(await client.ledgers()) == 1


async def test_a_deleted_log_is_none(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        await write(client, b"a")
        await client.delete_log("log")
        assert await client.logs() == []
        assert await world.metastore.children("logs") == ["log"], "its numbers stay"

        async def read() -> None:
            async with client.read_log("log"):
                pass

        for verb in (
            read,
            lambda: client.log_metadata("log"),
            lambda: client.log_segments("log"),
            lambda: client.delete_log("log"),
            lambda: client.trim_log("log", before="1:0"),
        ):
            with pytest.raises(LogNotFoundError):
                await verb()


async def test_a_follower_of_a_deleted_log_waits_without_polling(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        await write(client, b"a")
        await client.delete_log("log")
        found: list[replog.Record] = []

        async def follow() -> None:
            async with client.read_log("log", follow=True) as reader:
                found.append(await reader.receive())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await settle()
            world.metastore.calls.clear()
            await trio.sleep(60)
            bookies_own = ("cookies/", "next-ledger-id", "ledgers")
            others = [call for call in world.metastore.calls if not call.key.startswith(bookies_own)]
            assert len(others) < 100, "bookies and clients look after themselves, nobody polls the log"
            assert not any(call.key == log_key_path("log") for call in world.metastore.calls)
            await write(client, b"b")
        assert [(record.data, record.position) for record in found] == [(b"b", Position(2, 0))]


@pytest.mark.parametrize("read_before", [1, 2, 3])
async def test_a_follower_raises_when_its_log_is_created_again(
    read_before: int, autojump_clock: trio.testing.MockClock
) -> None:
    """Also one that has read all of the old one: the new one is another log, though its numbers go on."""
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        await write(client, b"a", b"b", b"c")
        async with client.read_log("log", follow=True) as reader:
            found = [(await reader.receive()).data for _ in range(read_before)]
            await other.delete_log("log")
            await write(other, b"d", b"e")
            for _ in range(2):  # it stays so
                with trio.fail_after(60), pytest.raises(TrimmedError) as caught:
                    while True:
                        found.append((await reader.receive()).data)
                assert caught.value.first_available == Position(4, 0)
        assert found == [b"a", b"b", b"c"][: len(found)]


async def test_follower_raises_when_it_sees_the_deletion(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        await write(client, b"a")
        async with client.read_log("log", follow=True) as reader:
            assert (await reader.receive()).data == b"a"
            errors: list[Exception] = []

            async def wait(reader: LogReader) -> None:
                try:
                    await reader.receive()
                except LogNotFoundError as error:
                    errors.append(error)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait, reader)
                await settle()
                await client.delete_log("log")
                await until(lambda: bool(errors))


async def test_a_position_beyond_the_end_of_a_new_log_is_none(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        await write(client, b"a", b"b")
        await client.delete_log("log")
        await write(client, b"c")
        with pytest.raises(PositionError, match="its last segment is 3"):
            async with client.read_log("log", after="4:0"):
                pass


@pytest.mark.sized
@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.REQUEST_LOST, Fault.ARRIVES_LATE])
async def test_a_deletion_with_a_lost_answer_spares_the_next_log(
    fault: Fault, is_long: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """M1: whoever deletes reads back, and finds a log. Is it the one that was meant?"""
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        await write(client, b"a")
        world.metastore.delay_s = 0.01
        for delay_ms in range(0, 60, 4 if is_long else 12):
            world.metastore.fail_next("put", fault, under=log_key_path("log"))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.delete_log, "log")
                await trio.sleep(delay_ms / 1000)
                with suppress(LogNotFoundError):
                    await other.delete_log("log")
                await write(other, b"new")
            if await client.logs():
                assert await read_log(client) == [b"new"]
                assert len(await client.ledgers()) == 1
            else:  # the slower deletion came after it was begun anew
                assert await client.ledgers() == []
                await write(client, b"a")


async def test_log_stays_when_its_writer_cannot_be_fenced(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        async with world.client(QUICK) as other, other.write_log("log") as log:
            await log.append(b"a")
            for bookie in world.bookies[:2]:
                await bookie.kill()
            with pytest.raises((RecoveryUndecidedError, NotEnoughBookiesError)):
                await client.delete_log("log")
            assert await client.logs() == ["log"]
            for bookie in world.bookies[:2]:
                await bookie.start()
            await trio.sleep(5)
            with pytest.raises(FencedError):
                while True:
                    await log.append(b"b")
                    await trio.sleep(0.1)
        await client.delete_log("log")


async def test_interrupted_deletion_is_finished_by_the_next(autojump_clock: trio.testing.MockClock) -> None:
    """L7: what stands in pages is found again, and what stood in the record."""
    async with cluster() as world, world.client(QUICK) as client:
        client._opened.logs.page_segments = 2
        await write(client, *(b"%d" % number for number in range(9)))
        world.metastore._choose = lambda operation, key: (
            Fault.UNAVAILABLE if operation == "delete" and key.startswith("ledgers/") else None
        )
        with pytest.raises(MetastoreError):
            await client.delete_log("log")
        world.metastore._choose = None
        assert await client.logs() == []
        assert len(await client.ledgers()) == 9
        with pytest.raises(LogNotFoundError):
            await client.delete_log("log")
        assert await world.metastore.children("logs/log/pages") == []
        assert await client.ledgers() == []


async def test_deletion_ends_when_a_late_request_recreates_the_ledger(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its bookies were told that it is deleted, so it can't be recovered; its record goes all the same (M1, L7)."""
    async with cluster() as world, world.client(QUICK) as client:
        async with client.write_log("log") as log:
            await log.append(b"a")
            (segment,) = await client.log_segments("log")
            key = ledger_key_path(segment.ledger_id)
            record = await world.metastore.get(key)
        await world.metastore.delete(key)
        for bookie in world.bookies:
            assert await collect_garbage(bookie.server, world.metastore) == [segment.ledger_id]
        await world.metastore.create(key, record.value)
        with pytest.raises(LedgerDeletedError):
            await client.recover_ledger(segment.ledger_id)
        with trio.fail_after(QUICK.takeover_timeout_s):
            await client.delete_log("log")
        assert await client.logs() == []
        assert await client.ledgers() == []
