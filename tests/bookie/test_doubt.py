"""A bookie whose storage cannot vouch for what it has: weak denials, no plain adds, and what ends it (B8, B8a)."""

from __future__ import annotations

import attrs
import pytest
import trio
import trio.lowlevel
import trio.testing

from replog.abc import UNBOUNDED, Doubt
from replog.backends.memory import MemoryStorage
from replog.bookie.serving import serving as serving_storage
from replog.client.ledger_writer import LedgerWriter
from replog.config.client import ClientTuning
from replog.errors import AdministrationError, LossNotAcceptedError, RecoveryUndecidedError, StorageIdentityError
from replog.hookspecs import StorageInDoubt
from replog.protocol.messages import RecoveryReadRequest, Status, WriteLastAddConfirmedRequest
from replog.protocol.model import LedgerState
from replog.records.bookies import cookie_key, decode_cookie
from replog.repair.losses import EntriesAtRisk
from replog.testing import Fault
from tests.bookie.test_server import KEY, OPTIONS, a_batch, add, each_kind, fence, look_often, read, serving
from tests.kit import ONE, Bookie, Cluster, cluster, read_ledger, until

LOSS = Doubt(UNBOUNDED, UNBOUNDED, ("journal/1.journal ends at 8192, before its durable mark",))
FAST = ClientTuning(
    add_timeout_s=1.0, read_timeout_s=1.0, recovery_timeout_s=5.0, absence_wait_s=0.5, bookie_retry_after_s=1.0
)


@each_kind
@pytest.mark.parametrize(
    ("doubt", "denial"),
    [
        (Doubt(2, 2), Status.NO_ENTRY_AFTER_LOSS),
        (Doubt(2, 1), Status.NO_ENTRY_IN_DOUBT),
        (Doubt(1, 1), Status.NO_ENTRY),
        (Doubt(), Status.NO_ENTRY),
    ],
)
async def test_a_denial_says_how_far_the_bookie_vouches(doubt: Doubt, denial: Status, is_instant: bool) -> None:
    """B8, R10: of ledger 1; on plain reads and on recovery reads."""
    async with serving(is_instant=is_instant) as served:
        served.storage.doubts = doubt
        assert (await served.ask(read(7))).status is denial
        assert (await served.ask(RecoveryReadRequest(0, 1, KEY, 2, 7, 1))).status is denial


@each_kind
async def test_no_plain_adds_in_doubt_but_fences_and_recovery_adds(is_instant: bool) -> None:
    """B8: also to a ledger that the storage has never heard of; and not to ledgers that came later."""
    async with serving(is_instant=is_instant) as served:
        served.storage.doubts = Doubt(2, 2)
        served.server.look_at_doubt()
        assert (await served.ask(add(a_batch(0)))).status is Status.IN_DOUBT
        assert (await served.ask(WriteLastAddConfirmedRequest(0, 1, KEY, 1, b"any"))).status is Status.IN_DOUBT
        assert (await served.ask(add(a_batch(0), term=2, recovery=True))).status is Status.OK
        assert (await served.ask(fence())).status is Status.OK
        assert (await served.ask(add(a_batch(1)))).status is Status.FENCED
        assert (await served.ask(add(a_batch(0, ledger_id=2)))).status is Status.OK


async def test_later_doubt_concerns_ledgers_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    look_often(monkeypatch)
    async with serving() as served:
        assert (await served.ask(add(a_batch(0)))).status is Status.OK
        served.storage.doubts = Doubt(2, 0)
        await until(lambda: served.server.statistics()["doubted_below_ledger_id"] == 2)
        assert (await served.ask(add(a_batch(1)))).status is Status.IN_DOUBT


# -- with a metastore ------------------------------------------------------------------------------------------------


async def restart_in_doubt(bookie: Bookie, doubt: Doubt = LOSS, *, forget: int | None = None) -> None:
    """Kills this bookie; its storage finds less than it had when it is opened again: all of one ledger is gone."""
    await bookie.kill()
    bookie.storage.doubts = doubt
    if forget is not None:
        assert isinstance(bookie.storage.inner, MemoryStorage)
        bookie.storage.inner._content.ledgers.pop(forget, None)
    await bookie.start()


