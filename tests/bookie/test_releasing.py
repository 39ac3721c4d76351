"""F5 and B6: garbage collection drops what a repair has made other bookies', and nothing else."""

from __future__ import annotations

from contextlib import nullcontext

import attrs
import pytest
import trio.testing

import replog
from replog.abc import Versioned
from replog.bookie.filling import Filling
from replog.bookie.releasing import Releasing
from replog.errors import MetastoreUnavailableError, StorageUncertainError
from replog.protocol.messages import CopyRequest
from replog.protocol.model import LedgerMetadata, LedgerState
from replog.protocol.releasing import ForeignRange, Release
from replog.records.encoding import encode
from replog.records.ledgers import decode_ledger
from replog.records.paths import ledger_key_path
from replog.testing.faults import Fault
from tests.kit import Bookie, Cluster, cluster, read_ledger, settle

TWO = replog.Quorum(2, 2, 1)


async def written(client: replog.Client) -> int:
    async with client.create_ledger() as writer:
        for number in range(3):
            await writer.append(b"%d" % number)
    return writer.ledger_id


async def change(world: Cluster, ledger_id: int, **fields: object) -> LedgerMetadata:
    key = ledger_key_path(ledger_id)
    found = await world.metastore.get(key)
    changed = attrs.evolve(decode_ledger(key, found.value), contents=None, **fields)  # type: ignore[arg-type]
    await world.metastore.put(key, encode(changed), found.version)
    return changed


async def move_off(world: Cluster, client: replog.Client, ledger_id: int) -> tuple[Bookie, Bookie]:
    """The record names the third bookie instead of the first member, and a repair fills it. Returns both bookies."""
    key = ledger_key_path(ledger_id)
    metadata = decode_ledger(key, (await world.metastore.get(key)).value)
    ensemble = metadata.fragments[0].ensemble
    (former,), (new,) = world.named(ensemble[:1]), world.spare(ensemble)
    fragment = attrs.evolve(metadata.fragments[0], ensemble=(new.bookie_id, ensemble[1]))
    await change(world, ledger_id, fragments=(fragment,))
    await client.admin.repair()
    return former, new


async def release(world: Cluster, bookie: Bookie, passes: int = 2) -> int:
    """Two passes: the first one leaves alone what was filled just before."""
    releasing = Releasing(bookie.server, world.metastore)
    for _ in range(passes):
        await releasing.run()
    return releasing.released


