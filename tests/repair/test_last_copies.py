"""The record always names somebody who has the last copy (F1, F5, B8a), whichever request of a repair meets a bookie that is
silent, that is killed, or that comes back.

A ledger whose entries only one bookie has is repaired after another member was lost. The fault comes at the first request of the
repair, then at the second, and so on until there is none of that number; outside the long lane at every third. Then everybody is
well again: nothing may be lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
import trio
import trio.testing

import replog
from replog.bookie.releasing import Releasing
from replog.config.client import ClientTuning
from replog.errors import ReplogError
from replog.protocol.messages import CopyReadRequest, CopyRequest, RangesRequest, Request
from replog.protocol.quorum import Quorum
from tests.kit import Bookie, Cluster, cluster, read_ledger, settle

QUICK = ClientTuning(add_timeout_s=1.0, read_timeout_s=1.0, add_quorum_timeout_s=5.0)
QUORUM = Quorum(3, 3, 1)
ENTRIES = [b"0", b"1", b"2"]
REQUESTS_MAX, STEP = 60, 3


async def silent(bookie: Bookie) -> None:
    """It hears nothing any more."""
    bookie.wire.is_deaf = True


async def mute(bookie: Bookie) -> None:
    """It does what it is asked to, and its answers are lost."""
    bookie.wire.is_mute = True


async def killed(bookie: Bookie) -> None:
    """It is gone, and its announcement with it."""
    await bookie.kill()


async def slow(bookie: Bookie) -> None:
    """It answers when the others have given it up."""
    bookie.wire.delay_s = 1.5


FAULTS = (silent, mute, killed, slow)


class Nth:
    """Has a bookie meet a fault once all together have got so many requests of repairers."""

    def __init__(self, world: Cluster, number: int, fault: Callable[[Bookie], Awaitable[None]], bookie: Bookie) -> None:
        self.has_happened = False
        self._world = world
        self._left = number
        self._fault = fault
        self._bookie = bookie
        self._is_due = trio.Event()
        for each in world.bookies:
            each.wire.holds = self._counts

    def _counts(self, request: Request) -> bool:
        if isinstance(request, CopyRequest | CopyReadRequest | RangesRequest):
            if not self._left:
                self._is_due.set()
            self._left -= 1
        return False

    async def run(self) -> None:
        await self._is_due.wait()
        self.has_happened = True
        await self._fault(self._bookie)

    def end(self) -> None:
        for each in self._world.bookies:
            each.wire.holds = lambda _request: False


async def with_one_copy(world: Cluster) -> tuple[int, list[Bookie]]:
    """A closed ledger whose entries only its first member has; and its members."""
    async with world.client(QUICK) as client, client.create_ledger(quorum=QUORUM) as writer:
        members = world.named(writer.metadata.last_fragment.ensemble)
        for bookie in members[1:]:
            bookie.wire.is_deaf = True
        for entry in ENTRIES:
            await writer.append(entry)
    for bookie in members:
        bookie.wire.is_deaf = False
    return writer.ledger_id, members


async def well_again(world: Cluster, lost: Bookie | None) -> None:
    for bookie in world.bookies:
        bookie.wire.is_deaf = bookie.wire.is_mute = False
        bookie.wire.delay_s = 0.0
        if bookie.served is None and bookie is not lost:
            await bookie.start()
    await settle()


async def judge(world: Cluster, ledger_id: int, lost: Bookie | None) -> None:
    """Somebody whom the record names has each entry; and after a repair, everybody has."""
    await well_again(world, lost)
    async with world.client(QUICK) as client:  # the other one may still wait for bookies that it could not reach
        await _judge(world, client, ledger_id)


async def _judge(world: Cluster, client: replog.Client, ledger_id: int) -> None:
    metadata = await client.ledger_metadata(ledger_id)
    names = {each.bookie_id: each for each in world.bookies}
    for entry_id in range(len(ENTRIES)):
        members = [names[metadata.last_fragment.ensemble[index]] for index in QUORUM.write_set(entry_id)]
        having = [each for each in members if each.served is not None and each.storage.read(ledger_id, entry_id, 1, 1)]
        assert having, f"nobody whom the record names has entry {entry_id}: {metadata}"
    for bookie in world.bookies:
        if bookie.served is not None:
            for _ in range(2):  # a pass leaves alone what was filled just before
                await Releasing(bookie.server, world.metastore).run()
    assert await read_ledger(client, ledger_id) == ENTRIES
    await client.admin.repair()
    assert (await client.admin.audit()).under_replicated == 0


@pytest.mark.sized
@pytest.mark.parametrize("fault", FAULTS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("who", ["holder", "other"])
@pytest.mark.parametrize("is_declared", [True, False])
async def test_last_copy_stays_named_under_any_repair(
    fault: Callable[[Bookie], Awaitable[None]],
    who: str,
    is_declared: bool,
    is_long: bool,
    autojump_clock: trio.testing.MockClock,
) -> None:
    for number in range(0, REQUESTS_MAX, 1 if is_long else STEP):
        async with cluster(5) as world:
            ledger_id, (holder, other, lost) = await with_one_copy(world)
            await lost.kill()
            async with world.client(QUICK) as client, trio.open_nursery() as nursery:
                if is_declared:
                    await client.admin.declare_lost([lost.bookie_id], accept_loss=True)
                nth = Nth(world, number, fault, holder if who == "holder" else other)
                nursery.start_soon(nth.run)
                with suppress(ReplogError):
                    await client.admin.repair(away=() if is_declared else [lost.bookie_id])
                nursery.cancel_scope.cancel()
            nth.end()
            await judge(world, ledger_id, lost if is_declared else None)
            if not nth.has_happened:
                assert number, "a repair asks somebody"
                return
    raise AssertionError("a repair that asks without end")
