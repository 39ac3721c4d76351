"""Ledgers and logs whose write quorum is guaranteed: closes, rolls and takeovers end with all copies, or say what lacks (W8)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import attrs
import pytest
import trio
import trio.testing

from replog import Client, Quorum
from replog.abc import StoredRange
from replog.backends import memory
from replog.config import ClientOptions
from replog.config.client import ClientTuning
from replog.errors import ConfigError, WriteQuorumError
from replog.log.log_options import LogOptions
from replog.protocol.fragment_copies import fixed_fragments
from replog.protocol.messages import AddRequest, CopyReadRequest, CopyRequest, RangesRequest, Status
from replog.protocol.model import Durability, LedgerMetadata, LedgerState
from tests.kit import Bookie, Cluster, cluster

WRITE_QUORUM = Durability.WRITE_QUORUM.value
OPTIONS = ClientTuning(
    durability=WRITE_QUORUM,
    write_quorum_timeout_s=10.0,
    add_timeout_s=1.0,
    read_timeout_s=1.0,
    recovery_timeout_s=10.0,
)


def ranges(bookie: Bookie, ledger_id: int) -> Sequence[StoredRange]:
    """A bookie's stored ranges, whether or not it runs."""
    if bookie.served is not None:
        return bookie.storage.ranges(ledger_id)
    storage = memory.open_storage(bookie.name)
    try:
        return storage.ranges(ledger_id)
    finally:
        storage.close()


def lacking(world: Cluster, metadata: LedgerMetadata) -> list[tuple[str, int]]:
    """Bookies and entries that are not where the fixed part of the record says, as the bookies' storages have it."""
    found = []
    stores = {bookie.bookie_id: ranges(bookie, metadata.ledger_id) for bookie in world.bookies}
    for fragment in fixed_fragments(metadata):
        for entry_id in range(fragment.first_entry_id, fragment.last_entry_id + 1):
            for index in metadata.quorum.write_set(entry_id):
                if not any(
                    each.stamp == fragment.term
                    and each.first_entry_id <= entry_id <= each.last_entry_id
                    and (entry_id - each.first_entry_id) % each.stride == 0
                    for each in stores[fragment.ensemble[index]]
                ):
                    found.append((fragment.ensemble[index], entry_id))
    return found


def at(world: Cluster, metadata: LedgerMetadata, index: int) -> Bookie:
    return world.named([metadata.last_fragment.ensemble[index]])[0]


def copies(bookies: Sequence[Bookie]) -> int:
    return sum(isinstance(each, CopyRequest) for bookie in bookies for each in bookie.wire.seen)


async def full(world: Cluster, client: Client, ledger_id: int) -> LedgerMetadata:
    """The record of a ledger; all its fixed fragments are full, and an audit says so."""
    metadata = await client.ledger_metadata(ledger_id)
    assert not lacking(world, metadata)
    assert not metadata.ended_gaps
    assert not (await client.admin.audit()).under_replicated
    return metadata


async def test_close_with_all_bookies_copies_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(OPTIONS) as client:
        async with client.create_ledger() as writer:
            await writer.extend([b"a", b"b", b"c"])
            await trio.testing.wait_all_tasks_blocked()
        assert copies(world.bookies) == 0
        asked = [[each for each in bookie.wire.seen if isinstance(each, RangesRequest)] for bookie in world.bookies]
        assert [len(each) for each in asked] == [1, 1, 1], "one question to each member"
        metadata = await full(world, client, writer.ledger_id)
        assert (metadata.state, metadata.durability) == (LedgerState.CLOSED, Durability.WRITE_QUORUM)
        assert writer.metadata == metadata


