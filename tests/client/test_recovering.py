"""Recovery: of writers that vanished, with bookies down, hung or damaged, by several clients at once (R2-R9, B7)."""

from __future__ import annotations

import pytest
import trio
import trio.testing

import replog
from replog.client.ledger_writer import LedgerWriter
from replog.config.client import ClientTuning
from replog.errors import (
    FencedError,
    LedgerNotFoundError,
    NotEnoughBookiesError,
    RecoveryUndecidedError,
    StorageFailedError,
    UnauthorizedError,
)
from replog.hookspecs import LedgerRecovered
from replog.protocol.messages import AddRequest, RecoveryReadRequest, Request, Status
from replog.protocol.model import LedgerState
from replog.protocol.quorum import Quorum
from replog.records.paths import ledger_key_path
from replog.testing import Fault
from tests.kit import Cluster, cluster, read_ledger, settle

QUICK = ClientTuning(
    add_timeout_s=1.0, read_timeout_s=1.0, add_quorum_timeout_s=10.0, recovery_timeout_s=20.0, bookie_retry_after_s=1.0
)


async def vanished(
    world: Cluster, entries: int = 10, quorum: Quorum | None = None, password: bytes = b"", unconfirmed: int = 0
) -> int:
    """A ledger whose writer was lost with its client."""
    async with world.client(QUICK, quorum) as client:
        writer = LedgerWriter(await client._opened.ledgers.create(client.default_quorum, password))
        for number in range(entries):
            await writer.append(b"%d" % number)
        if unconfirmed:  # they reach one bookie only, and it will be the first to answer
            ensemble = world.named(writer.metadata.last_fragment.ensemble)
            for bookie in ensemble[1:]:
                bookie.wire.is_deaf = True
            for number in range(entries, entries + unconfirmed):
                writer.push_nowait(b"%d" % number)
            await settle()
            for bookie in ensemble[1:]:
                bookie.wire.is_deaf = False
                bookie.wire.delay_s = 0.001
        return writer.ledger_id


def numbers(last: int) -> list[bytes]:
    return [b"%d" % number for number in range(last + 1)]


async def test_a_ledger_without_its_writer_is_closed_at_its_last_entry(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world:
        ledger_id = await vanished(world)
        async with world.client(QUICK) as client:
            metadata = await client.recover_ledger(ledger_id)
            assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 9)
            assert await client.recover_ledger(ledger_id) == metadata
            assert await read_ledger(client, ledger_id) == numbers(9)
        assert [event.last_entry_id for event in world.told(LedgerRecovered)] == [9]  # type: ignore[union-attr]


async def test_entries_on_one_bookie_only_are_kept_and_written_back(autojump_clock: trio.testing.MockClock) -> None:
    """R4: one valid copy means that the entry exists."""
    async with cluster() as world:
        ledger_id = await vanished(world, unconfirmed=5)
        async with world.client(QUICK) as client:
            metadata = await client.recover_ledger(ledger_id)
            assert metadata.last_entry_id == 14
            ensemble = world.named(metadata.last_fragment.ensemble)
            assert sum(bool(bookie.storage.read(ledger_id, 14, 1, 1)) for bookie in ensemble) >= 2
            assert await read_ledger(client, ledger_id) == numbers(14)


