"""Unbounded ledgers as applications use them: taking over, following, rolling, trimming, finishing (T2, R11, L5)."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from replog.config import ClientOptions
from replog.config.client import ClientTuning
from replog.errors import (
    ConfigError,
    FencedError,
    LedgerError,
    LedgerFinishedError,
    LedgerRolledBackError,
    LedgerTrimmedError,
    RecoveryUndecidedError,
)
from replog.hookspecs import LedgerTakenOver
from replog.protocol.messages import ReadLastAddConfirmedRequest, Status
from replog.protocol.model import LedgerState
from replog.records.paths import ledger_key_path
from tests.kit import cluster, read_ledger


async def test_ledger_goes_on_from_term_to_term(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        async with client.create_ledger(unbounded=True) as writer:
            assert await writer.append(b"0") == 0
            assert list(await writer.extend([b"1", b"2"])) == [1, 2]
        ledger_id = writer.ledger_id
        assert await read_ledger(client, ledger_id) == [b"0", b"1", b"2"], "readers find all without a writer"
        async with world.client() as other, other.take_over_ledger(ledger_id) as second:
            assert second.last_add_confirmed == 2
            assert await second.append(b"3") == 3
        async with client.take_over_ledger(ledger_id) as third:
            assert await third.append(b"4") == 4
            await third.finish()
        assert await read_ledger(client, ledger_id) == [b"0", b"1", b"2", b"3", b"4"]
        metadata = await client.ledger_metadata(ledger_id)
        assert (metadata.state, metadata.term, metadata.last_entry_id) == (LedgerState.CLOSED, 3, 4)
        with pytest.raises(LedgerFinishedError) as raised:
            async with client.take_over_ledger(ledger_id):
                pass
        assert isinstance(raised.value, LedgerError)
        assert not isinstance(raised.value, FencedError)
        assert [(each.term, each.last_entry_id) for each in world.told(LedgerTakenOver)] == [(2, 2), (3, 3)]  # type: ignore[union-attr]


@pytest.mark.parametrize("before", [-1, 1.0, None])
async def test_trim_refuses_an_invalid_entry(before: object, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        async with client.create_ledger(unbounded=True) as writer:
            await writer.append(b"0")
        with pytest.raises(ConfigError, match="before="):
            await client.trim_ledger(writer.ledger_id, before=before)  # type: ignore[arg-type]


async def test_deposed_writer_learns_the_term_and_the_unknown_entries(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, world.client() as other:
        with pytest.raises(FencedError) as raised:
            async with client.create_ledger(unbounded=True) as writer:
                await writer.append(b"a")
                async with other.take_over_ledger(writer.ledger_id) as second:
                    await second.append(b"b")
                await writer.append(b"c")
        assert (raised.value.term, raised.value.unconfirmed) == (2, range(1, 2))
        assert await read_ledger(other, writer.ledger_id) == [b"a", b"b"]


async def test_follower_crosses_terms_and_fragments(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, world.client() as other:
        async with client.create_ledger(unbounded=True) as writer:
            await writer.append(b"0")
        found: list[bytes] = []

        async def follow(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            async with other.open_ledger(writer.ledger_id, follow=True) as reader:
                task_status.started()
                async for entry in reader:
                    found.append(entry.data)

        async with trio.open_nursery() as nursery:
            await nursery.start(follow)
            for term in range(2, 6):
                async with client.take_over_ledger(writer.ledger_id) as writer:
                    await writer.append(b"%d" % term)
                    await writer.roll()
                    await writer.append(b"%d again" % term)
                await trio.sleep(3)
                assert found[-1] == b"%d again" % term
            async with client.take_over_ledger(writer.ledger_id) as writer:
                await writer.finish()
        assert found == [b"0", *(word % term for term in range(2, 6) for word in (b"%d", b"%d again"))]


async def test_follower_gets_entries_after_another_clients_takeover(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The writer in the follower's own client is deposed, and knows it only at its next append (R11)."""
    async with cluster() as world, world.client() as client, world.client() as other:
        with pytest.raises(FencedError):
            async with client.create_ledger(unbounded=True) as writer:
                await writer.append(b"0")
                async with client.open_ledger(writer.ledger_id, follow=True) as reader:
                    assert (await anext(aiter(reader))).data == b"0"
                    async with other.take_over_ledger(writer.ledger_id) as second:
                        await second.append(b"1")
                        with trio.fail_after(5):
                            assert (await anext(aiter(reader))).data == b"1"
                await writer.append(b"never")


