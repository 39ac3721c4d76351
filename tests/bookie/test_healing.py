"""B8: a bookie in doubt fences what is decided, and vouches again."""

from __future__ import annotations

import pytest
import trio
import trio.testing

import replog
from replog.abc import UNBOUNDED, Doubt, SetMarks
from replog.api import Client
from replog.bookie.healing import Healing
from replog.client.ledger_writer import LedgerWriter
from replog.config import BookieOptions
from replog.config.bookie import BookieTuning
from replog.hookspecs import StorageInDoubt
from replog.protocol.messages import WriteLastAddConfirmedRequest
from replog.records.ids import read_next_ledger_id
from tests.bookie.test_doubt import FAST, restart_in_doubt
from tests.kit import Bookie, Cluster, cluster, read_ledger, until
from tests.lanes.seeds import some

TWO = replog.Quorum(2, 2, 1)
THREE = replog.Quorum(3, 3, 2)
HEALING = BookieOptions(storage="memory")  # as by default
BY_HAND = BookieTuning(storage="memory", heal="off")
LOSS = Doubt(UNBOUNDED, UNBOUNDED, ("journal 7 is gone",))


async def in_doubt(world: Cluster, forget: int | None = None) -> Bookie:
    bookie = world.bookies[0]
    await restart_in_doubt(bookie, LOSS, forget=forget)
    await until(lambda: not bookie.storage.doubt().is_unbounded)
    return bookie


def below(bookie: Bookie) -> int:
    return bookie.storage.doubt().doubted_below


async def settled(bookie: Bookie) -> None:
    await until(lambda: below(bookie) == 0, within_s=200)


