"""A leader that rolls closes the ledger before, whatever others begin with it: a takeover recovers only two (L1, L2)."""

from __future__ import annotations

import attrs
import trio
import trio.testing

from replog.config.client import ClientTuning
from replog.protocol.model import RECOVERY_TERM, LedgerState
from replog.records.encoding import encode
from replog.records.ledgers import decode_ledger
from replog.records.paths import ledger_key_path
from replog.testing import FaultyMetastore
from tests.kit import cluster, read_log

QUICK = ClientTuning(add_timeout_s=1.0, read_timeout_s=1.0, add_quorum_timeout_s=10.0, metastore_timeout_s=2.0)


class Fencing(FaultyMetastore):
    """Somebody begins to recover a ledger just before its record is changed the first time, and dies."""

    key = ""

    async def put(self, key: str, value: bytes, expected: int) -> int:
        if key == self.key:
            self.key = ""
            found = await super().get(key)
            fenced = attrs.evolve(
                decode_ledger(key, found.value), state=LedgerState.IN_RECOVERY, term=RECOVERY_TERM, token="dead"
            )
            await super().put(key, encode(fenced), found.version)
        return await super().put(key, value, expected)


async def test_a_ledger_with_an_abandoned_recovery_is_closed(autojump_clock: trio.testing.MockClock) -> None:
    """The one who died had read the list before the roll: nobody else comes back to this ledger."""
    async with cluster() as world:
        metastore = Fencing(world.metastore)
        async with world.client(QUICK, metastore=metastore) as client, client.write_log("log") as log:
            await log.append(b"0")
            first = log.ledger_id
            metastore.key = ledger_key_path(first)
            with trio.fail_after(60):
                await log.roll()
                await log.append(b"1")
                await log.roll()
                await log.append(b"2")
            assert metastore.key == ""
            record = await client.ledger_metadata(first)
            assert (record.state, record.last_entry_id) == (LedgerState.CLOSED, 0)
            with trio.fail_after(60):
                assert await read_log(client) == [b"0", b"1", b"2"]