async def test_only_older_ledgers_are_in_doubt(autojump_clock: trio.testing.MockClock) -> None:
    """B8: bounded by the next ledger id before it serves, told to observers; ledgers created later are as ever."""
    async with cluster(1) as world, world.client(quorum=ONE) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"before")
        await restart_in_doubt(world.bookies[0])
        (event,) = world.told(StorageInDoubt)
        assert isinstance(event, StorageInDoubt)
        assert event.doubt == attrs.evolve(LOSS, doubted_below=writer.ledger_id + 1, lost_below=writer.ledger_id + 1)
        async with client.create_ledger() as later:
            await later.append(b"after")
        assert await read_ledger(client, later.ledger_id) == [b"after"]


async def test_doubt_found_while_serving_is_bounded_too(autojump_clock: trio.testing.MockClock) -> None:
    """B8: also when the metastore answers only after a while."""
    async with cluster(1) as world, world.client(quorum=ONE) as client:
        storage = world.bookies[0].storage
        world.metastore.fail_next("get", Fault.UNAVAILABLE, under="next-ledger-id", times=3)
        storage.doubts = LOSS
        await until(lambda: not storage.doubt().is_unbounded)
        async with client.create_ledger() as later:
            await later.append(b"after")


async def test_a_writer_goes_on_without_a_bookie_in_doubt(autojump_clock: trio.testing.MockClock) -> None:
    """B8: refused, not fenced: the two others are an ack quorum, and the writer is none the worse."""
    async with cluster(3) as world, world.client(FAST) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            bookie = world.named(writer.metadata.last_fragment.ensemble)[0]
            await restart_in_doubt(bookie)
            for number in range(1, 5):
                await writer.append(b"%d" % number)
        assert await read_ledger(client, writer.ledger_id) == [b"0", b"1", b"2", b"3", b"4"]


