"""B8: a bookie in doubt fences what is decided, and vouches again."""

from __future__ import annotations

import pytest
import trio
import trio.testing

import replog
from replog.abc import UNBOUNDED, Doubt
from replog.backends.memory import MemoryStorage
from replog.bookie.healing import Healing
from replog.config import BookieOptions
from tests.bookie.test_doubt import restart_in_doubt
from tests.kit import Bookie, Cluster, cluster, read_ledger, until

TWO = replog.Quorum(2, 2, 1)
LOSS = Doubt(UNBOUNDED, UNBOUNDED, ("journal 7 is gone",))


async def in_doubt(world: Cluster, forget: int | None = None) -> Bookie:
    bookie = world.bookies[0]
    await restart_in_doubt(bookie, LOSS, forget=forget)
    await until(lambda: not bookie.storage.doubt().is_unbounded)
    return bookie


def below(bookie: Bookie) -> int:
    return bookie.storage.doubt().doubted_below


async def test_bookie_vouches_again_when_all_ledgers_are_closed(autojump_clock: trio.testing.MockClock) -> None:
    healing = BookieOptions(storage="memory", heal="auto")
    async with cluster(2, healing) as world, world.client(quorum=TWO) as client:
        async with client.create_ledger() as closed:
            await closed.append(b"x")
        async with client.create_ledger() as deposed:
            await deposed.append(b"y")
            await client.recover_ledger(deposed.ledger_id)
            bookie = await in_doubt(world, forget=deposed.ledger_id)
            assert below(bookie) == deposed.ledger_id + 1
            await until(lambda: bookie.storage.doubt() == Doubt(), within_s=200)
        marks = bookie.storage.marks(deposed.ledger_id)
        assert marks is not None
        assert marks.fence_term >= 2
        assert bookie.server.statistics()["doubted_below_ledger_id"] == 0
        assert await read_ledger(client, closed.ledger_id) == [b"x"]


async def test_doubt_stays_unless_healing_is_asked_for(autojump_clock: trio.testing.MockClock) -> None:
    """A deleted ledger of which the bookie lost everything can't be fenced: only an operator knows that there is none."""
    async with cluster(2) as world, world.client(quorum=TWO) as client:
        async with client.create_ledger() as closed:
            await closed.append(b"x")
        bookie = await in_doubt(world)
        await trio.sleep(600)
        assert below(bookie) == closed.ledger_id + 1


async def test_doubt_sinks_to_the_last_undecided_ledger(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(2) as world, world.client(quorum=TWO) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"x")
            for _ in range(3):
                async with client.create_ledger() as other:
                    await other.append(b"y")
            bookie = await in_doubt(world)
            healing = Healing(bookie.server, world.metastore)
            await healing.heal()
            assert below(bookie) == writer.ledger_id + 1
        await healing.heal()
        assert bookie.storage.doubt() == Doubt()


async def test_ledger_that_was_deleted_is_fenced_before_the_bookie_vouches(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """L5: its record cannot say with which term; without a fence the deposed writer finds its ack quorum."""
    async with cluster(1) as world, world.client(quorum=replog.Quorum(1, 1, 1)) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"x")
            marks = world.bookies[0].storage.marks(writer.ledger_id)
            assert marks is not None
            await client.recover_ledger(writer.ledger_id)
            bookie = world.bookies[0]
            await bookie.kill()
            # The end of its journal is gone, with the fence; and the hint of the deletion does not reach it.
            assert isinstance(bookie.storage.inner, MemoryStorage)
            bookie.storage.inner._content.ledgers[writer.ledger_id].marks = marks
            await client.delete_ledger(writer.ledger_id)
            bookie.storage.doubts = LOSS
            await bookie.start()
            await until(lambda: not bookie.storage.doubt().is_unbounded)
            await Healing(bookie.server, world.metastore).heal()
            assert bookie.storage.doubt() == Doubt()
            with pytest.raises(replog.FencedError):
                await writer.append(b"lost")


async def test_new_loss_while_it_heals_is_not_settled(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(2) as world, world.client(quorum=TWO) as client:
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