async def test_trim_drops_whole_fragments(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        async with client.create_ledger(unbounded=True) as writer:
            ledger_id = writer.ledger_id
            for number in range(3):
                await writer.extend([b"%d" % number] * 10)
                await writer.roll()
            assert await client.trim_ledger(ledger_id, before=5) == 0
            async with client.open_ledger(ledger_id) as reader:
                assert await client.trim_ledger(ledger_id, before=15) == 10
                with pytest.raises(LedgerTrimmedError) as raised:
                    await reader.refresh()
                    await reader.receive_batch()
                assert raised.value.first_available == 10
            with pytest.raises(LedgerTrimmedError):
                async with client.open_ledger(ledger_id, first=9):
                    pass
            async with client.open_ledger(ledger_id) as reader:
                assert (await anext(aiter(reader))).entry_id == 10
            assert await client.trim_ledger(ledger_id, before=1000) == 30, "the last fragment always stays"
            assert await writer.append(b"last") == 30
        assert await read_ledger(client, ledger_id) == [b"last"]


async def test_bounded_ledger_has_one_term(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            await writer.roll()
            await writer.append(b"1")
        with pytest.raises(ConfigError, match="is bounded"):
            async with client.take_over_ledger(writer.ledger_id):
                pass
        with pytest.raises(ConfigError, match="is bounded"):
            await client.trim_ledger(writer.ledger_id, before=1)
        with pytest.raises(ConfigError, match="is bounded"):
            await client.admin.raise_ledger_term(writer.ledger_id)
        assert await read_ledger(client, writer.ledger_id) == [b"0", b"1"]


async def test_follower_of_a_bounded_ledger_ends_with_it(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, trio.open_nursery() as nursery:
        found: list[bytes] = []

        async def follow(ledger_id: int, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            async with world.client() as other, other.open_ledger(ledger_id, follow=True) as reader:
                task_status.started()
                async for batch in reader.batches():
                    found.extend(batch.payloads())

        async with client.create_ledger() as writer:
            await nursery.start(follow, writer.ledger_id)
            for number in range(5):
                await writer.append(b"%d" % number)
                await trio.sleep(1)
                assert len(found) == number + 1


async def test_restored_metadata_is_refused_until_its_term_is_raised(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client() as client:
        async with client.create_ledger(unbounded=True) as writer:
            await writer.append(b"0")
        ledger_id = writer.ledger_id
        key = ledger_key_path(ledger_id)
        backup = (await world.metastore.get(key)).value
        for number in (1, 2):
            async with client.take_over_ledger(ledger_id) as writer:
                await writer.append(b"%d" % number)
        await world.metastore.put(key, backup, (await world.metastore.get(key)).version)
        with pytest.raises(LedgerRolledBackError, match="raise-term") as raised:
            async with client.take_over_ledger(ledger_id):
                pass
        assert raised.value.term == 3
        assert await client.admin.raise_ledger_term(ledger_id) == 3
        async with client.take_over_ledger(ledger_id) as writer:
            assert await writer.append(b"new") == 1
            # Bookies still tell of the lost entries' last add confirmed, which is higher. The record needs none of them.
            await writer.finish()
        assert (await client.ledger_metadata(ledger_id)).term == 4
        assert await read_ledger(client, ledger_id) == [b"0", b"new"]


async def test_bounded_ledger_is_not_fenced_when_its_term_is_raised(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client() as client, client.create_ledger() as writer:
        await writer.append(b"0")
        await world.bookies[0].server.fence(writer.ledger_id, 2)
        with pytest.raises(ConfigError, match="is bounded"):
            await client.admin.raise_ledger_term(writer.ledger_id)
        terms = [bookie.storage.marks(writer.ledger_id) for bookie in world.bookies]
        assert [0 if marks is None else marks.fence_term for marks in terms] == [2, 1, 1]


async def test_follower_of_restored_metadata_does_not_spin(autojump_clock: trio.testing.MockClock) -> None:
    """Bookies tell of a term that the record lacks: reading it again and again brings nothing."""
    async with cluster() as world, world.client() as client:
        async with client.create_ledger(unbounded=True) as writer:
            await writer.append(b"0")
        ledger_id = writer.ledger_id
        key = ledger_key_path(ledger_id)
        backup = (await world.metastore.get(key)).value
        async with client.take_over_ledger(ledger_id) as writer:
            await writer.append(b"lost")
        newest = (await world.metastore.get(key)).value
        await world.metastore.put(key, backup, (await world.metastore.get(key)).version)
        found: list[bytes] = []
        async with client.open_ledger(ledger_id, follow=True) as reader:

            async def follow() -> None:
                async for entry in reader:
                    found.append(entry.data)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow)
                for bookie in world.bookies:
                    bookie.wire.seen.clear()
                with trio.fail_after(60):
                    await trio.sleep(30)
                assert sum(len(bookie.wire.seen) for bookie in world.bookies) < 600, "a few in a second"
                await world.metastore.put(key, newest, (await world.metastore.get(key)).version)
                await trio.sleep(5)
                assert found == [b"0", b"lost"]
                nursery.cancel_scope.cancel()


async def test_takeovers_continue_below_entries_of_a_lost_record(autojump_clock: trio.testing.MockClock) -> None:
    """Bookies prove a higher last add confirmed of terms that are lost: that must not keep them from being fenced."""
    async with cluster() as world, world.client() as client:
        async with client.create_ledger(unbounded=True) as writer:
            await writer.append(b"0")
        ledger_id = writer.ledger_id
        key = ledger_key_path(ledger_id)
        backup = (await world.metastore.get(key)).value
        for _ in (1, 2):
            async with client.take_over_ledger(ledger_id) as writer:
                await writer.extend([b"lost"] * 10)
        await world.metastore.put(key, backup, (await world.metastore.get(key)).version)
        assert await client.admin.raise_ledger_term(ledger_id) == 3
        for number in range(1, 4):
            async with client.take_over_ledger(ledger_id) as writer:
                assert await writer.append(b"%d" % number) == number
        await client.recover_ledger(ledger_id)
        assert await read_ledger(client, ledger_id) == [b"0", b"1", b"2", b"3"]


async def test_log_of_a_takeover_survives_restarted_bookies(autojump_clock: trio.testing.MockClock) -> None:
    """R11: after a restart the proof is in the last batch of the highest stamp, which need not have the highest id."""
    async with cluster() as world, world.client() as client:
        async with client.create_ledger(unbounded=True) as writer:
            await writer.extend([b"x"] * 20)
        async with client.take_over_ledger(writer.ledger_id) as second:
            for number in range(3):
                await second.append(b"%d" % number)
        for bookie in world.bookies:
            await bookie.kill()
            await bookie.start()
        assert len(await read_ledger(client, writer.ledger_id)) == 23


async def test_fragments_roll_by_entries_bytes_and_age(autojump_clock: trio.testing.MockClock) -> None:
    for options in (
        ClientTuning(roll_entries=5),
        ClientOptions(roll_bytes=50),
        ClientOptions(roll_age_s=5.0, roll_bytes=None),
    ):
        async with cluster() as world, world.client(options) as client:
            async with client.create_ledger(unbounded=True) as writer:
                for _ in range(20):
                    await writer.append(bytes(10))
                    await trio.sleep(1)
            fragments = (await client.ledger_metadata(writer.ledger_id)).fragments
            assert 3 <= len(fragments) <= 6, options
            assert len(await read_ledger(client, writer.ledger_id)) == 20


async def test_failed_roll_ends_its_writer_only(autojump_clock: trio.testing.MockClock) -> None:
    """A fragment that is due meets a takeover: whoever uses the writer is told, and the client's other writers go on."""
    async with cluster() as world, world.client() as other, world.client(ClientOptions(roll_age_s=5.0)) as client:
        async with client.create_ledger() as beside:
            async with client.create_ledger(unbounded=True) as writer:
                await writer.append(b"a")
                await trio.sleep(3)  # what is confirmed was published: only the roll meets the fence
                async with other.take_over_ledger(writer.ledger_id):
                    await trio.sleep(10)
                with pytest.raises(FencedError) as raised:
                    await writer.flush()
            assert raised.value.term == 2
            await beside.append(b"goes on")


async def test_rolls_at_once_all_end_with_the_change(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        async with client.create_ledger(unbounded=True) as writer:
            await writer.append(b"0")
            with trio.fail_after(1):
                async with trio.open_nursery() as nursery:
                    for _ in range(3):
                        nursery.start_soon(writer.roll)
            await writer.append(b"1")
        assert [each.first_entry_id for each in writer.metadata.fragments] == [0, 1]


async def test_term_is_not_raised_on_a_refusal(autojump_clock: trio.testing.MockClock) -> None:
    """A refusal names no term: the bookie that refuses may know the highest."""
    async with cluster() as world, world.client() as client:
        async with client.create_ledger(unbounded=True) as writer:
            await writer.append(b"0")
        wire = world.bookies[1].wire
        wire.refuse = lambda request: Status.TOO_BUSY if isinstance(request, ReadLastAddConfirmedRequest) else None
        with pytest.raises(RecoveryUndecidedError, match=r"did not say which term .* nothing was changed"):
            await client.admin.raise_ledger_term(writer.ledger_id)


async def test_writer_reports_its_inability_to_finish(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, world.client() as other:
        async with client.create_ledger(unbounded=True) as writer:
            await writer.append(b"0")
        with pytest.raises(trio.ClosedResourceError):
            await writer.finish()
        async with client.take_over_ledger(writer.ledger_id) as writer:
            async with other.take_over_ledger(writer.ledger_id) as last:
                with pytest.raises(FencedError):
                    await writer.append(b"1")
                with pytest.raises(FencedError):
                    await writer.finish()
                await last.finish()
                await last.finish()
        assert (await client.ledger_metadata(writer.ledger_id)).last_entry_id == 0
