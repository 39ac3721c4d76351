"""Writers whose bookies hang, die, fill up and come back, and whose metastore fails meanwhile (W6, C1-C6, M1)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import attrs
import pytest
import trio
import trio.testing

import replog
from replog.client.ledger_writer import LedgerWriter
from replog.config.client import ClientTuning
from replog.errors import (
    AddTimeoutError,
    LedgerNotFoundError,
    NotEnoughBookiesError,
    ReplogError,
    StorageFailedError,
    StorageFullError,
)
from replog.hookspecs import EnsembleChanged
from replog.protocol.messages import Status
from replog.protocol.model import LedgerState
from replog.protocol.quorum import Quorum
from replog.records.paths import ledger_key_path
from replog.testing import Fault
from tests.kit import ONE, Bookie, Cluster, cluster, read_ledger
from tests.lanes.seeds import some

QUICK = ClientTuning(add_timeout_s=1.0, add_quorum_timeout_s=10.0)


async def hang(bookie: Bookie) -> None:
    bookie.wire.is_deaf = True


async def answer_nothing(bookie: Bookie) -> None:
    bookie.wire.is_mute = True


async def die(bookie: Bookie) -> None:
    await bookie.kill()


async def fill_up(bookie: Bookie) -> None:
    bookie.storage.commit_error = StorageFullError("no space", "make some")


async def fail(bookie: Bookie) -> None:
    bookie.storage.commit_error = StorageFailedError("a sync failed", "restart")


async def be_busy(bookie: Bookie) -> None:
    bookie.wire.refuse = lambda _request: Status.TOO_BUSY


HARMS = [hang, answer_nothing, die, fill_up, fail, be_busy]
each_harm = pytest.mark.parametrize("harm", HARMS)
Harm = Callable[[Bookie], object]


@each_harm
async def test_failed_bookie_is_replaced_and_appends_continue(
    harm: Harm, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster(4) as world, world.client(QUICK) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            old = writer.metadata.last_fragment.ensemble
            (victim,), (spare,) = world.named(old[1:2]), world.spare(old)
            await harm(victim)  # type: ignore[misc]
            with trio.fail_after(5):
                for number in range(1, 5):
                    await writer.append(b"%d" % number)
                await trio.sleep(2)
            new = writer.metadata.last_fragment.ensemble
            assert new == (old[0], spare.bookie_id, old[2])
            (event,) = world.told(EnsembleChanged)
            assert event.replaced == {1: (victim.bookie_id, spare.bookie_id)}  # type: ignore[union-attr]
            await writer.append(b"5")
        assert await read_ledger(client, writer.ledger_id) == [b"%d" % number for number in range(6)]


@each_harm
async def test_entries_in_flight_reach_the_replacement(harm: Harm, autojump_clock: trio.testing.MockClock) -> None:
    """C5: what had no ack quorum in the old ensemble is sent again to the new one; two copies of it are readable."""
    async with cluster(4) as world, world.client(QUICK) as client:
        async with client.create_ledger() as writer:
            ensemble = writer.metadata.last_fragment.ensemble
            victims, (spare,) = world.named(ensemble[:1]), world.spare(ensemble)
            await harm(victims[0])  # type: ignore[misc]
            for bookie in world.named(ensemble[1:]):
                bookie.wire.delay_s = 2.0  # longer than the timeout of adds: they all fail once
            writer.push_nowait(b"0")
            await trio.sleep(0.5)
            for bookie in world.named(ensemble[1:]):
                bookie.wire.delay_s = 0.0
            with trio.fail_after(15):
                await writer.flush()
        assert await read_ledger(client, writer.ledger_id) == [b"0"]
        assert spare.adds(writer.ledger_id)


async def test_without_a_replacement_it_goes_on_with_the_ack_quorum(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        async with client.create_ledger() as writer:
            await world.bookies[0].kill()
            with trio.fail_after(5):
                for number in range(50):
                    await writer.append(b"%d" % number)
            assert len(writer.metadata.fragments) == 1
        assert await read_ledger(client, writer.ledger_id) == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize("harm", [die, hang])
async def test_a_writer_below_its_ack_quorum_fails_at_the_deadline(
    harm: Harm, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        writer = LedgerWriter(await client._opened.ledgers.create(Quorum()))
        with pytest.raises((NotEnoughBookiesError, AddTimeoutError)) as caught, trio.fail_after(30):
            async with writer:
                await writer.append(b"0")
                for bookie in world.bookies[:2]:
                    await harm(bookie)  # type: ignore[misc]
                started = trio.current_time()
                await writer.append(b"1")
        assert isinstance(caught.value, NotEnoughBookiesError | AddTimeoutError)
        assert caught.value.unconfirmed == range(1, 2)
        assert 10 <= trio.current_time() - started <= 12
        for bookie in world.bookies[:2]:
            bookie.wire.is_deaf = False
            if bookie.served is None:
                await bookie.start()
        metadata = await client.recover_ledger(writer.ledger_id)
        assert metadata.last_entry_id in (0, 1)
        assert (await read_ledger(client, writer.ledger_id))[0] == b"0"


async def test_appends_waiting_for_room_end_with_their_writer(autojump_clock: trio.testing.MockClock) -> None:
    """W4, W6: what they wait for is confirmed never, and nothing of them was sent."""
    options = attrs.evolve(QUICK, in_flight_bytes_max=1000, batch_bytes_max=100)
    async with cluster(3) as world, world.client(options) as client:
        writer = LedgerWriter(await client._opened.ledgers.create(Quorum()))
        await writer.append(b"0")
        for bookie in world.bookies:
            bookie.wire.is_deaf = True
        ended: list[ReplogError] = []

        async def append() -> None:
            with pytest.raises(ReplogError) as caught:
                await writer.append(bytes(600))
            ended.append(caught.value)

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(append)
        assert len(ended) == 5
        with suppress(ReplogError):
            await writer.aclose()


async def test_returning_bookie_is_used_again(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            await world.bookies[0].kill()
            await world.bookies[1].kill()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.append, b"1")
                await trio.sleep(3)
                assert writer.last_add_confirmed == 0
                await world.bookies[0].start()
                await world.bookies[1].start()
            await writer.append(b"2")
            for bookie in world.bookies:
                assert bookie.storage.read(writer.ledger_id, 1, 1, 1)
        assert await read_ledger(client, writer.ledger_id) == [b"0", b"1", b"2"]


FAULTS = [
    [Fault.ANSWER_LOST],
    [Fault.REQUEST_LOST],
    [Fault.ARRIVES_LATE],
    [Fault.UNAVAILABLE] * 3,
    [Fault.CONFLICT],
    [Fault.CONFLICT, Fault.ANSWER_LOST],
]


@pytest.mark.parametrize("faults", FAULTS, ids=str)
async def test_a_change_survives_conflicts_and_lost_answers(
    faults: list[Fault], autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster(4) as world, world.client(QUICK) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            for fault in faults:
                world.metastore.fail_next("put", fault, under=ledger_key_path(writer.ledger_id))
            (victim,) = world.named(writer.metadata.last_fragment.ensemble[:1])
            await victim.kill()
            with trio.fail_after(8):
                for number in range(1, 9):
                    await writer.append(b"%d" % number)
                await trio.sleep(3)
                assert world.metastore.planned() == 0
                await writer.append(b"9")
            assert victim.bookie_id not in writer.metadata.last_fragment.ensemble
        assert await read_ledger(client, writer.ledger_id) == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("faults", FAULTS, ids=str)
async def test_closing_survives_conflicts_and_lost_answers(
    faults: list[Fault], autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            for fault in faults:
                world.metastore.fail_next("put", fault, under=ledger_key_path(writer.ledger_id))
        assert world.metastore.planned() == 0
        async with client.open_ledger(writer.ledger_id) as reader:
            assert (reader.metadata.state, reader.metadata.last_entry_id) == (LedgerState.CLOSED, 0)


async def test_appends_go_on_while_the_metastore_is_down(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        async with client.create_ledger() as writer:
            world.metastore._choose = lambda _operation, _key: Fault.UNAVAILABLE
            for number in range(30):
                await writer.append(b"%d" % number)
                await trio.sleep(1)
            world.metastore._choose = None
        assert await read_ledger(client, writer.ledger_id) == [b"%d" % number for number in range(30)]


async def test_metastore_outage_delays_an_ensemble_change(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(4) as world, world.client(QUICK) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            world.metastore._choose = lambda _operation, _key: Fault.UNAVAILABLE
            await world.named(writer.metadata.last_fragment.ensemble)[0].kill()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.append, b"1")
                await trio.sleep(5)
                world.metastore._choose = None
        assert await read_ledger(client, writer.ledger_id) == [b"0", b"1"]


async def test_deleting_a_ledger_during_a_change_ends_its_writer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster(4) as world, world.client(QUICK) as client:
        with pytest.raises(LedgerNotFoundError):
            async with client.create_ledger() as writer:
                await writer.append(b"0")
                await client.delete_ledger(writer.ledger_id)
                await world.named(writer.metadata.last_fragment.ensemble)[0].kill()
                for _ in range(100):
                    await writer.append(b"1")
                    await trio.sleep(0.1)


async def test_a_bookie_in_two_ensembles_fails_for_both(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(5) as world, world.client(QUICK) as client:
        async with client.create_ledger() as one, client.create_ledger() as other:
            victim = one.metadata.last_fragment.ensemble[0]
            (bookie,) = world.named([victim])
            await bookie.kill()
            for writer in (one, other):
                for number in range(10):
                    await writer.append(b"%d" % number)
                    await trio.sleep(0.2)
                assert victim not in writer.metadata.last_fragment.ensemble
        for writer in (one, other):
            assert len(await read_ledger(client, writer.ledger_id)) == 10


@pytest.mark.parametrize(
    "quorum", some([Quorum(3, 3, 3), Quorum(2, 2, 1), Quorum(5, 3, 2), Quorum(4, 2, 2)], fast=2), ids=str
)
async def test_bookies_may_die_and_return_in_every_quorum_shape(
    quorum: Quorum, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster(7) as world, world.client(QUICK, quorum) as client:
        expected = []
        async with client.create_ledger() as writer:

            async def write() -> None:
                for number in range(300):
                    expected.append(b"%d" % number)
                    await writer.append(expected[-1])
                    await trio.sleep(0.05)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(write)
                for turn in range(6):
                    (victim,) = world.named(writer.metadata.last_fragment.ensemble[turn % quorum.ensemble :][:1])
                    await victim.kill()
                    await trio.sleep(1.5)
                    await victim.start()
            assert len(writer.metadata.fragments) >= 4
        assert await read_ledger(client, writer.ledger_id) == expected


async def test_all_bookies_hang_and_each_wait_ends_in_a_named_error(autojump_clock: trio.testing.MockClock) -> None:
    """W6: appends, flush and close all end, and the application's own exception stays what it is."""
    async with cluster(1) as world, world.client(QUICK, ONE) as client:
        with pytest.raises(ZeroDivisionError), trio.fail_after(60):
            async with client.create_ledger() as writer:
                await writer.append(b"0")
                world.bookies[0].wire.is_deaf = True
                for verb in (writer.append(b"1"), writer.flush(), writer.extend([b"2"])):
                    with pytest.raises((AddTimeoutError, NotEnoughBookiesError)):
                        await verb
                raise ZeroDivisionError
        assert (await writer_state(world, writer.ledger_id)) is LedgerState.OPEN
        world.bookies[0].wire.is_deaf = False
        await trio.sleep(6)
        metadata = await client.recover_ledger(writer.ledger_id)
        assert metadata.last_entry_id == 0