async def test_bookie_drops_entries_moved_elsewhere(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(quorum=TWO) as client:
        ledger_id = await written(client)
        former, new = await move_off(world, client, ledger_id)
        assert [await release(world, bookie) for bookie in (former, new)] == [1, 0]
        assert former.storage.ranges(ledger_id) == []
        assert former.storage.marks(ledger_id) is not None
        with pytest.raises(StorageUncertainError, match="dropped"):
            former.storage.read(ledger_id, 0, 1, 1)
        assert await read_ledger(client, ledger_id) == [b"0", b"1", b"2"]
        assert (await client.admin.audit()).under_replicated == 0
        assert await release(world, former) == 0, "there is nothing left to drop"


async def test_copies_newer_than_the_last_pass_are_kept_for_one(autojump_clock: trio.testing.MockClock) -> None:
    """A repair stores them before the record names their bookie."""
    async with cluster(3) as world, world.client(quorum=TWO) as client:
        ledger_id = await written(client)
        former, new = await move_off(world, client, ledger_id)
        (fragment,) = (await change(world, ledger_id)).fragments
        back = attrs.evolve(fragment, ensemble=(former.bookie_id, fragment.ensemble[1]))
        await change(world, ledger_id, fragments=(back,))
        assert await release(world, new, passes=1) == 0
        assert await release(world, new, passes=1) == 1


@pytest.mark.parametrize("fault", ["conflict", "answer_lost", "unavailable", "in recovery"])
async def test_doubt_about_the_record_drops_nothing(fault: str, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(quorum=TWO) as client:
        ledger_id = await written(client)
        former, _ = await move_off(world, client, ledger_id)
        if fault == "in recovery":
            await change(world, ledger_id, state=LedgerState.IN_RECOVERY, last_entry_id=None)
            assert await release(world, former) == 0
        else:
            kind = Fault[fault.upper()]
            world.metastore._choose = lambda operation, _key: kind if operation == "put" else None
            raises = pytest.raises(MetastoreUnavailableError) if fault == "unavailable" else nullcontext()
            with raises:
                assert await release(world, former) == 0
        assert len(former.storage.ranges(ledger_id)) == 1
        assert former.server.filling.leaving == {}


async def test_passes_by_the_clock_look_at_some_ledgers_in_turn(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client(quorum=TWO) as client:
        moved = [await move_off(world, client, await written(client)) for _ in range(4)]
        bookie = moved[0][0]
        count = sum(former is bookie for former, _ in moved)
        releasing = Releasing(bookie.server, world.metastore)
        for _ in range(8):
            await releasing.run(1)
        assert releasing.released == count


async def test_pass_leaves_most_of_the_time_to_adds(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appends beside it waited for seconds."""
    async with cluster(3) as world, world.client(quorum=replog.Quorum(3, 3, 2)) as client:
        for _ in range(80):
            await written(client)
        (bookie, *_) = world.bookies
        get = world.metastore.get

        async def slowly(key: str) -> Versioned:
            await trio.sleep(0.01)
            return await get(key)

        monkeypatch.setattr(world.metastore, "get", slowly)
        started_s = trio.current_time()
        await release(world, bookie, passes=1)
        assert trio.current_time() - started_s < 0.2  # eight at a time
        async with client.create_ledger() as writer, trio.open_nursery() as nursery:

            async def append() -> None:
                while True:
                    await writer.append(b"")
                    await trio.sleep(0.05)

            nursery.start_soon(append)
            await trio.sleep(0.01)
            started_s = trio.current_time()
            await release(world, bookie, passes=1)
            assert 0.35 < trio.current_time() - started_s < 0.6
            nursery.cancel_scope.cancel()


async def test_bookie_drops_single_rotations(autojump_clock: trio.testing.MockClock) -> None:
    """W1: where entries stripe, a bookie that was moved to another index keeps what this index stores, and nothing else."""
    quorum = replog.Quorum(5, 3, 2)
    async with cluster(5) as world, world.client(quorum=quorum) as client:
        async with client.create_ledger() as writer:
            for start in range(0, 60, 20):
                await writer.extend([b"%d" % number for number in range(start, start + 20)])
        ensemble = writer.metadata.last_fragment.ensemble
        # As after several repairs and moves: two bookies have each other's indices.
        moved = (ensemble[2], ensemble[1], ensemble[0], *ensemble[3:])
        await change(world, writer.ledger_id, fragments=(attrs.evolve(writer.metadata.last_fragment, ensemble=moved),))
        assert (await client.admin.repair()).under_replicated == 0
        for index, bookie in enumerate(world.named(moved)):
            assert (await release(world, bookie) > 0) == (index in (0, 2))
            assert await release(world, bookie) == 0, "there is nothing left to drop"
            held = {
                entry_id
                for each in bookie.storage.ranges(writer.ledger_id)
                for entry_id in range(each.first_entry_id, each.last_entry_id + 1, each.stride)
            }
            assert held == {each for each in range(60) if quorum.stores(index, each)}
        assert await read_ledger(client, writer.ledger_id) == [b"%d" % number for number in range(60)]
        assert (await client.admin.audit()).under_replicated == 0


async def version_of(world: Cluster, ledger_id: int) -> int:
    return (await world.metastore.get(ledger_key_path(ledger_id))).version


@pytest.mark.parametrize("straddles", ["end", "fragments"])
async def test_straddling_batch_is_dropped_once(straddles: str, autojump_clock: trio.testing.MockClock) -> None:
    """Recoveries end ledgers and begin fragments amid batches where entries stripe. A pass that finds nothing new must not write
    the record: each audit would ask about the ledger again."""
    async with cluster(4) as world, world.client(quorum=replog.Quorum(3, 2, 1)) as client:
        async with client.create_ledger() as writer:
            async with trio.open_nursery() as nursery:
                for number in range(9):
                    nursery.start_soon(writer.append, b"%d" % number)
        ledger_id = writer.ledger_id
        key = ledger_key_path(ledger_id)
        first = decode_ledger(key, (await world.metastore.get(key)).value).fragments[0]
        (former,), (new,) = world.named(first.ensemble[:1]), world.spare(first.ensemble)
        moved = attrs.evolve(first, ensemble=(new.bookie_id, *first.ensemble[1:]))
        if straddles == "end":
            await change(world, ledger_id, fragments=(moved,), last_entry_id=4)
        else:
            await change(world, ledger_id, fragments=(first, attrs.evolve(moved, first_entry_id=5)))
        releasing = Releasing(former.server, world.metastore)
        await releasing.run()
        assert releasing.released > 0
        assert bool(former.storage.ranges(ledger_id)) is (straddles == "fragments")
        version, released = await version_of(world, ledger_id), releasing.released
        await releasing.run()
        assert (await version_of(world, ledger_id), releasing.released) == (version, released)


async def test_trimmed_fragments_and_zombies_leave_every_bookie(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(3) as world, world.client() as client:
        async with client.create_ledger(unbounded=True) as writer:
            for number in range(3):
                await writer.append(b"%d" % number)
            await writer.roll()
            await writer.append(b"3")
        ledger_id = writer.ledger_id
        assert await client.trim_ledger(ledger_id, before=3) == 3
        async with client.take_over_ledger(ledger_id) as writer:
            await writer.append(b"4")
        for bookie in world.bookies:
            assert await release(world, bookie) > 0
            assert {each.first_entry_id for each in bookie.server.storage.ranges(ledger_id)} == {3, 4}
            assert await release(world, bookie) == 0
        assert await read_ledger(client, ledger_id) == [b"3", b"4"]


async def test_record_below_the_bookies_term_drops_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """It was restored from an old back-up: the newest record may still be found, and names this bookie."""
    async with cluster(3) as world, world.client(quorum=TWO) as client:
        ledger_id = await written(client)
        key = ledger_key_path(ledger_id)
        metadata = decode_ledger(key, (await world.metastore.get(key)).value)
        _, new = await move_off(world, client, ledger_id)
        await new.server.fence(ledger_id, metadata.term + 1)
        await change(world, ledger_id, fragments=metadata.fragments)
        assert await release(world, new) == 0
        assert len(new.server.storage.ranges(ledger_id)) == 1
        await change(world, ledger_id, term=metadata.term + 1)
        assert await release(world, new) == 1


async def test_m5_record_below_the_known_revision_drops_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster(3) as world, world.client(quorum=TWO) as client:
        ledger_id = await written(client)
        former, _ = await move_off(world, client, ledger_id)
        told = CopyRequest(1, ledger_id, b"", 1, former.storage.read(ledger_id, 0, 1, 1)[0], recovery=True, revision=7)
        metadata = decode_ledger(key := ledger_key_path(ledger_id), (await world.metastore.get(key)).value)
        told.stored_key = metadata.stored_key
        former.server.handle([told], lambda _answers: None)
        await settle()
        await change(world, ledger_id, revision=6)
        assert await release(world, former) == 0
        await change(world, ledger_id, revision=7)
        assert await release(world, former) == 1


async def test_record_of_another_creation_drops_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """M5: a metastore that went back gave the id out again; what is here is of the ledger before."""
    async with cluster(3) as world, world.client(quorum=TWO) as client:
        ledger_id = await written(client)
        key = ledger_key_path(ledger_id)
        metadata = decode_ledger(key, (await world.metastore.get(key)).value)
        former, _ = await move_off(world, client, ledger_id)
        await change(world, ledger_id, key_check="00" * (len(metadata.key_check) // 2))
        assert await release(world, former) == 0
        assert len(former.server.storage.ranges(ledger_id)) == 1
        await change(world, ledger_id, key_check=metadata.key_check)
        assert await release(world, former) == 1


# -- who asks meanwhile ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_begun", [False, True])
def test_question_ends_a_release(has_begun: bool) -> None:
    """Before the first drop everything is shown and kept; after it what is left is kept, and not shown."""
    filling, release = Filling(), Release([ForeignRange(1, 0, 9)])
    with filling.releasing(7, release):
        assert not has_begun or release.may_drop()
        with filling.looking(7) as releases:
            assert not release.may_drop()
            (seen,) = releases
            assert seen.shown(1, [(0, 19, 1)]) == ([(10, 19, 1)] if has_begun else [(0, 19, 1)])


def test_question_from_before_a_release_does_not_end_it() -> None:
    """Its compare-and-set fails, because the release has written the record since."""
    filling, release = Filling(), Release([ForeignRange(1, 0, 9)])
    with filling.looking(7) as releases, filling.releasing(7, release):
        assert release.may_drop()
        assert releases == [release]
        assert release.shown(1, [(0, 9, 1)]) == []
