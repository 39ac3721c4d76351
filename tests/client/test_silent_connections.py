"""A bookie that can't even be connected to, and doesn't say so, holds up nobody who can do with the others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

import replog
from replog.abc import Authenticator, Connection, ResponseReceiver
from replog.client.connections import Connections
from replog.client.ledger_writer import LedgerWriter
from replog.config.client import ClientTuning
from replog.errors import BookieUnreachableError, NotEnoughBookiesError
from replog.protocol.quorum import Quorum
from replog.transports.memory import MemoryTransport
from tests.kit import Cluster, cluster, read_ledger

OPTIONS = ClientTuning(
    connect_timeout_s=5.0, speculative_read_after_s=0.5, read_timeout_s=2.0, follow_wait_s=1.0, add_timeout_s=2.0
)


class Holes(MemoryTransport):
    """Where connecting to bookies takes long, or for ever, or fails."""

    def __init__(self) -> None:
        self.silent: set[str] = set()
        self.refusing: set[str] = set()
        self.slow_s = 0.0
        self.attempts: list[str] = []

    async def connect(
        self,
        address: str,
        receiver: ResponseReceiver,
        nursery: trio.Nursery,
        *,
        bookie_id: str = "",
        authenticator: Authenticator | None = None,
    ) -> Connection:
        self.attempts.append(bookie_id)
        if bookie_id in self.silent:
            await trio.sleep_forever()
        await trio.sleep(self.slow_s)
        if bookie_id in self.refusing:
            raise BookieUnreachableError(bookie_id, "refused")
        return await super().connect(address, receiver, nursery, bookie_id=bookie_id, authenticator=authenticator)


def connections_of(client: replog.Client) -> Connections:
    return client._opened.ledgers.context.connections


@asynccontextmanager
async def client_with_holes(world: Cluster) -> AsyncIterator[tuple[replog.Client, Holes]]:
    async with world.client(OPTIONS, Quorum(3, 3, 2)) as client:
        holes = Holes()
        connections_of(client)._transports["memory"] = holes
        yield client, holes


async def a_closed_ledger(world: Cluster, *, is_open: bool = False) -> int:
    async with world.client(OPTIONS, Quorum(3, 3, 2)) as client:
        writer = LedgerWriter(await client._opened.ledgers.create(client.default_quorum))
        for number in range(30):
            await writer.append(b"%d" % number)
        if not is_open:
            await writer.aclose()
        return writer.ledger_id


@pytest.mark.parametrize("silent", range(3))
async def test_a_scan_waits_no_longer_than_for_a_slow_answer(
    silent: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster(3) as world:
        ledger_id = await a_closed_ledger(world)
        async with client_with_holes(world) as (client, holes):
            holes.silent.add(world.bookies[silent].bookie_id)
            started_s = trio.current_time()
            assert len(await read_ledger(client, ledger_id)) == 30
            assert trio.current_time() - started_s < 2 * OPTIONS.speculative_read_after_s
            started_s = trio.current_time()
            for _ in range(10):
                assert len(await read_ledger(client, ledger_id)) == 30
            assert trio.current_time() - started_s < 2 * OPTIONS.speculative_read_after_s, "once was enough"


@pytest.mark.parametrize("silent", range(3))
async def test_recovery_waits_once_for_a_silent_bookie(silent: int, autojump_clock: trio.testing.MockClock) -> None:
    """R10: the denials of the others are enough, but who is silent may have a copy."""
    async with cluster(3) as world:
        ledger_id = await a_closed_ledger(world, is_open=True)
        async with client_with_holes(world) as (client, holes):
            holes.silent.add(world.bookies[silent].bookie_id)
            started_s = trio.current_time()
            assert (await client.recover_ledger(ledger_id)).last_entry_id == 29
            assert trio.current_time() - started_s == pytest.approx(OPTIONS.absence_wait_s)


@pytest.mark.parametrize("silent", range(3))
async def test_a_follower_hears_of_news_as_soon_as_from_the_others(
    silent: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster(3) as world, world.client(OPTIONS, Quorum(3, 3, 2)) as writing:
        async with writing.write_log("log") as log, client_with_holes(world) as (client, holes):
            holes.silent.add(world.bookies[silent].bookie_id)
            await log.append(b"first")
            async with client.read_log("log", follow=True) as reader:
                assert (await reader.receive()).data == b"first"
                for number in range(20):
                    await log.append(b"%d" % number)
                    appended_s = trio.current_time()
                    with trio.fail_after(20):
                        assert (await reader.receive()).data == b"%d" % number
                    assert trio.current_time() - appended_s < 2 * OPTIONS.speculative_read_after_s


async def test_tasks_share_an_attempt_to_connect_and_its_failure(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster(1) as world, client_with_holes(world) as (client, holes):
        (bookie_id,) = holes.silent = {world.bookies[0].bookie_id}
        raised: list[BookieUnreachableError] = []

        async def connect() -> None:
            with pytest.raises(BookieUnreachableError, match="too long") as error:
                await connections_of(client).connect(bookie_id)
            raised.append(error.value)

        started_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(connect)
        assert trio.current_time() - started_s == pytest.approx(OPTIONS.connect_timeout_s, abs=0.1)
        assert len(set(map(id, raised))) == 20, "each has its own"
        assert holes.attempts == [bookie_id]
        holes.silent.clear()
        await connections_of(client).connect(bookie_id)


async def test_attempt_outlives_its_caller_and_fails_no_other(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world, client_with_holes(world) as (client, holes):
        (bookie_id,) = holes.silent = {world.bookies[0].bookie_id}
        with trio.move_on_after(0.1):
            await connections_of(client).connect(bookie_id)
        await trio.sleep(2 * OPTIONS.connect_timeout_s)
        assert holes.attempts == [bookie_id]


async def test_refusing_bookie_is_not_stormed(autojump_clock: trio.testing.MockClock) -> None:
    """A follower asks whenever there is news: each time it would try to connect to the bookie that is gone."""
    async with cluster(3) as world, client_with_holes(world) as (client, holes):
        bookie_ids = [bookie.bookie_id for bookie in world.bookies]
        holes.refusing.add(bookie_ids[0])
        for _ in range(1000):
            await connections_of(client).connect_most(bookie_ids[:1], 0.5)
            await trio.sleep(0.01)
        assert 5 <= len(holes.attempts) <= 25, "in ten seconds"
        holes.refusing.clear()
        await trio.sleep(1.0)
        await connections_of(client).connect_most(bookie_ids, 0.5)
        assert all(connections_of(client).channel(bookie_id) for bookie_id in bookie_ids)


async def test_an_ensemble_change_does_not_wait_for_a_silent_bookie(autojump_clock: trio.testing.MockClock) -> None:
    """C1: nothing is confirmed while replacements are chosen, so that has to be quick."""
    async with cluster(5) as world, client_with_holes(world) as (client, holes):
        async with client.create_ledger() as writer:
            await writer.append(b"all answer")
            ensemble = writer.metadata.last_fragment.ensemble
            holes.silent = {bookie.bookie_id for bookie in world.spare(ensemble)}
            world.named(ensemble)[0].wire.is_deaf = True
            longest_s = 0.0
            for _ in range(100):
                begin_s = trio.current_time()
                await writer.append(b"x")
                longest_s = max(longest_s, trio.current_time() - begin_s)
                await trio.sleep(0.1)
            assert len(holes.silent & set(holes.attempts)) == 2, "both were tried"
            assert longest_s < 3 * OPTIONS.speculative_read_after_s
            holes.silent.clear()
            with trio.fail_after(60):
                while world.named(ensemble)[0].bookie_id in writer.metadata.last_fragment.ensemble:
                    await trio.sleep(0.1)
                    await writer.append(b"y")


async def test_a_new_ledger_takes_others_than_a_silent_bookie(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(4) as world:
        for bookie in world.bookies:
            async with client_with_holes(world) as (client, holes):
                holes.silent = {bookie.bookie_id}
                begin_s = trio.current_time()
                async with client.create_ledger() as writer:
                    await writer.append(b"x")
                    assert bookie.bookie_id not in writer.metadata.last_fragment.ensemble
                assert trio.current_time() - begin_s < 2 * OPTIONS.speculative_read_after_s


async def test_c7_a_new_ledger_does_not_wait_for_one_silent_bookie(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster(3) as world, client_with_holes(world) as (client, holes):
        holes.silent = {world.bookies[0].bookie_id}
        begin_s = trio.current_time()
        async with client.create_ledger() as writer:
            await writer.append(b"x")
            assert writer.statistics()["indices_missing"] == 1
        assert trio.current_time() - begin_s < 2 * OPTIONS.speculative_read_after_s


async def test_without_others_a_new_ledger_waits_for_a_slow_connection(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, client_with_holes(world) as (client, holes):
        holes.slow_s = OPTIONS.connect_timeout_s - 1.0
        async with client.create_ledger() as writer:
            await writer.append(b"x")
    async with cluster(3) as world, client_with_holes(world) as (client, holes):
        holes.silent = {bookie.bookie_id for bookie in world.bookies[:2]}
        begin_s = trio.current_time()
        with pytest.raises(NotEnoughBookiesError, match=world.bookies[0].bookie_id):
            async with client.create_ledger():
                pass
        assert trio.current_time() - begin_s < OPTIONS.connect_timeout_s + OPTIONS.speculative_read_after_s
