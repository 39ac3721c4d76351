"""W9: a writer learns within seconds that nobody can find its ledger any more, and appends cost nothing more for it."""

from __future__ import annotations

import attrs
import pytest
import trio
import trio.testing

from replog.client.ledger_writer import LedgerWriter
from replog.errors import LedgerDeletedError, LedgerRecordLostError
from replog.records.encoding import encode
from replog.records.paths import ledger_key_path
from replog.testing import Fault
from tests.client.test_recovering import QUICK
from tests.kit import cluster
from tests.went_back import put_back, snapshot_of


@pytest.mark.parametrize("how", ["emptied", "other creation", "older", "older, without it"])
async def test_writer_fails_when_its_record_is_lost(how: str, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(4) as world, world.client(QUICK) as client:
        before = snapshot_of(world.metastore)
        with pytest.raises(LedgerRecordLostError) as failed:
            async with client.create_ledger() as writer:
                await writer.append(b"0")
                older = (await world.metastore.get(ledger_key_path(writer.ledger_id))).value
                await world.named(writer.metadata.last_fragment.ensemble)[0].kill()
                await writer.append(b"1")
                await trio.sleep(5)
                await writer.append(b"2")
                await trio.sleep(5)
                key = ledger_key_path(writer.ledger_id)
                version = (await world.metastore.get(key)).version
                if how == "older, without it":
                    put_back(world.metastore, before)
                elif how == "emptied":
                    put_back(world.metastore)
                elif how == "other creation":
                    other = attrs.evolve(writer.metadata, creation="other", revision=9)
                    await world.metastore.put(key, encode(other), version)
                else:
                    await world.metastore.put(key, older, version)
                began_s = trio.current_time()
                with trio.fail_after(60):
                    while True:
                        await writer.append(b"3")
                        await trio.sleep(0.1)
        assert trio.current_time() - began_s < 6
        assert failed.value.confirmed[0] == 3, "entry 2 was confirmed before a good look"
        assert failed.value.confirmed[-1] == writer.last_add_confirmed
        assert f"entries 3 to {writer.last_add_confirmed}" in str(failed.value)


async def test_writer_of_deleted_ledger_is_deposed_by_its_record(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """L5: as after a trim by the next leader. An emptied metastore would not know the id."""
    async with cluster(3) as world, world.client(QUICK) as client:
        with pytest.raises(LedgerDeletedError):
            async with client.create_ledger() as writer:
                await writer.append(b"0")
                await world.metastore.delete(ledger_key_path(writer.ledger_id))
                await trio.sleep(5)
                await writer.append(b"1")


async def test_silent_metastore_does_not_count_as_a_bad_look(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(QUICK) as client, client.create_ledger() as writer:
        await writer.append(b"0")
        world.metastore._choose = lambda _operation, _key: Fault.UNAVAILABLE
        for _ in range(60):
            await writer.append(b"1")
            await trio.sleep(1)
        world.metastore._choose = None


async def test_writer_is_not_failed_by_its_own_changes(autojump_clock: trio.testing.MockClock) -> None:
    """The record is read while the writer changes it."""
    async with cluster(5) as world, world.client(QUICK) as client:
        async with client.create_ledger() as writer:
            world.metastore.delay_s = 0.2
            for number in range(80):
                await writer.append(b"%d" % number)
                await trio.sleep(0.25)
                if number % 20 == 10:
                    victim = world.named(writer.metadata.last_fragment.ensemble)[0]
                    await victim.kill()
                    await victim.start()
            world.metastore.delay_s = 0.0
        assert writer.metadata.last_entry_id == 79


async def test_idle_writers_records_are_not_read(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(QUICK) as client, client.create_ledger() as writer:
        await writer.append(b"0")
        await trio.sleep(10)
        world.metastore.calls.clear()
        await trio.sleep(100)
        assert not [call for call in world.metastore.calls if call.key == ledger_key_path(writer.ledger_id)]


async def test_client_looks_at_most_100_times_a_second(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(QUICK) as client:
        writers = [LedgerWriter(await client._opened.ledgers.create(client.default_quorum)) for _ in range(300)]
        for writer in writers:
            await writer.append(b"0")
        world.metastore.calls.clear()
        keys = {ledger_key_path(writer.ledger_id) for writer in writers}
        for _ in range(10):
            before = len([call for call in world.metastore.calls if call.key in keys])
            await trio.sleep(1)
            assert len([call for call in world.metastore.calls if call.key in keys]) - before <= 101
        assert {call.key for call in world.metastore.calls} >= keys