async def writer_state(world: Cluster, ledger_id: int) -> LedgerState:
    async with world.client() as client, client.open_ledger(ledger_id) as reader:
        return reader.metadata.state


async def test_creating_needs_enough_reachable_bookies(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(2) as world, world.client() as client:
        with pytest.raises(NotEnoughBookiesError, match="only 2"):
            async with client.create_ledger():
                pass
        assert await client.ledgers() == []
        async with client.create_ledger(quorum=replog.Quorum(2, 2, 1)) as writer:
            await writer.append(b"0")


async def test_bookie_is_replaced_when_its_commit_thread_hangs() -> None:
    """With real threads and the real clock: the event loop goes on, and leaving waits for the disk."""
    options = ClientTuning(add_timeout_s=0.2, read_timeout_s=0.2, bookie_retry_after_s=0.2)
    async with cluster(4, is_instant=False) as world, world.client(options) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            victim = world.named(writer.metadata.last_fragment.ensemble)[0]
            victim.storage.gate = threading.Event()
            written = 1
            with trio.fail_after(30):
                # A thread of the others that gets no turn for so long makes room for the hanging one again, for a while.
                while written < 20 or victim.bookie_id in writer.metadata.last_fragment.ensemble:
                    await writer.append(b"%d" % written)
                    written += 1
                    await trio.sleep(0.03)
        assert await read_ledger(client, writer.ledger_id) == [b"%d" % number for number in range(written)]
        victim.storage.gate.set()
        victim.storage.gate = None
    assert not [thread for thread in threading.enumerate() if thread.name == "replog commit"]
