"""A writer that closes lets copies arrive that are on their way, for a moment (W2, W7)."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from replog import Client
from replog.client.late_adds import WAIT_S
from replog.config.client import ClientTuning
from replog.errors import FencedError
from replog.protocol.messages import Status
from replog.protocol.model import LedgerState
from tests.kit import Bookie, Cluster, cluster

LATENCIES_S = (0.001, 0.002, 0.3)
OPTIONS = ClientTuning(add_timeout_s=3.0, read_timeout_s=3.0)


def third(world: Cluster) -> Bookie:
    """A bookie that no acknowledgement waits for."""
    return world.bookies[2]


async def write_and_close(client: Client) -> int:
    async with client.create_ledger() as writer:
        await writer.extend([b"a", b"b"])
        await writer.append(b"c")
    return writer.ledger_id


async def assert_full(world: Cluster, ledger_id: int, last_entry_id: int) -> None:
    """Each bookie has all of it now, before it is asked anything: a question would wait behind the adds."""
    held = [
        max((each.last_entry_id for each in bookie.storage.ranges(ledger_id)), default=-1) for bookie in world.bookies
    ]
    assert held == [last_entry_id] * len(world.bookies)
    async with world.client(OPTIONS) as client:
        assert (await client.admin.audit()).under_replicated == 0


async def test_ledger_is_full_when_the_client_ends_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world:
        for bookie, latency_s in zip(world.bookies, LATENCIES_S, strict=True):
            bookie.wire.delay_s = latency_s
        async with world.client(OPTIONS) as client:
            ledger_id = await write_and_close(client)
        await assert_full(world, ledger_id, 2)


async def test_log_is_full_when_its_writer_ends_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world:
        third(world).wire.delay_s = 0.3
        async with world.client(OPTIONS) as client, client.write_log("events") as log:
            first = log.ledger_id
            await log.append(b"one")
            await log.roll()
            second = log.ledger_id
            await log.append(b"two")
        await assert_full(world, first, 0)
        await assert_full(world, second, 0)


async def test_unbounded_ledger_is_full_when_its_writer_ends_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """It stays open, and its last entries are in a fragment that no audit looks at: publishing them waits, too (W5)."""
    async with cluster() as world:
        third(world).wire.delay_s = 0.3
        async with world.client(OPTIONS) as client, client.create_ledger(unbounded=True) as writer:
            await writer.append(b"one")
            await writer.roll()
            await writer.append(b"two")
        await assert_full(world, writer.ledger_id, 1)


async def test_close_waits_no_longer_than_the_last_answer(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(OPTIONS) as client:
        async with client.create_ledger() as writer:
            third(world).wire.delay_s = 0.3
            await writer.append(b"a")
            before_s = trio.current_time()
        assert trio.current_time() - before_s == pytest.approx(0.3)


async def test_hung_bookie_delays_a_close_by_the_bound(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(OPTIONS) as client:
        async with client.create_ledger() as writer:
            third(world).wire.is_mute = True
            await writer.append(b"a")
            before_s = trio.current_time()
        assert trio.current_time() - before_s == pytest.approx(WAIT_S)
        assert writer.metadata.state is LedgerState.CLOSED, "nobody learns of the wait by the outcome"
        assert writer.metadata.last_entry_id == 0


async def test_hung_bookie_is_waited_for_once(autojump_clock: trio.testing.MockClock) -> None:
    """Even while its adds time out, and more are sent to it."""
    async with cluster() as world, world.client(OPTIONS) as client:
        await write_and_close(client)
        third(world).wire.is_mute = True
        waited_s, ledgers = 0.0, 0
        async with client.create_ledger() as other:
            while ledgers < 50:
                await other.append(b"something is always on its way")
                before_s = trio.current_time()
                await write_and_close(client)
                waited_s, ledgers = waited_s + trio.current_time() - before_s, ledgers + 1
                await trio.sleep(0.2)
            assert waited_s <= WAIT_S + 0.01, waited_s
            third(world).wire.is_mute = False
            third(world).wire.delay_s = 0.0
            await trio.sleep(5.0)
            await other.append(b"it answers again")


async def test_recovered_bookie_is_awaited_again(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(OPTIONS) as client:
        third(world).wire.is_held = True
        async with client.create_ledger() as writer:
            await writer.append(b"a")
            before_s = trio.current_time()
        assert trio.current_time() - before_s == pytest.approx(WAIT_S)
        third(world).wire.release()
        await trio.testing.wait_all_tasks_blocked()
        third(world).wire.delay_s = 0.4
        async with client.create_ledger() as writer:
            await writer.append(b"a")
            before_s = trio.current_time()
        assert trio.current_time() - before_s == pytest.approx(0.4)


async def test_several_hung_ledgers_closed_at_once_wait_together(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(OPTIONS) as client:
        third(world).wire.is_mute = True
        before_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(write_and_close, client)
        assert trio.current_time() - before_s == pytest.approx(WAIT_S)


async def test_lost_connection_ends_the_wait(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(OPTIONS) as client:
        async with client.create_ledger() as writer:
            third(world).wire.is_mute = True
            await writer.append(b"a")
            before_s = trio.current_time()

            async def lose() -> None:
                await trio.sleep(0.2)
                await third(world).kill()

            world.nursery.start_soon(lose)
        assert trio.current_time() - before_s == pytest.approx(0.2)
        assert writer.metadata.state is LedgerState.CLOSED


async def test_refusal_during_the_wait_is_not_an_error(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(OPTIONS) as client:
        wire = third(world).wire
        async with client.create_ledger() as writer:
            wire.delay_s = 0.2
            wire.refuse = lambda _request: Status.READ_ONLY
            await writer.append(b"a")
        assert writer.metadata.last_entry_id == 0


async def test_cancelled_close_does_not_wait(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(OPTIONS) as client:
        third(world).wire.is_mute = True
        before_s = trio.current_time()
        with trio.move_on_after(0.1) as scope:
            async with client.create_ledger() as writer:
                await writer.append(b"a")
                scope.cancel()
        assert trio.current_time() == before_s
        with trio.move_on_after(0.1):
            async with client.create_ledger() as writer:
                await writer.append(b"a")
        assert trio.current_time() - before_s == pytest.approx(0.1), "a deadline amid the wait ends it"
        assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.CLOSED


async def test_failed_application_does_not_wait(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(OPTIONS) as client:
        third(world).wire.is_mute = True
        before_s = trio.current_time()
        with pytest.raises(ZeroDivisionError):
            async with client.create_ledger() as writer:
                await writer.append(b"a")
                raise ZeroDivisionError
        assert trio.current_time() == before_s


async def test_fenced_writer_does_not_wait(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(OPTIONS) as client, world.client(OPTIONS) as other:
        before_s = trio.current_time()
        with pytest.raises(FencedError):
            async with client.create_ledger() as writer:
                await writer.append(b"a")
                third(world).wire.is_mute = True
                await other.recover_ledger(writer.ledger_id)
                before_s = trio.current_time()
                writer.push_nowait(b"b")
        assert trio.current_time() == before_s
