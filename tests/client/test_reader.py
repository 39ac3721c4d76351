"""Readers of a ledger: what they may read, in which order, and what hinders them (D1-D3, W1, W5, R7)."""

from __future__ import annotations

from contextlib import suppress

import pyarrow
import pytest
import trio
import trio.testing

import replog
from replog.config.client import ClientTuning
from replog.errors import (
    ConfigError,
    EntryNotFoundError,
    EntryUnreadableError,
    LedgerNotFoundError,
    MetastoreError,
    StorageUncertainError,
    UnauthorizedError,
)
from replog.protocol.messages import FenceRequest, ReadLastAddConfirmedRequest, ReadRequest, RecoveryReadRequest, Status
from replog.protocol.model import LedgerState
from replog.protocol.quorum import Quorum
from replog.testing import Fault
from tests.kit import ONE, cluster, read_ledger, settle

QUICK = ClientTuning(read_timeout_s=2.0, speculative_read_after_s=0.5, bookie_retry_after_s=1.0)
STRIPED = Quorum(5, 3, 2)


def numbers(last: int) -> list[bytes]:
    return [b"%d" % number for number in range(last + 1)]


async def test_opening_and_reading_never_fences(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, world.client() as other:
        async with client.create_ledger() as writer:
            for number in range(10):
                await writer.append(b"%d" % number)
                await read_ledger(other, writer.ledger_id)
            async with other.open_ledger(writer.ledger_id) as reader:
                assert not reader.is_closed
        for bookie in world.bookies:
            assert not [each for each in bookie.wire.seen if isinstance(each, FenceRequest | RecoveryReadRequest)]


async def test_reader_gets_exactly_the_confirmed_entries(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        async with client.create_ledger() as writer:
            await writer.extend(numbers(9))
            for bookie in world.bookies[1:]:
                bookie.wire.is_held = True
            writer.push_nowait(b"not confirmed")
            await settle()
            for bookie in world.bookies[1:]:
                bookie.wire.forget()
            assert await read_ledger(other, writer.ledger_id) == numbers(9)
            assert await read_ledger(client, writer.ledger_id) == numbers(9)
            assert writer.last_add_confirmed == 9


async def test_the_last_entry_of_an_idle_writer_is_seen_soon(autojump_clock: trio.testing.MockClock) -> None:
    """W5: its last add confirmed lags by one until it is published."""
    async with cluster() as world, world.client() as client, world.client() as other, client.create_ledger() as writer:
        await writer.append(b"0")
        await trio.sleep(0.5)
        assert await read_ledger(other, writer.ledger_id) == [b"0"]
        await writer.extend([b"1", b"2"])
        async with other.open_ledger(writer.ledger_id) as reader:
            started = trio.current_time()
            while await reader.refresh(1.0) < 2:
                assert trio.current_time() - started < 1
            assert trio.current_time() - started < 0.5
        asked = len(world.bookies[0].wire.seen)
        await trio.sleep(100)
        assert len(world.bookies[0].wire.seen) <= asked + 2, "an idle writer is quiet"


async def test_an_idle_writers_last_entry_is_seen_after_a_change(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster(6) as world, world.client() as client, world.client() as other, client.create_ledger() as writer:
        await writer.append(b"0")
        for bookie in world.named(writer.metadata.last_fragment.ensemble):
            await bookie.kill()
        await writer.append(b"1")
        await trio.sleep(5)
        assert len(writer.metadata.fragments) == 2
        async with other.open_ledger(writer.ledger_id) as reader:
            assert reader.last_add_confirmed == 1


async def test_a_long_poll_returns_at_the_first_news(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, world.client() as other:
        async with client.create_ledger() as writer, other.open_ledger(writer.ledger_id) as reader:
            assert reader.last_add_confirmed == -1

            async def append_later() -> None:
                await trio.sleep(3)
                await writer.append(b"0")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(append_later)
                started = trio.current_time()
                assert await reader.refresh(20.0) == 0
                assert 3 <= trio.current_time() - started < 3.5
            started = trio.current_time()
            assert await reader.refresh(2.0) == 0
            assert 2 <= trio.current_time() - started < 2.2


async def test_a_poll_beside_the_writer_returns_at_once_with_news(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client() as client:
        async with client.create_ledger() as writer, client.open_ledger(writer.ledger_id) as reader:
            await writer.append(b"0")
            started = trio.current_time()
            assert await reader.refresh(20.0) == 0
            assert trio.current_time() - started < 0.01


@pytest.mark.parametrize("down", [1, 2, 3])
async def test_long_poll_waits_even_when_bookies_are_down(down: int, autojump_clock: trio.testing.MockClock) -> None:
    """Else a follower would ask again and again without a pause."""
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        async with client.create_ledger() as writer, other.open_ledger(writer.ledger_id) as reader:
            await writer.append(b"0")
            await trio.sleep(1)
            await reader.refresh()
            for bookie in world.bookies[:down]:
                await bookie.kill()
            started = trio.current_time()
            await reader.refresh(2.0)
            assert 1.9 <= trio.current_time() - started <= 4.5


@pytest.mark.parametrize("hung", [1, 2])
async def test_a_second_bookie_is_asked_when_the_first_hangs(hung: int, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        async with client.create_ledger() as writer:
            await writer.extend(numbers(99))
        for bookie in world.bookies[:hung]:
            bookie.wire.is_deaf = True
        started = trio.current_time()
        assert await read_ledger(client, writer.ledger_id) == numbers(99)
        assert trio.current_time() - started <= hung * 0.5 + 0.1


@pytest.mark.parametrize("digest_type", list(replog.DigestType))
async def test_damaged_and_missing_copies_are_passed_over(
    digest_type: replog.DigestType, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        async with client.create_ledger(digest_type=digest_type, password=b"p") as writer:
            for number in range(20):
                await writer.append(b"%d" % number)
        world.bookies[0].storage.damaged.add(writer.ledger_id)
        world.bookies[1].storage.read_errors[writer.ledger_id] = StorageUncertainError("a bad sector", "scrub")
        for _ in range(5):  # in whatever order they are asked
            assert await read_ledger(client, writer.ledger_id, b"p") == numbers(19)
        world.bookies[2].storage.damaged.add(writer.ledger_id)
        with pytest.raises(EntryUnreadableError, match="retry"):
            await read_ledger(client, writer.ledger_id, b"p")
        world.bookies[2].storage.damaged.clear()
        assert await read_ledger(client, writer.ledger_id, b"p") == numbers(19)


@pytest.mark.parametrize(
    "status",
    [Status.UNKNOWN, Status.TOO_BUSY, Status.NO_ENTRY_IN_DOUBT, Status.NO_ENTRY],
    ids=lambda status: status.name,
)
async def test_only_strong_denials_prove_the_loss_of_an_entry(
    status: Status, autojump_clock: trio.testing.MockClock
) -> None:
    """D2, B8: if any bookie could not tell, the error says that a retry may help."""
    async with cluster() as world, world.client(QUICK) as client:
        async with client.create_ledger() as writer:
            await writer.extend(numbers(9))
        for bookie in world.bookies:
            bookie.wire.refuse = lambda request: Status.NO_ENTRY if isinstance(request, ReadRequest) else None
        world.bookies[0].wire.refuse = lambda request: status if isinstance(request, ReadRequest) else None
        expected = EntryNotFoundError if status is Status.NO_ENTRY else EntryUnreadableError
        with pytest.raises(expected) as raised:
            await read_ledger(client, writer.ledger_id)
        assert type(raised.value) is expected


async def test_a_reader_goes_on_where_it_failed(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world, world.client(QUICK, ONE) as client:
        async with client.create_ledger() as writer:
            await writer.extend(numbers(9))
        async with client.open_ledger(writer.ledger_id) as reader:
            world.bookies[0].storage.damaged.add(writer.ledger_id)
            with pytest.raises(EntryUnreadableError):
                await reader.read(0, 9)
            world.bookies[0].storage.damaged.clear()
            assert await reader.read(0, 9) == numbers(9)


@pytest.mark.parametrize("quorum", [STRIPED, Quorum(4, 2, 2), Quorum(2, 1, 1)], ids=str)
@pytest.mark.parametrize("piece", [1, 3, 50])
async def test_striped_ledgers_are_read_in_the_order_of_the_ids(
    quorum: Quorum, piece: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster(5) as world, world.client(QUICK, quorum) as client, world.client(QUICK) as other:
        async with client.create_ledger() as writer:
            for first in range(0, 150, piece):
                await writer.extend([b"%d" % number for number in range(first, first + piece)])
        for reading in (client, other):
            assert await read_ledger(reading, writer.ledger_id) == numbers(149)
            async with reading.open_ledger(writer.ledger_id) as reader:
                ids: list[int] = []
                found: list[bytes] = []
                async for batch in reader.batches():
                    ids += range(batch.first_entry_id, batch.last_entry_id + 1)
                    assert len(batch) == batch.last_entry_id - batch.first_entry_id + 1
                    assert [entry.data for entry in batch] == batch.payloads()
                    array = batch.to_arrow()
                    assert isinstance(array, pyarrow.BinaryArray)
                    assert array.to_pylist() == batch.payloads()
                    found += batch.payloads()
                assert ids == list(range(150))
                assert found == numbers(149)


async def test_striped_ledgers_survive_the_loss_of_bookies(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(5) as world, world.client(QUICK, STRIPED) as client:
        async with client.create_ledger() as writer:
            for first in range(0, 100, 7):
                await writer.extend([b"%d" % number for number in range(first, first + 7)])
        await world.bookies[0].kill()
        assert await read_ledger(client, writer.ledger_id) == numbers(104)
        world.bookies[1].wire.is_deaf = True
        assert await read_ledger(client, writer.ledger_id) == numbers(104)


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), STRIPED], ids=str)
async def test_ranges_are_inclusive_and_bounded(quorum: Quorum, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(5) as world, world.client(QUICK, quorum) as client:
        async with client.create_ledger() as writer:
            for first in range(0, 60, 20):
                await writer.extend([b"%d" % number for number in range(first, first + 20)])
        async with client.open_ledger(writer.ledger_id) as reader:
            for first, last in ((0, 0), (0, 59), (59, 59), (5, 45), (19, 20), (7, 7)):
                assert await reader.read(first, last) == numbers(59)[first : last + 1]
            assert await reader.read(5, 4) == []
            for first, last in ((0, 60), (60, 60), (-1, 5), (100, 200)):
                with pytest.raises(EntryNotFoundError, match="59"):
                    await reader.read(first, last)


async def test_lone_entry_is_read_without_its_successors(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world, world.client(QUICK, ONE) as client:
        async with client.create_ledger() as writer:
            for first in range(0, 60, 20):
                await writer.extend([b"%d" % number for number in range(first, first + 20)])
        async with client.open_ledger(writer.ledger_id) as reader:
            for entry_id in (5, 25, 45):
                assert await reader.read(entry_id, entry_id) == [b"%d" % entry_id]
            await settle()
        asked = [each for each in world.bookies[0].wire.seen if isinstance(each, ReadRequest)]
        assert [(each.entry_id, each.bytes_max) for each in asked] == [(5, 0), (25, 0), (45, 0)]


async def test_nothing_past_the_end_of_a_closed_ledger_is_read(autojump_clock: trio.testing.MockClock) -> None:
    """R7: bookies still hold what was not confirmed when the ledger was closed."""
    async with cluster() as world, world.client(QUICK) as client:
        with pytest.raises(ZeroDivisionError):
            async with client.create_ledger() as writer:
                await writer.extend(numbers(9))
                for bookie in world.bookies[1:]:
                    bookie.wire.is_deaf = True
                writer.push_nowait(b"too late")
                await settle()
                raise ZeroDivisionError
        for bookie in world.bookies:
            bookie.wire.is_deaf = False
        holders = [bookie for bookie in world.bookies if bookie.storage.read(writer.ledger_id, 10, 1, 1)]
        assert len(holders) == 1
        assert await read_ledger(client, writer.ledger_id) == numbers(9)
        async with client.open_ledger(writer.ledger_id) as reader:
            with pytest.raises(EntryNotFoundError):
                await reader.read(10, 10)


async def test_a_reader_with_old_metadata_finds_newer_ensembles(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster(6) as world, world.client(QUICK) as client, world.client(QUICK) as other:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            async with other.open_ledger(writer.ledger_id) as reader:
                entries = aiter(reader)
                for bookie in world.named(writer.metadata.last_fragment.ensemble):
                    await bookie.kill()
                    await writer.append(b"1")
                    await trio.sleep(1)
                reader._scan.adopt(writer.last_add_confirmed)
                for bookie in world.bookies:
                    if bookie.served is None:
                        await bookie.start()
                assert [(await anext(entries)).data for _ in range(4)] == [b"0", b"1", b"1", b"1"]


@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.5, 0.9, 1.3])
async def test_cancelled_wait_loses_nothing(after_s: float, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world, world.client(QUICK, ONE) as client:
        async with client.create_ledger() as writer:
            for number in range(30):
                await writer.append(b"%d" % number)
        world.bookies[0].wire.delay_s = 0.5
        found: list[bytes] = []
        async with client.open_ledger(writer.ledger_id) as reader:
            entries = aiter(reader.batches())
            with trio.fail_after(60):
                while len(found) < 30:
                    with trio.move_on_after(after_s if len(found) < 3 else 100) as scope:
                        found += (await anext(entries)).payloads()
                    if scope.cancelled_caught:
                        after_s += 0.3
        assert found == numbers(29)


async def test_cancelling_between_any_two_steps_loses_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world, world.client(QUICK, ONE) as client:
        async with client.create_ledger() as writer:
            for number in range(40):
                await writer.append(b"%d" % number)
        found: list[bytes] = []
        async with client.open_ledger(writer.ledger_id) as reader:
            batches = reader.batches()
            for turn in range(1000):
                if len(found) == 40:
                    break
                with trio.CancelScope() as scope:
                    if turn % 3 == 0:
                        scope.cancel()
                    found += (await anext(batches)).payloads()
        assert found == numbers(39)


@pytest.mark.parametrize("cancel_at", [0.05, 0.15, 0.25])
async def test_a_cancelled_reader_goes_on_at_the_next_call(
    cancel_at: float, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster(1) as world, world.client(QUICK, ONE) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
        world.metastore.delay_s = 0.1
        async with client.open_ledger(writer.ledger_id) as reader:
            await world.bookies[0].kill()
            with trio.move_on_after(cancel_at), suppress(EntryUnreadableError):
                await anext(aiter(reader))
            await world.bookies[0].start()
            with trio.fail_after(10):
                assert (await anext(aiter(reader))).data == b"0"


async def test_a_failed_reread_of_the_record_can_be_retried(
    autojump_clock: trio.testing.MockClock,
) -> None:
    options = ClientTuning(metastore_timeout_s=1.0, read_timeout_s=1.0)
    async with cluster(1) as world, world.client(options, ONE) as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
        async with client.open_ledger(writer.ledger_id) as reader:
            world.bookies[0].storage.damaged.add(writer.ledger_id)
            world.metastore._choose = lambda _operation, _key: Fault.UNAVAILABLE
            with trio.fail_after(10), pytest.raises(MetastoreError):
                await anext(aiter(reader))
            world.metastore._choose = None
            world.bookies[0].storage.damaged.clear()
            with trio.fail_after(10):
                assert (await anext(aiter(reader))).data == b"0"


async def test_missing_or_deleted_ledger_raises(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(QUICK) as client:
        with pytest.raises(LedgerNotFoundError):
            await read_ledger(client, 7)
        async with client.create_ledger() as writer:
            await writer.append(b"0")
        async with client.open_ledger(writer.ledger_id) as reader:
            await client.delete_ledger(writer.ledger_id)
            for bookie in world.bookies:
                assert bookie.served is not None
                bookie.served.ask_for_collection()
            await trio.sleep(1)
            with pytest.raises(LedgerNotFoundError):
                await anext(aiter(reader))
            with pytest.raises(LedgerNotFoundError):
                await reader.refresh()


async def test_a_wrong_password_reads_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        async with client.create_ledger(password=b"right") as writer:
            await writer.append(b"0")
            with pytest.raises(UnauthorizedError):
                await read_ledger(client, writer.ledger_id, b"wrong")
        for bookie in world.bookies:
            assert not [each for each in bookie.wire.seen if isinstance(each, ReadRequest)]


async def test_a_closed_reader_says_so(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
        async with client.open_ledger(writer.ledger_id) as reader:
            assert reader.is_closed
            assert reader.metadata.state is LedgerState.CLOSED
        for verb in (reader.refresh, lambda: reader.read(0, 0)):
            with pytest.raises(trio.ClosedResourceError):
                await verb()
        with pytest.raises(trio.ClosedResourceError):
            aiter(reader)
        with pytest.raises(trio.ClosedResourceError):
            reader.batches()


@pytest.mark.slow
async def test_idle_reader_is_sent_nothing_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for quorum in (Quorum(3, 3, 2), STRIPED):
        async with cluster(5) as world, world.client() as client, world.client() as other:
            async with client.create_ledger(quorum=quorum) as writer, other.open_ledger(writer.ledger_id) as reader:
                for number in range(200):
                    await writer.append(b"%d" % number)
                    while reader.last_add_confirmed < number:
                        await reader.refresh(1.0)
                assert len(reader._scan._deliveries) <= quorum.ensemble
                batches = [each async for each in reader.batches()]
                assert [each for batch in batches for each in batch.payloads()] == numbers(199)


async def test_stale_answers_do_not_end_a_refresh(autojump_clock: trio.testing.MockClock) -> None:
    """A refresh without waiting hears bookies that answer *it*; long polls of before may answer at any moment."""
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        async with client.create_ledger() as writer, other.open_ledger(writer.ledger_id) as reader:
            with trio.move_on_after(0.5):
                await reader.refresh(1.0)
            polls = sum(isinstance(each, ReadLastAddConfirmedRequest) for each in world.bookies[0].wire.seen)
            assert polls
            for bookie in world.bookies:
                bookie.wire.delay_s = 1.0  # answers to the polls come at 1.0, those to the refresh at 1.5
            await reader.refresh()
            assert trio.current_time() >= 1.5
            assert writer.last_add_confirmed == -1


async def test_it_begins_at_the_entry_it_was_opened_at(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(5) as world, world.client() as client:
        for quorum in (Quorum(3, 3, 2), STRIPED):
            async with client.create_ledger(quorum=quorum) as writer:
                await writer.extend(numbers(9))
                await writer.extend([b"ten", b"eleven"])
            for first in (0, 4, 10, 11, 12):
                async with client.open_ledger(writer.ledger_id, first=first) as reader:
                    assert [entry.entry_id async for entry in reader] == list(range(first, 12))
                    assert await reader.read(3, 4) == [b"3", b"4"]  # whatever it iterates from
            async with client.open_ledger(writer.ledger_id, first=1000) as reader:
                assert [entry async for entry in reader] == []
                assert reader.last_add_confirmed == 11
            for wrong in (-1, True, "1"):
                with pytest.raises(ConfigError, match="is not an entry id"):
                    async with client.open_ledger(writer.ledger_id, first=wrong):  # type: ignore[arg-type]
                        pass


async def test_a_batch_tells_how_long_the_ledger_is(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(5) as world, world.client() as client:
        for quorum, most in ((Quorum(3, 3, 2), 10), (STRIPED, 10 + len("ten" + "eleven"))):
            async with client.create_ledger(quorum=quorum) as writer:
                await writer.extend(numbers(9))
                await writer.extend([b"ten", b"eleven"])
                async with client.open_ledger(writer.ledger_id, first=11) as reader:
                    batch = await reader.receive_batch()
                    assert batch is not None
                    assert batch.ledger_bytes == writer.length_bytes == 10 + len("ten" + "eleven")
                async with client.open_ledger(writer.ledger_id) as reader:
                    batch = await reader.receive_batch()
                    assert batch is not None
                    assert 10 <= batch.ledger_bytes <= most or len(batch) == 12


async def test_a_stretch_is_read_in_batches(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(5) as world, world.client() as client:
        for quorum in (Quorum(3, 3, 2), STRIPED):
            async with client.create_ledger(quorum=quorum) as writer:
                await writer.extend(numbers(9))
                await writer.extend([b"10", b"11", b"12"])
            async with client.open_ledger(writer.ledger_id) as reader:
                for first, last in ((0, 0), (3, 5), (8, 11), (0, 12), (12, 12)):
                    batches = [batch async for batch in reader.batches_between(first, last)]
                    payloads = [payload for batch in batches for payload in batch.payloads()]
                    assert payloads == numbers(12)[first : last + 1]
                    assert pyarrow.concat_arrays([batch.to_arrow() for batch in batches]).to_pylist() == payloads
                    assert sum(map(len, batches)) == last - first + 1
                    assert (batches[0].first_entry_id, batches[-1].last_entry_id) == (first, last)
                assert await reader.read(0, 0) == [b"0"]
                with pytest.raises(EntryNotFoundError, match=r"ends at entry 12 \(R7\)"):
                    _ = [batch async for batch in reader.batches_between(11, 13)]
                with pytest.raises(ConfigError, match="3 to 2 are not entries"):
                    reader.batches_between(3, 2)
            with pytest.raises(trio.ClosedResourceError):
                reader.batches_between(0, 1)


async def test_a_confirmed_range_of_an_open_ledger_can_be_read(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The planner of a read heard of the last add confirmed from bookies that may be silent now (D1)."""
    async with cluster() as world, world.client(QUICK) as client, world.client(QUICK) as other:
        async with client.create_ledger() as writer, other.open_ledger(writer.ledger_id) as reader:
            await writer.extend(numbers(9))
            assert reader.last_add_confirmed == -1
            found = [batch.payloads() async for batch in reader.batches_between(2, 7)]
            assert [payload for payloads in found for payload in payloads] == numbers(9)[2:8]
            assert reader.last_add_confirmed == -1


async def test_a_slow_reader_never_waits_for_the_next_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A megabyte is asked for at a time, here ten batches: the next one while the one before is being taken."""
    async with cluster(1) as world, world.client(QUICK, ONE) as client:
        async with client.create_ledger() as writer:
            for _ in range(100):
                await writer.append(bytes(100_000))
        async with client.open_ledger(writer.ledger_id) as reader:
            world.bookies[0].wire.delay_s = 0.009
            began_s, taken = trio.current_time(), 0
            async for batch in reader.batches():
                await trio.sleep(0.001)
                taken += len(batch)
            assert taken == 100
            assert trio.current_time() - began_s <= 0.009 + 100 * 0.001 + 0.001
            asked = [each for each in world.bookies[0].wire.seen if isinstance(each, ReadRequest)]
            assert len(asked) == 10


async def test_only_bookie_left_is_heard_before_failures_count(autojump_clock: trio.testing.MockClock) -> None:
    """D1: those that can't be reached fail at once, and tell nothing. The reader looked empty."""
    async with cluster(3) as world, world.client() as client:
        async with client.create_ledger() as writer:
            await writer.append(b"0")
            await trio.sleep(1)  # an idle writer tells its bookies (W5)
            names = {each.bookie_id: each for each in world.bookies}
            first, *others = (names[each] for each in writer.metadata.last_fragment.ensemble)
            for each in others:
                await each.kill()
            first.wire.delay_s = 0.05
            async with world.client() as reading, reading.open_ledger(writer.ledger_id) as reader:
                assert reader.last_add_confirmed == 0
