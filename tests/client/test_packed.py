"""Entries in one piece (`PackedPayloads`): a writer sends them as any others, whatever else it has to send (W1, W2, W3)."""

from __future__ import annotations

import random
import struct
from itertools import accumulate

import pytest
import trio
import trio.testing

from replog.config import ClientOptions
from replog.config.client import ClientTuning
from replog.errors import FencedError, PayloadTooLargeError, ReplogError
from replog.protocol.batch import ENTRY_BYTES_MAX, Batch, PackedPayloads
from replog.protocol.envelope import pack_each
from replog.protocol.messages import AddRequest
from replog.protocol.quorum import Quorum
from tests.kit import ONE, Cluster, cluster, read_ledger, settle

ENTRIES = [b"one", b"", b"three", b"four" * 5]


def packed(*entries: bytes) -> PackedPayloads:
    edges = list(accumulate(map(len, entries), initial=0))
    return PackedPayloads(struct.pack(f"<{len(edges)}i", *edges), b"".join(entries))


def batches_at(world: Cluster, ledger_id: int) -> list[Batch]:
    return [add.batch for add in world.bookies[0].adds(ledger_id)]


@pytest.mark.parametrize("compression", ["none", "zstd"])
async def test_they_are_one_batch(compression: str, autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        async with client.create_ledger(compression=compression) as writer:
            await writer._entries.push_packed(packed(*ENTRIES))
            assert writer.last_add_pushed == 3
            assert await writer.append(b"next") == 4
            assert (writer.last_add_confirmed, writer.unconfirmed_bytes) == (4, 0)
            await writer._entries.push_packed(packed(*ENTRIES))
            assert writer.length_bytes == 2 * sum(map(len, ENTRIES)) + 4
        assert [each.count for each in batches_at(world, writer.ledger_id)] == [4, 1, 4]
        assert await read_ledger(client, writer.ledger_id) == [*ENTRIES, b"next", *ENTRIES]


@pytest.mark.parametrize("is_instant", [True, False])
async def test_bookies_may_answer_at_once(is_instant: bool) -> None:
    """Before the request was sent to the others."""
    async with cluster(is_instant=is_instant) as world, world.client() as client:
        async with client.create_ledger() as writer:
            for _ in range(20):
                await writer._entries.push_packed(packed(*ENTRIES))
        assert await read_ledger(client, writer.ledger_id) == ENTRIES * 20


async def test_earlier_pushes_go_first(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        async with client.create_ledger() as writer:
            for bookie in world.bookies:
                bookie.wire.is_held = True
            writer.push_nowait(b"a")  # in flight
            writer.push_nowait(b"b")  # gathers
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer._entries.push_packed, packed(*ENTRIES))
                await settle()
                assert writer.unconfirmed == range(2)
                for bookie in world.bookies:
                    bookie.wire.release()
            writer.push_nowait(b"c")
        assert await read_ledger(client, writer.ledger_id) == [b"a", b"b", *ENTRIES, b"c"]


async def test_as_many_are_in_flight_as_may_be(autojump_clock: trio.testing.MockClock) -> None:
    """The others wait, and are not cut into pieces for that."""
    async with cluster() as world, world.client() as client:
        async with client.create_ledger() as writer:
            for bookie in world.bookies:
                bookie.wire.is_held = True

            async def push() -> None:
                for _ in range(10):
                    await writer._entries.push_packed(packed(*ENTRIES))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(push)
                await settle()
                figures = writer.statistics()
                assert figures["batches_in_flight"] == figures["batches_in_flight_max"] == 2
                assert writer.unconfirmed == range(8)
                for bookie in world.bookies:
                    bookie.wire.release()
        assert [each.count for each in batches_at(world, writer.ledger_id)] == [4] * 10


async def test_much_is_sent_without_looking_at_each(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much: also behind each look at how far bookies are behind."""
    monkeypatch.setattr("replog.client.entry_writer.Payloads", None)
    async with cluster() as world, world.client() as client:
        async with client.create_ledger() as writer:
            for _ in range(10):
                await writer._entries.push_packed(packed(*[bytes(1000)] * 600))
        assert [each.count for each in batches_at(world, writer.ledger_id)] == [600] * 10


async def test_lagging_bookie_holds_packed_batches_back(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replog.client.writer_background._LAG_BYTES_MAX", 3_000_000)
    async with cluster() as world, world.client() as client:
        async with client.create_ledger() as writer:
            world.bookies[0].wire.is_held = True
            with trio.move_on_after(0.5) as scope:
                for _ in range(100):
                    await writer._entries.push_packed(packed(*[bytes(1000)] * 600))
            assert scope.cancelled_caught
            assert 3_000_000 < writer.last_add_pushed * 1000 < 6_000_000
            world.bookies[0].wire.release()
            await writer.flush()
            count = writer.last_add_confirmed + 1
        assert await read_ledger(client, writer.ledger_id) == [bytes(1000)] * count


@pytest.mark.parametrize("why", ["striped", "large", "many", "held"])
async def test_packed_entries_gather_when_they_exceed_one_batch(
    why: str, autojump_clock: trio.testing.MockClock
) -> None:
    options = ClientTuning(in_flight_bytes_max=1 << 24, batch_bytes_max=100 if why == "large" else 1 << 23)
    entries = [b""] * 70_000 if why == "many" else ENTRIES * 10
    quorum = Quorum(3, 2, 2) if why == "striped" else Quorum(3, 3, 2)
    async with cluster() as world, world.client(options, quorum) as client:
        async with client.create_ledger() as writer:
            if why == "held":
                writer._entries.pacing.hold()
            await writer._entries.push_packed(packed(*entries))
            assert (writer._entries.entries_sent == 0) == (why == "held")
            writer._entries.pacing.release()
        assert (writer._entries.batches_sent == 1) == (why in ("striped", "held"))
        assert await read_ledger(client, writer.ledger_id) == entries


async def test_oversized_packed_entry_is_refused(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster(1) as world, world.client(ClientOptions(), ONE) as client, client.create_ledger() as writer:
        with pytest.raises(PayloadTooLargeError):
            await writer._entries.push_packed(packed(b"small", bytes(ENTRY_BYTES_MAX + 1)))
        assert await writer.append(b"next") == 0, "nothing of the others was written"


async def test_the_byte_budget_holds_them_back(autojump_clock: trio.testing.MockClock) -> None:
    options = ClientTuning(in_flight_bytes_max=100, batch_bytes_max=100)
    async with cluster() as world, world.client(options) as client, client.create_ledger() as writer:
        for bookie in world.bookies:
            bookie.wire.is_held = True
        writer.push_nowait(bytes(90))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer._entries.push_packed, packed(bytes(20)))
            await settle()
            assert writer.last_add_pushed == 0
            for bookie in world.bookies:
                bookie.wire.release()
        assert writer.last_add_pushed == 1


async def test_ended_writer_gives_the_reason(autojump_clock: trio.testing.MockClock) -> None:
    """W4: their outcome is as unknown as that of others."""
    async with cluster() as world, world.client() as client, world.client() as other:
        with pytest.raises(FencedError) as caught:
            async with client.create_ledger() as writer:
                await writer._entries.push_packed(packed(*ENTRIES))
                await writer.flush()
                await other.recover_ledger(writer.ledger_id)
                await writer._entries.push_packed(packed(*ENTRIES))
        assert caught.value.unconfirmed == range(4, 8)
        assert await read_ledger(client, writer.ledger_id) == ENTRIES
        async with client.create_ledger() as closed:
            pass
        with pytest.raises(trio.ClosedResourceError):
            await closed._entries.push_packed(packed(*ENTRIES))


async def test_waiting_caller_learns_of_the_end(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        told: list[ReplogError] = []
        with pytest.raises(FencedError):
            async with client.create_ledger() as writer:

                async def push() -> None:
                    try:
                        await writer._entries.push_packed(packed(*ENTRIES))
                    except ReplogError as error:
                        told.append(error)

                for bookie in world.bookies:
                    bookie.wire.holds = lambda request: isinstance(request, AddRequest)
                async with trio.open_nursery() as nursery:
                    for _ in range(3):
                        nursery.start_soon(push)
                    await settle()
                    assert writer.unconfirmed == range(8)
                    writer._entries.abandon(FencedError(writer.ledger_id, "it is over"))
                    await settle()
                assert list(map(type, told)) == [FencedError]
                await writer.flush()


@pytest.mark.parametrize("seed", range(10))
async def test_length_counts_all_entries(seed: int, autojump_clock: trio.testing.MockClock) -> None:
    """However they came, gathered and were cut: the writer counts bytes, and nobody looks at each entry again."""
    chance = random.Random(seed)
    options = ClientTuning(in_flight_bytes_max=5000, batch_bytes_max=chance.choice([50, 500, 5000]))
    quorum = chance.choice([Quorum(3, 3, 2), Quorum(3, 2, 2)])
    written: list[bytes] = []
    overhead_bytes = 0

    def some() -> list[bytes]:
        found = [bytes(chance.choice([0, 1, 10, 100])) for _ in range(chance.randrange(1, 20))]
        written.extend(found)
        return found

    async with cluster() as world, world.client(options, quorum) as client:
        async with client.create_ledger() as writer:
            for _ in range(60):
                turn = chance.randrange(6)
                if turn == 0:
                    await writer._entries.push_packed(packed(*some()))
                elif turn == 1:
                    await writer.extend(some())
                elif turn == 2:
                    for entry in some():
                        await writer.push(entry)
                elif turn == 3:
                    [enveloped] = pack_each([b"value"], [b"key"], None)
                    await writer.push(enveloped)
                    written.append(b"value")
                    overhead_bytes += len(enveloped) - len(b"value")
                elif turn == 4:
                    await writer.append(some()[0])
                    del written[writer.last_add_confirmed + 1 :]
                else:
                    await writer.flush()
            length_bytes = sum(map(len, written)) + overhead_bytes
            assert writer.length_bytes == length_bytes
        contents = (await client.ledger_metadata(writer.ledger_id)).contents
        assert contents is not None
        assert (contents.entries, contents.size_bytes) == (len(written), length_bytes)
        assert await read_ledger(client, writer.ledger_id) == written


async def test_they_move_along_when_a_bookie_fails(autojump_clock: trio.testing.MockClock) -> None:
    """C5: their batch has its bytes wherever it goes."""
    async with cluster(4) as world, world.client() as client:
        async with client.create_ledger() as writer:
            await writer.append(b"first")
            [gone, *_] = world.named(writer.metadata.last_fragment.ensemble)
            await gone.kill()
            await writer._entries.push_packed(packed(*ENTRIES))
            await writer.flush()
            await trio.testing.wait_all_tasks_blocked()
            assert gone.bookie_id not in writer.metadata.last_fragment.ensemble
        assert await read_ledger(client, writer.ledger_id) == [b"first", *ENTRIES]
