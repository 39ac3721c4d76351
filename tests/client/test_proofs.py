"""A bookie that lies about the last add confirmed: recoveries close at the truth, and no reader passes it (R11)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import attrs
import pytest
import trio
import trio.testing

import replog
from replog.config.client import ClientTuning
from replog.errors import RecoveryUndecidedError
from replog.protocol.digest import Digest, DigestType
from replog.protocol.messages import FenceRequest, ReadLastAddConfirmedRequest, RecoveryReadRequest, Request, Response
from replog.protocol.model import LedgerState
from replog.protocol.proofs import claimed, prove
from tests.kit import Cluster, cluster, read_ledger, settle

QUICK = ClientTuning(read_timeout_s=2.0, speculative_read_after_s=0.5, bookie_retry_after_s=1.0)
PASSWORD = b"open sesame"
MUCH = 10**12

Lie = Callable[[int], bytes]  # of a ledger's id: a proof


def forged(ledger_id: int) -> bytes:
    return prove(Digest(DigestType.HMAC_SHA256, ledger_id, b"guessed"), ledger_id, 1, MUCH)


def weaker(ledger_id: int) -> bytes:
    return prove(Digest(DigestType.CRC32C, ledger_id, PASSWORD), ledger_id, 1, MUCH)


LIES = {"bare number": None, "forged": forged, "weaker digest": weaker, "nonsense": lambda _ledger_id: b"rlac" * 10}
each_lie = pytest.mark.parametrize("lie", LIES.values(), ids=LIES)


def lying(lie: Lie | None) -> Callable[[Request, Response], Response]:
    def alter(request: Request, response: Response) -> Response:
        if not isinstance(request, FenceRequest | ReadLastAddConfirmedRequest):
            return response
        told = attrs.evolve(response, last_add_confirmed=MUCH)
        return told if lie is None else attrs.evolve(told, proof=lie(request.ledger_id))

    return alter


@asynccontextmanager
async def written(world: Cluster, client: replog.Client) -> AsyncIterator[int]:
    """An open HMAC ledger with entries 0 to 4, of which all bookies can prove that 3 is confirmed."""
    async with client.create_ledger(password=PASSWORD, digest_type=DigestType.HMAC_SHA256) as writer:
        for number in range(5):
            await writer.append(b"%d" % number)
        await settle()
        yield writer.ledger_id


@each_lie
@pytest.mark.parametrize("liar", range(3))
async def test_recovery_closes_at_the_truth(lie: Lie | None, liar: int, autojump_clock: trio.testing.MockClock) -> None:
    """R11, R4: also when it waits for the liar, because another bookie is away, it starts where the rest says."""
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        world.bookies[liar].wire.alter = lying(lie)
        with suppress(replog.FencedError):
            async with written(world, client) as ledger_id:
                metadata = await other.recover_ledger(ledger_id, password=PASSWORD)
                assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 4)
                async with other.open_ledger(ledger_id, password=PASSWORD) as reader:
                    assert await reader.read(0, 4) == [b"%d" % number for number in range(5)]


@each_lie
async def test_no_reader_passes_the_truth(lie: Lie | None, autojump_clock: trio.testing.MockClock) -> None:
    """R11, D1: neither when it opens the ledger, nor when it waits for more; and it asks the liar not without a pause."""
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        world.bookies[1].wire.alter = lying(lie)
        async with written(world, client) as ledger_id, other.open_ledger(ledger_id, password=PASSWORD) as reader:
            assert 3 <= reader.last_add_confirmed <= 4
            assert await reader.refresh() <= 4
            asked = len(world.bookies[1].wire.seen)
            assert await reader.refresh(wait_s=5.0) <= 4
            assert len(world.bookies[1].wire.seen) - asked < 20
            assert [entry.data async for entry in reader][:4] == [b"0", b"1", b"2", b"3"]


async def test_with_every_bookie_lying_recovery_closes_at_the_truth(autojump_clock: trio.testing.MockClock) -> None:
    """R11: bare numbers decide nothing, however many agree; entries are found by reading."""
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        for bookie in world.bookies:
            bookie.wire.alter = lambda request, response: attrs.evolve(response, last_add_confirmed=MUCH, proof=b"")
        with suppress(replog.FencedError):
            async with written(world, client) as ledger_id:
                assert (await other.recover_ledger(ledger_id, password=PASSWORD)).last_entry_id == 4


async def test_recovery_signs_its_frozen_last_add_confirmed(autojump_clock: trio.testing.MockClock) -> None:
    """R11, R5: a bookie proves to the next recovery what the one before proved to it."""
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        with suppress(replog.FencedError):
            async with written(world, client) as ledger_id:
                world.bookies[0].wire.is_deaf = True
                await other.recover_ledger(ledger_id, password=PASSWORD)
                recovered = [add for add in world.bookies[1].adds(ledger_id) if add.recovery]
                assert {claimed(add.proof) for add in recovered} <= {3, 4}


@pytest.mark.parametrize("digest_type", DigestType)
async def test_reader_learns_as_much_from_restarted_bookies(
    digest_type: DigestType, autojump_clock: trio.testing.MockClock
) -> None:
    """R11: what only a stored batch's header proves is read from the storage, for readers and recoveries."""
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        with suppress(replog.ReplogError):
            async with client.create_ledger(password=PASSWORD, digest_type=digest_type) as writer:
                for number in range(5):
                    await writer.append(b"%d" % number)
                for bookie in world.bookies:  # before the last one is published
                    await bookie.kill()
                for bookie in world.bookies:
                    await bookie.start()
                async with other.open_ledger(writer.ledger_id, password=PASSWORD) as reader:
                    assert reader.last_add_confirmed == 3
                assert (await other.recover_ledger(writer.ledger_id, password=PASSWORD)).last_entry_id == 4
                reads = [each for each in world.bookies[0].wire.seen if isinstance(each, RecoveryReadRequest)]
                assert {each.entry_id for each in reads} == {4, 5}, "what is proven to be confirmed is not read"
        assert await read_ledger(other, writer.ledger_id, PASSWORD) == [b"%d" % number for number in range(5)]


async def test_recovery_waits_for_the_truth_when_it_needs_the_liar(autojump_clock: trio.testing.MockClock) -> None:
    """R11, R12: an answer that proves nothing is no answer; the error names the bookie, and a later try succeeds."""
    options = attrs.evolve(QUICK, recovery_timeout_s=5.0)
    async with cluster() as world, world.client(QUICK) as client, world.client(options) as other:
        with suppress(replog.FencedError):
            async with written(world, client) as ledger_id:
                liar, away = world.bookies[:2]
                liar.wire.alter, away.wire.is_deaf = lying(forged), True
                with pytest.raises(RecoveryUndecidedError, match=liar.bookie_id):
                    await other.recover_ledger(ledger_id, password=PASSWORD)
                liar.wire.alter = lambda _request, response: response
                assert (await other.recover_ledger(ledger_id, password=PASSWORD)).last_entry_id == 4
