"""M5: a record that went back alone, of the same creation, is recovered and repaired by nobody: by it the ledger would be closed
before its last confirmed entry."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio
import trio.testing

from replog.client.ledger_writer import LedgerWriter
from replog.config.client import ClientTuning
from replog.errors import RecoveryUndecidedError
from replog.protocol.messages import CopyRequest
from replog.protocol.model import LedgerMetadata
from replog.protocol.quorum import Quorum
from replog.records.encoding import encode
from replog.records.ledgers import decode_ledger
from replog.records.paths import ledger_key_path
from tests.client.test_recovering import numbers
from tests.kit import Cluster, cluster, read_ledger

QUICK = ClientTuning(add_timeout_s=1.0, add_quorum_timeout_s=10.0, recovery_timeout_s=20.0)
QUORUM = Quorum(3, 3, 2)


@attrs.define
class Lost:
    """A ledger whose writer is gone, and how its record was before the writer replaced a bookie."""

    world: Cluster
    ledger_id: int
    old: bytes
    last: int

    async def put(self, value: bytes) -> bytes:
        """Puts this in the place of the record; returns that."""
        key = ledger_key_path(self.ledger_id)
        found = await self.world.metastore.get(key)
        await self.world.metastore.put(key, value, found.version)
        return found.value


@asynccontextmanager
async def lost() -> AsyncIterator[Lost]:
    """Entries 0 to 4 are at three bookies, then the third is replaced; the last entry, which is `last`, is only at the
    second and the new one."""
    async with cluster(4) as world:
        async with world.client(QUICK, QUORUM) as client:
            writer = LedgerWriter(await client._opened.ledgers.create(QUORUM, b""))
            for number in range(5):
                await writer.append(b"%d" % number)
            old = (await world.metastore.get(ledger_key_path(writer.ledger_id))).value
            first, _, third = world.named(writer.metadata.last_fragment.ensemble)
            await third.kill()
            number = 5
            while third.bookie_id in writer.metadata.last_fragment.ensemble:
                await writer.append(b"%d" % number)
                number += 1
            await writer.append(b"%d" % number)
            number += 1
            first.wire.is_deaf = True
            await writer.append(b"%d" % number)
        first.wire.is_deaf = False
        await third.start()
        yield Lost(world, writer.ledger_id, old, number)


async def test_m5_rolled_back_record_is_not_recovered(autojump_clock: trio.testing.MockClock) -> None:
    """R4, R12: two of the three that it names deny the last entry, which is confirmed."""
    async with lost() as ledger, ledger.world.client(QUICK) as client:
        newest = await ledger.put(ledger.old)
        began_s = trio.current_time()
        with pytest.raises(
            RecoveryUndecidedError, match=r"knows change 2 .* asked by change 1.* or the metastore went"
        ):
            await client.recover_ledger(ledger.ledger_id)
        assert trio.current_time() - began_s < 1.0, "it is known at once"
        await ledger.put(newest)
        await client.recover_ledger(ledger.ledger_id)
        assert await read_ledger(client, ledger.ledger_id) == numbers(ledger.last)


async def test_m5_bookies_remember_the_change_after_a_restart(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with lost() as ledger, ledger.world.client(QUICK) as client:
        await ledger.put(ledger.old)
        for bookie in ledger.world.bookies:
            await bookie.kill()
            await bookie.start()
        with pytest.raises(RecoveryUndecidedError, match="the metastore went back"):
            await client.recover_ledger(ledger.ledger_id)


async def test_m5_recovery_restarts_when_its_record_was_read_too_early(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another recovery has replaced a bookie since: that is no reason to fail."""
    async with lost() as ledger, ledger.world.client(QUICK) as client:
        key = ledger_key_path(ledger.ledger_id)
        newest = decode_ledger(key, (await ledger.world.metastore.get(key)).value)
        await ledger.put(encode(newest.claimed("")))
        early = [decode_ledger(key, ledger.old).claimed("")]
        records = client._opened.ledgers.records
        get_head = records.get_head

        async def late(ledger_id: int, *, at: int | None = None) -> tuple[LedgerMetadata, int]:
            found, version = await get_head(ledger_id, at=at)
            return (early.pop(), version - 1) if early else (found, version)

        monkeypatch.setattr(records, "get_head", late)
        await client.recover_ledger(ledger.ledger_id)
        assert await read_ledger(client, ledger.ledger_id) == numbers(ledger.last)


async def test_m5_operator_may_declare_the_older_record_right(autojump_clock: trio.testing.MockClock) -> None:
    """Nothing newer is left: then what it names is what there is."""
    async with lost() as ledger, ledger.world.client(QUICK) as client:
        await ledger.put(ledger.old)
        for bookie in ledger.world.bookies:
            assert bookie.served is not None
            await bookie.served.confirm_metastore()
        await ledger.world.bookies[0].kill()  # what was said is remembered
        await ledger.world.bookies[0].start()
        await client.recover_ledger(ledger.ledger_id)
        # What the record does not name is lost, as the operator has said, unless the one that has it answers first.
        assert await read_ledger(client, ledger.ledger_id) in (numbers(ledger.last - 1), numbers(ledger.last))


async def test_m5_repair_by_a_rolled_back_record_stores_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with lost() as ledger, ledger.world.client(QUICK) as client:
        await client.recover_ledger(ledger.ledger_id)
        metadata = await client.ledger_metadata(ledger.ledger_id)
        for bookie in ledger.world.bookies:
            bookie.wire.seen.clear()
        await client.admin.repair()
        told = [each for bookie in ledger.world.bookies for each in bookie.wire.seen if isinstance(each, CopyRequest)]
        assert {each.revision for each in told} <= {metadata.revision}
        older = attrs.evolve(decode_ledger(ledger_key_path(ledger.ledger_id), ledger.old), revision=1)
        await ledger.put(encode(older.closed_at(4)))
        before = [bookie.storage.ranges(ledger.ledger_id) for bookie in ledger.world.bookies]
        await client.admin.repair()
        assert [bookie.storage.ranges(ledger.ledger_id) for bookie in ledger.world.bookies] == before


async def test_m5_writer_goes_on_while_a_repair_changes_its_record(autojump_clock: trio.testing.MockClock) -> None:
    """It is told of a later change by nobody: only what recovers and repairs is refused."""
    async with cluster(4) as world, world.client(QUICK, QUORUM) as client, client.create_ledger() as writer:
        await writer.append(b"0")
        for bookie in world.bookies:
            for each in bookie.adds(writer.ledger_id):
                request = attrs.evolve(each, revision=9, request_id=each.request_id + 1_000_000)
                bookie.wire._pass_on([request], lambda _answers: None)
        assert await writer.append(b"1") == 1