@pytest.mark.parametrize("harm", ["kill", "hang", "mute"])
async def test_one_of_three_bookies_down_does_not_hinder_recovery(
    harm: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster() as world:
        ledger_id = await vanished(world)
        if harm == "kill":
            await world.bookies[1].kill()
        world.bookies[1].wire.is_deaf = harm == "hang"
        world.bookies[1].wire.is_mute = harm == "mute"
        async with world.client(QUICK) as client:
            assert (await client.recover_ledger(ledger_id)).last_entry_id == 9
            assert await read_ledger(client, ledger_id) == numbers(9)


@pytest.mark.parametrize("harm", ["kill", "hang"])
async def test_a_recovery_without_two_of_three_is_undecided_for_now(
    harm: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster() as world:
        ledger_id = await vanished(world)
        for bookie in world.bookies[:2]:
            bookie.wire.is_deaf = harm == "hang"
            if harm == "kill":
                await bookie.kill()
        async with world.client(QUICK) as client:
            with trio.fail_after(25), pytest.raises(RecoveryUndecidedError, match="retry"):
                await client.recover_ledger(ledger_id)
            async with client.open_ledger(ledger_id) as reader:
                assert reader.metadata.state is LedgerState.IN_RECOVERY
            for bookie in world.bookies[:2]:
                bookie.wire.is_deaf = False
                if harm == "kill":
                    await bookie.start()
            assert (await client.recover_ledger(ledger_id)).last_entry_id == 9
            assert await read_ledger(client, ledger_id) == numbers(9)


async def test_a_damaged_copy_is_doubt_and_never_absence(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world:
        ledger_id = await vanished(world, unconfirmed=3)
        async with world.client(QUICK) as client:
            holders = [bookie for bookie in world.bookies if bookie.storage.read(ledger_id, 12, 1, 1)]
            assert len(holders) == 1
            holders[0].storage.damaged.add(ledger_id)
            other = next(bookie for bookie in world.bookies if bookie is not holders[0])
            await other.kill()  # one negative is left: it does not prove absence, and damage does not either
            with pytest.raises(RecoveryUndecidedError):
                await client.recover_ledger(ledger_id)
            await other.start()  # two negatives: no ack quorum can have it
            assert (await client.recover_ledger(ledger_id)).last_entry_id == 9


async def test_recoveries_at_the_same_time_end_the_same(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(4) as world:
        ledger_id = await vanished(world, unconfirmed=4)
        found = []
        async with trio.open_nursery() as nursery:

            async def recover(delay_s: float) -> None:
                async with world.client(QUICK) as client:
                    await trio.sleep(delay_s)
                    found.append(await client.recover_ledger(ledger_id))

            for number, bookie in enumerate(world.bookies):
                bookie.wire.delay_s = 0.01 * number
            for number in range(6):
                nursery.start_soon(recover, 0.007 * number)
        assert len({metadata.last_entry_id for metadata in found}) == 1
        assert len(found) == 6


@pytest.mark.parametrize(
    "fault", [Fault.ANSWER_LOST, Fault.REQUEST_LOST, Fault.ARRIVES_LATE, Fault.UNAVAILABLE, Fault.CONFLICT]
)
@pytest.mark.parametrize("which", [0, 1])
async def test_a_recovery_survives_conflicts_and_lost_answers(
    which: int, fault: Fault, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster() as world:
        ledger_id = await vanished(world, unconfirmed=1)
        puts = 0

        def choose(operation: str, key: str) -> Fault | None:
            nonlocal puts
            puts += operation == "put" and key == ledger_key_path(ledger_id)
            return fault if operation == "put" and puts == which + 1 else None

        world.metastore._choose = choose
        async with world.client(QUICK) as client:
            assert (await client.recover_ledger(ledger_id)).last_entry_id == 10


async def test_recovery_has_a_deadline(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world:
        ledger_id = await vanished(world, unconfirmed=1)
        options = ClientTuning(recovery_timeout_s=3.0)
        for bookie in world.bookies:
            bookie.wire.lose_answer = lambda request: isinstance(request, AddRequest)
        async with world.client(options) as client:
            with trio.fail_after(4), pytest.raises(RecoveryUndecidedError, match="went on for 3 s"):
                await client.recover_ledger(ledger_id)


async def test_cancelled_recovery_leaves_nothing_running(autojump_clock: trio.testing.MockClock) -> None:
    """Answers that come, or fail to come, after it must hurt nobody."""
    async with cluster() as world:
        ledger_id = await vanished(world, unconfirmed=1)
        async with world.client(QUICK) as client:
            for delay_s in (0.0, 0.25, 0.5, 0.9):
                for bookie in world.bookies:
                    bookie.wire.is_deaf = True
                with trio.move_on_after(delay_s):
                    await client.recover_ledger(ledger_id)
                for bookie in world.bookies:
                    bookie.wire.is_deaf = False
                await trio.sleep(10)
            assert (await client.recover_ledger(ledger_id)).last_entry_id == 10


async def test_recovery_without_bookies_fails_and_can_be_retried(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world:
        ledger_id = await vanished(world, unconfirmed=1)

        def is_add(request: Request) -> bool:
            return isinstance(request, AddRequest)

        for bookie in world.bookies:
            bookie.wire.lose_answer = is_add
        async with world.client(QUICK) as client:
            with pytest.raises((NotEnoughBookiesError, RecoveryUndecidedError)):
                await client.recover_ledger(ledger_id)
            for bookie in world.bookies:
                bookie.wire.lose_answer = lambda _request: False
            assert (await client.recover_ledger(ledger_id)).last_entry_id == 10


@pytest.mark.parametrize("refusal", [None, Status.READ_ONLY, Status.UNKNOWN], ids=["silent", "full", "failed"])
async def test_recovery_replaces_a_refusing_bookie(
    refusal: Status | None, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster(5) as world:
        ledger_id = await vanished(world, unconfirmed=2)
        async with world.client(QUICK) as client:
            async with client.open_ledger(ledger_id) as reader:
                ensemble = reader.metadata.last_fragment.ensemble
            for bookie in world.named(ensemble[:2]):
                if refusal is None:
                    bookie.wire.lose_answer = lambda request: isinstance(request, AddRequest)
                else:
                    bookie.wire.refuse = lambda request: refusal if isinstance(request, AddRequest) else None
            metadata = await client.recover_ledger(ledger_id)
            assert metadata.last_entry_id == 11
            assert set(metadata.last_fragment.ensemble) != set(ensemble)
            for bookie in world.named(ensemble[:2]):
                await bookie.kill()
            assert await read_ledger(client, ledger_id) == numbers(11)


@pytest.mark.parametrize("digest_type", list(replog.DigestType))
async def test_recovery_needs_the_password(
    digest_type: replog.DigestType, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        async with client.create_ledger(password=b"secret", digest_type=digest_type) as writer:
            await writer.append(b"0")
            for password in (b"", b"guess"):
                with pytest.raises(UnauthorizedError):
                    await client.recover_ledger(writer.ledger_id, password=password)
                with pytest.raises(UnauthorizedError):
                    await read_ledger(client, writer.ledger_id, password)
            await writer.append(b"1")  # nobody fenced it
            metadata = await client.recover_ledger(writer.ledger_id, password=b"secret")
            assert metadata.last_entry_id == 1
            with pytest.raises(FencedError):
                await writer.append(b"2")
        assert await read_ledger(client, writer.ledger_id, b"secret") == [b"0", b"1"]


async def test_recovering_a_missing_or_deleted_ledger_raises(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world:
        ledger_id = await vanished(world)
        async with world.client(QUICK) as client, trio.open_nursery() as nursery:
            with pytest.raises(LedgerNotFoundError):
                await client.recover_ledger(ledger_id + 100)
            for bookie in world.bookies:
                bookie.wire.delay_s = 0.5

            async def delete_soon() -> None:
                await trio.sleep(0.7)
                await client.delete_ledger(ledger_id)

            nursery.start_soon(delete_soon)
            with pytest.raises(LedgerNotFoundError):
                await client.recover_ledger(ledger_id)


@pytest.mark.parametrize("quorum", [Quorum(5, 3, 2), Quorum(4, 3, 3), Quorum(3, 2, 1), Quorum(1, 1, 1)], ids=str)
async def test_every_shape_is_recovered(quorum: Quorum, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(5) as world:
        ledger_id = await vanished(world, 20, quorum)
        async with world.client(QUICK, quorum) as client:
            assert (await client.recover_ledger(ledger_id)).last_entry_id == 19
            assert await read_ledger(client, ledger_id) == numbers(19)


@pytest.mark.parametrize("place", [0, 2])
async def test_recovery_survives_two_restarting_bookies(place: int, autojump_clock: trio.testing.MockClock) -> None:
    """R12: two of three are away for 5 s, from the beginning or from the fences on: it goes on asking until they are back."""
    async with cluster() as world:
        ledger_id = await vanished(world)
        restarting = world.bookies[:place] + world.bookies[place + 1 :]

        async def restart() -> None:
            for bookie in restarting:
                await bookie.kill()
            await trio.sleep(5)
            for bookie in restarting:
                await bookie.start()

        async with world.client(QUICK) as client, trio.open_nursery() as nursery:
            started_s = trio.current_time()
            nursery.start_soon(restart)
            await settle()
            assert (await client.recover_ledger(ledger_id)).last_entry_id == 9
            assert 5 <= trio.current_time() - started_s < 8


async def test_bookies_are_asked_again_after_they_could_not_tell(autojump_clock: trio.testing.MockClock) -> None:
    """R4: an I/O error is no answer, and no reason to wait for the deadline either."""
    async with cluster() as world:
        ledger_id = await vanished(world)
        for bookie in world.bookies[:2]:
            bookie.wire.refuse = lambda request: Status.UNKNOWN if isinstance(request, RecoveryReadRequest) else None
        async with world.client(QUICK) as client, trio.open_nursery() as nursery:
            started_s = trio.current_time()

            async def heal() -> None:
                await trio.sleep(3)
                for bookie in world.bookies:
                    bookie.wire.refuse = lambda _request: None

            nursery.start_soon(heal)
            assert (await client.recover_ledger(ledger_id)).last_entry_id == 9
            assert 3 <= trio.current_time() - started_s < 5


async def test_recovery_error_lists_each_bookies_answer(autojump_clock: trio.testing.MockClock) -> None:
    """R12: the deadline names who is needed, and notes tell why."""
    async with cluster() as world:
        ledger_id = await vanished(world)
        away, refusing = world.bookies[:2]
        await away.kill()
        refusing.storage.commit_error = StorageFailedError("fdatasync: EIO on /disk7", "look at the disk")
        async with world.client(QUICK) as client:
            with pytest.raises(RecoveryUndecidedError) as raised:
                await client.recover_ledger(ledger_id)
        assert set(raised.value.bookies) == {away.bookie_id, refusing.bookie_id}
        notes = "\n".join(raised.value.__notes__)
        assert "EIO on /disk7" in notes
        assert "is not announced" in notes