async def test_bookie_vouches_again_when_all_ledgers_are_closed(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(2, HEALING) as world, world.client(quorum=TWO) as client:
        async with client.create_ledger() as closed:
            await closed.append(b"x")
        async with client.create_ledger() as deposed:
            await deposed.append(b"y")
            await client.recover_ledger(deposed.ledger_id)
            bookie = await in_doubt(world, forget=deposed.ledger_id)
            await settled(bookie)
        next_id = await read_next_ledger_id(world.metastore)
        assert bookie.storage.doubt() == Doubt(fences_lost_below=next_id)
        assert bookie.server.statistics()["doubted_below_ledger_id"] == 0
        await trio.sleep(11)  # the ids that this client holds are too old by then
        assert await read_ledger(client, closed.ledger_id) == [b"x"]
        async with client.create_ledger() as later:
            await later.append(b"z")
        assert bookie.storage.marks(later.ledger_id) is not None


async def test_healed_bookie_is_silent_when_it_starts_again(autojump_clock: trio.testing.MockClock) -> None:
    """It only takes nothing of writers from before (B8)."""
    async with cluster(2, HEALING) as world, world.client(quorum=TWO) as client:
        async with client.create_ledger() as closed:
            await closed.append(b"x")
        bookie = await in_doubt(world)
        await settled(bookie)
        told = len(world.told(StorageInDoubt))
        assert told == 1
        await bookie.kill()
        await bookie.start()
        assert len(world.told(StorageInDoubt)) == told
        assert bookie.storage.doubt() == Doubt(fences_lost_below=closed.ledger_id + 1)


async def test_doubt_stays_where_the_operator_wants_it(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(2, BY_HAND) as world, world.client(quorum=TWO) as client:
        async with client.create_ledger() as closed:
            await closed.append(b"x")
        bookie = await in_doubt(world)
        await trio.sleep(600)
        assert below(bookie) == closed.ledger_id + 1


async def test_doubt_sinks_to_the_last_undecided_ledger(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(2, BY_HAND) as world, world.client(quorum=TWO) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"x")
            for _ in range(3):
                async with client.create_ledger() as other:
                    await other.append(b"y")
            bookie = await in_doubt(world)
            healing = Healing(bookie.server, world.metastore)
            for _ in range(2):
                await healing.heal()
            assert below(bookie) == writer.ledger_id + 1
            assert caplog.text.count(f"closed, recovered or taken over: {writer.ledger_id}\n") == 1
        await healing.heal()
        assert below(bookie) == 0


async def deposed(world: Cluster, client: Client) -> tuple[LedgerWriter, Bookie]:
    """A writer that is paused since before the recovery of its ledger, which was deleted then. The bookie that is returned was
    fenced, lost all that it knew of the ledger, and has healed; another one was neither fenced nor told of the deletion."""
    writer = LedgerWriter(await client._opened.ledgers.create(client.default_quorum))
    await writer.append(b"x")
    loses, unfenced, fenced = world.bookies
    unfenced.wire.is_deaf = True
    for each in world.bookies:  # it would publish what is confirmed
        each.wire.lose_answer = lambda request: isinstance(request, WriteLastAddConfirmedRequest)
    async with world.client(FAST, THREE) as other:
        await other.recover_ledger(writer.ledger_id)
        await loses.kill()
        await other.delete_ledger(writer.ledger_id)
    await restart_in_doubt(loses, LOSS, forget=writer.ledger_id)
    await settled(loses)
    unfenced.wire.is_deaf = False
    fenced.wire.is_deaf = True
    marks = unfenced.storage.marks(writer.ledger_id)
    assert marks is not None
    assert marks.fence_term == 1
    return writer, loses


async def test_paused_writer_of_deleted_ledger_finds_no_quorum(autojump_clock: trio.testing.MockClock) -> None:
    """L5, B8: of the ledger nothing is left that could be fenced, neither its record nor anything on the bookie."""
    async with cluster(3, HEALING) as world, world.client(FAST, THREE) as client:
        writer, bookie = await deposed(world, client)
        assert bookie.storage.marks(writer.ledger_id) is None
        writer._entries.is_watched = False  # as if it had not looked at its record yet (W9)
        with pytest.raises(replog.errors.NotEnoughBookiesError, match="unknown fate"):
            await writer.append(b"lost")


async def test_delayed_copy_does_not_open_deleted_ledger_again(autojump_clock: trio.testing.MockClock) -> None:
    """B8: a late copy or fence of an old term makes marks, which prove nothing about the fence that was lost."""
    async with cluster(3, HEALING) as world, world.client(FAST, THREE) as client:
        writer, bookie = await deposed(world, client)
        bookie.storage.inner.commit([SetMarks(writer.ledger_id, None, 1)])
        await bookie.kill()
        await bookie.start()
        writer._entries.is_watched = False  # as if it had not looked at its record yet (W9)
        with pytest.raises(replog.errors.NotEnoughBookiesError, match="unknown fate"):
            await writer.append(b"lost")


async def test_open_ledger_of_other_bookies_takes_a_healed_one_in(autojump_clock: trio.testing.MockClock) -> None:
    """B8: it is fenced with the term of its record before it takes entries again."""
    async with cluster(3, HEALING) as world, world.client(FAST, TWO) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            ensemble = writer.metadata.last_fragment.ensemble
            (spare,) = (each for each in world.bookies if each.bookie_id not in ensemble)
            await restart_in_doubt(spare, LOSS)
            await settled(spare)
            marks = spare.storage.marks(writer.ledger_id)
            assert marks is not None
            assert (marks.key, marks.fence_term) == (None, 1)
            await world.named(ensemble)[0].kill()
            await writer.append(b"1")
            assert spare.bookie_id in writer.metadata.last_fragment.ensemble
        assert holds(spare, writer.ledger_id, 1, 1)


async def test_healing_bookie_does_not_fence_the_writer(autojump_clock: trio.testing.MockClock) -> None:
    """B8: it replaces the bookie, whose doubt ends with that."""
    async with cluster(4, BY_HAND) as world, world.client(FAST, THREE) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            bookie = world.named(writer.metadata.last_fragment.ensemble)[0]
            await restart_in_doubt(bookie, LOSS, forget=writer.ledger_id)
            healing = Healing(bookie.server, world.metastore)
            await healing.heal()
            assert below(bookie) == writer.ledger_id + 1
            await writer.append(b"1")
            await until(lambda: bookie.bookie_id not in writer.metadata.last_fragment.ensemble, within_s=20)
            await healing.heal()
            assert below(bookie) == 0
            await writer.append(b"2")
        assert await read_ledger(client, writer.ledger_id) == [b"0", b"1", b"2"]


def missing(world: Cluster, ledger_id: int) -> list[int]:
    """How many entries each bookie lacks that the fullest one has."""
    held = [
        sum(each.last_entry_id - each.first_entry_id + 1 for each in b.storage.ranges(ledger_id)) for b in world.bookies
    ]
    return [max(held) - each for each in held]


@pytest.mark.parametrize("decided_by", some(["close", "roll"], fast=1))
async def test_open_last_fragment_of_all_bookies_waits_to_be_decided(
    decided_by: str, autojump_clock: trio.testing.MockClock
) -> None:
    """B8, F2: with exactly as many bookies as the ensemble has nobody can take the place of the one in doubt. The writer may
    count what it acknowledged before its loss: so no repair touches the fragment, and the bookie does not vouch, nor fence."""
    async with cluster(3, HEALING) as world, world.client(FAST, THREE) as client, world.client(FAST, THREE) as repairs:
        async with client.write_log("events") as log:
            ledger_id = log.ledger_id
            for number in range(3):
                await log.append(b"before %d" % number)
            bookie = world.bookies[0]
            await restart_in_doubt(bookie, LOSS, forget=ledger_id)
            for number in range(3):
                await log.append(b"after %d" % number)
                assert (await repairs.admin.repair()).under_replicated == 0, "what is open is not looked at"
                await trio.sleep(100)
            assert below(bookie) == ledger_id + 1, "it waits"
            assert missing(world, ledger_id) == [6, 0, 0], "neither it nor a repair has touched the fragment"
            if decided_by == "roll":
                await log.roll()
                await settled(bookie)
                await log.append(b"the new ledger has all three")
        await settled(bookie)
        if decided_by == "roll":
            assert missing(world, log.ledger_id) == [0, 0, 0]
        assert (await repairs.admin.audit()).under_replicated == 1
        assert (await repairs.admin.repair()).under_replicated == 0
        assert missing(world, ledger_id) == [0, 0, 0]


async def test_takeover_of_an_unbounded_ledger_decides_it(autojump_clock: trio.testing.MockClock) -> None:
    """B8: with as many bookies as the ensemble has, nobody can replace the one in doubt; a new term asks for nothing older."""
    async with cluster(3, BY_HAND) as world, world.client(FAST, THREE) as client:
        async with client.create_ledger(unbounded=True) as first:
            await first.append(b"0")
            bookie = world.bookies[0]
            await restart_in_doubt(bookie, LOSS, forget=first.ledger_id)
            healing = Healing(bookie.server, world.metastore)
            await first.append(b"1")
            for _ in range(2):
                await healing.heal()
            assert below(bookie) == first.ledger_id + 1, "the writer may count what was lost"
        async with client.take_over_ledger(first.ledger_id) as second:
            await second.append(b"2")
            await healing.heal()
            assert below(bookie) == 0
            await trio.sleep(10)
            number = await second.append(b"3")
            await until(lambda: holds(bookie, first.ledger_id, number, 2))
        assert await read_ledger(client, first.ledger_id) == [b"0", b"1", b"2", b"3"]


def holds(bookie: Bookie, ledger_id: int, entry_id: int, stamp: int) -> bool:
    return bool(bookie.storage.inner.read(ledger_id, entry_id, stamp, 1))


async def test_new_loss_while_it_heals_is_not_settled(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(2, BY_HAND) as world, world.client(quorum=TWO) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"x")
        bookie = await in_doubt(world)
        real = world.metastore.get

        async def get(key: str) -> object:
            bookie.storage.doubts = Doubt(50, 50, ("another journal is gone",))
            return await real(key)

        world.metastore.get = get  # type: ignore[method-assign,assignment]
        await Healing(bookie.server, world.metastore).heal()
        assert bookie.storage.doubt() == Doubt(50, 50, ("another journal is gone",))
