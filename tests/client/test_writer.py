"""The writer of a ledger: pushing, appending, batching, cancelling, closing (W1, W2, W4, W6, R1)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing

import replog
from replog.config import ClientOptions
from replog.config.client import ClientTuning
from replog.errors import FencedError, PayloadTooLargeError, ReplogError
from replog.hookspecs import WriterFenced
from replog.protocol.batch import ENTRY_BYTES_MAX
from replog.protocol.model import LedgerState
from tests.kit import ONE, Cluster, Turns, cluster, read_ledger, settle

SMALL = ClientTuning(in_flight_bytes_max=1000, batch_bytes_max=100)
BUDGET = ClientTuning(in_flight_bytes_max=10_000, batch_bytes_max=10_000)


async def metadata_of(client: replog.Client, ledger_id: int) -> replog.LedgerMetadata:
    async with client.open_ledger(ledger_id) as reader:
        return reader.metadata


async def test_entry_ids_count_calls_and_reads_return_the_entries(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client() as client:
        async with client.create_ledger() as writer:
            assert await writer.append(b"zero") == 0
            assert writer.push_nowait(b"one") == 1
            assert await writer.push(b"") == 2
            assert list(await writer.extend([b"three", b"", b"five"])) == [3, 4, 5]
            assert list(await writer.extend([])) == []
            await writer.flush()
            assert writer.last_add_pushed == writer.last_add_confirmed == 5
            assert writer.unconfirmed_bytes == 0
        assert await read_ledger(client, writer.ledger_id) == [b"zero", b"one", b"", b"three", b"", b"five"]
        metadata = await metadata_of(client, writer.ledger_id)
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 5)


async def test_an_empty_ledger_closes_empty(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        async with client.create_ledger() as writer:
            pass
        assert (await metadata_of(client, writer.ledger_id)).last_entry_id == -1
        assert await read_ledger(client, writer.ledger_id) == []


async def test_byte_budget_bounds_entries_in_flight(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client(SMALL) as client, client.create_ledger() as writer:
        for bookie in world.bookies:
            bookie.wire.is_held = True
        for _ in range(10):
            writer.push_nowait(bytes(100))
        with pytest.raises(trio.WouldBlock):
            writer.push_nowait(b"x")
        assert writer.last_add_pushed == 9
        writer.push_nowait(b"")  # takes no room
        async with trio.open_nursery() as nursery:
            ids: list[int] = []

            async def push() -> None:
                ids.append(await writer.push(bytes(500)))

            nursery.start_soon(push)
            await settle()
            assert not ids
            for bookie in world.bookies:
                bookie.wire.release()
        assert ids == [11]


@pytest.mark.parametrize("verb", ["append", "push", "push_nowait", "extend"])
async def test_an_entry_larger_than_the_budget_goes_alone(verb: str, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world, world.client(SMALL, ONE) as client:
        async with client.create_ledger() as writer:
            if verb == "extend":
                await writer.extend([bytes(3000)])
            elif verb == "push_nowait":
                writer.push_nowait(bytes(3000))
            else:
                await getattr(writer, verb)(bytes(3000))
            await writer.append(b"next")
        assert await read_ledger(client, writer.ledger_id) == [bytes(3000), b"next"]


async def test_the_largest_entry_is_taken_and_one_byte_more_is_not(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world, world.client(quorum=ONE) as client:
        async with client.create_ledger() as writer:
            largest = bytes(ENTRY_BYTES_MAX)
            assert await writer.append(largest) == 0
            too_large = bytes(ENTRY_BYTES_MAX + 1)
            for verb in (writer.append, writer.push):
                with pytest.raises(PayloadTooLargeError, match="split"):
                    await verb(too_large)
            with pytest.raises(PayloadTooLargeError):
                writer.push_nowait(too_large)
            with pytest.raises(PayloadTooLargeError):
                await writer.extend([b"x", too_large])
            assert writer.last_add_pushed == 0
        assert await read_ledger(client, writer.ledger_id) == [largest]


@pytest.mark.parametrize("wrong", ["text", 5, None, bytearray(b"x"), memoryview(b"x"), [b"x"]])
async def test_an_entry_is_bytes_and_nothing_else(wrong: object, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world, world.client(quorum=ONE) as client, client.create_ledger() as writer:
        with pytest.raises(TypeError):
            await writer.append(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            await writer.push(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            writer.push_nowait(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            await writer.extend([b"good", wrong])  # type: ignore[list-item]
        assert writer.last_add_pushed == -1


async def test_bytes_are_not_a_list_of_entries(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world, world.client(quorum=ONE) as client, client.create_ledger() as writer:
        with pytest.raises(TypeError):
            await writer.extend(b"abc")  # type: ignore[arg-type]
        assert writer.last_add_pushed == -1


async def test_appends_of_many_tasks_share_batches_in_call_order(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client() as client:
        order: dict[int, bytes] = {}
        async with client.create_ledger() as writer:

            async def append(number: int) -> None:
                for turn in range(5):
                    data = b"%d/%d" % (number, turn)
                    order[await writer.append(data)] = data

            async with trio.open_nursery() as nursery:
                for number in range(200):
                    nursery.start_soon(append, number)
            statistics = writer.statistics()
            assert statistics["entries_sent"] == 1000
            assert statistics["batches_sent"] <= 30
        assert await read_ledger(client, writer.ledger_id) == [order[entry_id] for entry_id in range(1000)]


async def test_pushers_filling_the_budget_do_not_starve_an_append(
    autojump_clock: trio.testing.MockClock,
) -> None:
    options = ClientTuning(in_flight_bytes_max=100_000, batch_bytes_max=1000)
    async with cluster(1) as world, world.client(options, ONE) as client, client.create_ledger() as writer:
        world.bookies[0].wire.delay_s = 0.001
        async with trio.open_nursery() as nursery:

            async def push_for_ever() -> None:
                while True:
                    await writer.push(bytes(100))

            for _ in range(3):
                nursery.start_soon(push_for_ever)
            await trio.sleep(0.05)
            entry_id = await writer.append(b"one")
            assert writer.last_add_confirmed < entry_id + 4000, "it learnt of it long after it was confirmed"
            nursery.cancel_scope.cancel()


async def test_pushing_lets_other_tasks_run(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world, world.client(quorum=ONE) as client, client.create_ledger() as writer:
        turns = Turns()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turns.count)
            for _ in range(100):
                await writer.push(b"x")
            nursery.cancel_scope.cancel()
        assert turns.counted > 50


@pytest.mark.parametrize("yields", range(8))
async def test_a_cancelled_append_leaves_no_hole(yields: int, autojump_clock: trio.testing.MockClock) -> None:
    """W4: its outcome is unknown, but the ids after it are confirmed, whenever it was cancelled."""
    async with cluster() as world, world.client() as client:
        async with client.create_ledger() as writer:
            await writer.append(b"before")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.append, b"cancelled")
                for _ in range(yields):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            with trio.fail_after(1):
                await writer.append(b"after")
        found = await read_ledger(client, writer.ledger_id)
        assert found in ([b"before", b"cancelled", b"after"], [b"before", b"after"])


@pytest.mark.parametrize("cancelled_first", [False, True])
async def test_a_cancelled_append_under_load_leaves_no_hole(
    cancelled_first: bool, autojump_clock: trio.testing.MockClock
) -> None:
    async with cluster() as world, world.client() as client:
        for bookie in world.bookies:
            bookie.wire.delay_s = 0.01
        done: set[bytes] = set()
        async with client.create_ledger() as writer:

            async def append(data: bytes, scope: trio.CancelScope) -> None:
                with scope:
                    await writer.append(data)
                    done.add(data)

            scopes = [trio.CancelScope() for _ in range(50)]
            if cancelled_first:
                scopes[0].cancel()
            async with trio.open_nursery() as nursery:
                for number, scope in enumerate(scopes):
                    nursery.start_soon(append, b"%d" % number, scope)
                await trio.sleep(0.005)
                for scope in scopes[::3]:
                    scope.cancel()
        found = await read_ledger(client, writer.ledger_id)
        assert done <= set(found)
        assert len(found) == len(set(found)) >= len(done) >= 33


async def test_flush_waits_only_for_entries_pushed_before_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster(1) as world, world.client(SMALL, ONE) as client, client.create_ledger() as writer:
        world.bookies[0].wire.delay_s = 1.0
        for _ in range(7):
            writer.push_nowait(bytes(70))
        last = writer.last_add_pushed
        async with trio.open_nursery() as nursery:

            async def push_later() -> None:
                while True:
                    await writer.push(bytes(70))

            nursery.start_soon(push_later)
            with trio.fail_after(8):
                await writer.flush()
            assert writer.last_add_confirmed >= last
            nursery.cancel_scope.cancel()


async def test_after_close_every_verb_says_so(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        async with client.create_ledger() as writer:
            await writer.append(b"one")
        with pytest.raises(trio.ClosedResourceError):
            writer.push_nowait(b"x")
        verbs: list[Callable[[], object]] = [
            lambda: writer.append(b"x"),
            lambda: writer.push(b"x"),
            lambda: writer.extend([b"x"]),
            lambda: writer.extend([]),
            lambda: writer.flush(),
        ]
        for verb in verbs:
            with pytest.raises(trio.ClosedResourceError):
                await verb()  # type: ignore[misc]
        await writer.aclose()  # idempotent
        assert writer.last_add_confirmed == 0


async def test_closing_confirms_earlier_calls_and_refuses_later_ones(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client() as client:
        for bookie in world.bookies:
            bookie.wire.delay_s = 0.01
        confirmed: list[bytes] = []
        refused: list[bytes] = []
        async with client.create_ledger() as writer:

            async def append(number: int) -> None:
                await trio.sleep(number / 1000)
                data = b"%d" % number
                try:
                    await writer.append(data)
                    confirmed.append(data)
                except trio.ClosedResourceError:
                    refused.append(data)

            async with trio.open_nursery() as nursery:
                for number in range(40):
                    nursery.start_soon(append, number)
                await trio.sleep(0.0205)
                await writer.aclose()
        assert sorted(confirmed, key=int) == [b"%d" % number for number in range(21)]
        assert len(refused) == 19
        assert await read_ledger(client, writer.ledger_id) == sorted(confirmed, key=int)


async def test_leaving_on_an_error_closes_at_the_last_confirmed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client() as client:
        with pytest.raises(ZeroDivisionError):
            async with client.create_ledger() as writer:
                await writer.append(b"kept")
                for bookie in world.bookies:
                    bookie.wire.is_held = True
                writer.push_nowait(b"lost")
                raise ZeroDivisionError
        for bookie in world.bookies:
            bookie.wire.release()
        metadata = await metadata_of(client, writer.ledger_id)
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 0)
        assert await read_ledger(client, writer.ledger_id) == [b"kept"]


async def test_a_block_cancelled_while_confirming_still_closes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client() as client:
        with trio.move_on_after(1) as scope:
            async with client.create_ledger() as writer:
                await writer.append(b"kept")
                for bookie in world.bookies:
                    bookie.wire.is_held = True
                writer.push_nowait(b"lost")
        assert scope.cancelled_caught
        await settle()
        metadata = await metadata_of(client, writer.ledger_id)
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 0)


async def deposed(world: Cluster, client: replog.Client, writer: replog.LedgerWriter) -> None:
    async with world.client() as other:
        await other.recover_ledger(writer.ledger_id)


async def test_a_fenced_writer_raises_at_every_later_append(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client() as client:
        with pytest.raises(FencedError) as caught:
            async with client.create_ledger() as writer:
                await writer.append(b"one")
                await deposed(world, client, writer)
                await writer.append(b"two")
        assert caught.value.unconfirmed == range(1, 2)
        assert not isinstance(caught.value.__context__, BaseExceptionGroup)
        for _ in range(2):
            with pytest.raises(FencedError):
                await writer.append(b"three")
        with pytest.raises(FencedError):
            writer.push_nowait(b"three")
        await writer.aclose()  # it was told
        assert await read_ledger(client, writer.ledger_id) == [b"one"]
        assert world.told(WriterFenced) == [WriterFenced(writer.ledger_id, range(1, 2))]


async def test_an_unraised_failure_is_raised_on_leaving(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with cluster() as world, world.client() as client:
        with pytest.raises(FencedError) as caught:
            async with client.create_ledger() as writer:
                await writer.append(b"one")
                await deposed(world, client, writer)
                writer.push_nowait(b"two")
                writer.push_nowait(b"three")
                await trio.sleep(1)
        assert caught.value.unconfirmed == range(1, 3)


async def test_raised_failure_is_not_raised_again_on_leaving(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, client.create_ledger() as writer:
        await writer.append(b"one")
        await deposed(world, client, writer)
        with pytest.raises(FencedError):
            await writer.append(b"two")


@pytest.mark.parametrize("idle_s", [0, 5])
async def test_idle_deposed_writer_leaves_without_an_error(
    idle_s: float, autojump_clock: trio.testing.MockClock
) -> None:
    """R1: recovery closed the ledger where the writer would have: nothing was lost, so it is no error. Whether the writer learns
    it when it closes, or before, when it publishes what is confirmed (W5)."""
    async with cluster() as world, world.client() as client, client.create_ledger() as writer:
        await writer.append(b"one")
        await deposed(world, client, writer)
        await trio.sleep(idle_s)
        assert isinstance(writer.error, FencedError) is (idle_s > 0)
    assert writer.last_add_confirmed == 0
    assert (writer.metadata.state, writer.metadata.last_entry_id) == (LedgerState.CLOSED, 0)


async def test_nothing_is_confirmed_after_recovery_closed_the_ledger(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """L5, W4: entries are in flight, fenced, and none of them is confirmed though recovery keeps some."""
    async with cluster() as world, world.client() as client:
        confirmed: list[int] = []
        failures: list[ReplogError] = []
        async with client.create_ledger() as writer, trio.open_nursery() as nursery:
            for bookie in world.bookies:
                bookie.wire.delay_s = 0.01

            async def append(number: int) -> None:
                await trio.sleep(number * 0.001)
                try:
                    confirmed.append(await writer.append(b"%d" % number))
                except FencedError as error:
                    failures.append(error)

            for number in range(100):
                nursery.start_soon(append, number)
            await trio.sleep(0.0405)
            async with world.client() as other:
                metadata = await other.recover_ledger(writer.ledger_id)
                served = list(confirmed)
                await trio.sleep(1)
                assert confirmed == served
                assert metadata.last_entry_id is not None
                assert set(confirmed) <= set(range(metadata.last_entry_id + 1))
        assert failures
        assert len(failures) + len(confirmed) == 100
        assert len({id(error) for error in failures}) == len(failures), "each task has an exception of its own"


async def test_an_exception_of_the_application_comes_out_as_it_is(autojump_clock: trio.testing.MockClock) -> None:
    mine = KeyError("mine")
    with pytest.raises(KeyError) as caught:
        async with cluster() as world, world.client() as client, client.create_ledger() as writer:
            await writer.append(b"one")
            raise mine
    assert caught.value is mine


async def test_leaving_the_client_ends_open_writers(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world:
        async with world.client() as client:
            context = client.create_ledger()
            writer = await context.__aenter__()
            writer.push_nowait(b"one")
        with trio.fail_after(20):
            with pytest.raises(trio.ClosedResourceError):
                await writer.append(b"two")
            await context.__aexit__(None, None, None)


async def batches_of_what_is_kept_in_flight(in_flight: int, entry_bytes: int, budget_bytes: int) -> list[int]:
    """How many entries each batch has when as many are pushed as were confirmed, on and on."""
    data = bytes(entry_bytes)
    async with cluster() as world, world.client(ClientOptions(in_flight_bytes_max=budget_bytes)) as client:
        for bookie in world.bookies:
            bookie.wire.delay_s = 0.0005
        async with client.create_ledger() as writer:
            while writer.last_add_confirmed < 20 * in_flight:
                for _ in range(in_flight - (writer.last_add_pushed - writer.last_add_confirmed)):
                    writer.push_nowait(data)
                # There is room for so much when one is confirmed.
                await writer._entries.wait_for_room(budget_bytes - (in_flight - 1) * entry_bytes)
        async with client.open_ledger(writer.ledger_id) as reader:
            return [len(batch) async for batch in reader.batches()]


@pytest.mark.parametrize(("entry_bytes", "in_flight"), [(100, 10), (1024, 200)])
async def test_entries_kept_in_flight_stay_in_even_batches(
    entry_bytes: int, in_flight: int, autojump_clock: trio.testing.MockClock
) -> None:
    """For ever, which is what sending the first of them at once would lead to: that costs as two, and overlaps as none."""
    sizes = await batches_of_what_is_kept_in_flight(in_flight, entry_bytes, 1 << 21)
    assert sum(size * 4 < in_flight for size in sizes) <= len(sizes) * 0.2


@pytest.mark.parametrize(("entry_bytes", "batch_entries"), [(100, 1000), (1024, 500)])
async def test_entries_in_flight_are_halved_only_when_large(
    entry_bytes: int, batch_entries: int, autojump_clock: trio.testing.MockClock
) -> None:
    """The cost of a batch for each bookie, beside its bytes, is more than overlapping two of 50 KB gains, and less than
    two of 500."""
    sizes = await batches_of_what_is_kept_in_flight(1000, entry_bytes, 4 << 20)
    assert sum(size == batch_entries for size in sizes) >= len(sizes) * 0.8, sizes


async def test_task_waiting_for_room_sends_pushed_entries(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can push more before something is confirmed: a turn of the event loop would only be waited for. When that turn
    comes it is not one of what was pushed since: who keeps a number in flight would have a batch of one, and one of the rest."""
    later: list[Callable[[], None]] = []
    async with cluster() as world, world.client(BUDGET) as client, client.create_ledger() as writer:
        await writer.extend([b"one", b"two"])  # several together: so the next ones are not sent one by one
        with monkeypatch.context() as patch:
            patch.setattr("replog.runtime.event_loop.CallSoon.soon", lambda _, call, **__: later.append(call))
            for _ in range(10):
                writer.push_nowait(bytes(100))
            assert (len(later), writer._entries.batches_sent) == (1, 1)
            with trio.move_on_after(1):
                await writer._entries.wait_for_room(BUDGET.in_flight_bytes_max)
            assert (writer.last_add_confirmed, writer._entries.batches_sent) == (11, 2)
            writer.push_nowait(b"first")
            later[0]()
            writer.push_nowait(b"second")
            assert (len(later), writer._entries.batches_sent) == (2, 2)
            later[1]()  # gives way once more: as much as was confirmed may be pushed anew
            later[2]()
            assert writer._entries.batches_sent == 3
    assert writer._entries.entries_sent == 14


async def test_single_pushes_are_sent_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, client.create_ledger() as writer:
        for number in range(10):
            writer.push_nowait(b"x")
            assert writer.statistics()["batches_sent"] == number + 1
            await writer.flush()
