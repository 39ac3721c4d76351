"""The reader of a log that doesn't follow, where a roll has left the ledger before the last open (L2, L6)."""

from __future__ import annotations

import trio
import trio.testing

from replog.testing import FaultyMetastore
from tests.kit import Cluster, cluster, read_log, until


class _NoClosing(FaultyMetastore):
    """Lets nobody change a ledger's record: who dies amid a roll has not closed the ledger before."""

    async def put(self, key: str, value: bytes, expected: int) -> int:
        if key.startswith("ledgers/"):
            await trio.sleep_forever()
        return await super().put(key, value, expected)


async def die_amid_roll(world: Cluster, *data: bytes) -> None:
    """A leader appends an entry, rolls, appends these, and is gone before the first ledger is closed."""
    async with trio.open_nursery() as nursery:

        async def live() -> None:
            async with (
                world.client(metastore=_NoClosing(world.metastore.inner)) as client,
                client.write_log("log") as log,
            ):
                await log.append(b"0")
                await trio.sleep(0.5)  # it is idle, and says how far it is confirmed (W5)
                nursery.start_soon(log.roll)
                while log.segment == 1:  # noqa: ASYNC110 - it has no event
                    await trio.sleep(0.01)
                for each in data:
                    await log.append(each)
                await trio.sleep(0.5)
                nursery.cancel_scope.cancel()

        nursery.start_soon(live)


async def test_reader_ends_at_once_when_the_writer_died_during_a_roll(autojump_clock: trio.testing.MockClock) -> None:
    """Nothing behind the ledger that is still open is known to be confirmed: there is nothing to wait for."""
    async with cluster() as world:
        await die_amid_roll(world)
        async with world.client() as client:
            started = trio.current_time()
            assert await read_log(client) == [b"0"]
            assert trio.current_time() < started + 0.5
            assert len(await client.log_segments("log")) == 2


async def test_reader_ends_in_the_open_ledger_when_it_stays_open(autojump_clock: trio.testing.MockClock) -> None:
    """L6: an entry behind it is confirmed, but its writer is dead. It ends soon, skips nothing, and can go on where it ended."""
    async with cluster() as world:
        await die_amid_roll(world, b"1")
        async with world.client() as client:
            started = trio.current_time()
            async with client.read_log("log") as reader:
                assert [record.data async for record in reader] == [b"0"]
            assert trio.current_time() < started + 1.0
            async with client.write_log("log"):
                pass
            async with client.read_log("log", after=reader.position) as rest:
                assert [record.data async for record in rest] == [b"1"]


class _SlowClosing(FaultyMetastore):
    """A change of a ledger's record takes two seconds."""

    async def put(self, key: str, value: bytes, expected: int) -> int:
        if key.startswith("ledgers/"):
            await trio.sleep(2.0)
        return await super().put(key, value, expected)


async def test_reader_waits_for_a_slowly_closing_writer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """L2, L6: the ledger before the last is open for two seconds, while entries behind it are confirmed."""
    async with cluster() as world:
        metastore = _SlowClosing(world.metastore.inner)
        async with world.client(metastore=metastore) as writing, writing.write_log("log") as log:
            await log.append(b"0")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(log.roll)
                while log.segment == 1:  # noqa: ASYNC110 - it has no event
                    await trio.sleep(0.01)

                async def append() -> None:
                    while True:
                        await log.append(b"1")
                        await trio.sleep(0.1)

                nursery.start_soon(append)
                await trio.sleep(0.3)
                async with world.client() as client:
                    started = trio.current_time()
                    assert (await read_log(client))[:2] == [b"0", b"1"]
                    assert trio.current_time() > started + 1.0, "the ledger was closed only then"
                nursery.cancel_scope.cancel()


async def test_a_reader_waits_for_an_idle_writer_of_its_own_client(autojump_clock: trio.testing.MockClock) -> None:
    """L2, L6: nothing more is confirmed, but the writer is known to be alive."""
    async with cluster() as world:
        metastore = _SlowClosing(world.metastore.inner)
        async with world.client(metastore=metastore) as client, client.write_log("log") as log:
            await log.append(b"0")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(log.roll)
                while log.segment == 1:  # noqa: ASYNC110 - it has no event
                    await trio.sleep(0.01)
                await log.append(b"1")
                assert await read_log(client) == [b"0", b"1"]


async def test_a_reader_goes_on_when_a_takeover_closes_the_ledger(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world:
        await die_amid_roll(world, b"1")
        async with world.client() as client, trio.open_nursery() as nursery:
            ended_at: list[float] = []

            async def read() -> None:
                async with client.read_log("log") as reader:
                    assert [record.data async for record in reader] == [b"0", b"1"]
                ended_at.append(trio.current_time())

            nursery.start_soon(read)
            await trio.sleep(0.3)
            assert ended_at == [], "an entry behind is confirmed: its writer may be about to close the ledger"
            async with client.write_log("log"):
                taken_over_at = trio.current_time()
            await until(lambda: bool(ended_at))
            assert ended_at[0] < taken_over_at + 0.3