@pytest.mark.parametrize("password", [b"", b"secret"])
@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(4, 3, 2)])
async def test_close_waits_for_an_absent_bookie(
    quorum: Quorum, password: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster(quorum.ensemble) as world, world.client(OPTIONS) as client, trio.open_nursery() as nursery:
        async with client.create_ledger(quorum=quorum, password=password) as writer:
            await writer.append(b"0")
            absent = at(world, writer.metadata, 1)
            await absent.kill()
            for number in range(1, 8):
                await writer.append(b"%d" % number)
            began_s = trio.current_time()

            async def come_back() -> None:
                await trio.sleep(4)
                await absent.start()

            nursery.start_soon(come_back)
        assert 4 <= trio.current_time() - began_s < 9
        metadata = await client.ledger_metadata(writer.ledger_id)
        assert (metadata.last_entry_id, metadata.gaps, lacking(world, metadata)) == (7, (), [])
        assert absent.bookie_id in metadata.last_fragment.ensemble, "who comes back is not replaced"


async def test_close_names_bookies_and_missing_entries_and_repeats(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(OPTIONS) as client:
        with pytest.raises(WriteQuorumError) as raised:
            async with client.create_ledger() as writer:
                await writer.append(b"0")
                absent = at(world, writer.metadata, 2)
                await absent.kill()
                await writer.extend([b"1", b"2"])
                began_s = trio.current_time()
        assert trio.current_time() - began_s == pytest.approx(10, abs=3)
        error = raised.value
        assert (list(error.lacking), error.last_entry_id) == ([absent.bookie_id], 2)
        assert "lacks entries 0 to 2" in error.lacking[absent.bookie_id]
        assert "it is closed behind entry 2" in str(error)
        assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.CLOSED
        with pytest.raises(WriteQuorumError):
            await client.recover_ledger(writer.ledger_id)
        await absent.start()
        assert (await client.recover_ledger(writer.ledger_id)).last_entry_id == 2
        await full(world, client, writer.ledger_id)


async def test_permanently_absent_bookie_is_replaced(autojump_clock: trio.testing.MockClock) -> None:
    """Only after the time that an add may take: a restart costs no copies of what is there."""
    async with cluster(4) as world, world.client(OPTIONS) as client:
        async with client.create_ledger() as writer:
            await writer.extend([b"0", b"1"])
            await trio.testing.wait_all_tasks_blocked()
            absent = at(world, writer.metadata, 0)
            await absent.kill()
        metadata = await client.ledger_metadata(writer.ledger_id)
        assert absent.bookie_id not in metadata.last_fragment.ensemble
        assert lacking(world, metadata) == []
        assert writer.metadata == metadata


async def test_silent_bookie_is_replaced(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(4) as world, world.client(OPTIONS) as client:
        async with client.create_ledger() as writer:
            await writer.extend([b"0", b"1"])
            silent = at(world, writer.metadata, 0)
            silent.wire.is_deaf = True
        metadata = await client.ledger_metadata(writer.ledger_id)
        assert silent.bookie_id not in metadata.last_fragment.ensemble
        assert lacking(world, metadata) == []


async def test_close_asks_bookies_again_after_a_refused_copy(autojump_clock: trio.testing.MockClock) -> None:
    """A copy that was refused, or whose answer was lost, counts for nothing until the bookie says that it holds it."""
    async with cluster() as world, world.client(OPTIONS) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            late = at(world, writer.metadata, 2)
            refused: list[object] = []

            def refuse(request: object) -> Status | None:
                if isinstance(request, AddRequest) and not isinstance(request, CopyRequest):
                    return Status.READ_ONLY
                if isinstance(request, CopyRequest) and len(refused) < 2:
                    refused.append(request)
                    return Status.TOO_BUSY
                return None

            late.wire.refuse = refuse
            await writer.extend([b"1", b"2"])
        assert len(refused) == 2
        late.wire.refuse = lambda _request: None
        await full(world, client, writer.ledger_id)


async def test_close_names_bookies_without_copies(autojump_clock: trio.testing.MockClock) -> None:
    """Not that they have none, nor that the bookie that lacks them is to blame."""
    async with cluster() as world, world.client(OPTIONS) as client:
        with pytest.raises(WriteQuorumError) as raised:
            async with client.create_ledger() as writer:
                await writer.append(b"0")
                late = at(world, writer.metadata, 2)
                late.wire.refuse = lambda request: Status.READ_ONLY if type(request) is AddRequest else None
                for each in world.bookies:
                    if each is not late:
                        each.wire.refuse = lambda request: (
                            Status.TOO_BUSY if isinstance(request, CopyReadRequest) else None
                        )
                await writer.append(b"1")
        assert raised.value.lacking.keys() == {late.bookie_id}
        assert "too busy" in raised.value.lacking[late.bookie_id]
        for each in world.bookies:
            each.wire.refuse = lambda _request: None
        await client.recover_ledger(writer.ledger_id)
        await full(world, client, writer.ledger_id)


async def test_roll_ends_with_all_earlier_copies(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(OPTIONS) as client, trio.open_nursery() as nursery:
        async with client.create_ledger(unbounded=True) as writer:
            await writer.append(b"0")
            absent = at(world, writer.metadata, 1)
            await absent.kill()
            await writer.append(b"1")
            with pytest.raises(WriteQuorumError, match="the entries before 2 stay") as raised:
                await writer.roll()
            assert raised.value.last_entry_id is None
            assert await writer.append(b"2") == 2, "the writer goes on"

            async def come_back() -> None:
                await trio.sleep(3)
                assert await writer.append(b"3") == 3, "appends go on while the roll waits for copies"
                await absent.start()

            nursery.start_soon(come_back)
            await writer.roll()
            metadata = await client.ledger_metadata(writer.ledger_id)
            assert metadata.last_fragment.first_entry_id == 3
            assert lacking(world, metadata) == []
            await writer.append(b"4")
            await writer.roll()
            metadata = await client.ledger_metadata(writer.ledger_id)
            assert metadata.full_before == 3, "what was found full is not asked for again"
        metadata = await full(world, client, writer.ledger_id)
        assert (metadata.state, metadata.last_fragment.first_entry_id) == (LedgerState.OPEN, 5), "left with all copies"


async def test_planned_rolls_fill_earlier_entries(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(attrs.evolve(OPTIONS, roll_entries=2)) as client:
        async with client.create_ledger(unbounded=True) as writer:
            await writer.append(b"0")
            late = at(world, writer.metadata, 1)
            late.wire.refuse = lambda request: Status.READ_ONLY if type(request) is AddRequest else None
            await writer.append(b"1")
            await trio.sleep(3)
            metadata = await client.ledger_metadata(writer.ledger_id)
            assert len(metadata.fragments) > 1
            assert lacking(world, metadata) == []
            late.wire.refuse = lambda _request: None
        await full(world, client, writer.ledger_id)


async def test_takeover_ends_with_all_copies(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as first, world.client(OPTIONS) as second:
        with pytest.raises(RuntimeError, match="killed"):
            async with first.create_ledger(unbounded=True, durability=WRITE_QUORUM) as writer:
                await writer.append(b"0")
                late = at(world, writer.metadata, 2)
                late.wire.refuse = lambda request: Status.READ_ONLY if type(request) is AddRequest else None
                await writer.extend([b"1", b"2"])
                raise RuntimeError("killed")
        ledger_id = writer.ledger_id
        await late.kill()
        with pytest.raises(WriteQuorumError, match="the next roll or takeover waits again"):
            async with second.take_over_ledger(ledger_id):
                pass
        await late.start()
        late.wire.refuse = lambda _request: None
        async with second.take_over_ledger(ledger_id) as writer:
            metadata = await second.ledger_metadata(ledger_id)
            assert lacking(world, metadata) == [], "the durability is the ledger's, whoever takes it over"
            assert await writer.append(b"3") == 3
        assert (await full(world, second, ledger_id)).full_before == 3


async def test_recovery_ends_with_all_copies(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(OPTIONS) as client, world.client() as other:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            late = at(world, writer.metadata, 2)
            late.wire.refuse = lambda request: Status.READ_ONLY if type(request) is AddRequest else None
            await writer.append(b"1")
            assert (await other.recover_ledger(writer.ledger_id)).last_entry_id == 1
            await full(world, other, writer.ledger_id)


async def test_filling_outlives_changes_of_the_ensemble(autojump_clock: trio.testing.MockClock) -> None:
    """The writer changes its ensemble while what is before the roll is filled: both changes of the record stay."""
    async with cluster(5) as world, world.client(OPTIONS) as client, trio.open_nursery() as nursery:
        async with client.create_ledger(unbounded=True) as writer:
            await writer.append(b"0")
            absent = at(world, writer.metadata, 0)
            await absent.kill()
            await writer.append(b"1")

            async def fail_another() -> None:
                await trio.sleep(0.5)
                await at(world, writer.metadata, 1).kill()
                await writer.append(b"2")

            nursery.start_soon(fail_another)
            await writer.roll()
            metadata = await client.ledger_metadata(writer.ledger_id)
            assert len(metadata.fragments) > 2
            assert [each for each in lacking(world, metadata) if each[1] < 2] == []
        metadata = await client.ledger_metadata(writer.ledger_id)
        assert lacking(world, metadata) == []


async def test_interrupted_close_is_finished_by_others(autojump_clock: trio.testing.MockClock) -> None:
    """F6: the filler dies after each number of requests; whoever comes next ends with all copies, and no bookie is fenced."""
    for cut in (0, 3, 5, 8):
        async with cluster(4) as world, world.client(OPTIONS) as other:
            async with world.client(OPTIONS) as client:
                with trio.CancelScope() as scope:
                    async with client.create_ledger() as writer:
                        await writer.append(b"0")
                        late = at(world, writer.metadata, 2)
                        spare = world.spare(writer.metadata.last_fragment.ensemble)[0]
                        late.wire.refuse = lambda request: Status.READ_ONLY if type(request) is AddRequest else None
                        spare.wire.refuse = late.wire.refuse
                        for number in range(1, 6):
                            await writer.append(b"%d" % number)
                        seen = itertools.count()

                        def count(
                            request: object, seen: Iterator[int] = seen, cut: int = cut, scope: trio.CancelScope = scope
                        ) -> None:
                            if isinstance(request, RangesRequest | CopyRequest) and next(seen) >= cut:
                                scope.cancel()

                        for bookie in world.bookies:
                            bookie.wire.refuse = count
            for bookie in world.bookies:
                bookie.wire.refuse = lambda _request: None
            assert (await other.recover_ledger(writer.ledger_id)).last_entry_id == 5
            await full(world, other, writer.ledger_id)


async def test_log_closes_rolls_and_is_taken_over_full(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, world.client() as other:
        async with client.write_log("log", options=LogOptions(durability=WRITE_QUORUM)) as log:
            await log.append(b"0")
            late = world.bookies[0]
            late.wire.refuse = lambda request: Status.READ_ONLY if type(request) is AddRequest else None
            await log.append(b"1")
            await log.roll()
            first = (await client.log_metadata("log")).segments[0].ledger_id
            assert lacking(world, await client.ledger_metadata(first)) == []
            await log.append(b"2")
        async with other.write_log("log") as log:
            await log.append(b"3")
        metadata = await other.log_metadata("log")
        records = [await other.ledger_metadata(each.ledger_id) for each in metadata.segments]
        assert [each.durability for each in records[:2]] == [Durability.WRITE_QUORUM] * 2
        assert [lacking(world, each) for each in records[:2]] == [[], []]


async def test_log_roll_names_missing_copies(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(OPTIONS) as client:
        with pytest.raises(WriteQuorumError):
            async with client.write_log("log") as log:
                await log.append(b"0")
                absent = world.bookies[0]
                await absent.kill()
                await log.append(b"1")
                with pytest.raises(WriteQuorumError) as raised:
                    await log.roll()
                assert list(raised.value.lacking) == [absent.bookie_id]
                await log.append(b"2")
        await absent.start()
        async with client.write_log("log") as log:
            for segment in (await client.log_metadata("log")).segments[:-1]:
                assert lacking(world, await client.ledger_metadata(segment.ledger_id)) == []
            await log.append(b"3")


async def test_log_ends_every_wait_when_copies_are_missing(autojump_clock: trio.testing.MockClock) -> None:
    """With a bookie that is away for good, and no other one: each call ends, appends go on, and the log can be deleted."""
    async with cluster() as world, world.client(OPTIONS) as client:
        with pytest.raises(WriteQuorumError):
            async with client.write_log("log") as log:
                await log.append(b"0")
                await world.bookies[0].kill()
                await log.append(b"1")
                for number in range(2, 4):
                    with pytest.raises(WriteQuorumError), trio.fail_after(30):
                        await log.roll()
                    assert log.segment == 2, "it rolls no further while a takeover could miss what lacks"
                    await log.append(b"%d" % number)
        with pytest.raises(WriteQuorumError):
            async with client.write_log("log"):
                pass
        began_s = trio.current_time()
        await client.delete_log("log")
        assert trio.current_time() - began_s < 2, "what is deleted needs no copies"


async def test_lost_entries_do_not_block_others(autojump_clock: trio.testing.MockClock) -> None:
    """F1: no bookie has the entry any more. The audit names it; a close that waited for it would never end."""
    async with cluster() as world, world.client(OPTIONS) as client:
        async with client.create_ledger(unbounded=True) as writer:
            await writer.append(b"0")
            await trio.testing.wait_all_tasks_blocked()
            for bookie in world.bookies:
                bookie.storage.inner._content.ledgers.clear()  # type: ignore[attr-defined]
            began_s = trio.current_time()
            await writer.roll()
            assert trio.current_time() - began_s < 1
        assert (await client.admin.audit()).under_replicated == 1


async def test_unknown_durability_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        with pytest.raises(ConfigError, match="'ack-quorum', 'write-quorum'"):
            async with client.create_ledger(durability="all"):
                pass
        with pytest.raises(ConfigError, match="'ack-quorum', 'write-quorum'"):
            async with client.write_log("log", options=LogOptions(durability="all")):
                pass
    with pytest.raises(ConfigError, match="durability: 'all' is not one of"):
        ClientOptions(durability="all")