async def test_takeover_finds_the_only_remaining_copy(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """R10: the schedule that lost up to 76 confirmed entries."""
    async with cluster(3) as world:
        ledger_id = await confirmed_on_two(world)
        first, second, _ = world.bookies
        await restart_in_doubt(first, forget=ledger_id)
        second.wire.delay_s = 0.3  # its copies come last
        async with world.client(FAST) as client:
            assert (await client.recover_ledger(ledger_id)).last_entry_id == 9


async def test_takeover_waits_for_a_bookie_with_possible_copies(autojump_clock: trio.testing.MockClock) -> None:
    """R10, R12: while the only holder is away it is refused, by name; it succeeds as soon as that one is back."""
    async with cluster(3) as world:
        ledger_id = await confirmed_on_two(world)
        first, second, _ = world.bookies
        await restart_in_doubt(first, forget=ledger_id)
        await second.kill()
        async with world.client(FAST) as client:
            with pytest.raises(RecoveryUndecidedError) as raised:
                await client.recover_ledger(ledger_id)
            assert set(raised.value.bookies) == {first.bookie_id, second.bookie_id}
            async with trio.open_nursery() as nursery:
                nursery.start_soon(second.start)
                assert (await client.recover_ledger(ledger_id)).last_entry_id == 9


async def test_a_loss_of_the_only_bookie_must_be_accepted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """R10: a ledger on one disk: its recovery is refused at once, and says what to do."""
    async with cluster(1) as world:
        async with world.client(FAST, ONE) as client:
            writer = LedgerWriter(await client._opened.ledgers.create(client.default_quorum))
            await writer.append(b"a")
        await restart_in_doubt(world.bookies[0], forget=writer.ledger_id)
        async with world.client(FAST, ONE) as client:
            started_s = trio.current_time()
            advice = rf"recover_ledger\({writer.ledger_id}, accept_loss=True\)"
            with pytest.raises(RecoveryUndecidedError, match=advice):
                await client.recover_ledger(writer.ledger_id)
            assert trio.current_time() - started_s < 1
            assert (await client.recover_ledger(writer.ledger_id, accept_loss=True)).last_entry_id == -1


async def confirmed_on_two(world: Cluster) -> int:
    """Ten entries on the first two bookies; the third is deaf. The writer's client is gone."""
    async with world.client(FAST) as client:
        writer = LedgerWriter(await client._opened.ledgers.create(client.default_quorum))
        world.bookies[2].wire.is_deaf = True
        for number in range(10):
            await writer.append(b"%d" % number)
        await trio.lowlevel.checkpoint()
    world.bookies[2].wire.is_deaf = False
    return writer.ledger_id


# -- declared lost ---------------------------------------------------------------------------------------------------


async def test_bookie_declared_lost_never_serves_again(autojump_clock: trio.testing.MockClock) -> None:
    """B8a: one that is announced can't be declared lost; once declared, it refuses to start."""
    async with cluster(3) as world, world.client(FAST) as client:
        bookie = world.bookies[0]
        with pytest.raises(AdministrationError, match="announced"):
            await client.admin.declare_lost([bookie.bookie_id])
        with pytest.raises(AdministrationError, match="does not know it"):
            await client.admin.declare_lost(["bookie-nobody"])
        await bookie.kill()
        for _ in range(2):
            assert await client.admin.declare_lost([bookie.bookie_id]) == []
        cookie = (await world.metastore.get(cookie_key(bookie.bookie_id))).value
        assert decode_cookie("", cookie).is_lost
        with pytest.raises(StorageIdentityError, match="declared lost"):
            async with serving_storage(bookie.storage, world.metastore, [], OPTIONS, world.registry.observe):
                pytest.fail("it serves")


async def test_a_lost_bookie_holds_up_no_recovery(autojump_clock: trio.testing.MockClock) -> None:
    """B8a: one lost something without knowing what, one never comes back: its loss, declared, ends the wait."""
    async with cluster(3) as world:
        ledger_id = await confirmed_on_two(world)
        first, _, third = world.bookies
        await restart_in_doubt(first, Doubt(UNBOUNDED, 0), forget=ledger_id)
        await third.kill()
        async with world.client(FAST) as client:
            with pytest.raises(RecoveryUndecidedError):
                await client.recover_ledger(ledger_id)
            metadata = await client.recover_ledger(ledger_id, lost=[third.bookie_id])
            assert metadata.last_entry_id == 9


async def test_two_lost_of_three_need_the_loss_accepted(autojump_clock: trio.testing.MockClock) -> None:
    """B8a: what may be gone is listed first, and nothing is declared; once accepted, what is left is kept."""
    async with cluster(3) as world:
        ledger_id = await confirmed_on_two(world)
        lost = [bookie.bookie_id for bookie in world.bookies[:2]]
        for bookie in world.bookies[:2]:
            await bookie.kill()
        async with world.client(FAST) as client:
            with pytest.raises(LossNotAcceptedError, match=f"ledger {ledger_id}: entries 0 to the end") as raised:
                await client.admin.declare_lost(lost)
            (risk,) = raised.value.at_risk
            assert isinstance(risk, EntriesAtRisk)
            assert set(risk.lost) == set(lost)
            for bookie_id in lost:
                assert not decode_cookie("", (await world.metastore.get(cookie_key(bookie_id))).value).is_lost
            await world.add_bookie()  # to write to
            metadata = await client.recover_ledger(ledger_id, lost=lost, accept_loss=True)
            assert metadata.state is LedgerState.CLOSED
            assert await client.admin.declare_lost(lost, accept_loss=True) != [] or metadata.last_entry_id == -1


async def test_loss_declared_in_parts_adds_up(autojump_clock: trio.testing.MockClock) -> None:
    """B8a: the second one of (3,3,2) is refused, though alone each could be lost."""
    async with cluster(3) as world:
        await confirmed_on_two(world)
        for bookie in world.bookies[:2]:
            await bookie.kill()
        async with world.client(FAST) as client:
            assert await client.admin.declare_lost([world.bookies[0].bookie_id]) == []
            with pytest.raises(LossNotAcceptedError):
                await client.admin.declare_lost([world.bookies[1].bookie_id])


async def test_a_loss_is_accepted_when_another_bookie_knows_its_own(autojump_clock: trio.testing.MockClock) -> None:
    """B8a, R10: one knows that it lost something, one never comes back: together they are an ack quorum."""
    async with cluster(3) as world:
        ledger_id = await confirmed_on_two(world)
        first, _, third = world.bookies
        await restart_in_doubt(first, Doubt(UNBOUNDED, UNBOUNDED), forget=ledger_id)
        await third.kill()
        async with world.client(FAST) as client:
            with pytest.raises(RecoveryUndecidedError, match="accept"):
                await client.recover_ledger(ledger_id, lost=[third.bookie_id])
            metadata = await client.recover_ledger(ledger_id, lost=[third.bookie_id], accept_loss=True)
            assert metadata.last_entry_id == 9
