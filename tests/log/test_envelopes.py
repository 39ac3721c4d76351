"""Entries with keys and headers, among plain ones: written by every verb, read in every way, kept by takeovers."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

import replog
from replog.config import ClientOptions
from replog.config.client import ClientTuning
from replog.errors import EnvelopeError, PayloadTooLargeError
from replog.log.record_batches import Record, RecordBatch
from replog.protocol.batch import ENTRY_BYTES_MAX, Batch
from replog.protocol.envelope import Enveloped, pack
from replog.protocol.messages import AddRequest
from replog.protocol.model import Position
from replog.protocol.quorum import Quorum
from tests.kit import ONE, Cluster, cluster

Row = tuple[bytes, bytes | None, dict[str, bytes], bool]


async def records(client: replog.Client, **options: Any) -> list[Record]:
    async with client.read_log("log", **options) as reader:
        return [record async for record in reader]


async def batches(client: replog.Client) -> list[RecordBatch]:
    async with client.read_log("log") as reader:
        return [batch async for batch in reader.batches()]


def rows(found: list[Record]) -> list[Row]:
    return [(each.data, each.key, dict(each.headers), each.is_tombstone) for each in found]


def sent(world: Cluster) -> list[Batch]:
    """The batches that were sent, each once, in order."""
    seen = [each.batch for bookie in world.bookies for each in bookie.wire.seen if isinstance(each, AddRequest)]
    return sorted(dict.fromkeys(seen), key=lambda batch: (batch.ledger_id, batch.first_entry_id))


async def test_each_verb_takes_keys_and_headers(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        async with client.write_log("log") as log:
            assert await log.append(b"0", key=b"k") == Position(1, 0)
            assert log.push_nowait(b"1", headers={"a": b"1"}) == Position(1, 1)
            assert await log.push(b"2", key=b"", headers={}) == Position(1, 2)
            assert await log.append(None, key=b"k") == Position(1, 3)
            assert log.push_nowait(None, key=b"k2") == Position(1, 4)
            extended = await log.extend([b"5", None, b"7"], keys=[None, b"k", b"k"], headers=[None, None, {"b": b""}])
            assert extended == [Position(1, 5), Position(1, 6), Position(1, 7)]
            assert await log.append(b"8") == Position(1, 8)
        assert rows(await records(client)) == [
            (b"0", b"k", {}, False),
            (b"1", None, {"a": b"1"}, False),
            (b"2", b"", {}, False),
            (b"", b"k", {}, True),
            (b"", b"k2", {}, True),
            (b"5", None, {}, False),
            (b"", b"k", {}, True),
            (b"7", b"k", {"b": b""}, False),
            (b"8", None, {}, False),
        ]


@pytest.mark.parametrize("quorum", [ONE, Quorum(3, 2, 2)], ids=["whole", "striped"])
async def test_plain_and_enveloped_entries_never_share_a_batch(
    autojump_clock: trio.testing.MockClock, quorum: Quorum
) -> None:
    async with cluster() as world, world.client() as client:
        async with client.write_log("log", quorum=quorum) as log:
            for number in range(60):
                key = b"%d" % number if number % 7 < 3 else None
                log.push_nowait(b"\x01\x01\0\0\0k%d" % number, key=key)  # looks like an envelope, and is data
            await log.flush()
        found = await records(client)
        assert [each.data for each in found] == [b"\x01\x01\0\0\0k%d" % number for number in range(60)]
        assert [each.key for each in found] == [b"%d" % each if each % 7 < 3 else None for each in range(60)]
        assert {batch.data[6:8] for batch in sent(world)} == {b"\0\0", b"\0\2"}


async def test_plain_entries_keep_their_bytes_beside_envelopes(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, client.write_log("log", quorum=ONE) as log:
        await log.extend([b"a", b"b", b"c"], keys=[None, b"k", None])
        assert [batch.has_envelopes for batch in sent(world)] == [False, True, False]
        assert [batch.payloads() for batch in sent(world)] == [[b"a"], [pack(b"b", key=b"k")], [b"c"]]


async def test_envelopes_are_compressed_and_expanded(autojump_clock: trio.testing.MockClock) -> None:
    pytest.importorskip("backports.zstd")
    options = ClientOptions(compression="zstd")
    async with cluster() as world, world.client(options) as client:
        async with client.write_log("log", quorum=ONE) as log:
            await log.extend([b"value" * 20] * 50, keys=[b"%d" % each for each in range(50)])
        assert {batch.data[6:8] for batch in sent(world)} == {b"\0\3"}
        found = await records(client)
        assert {each.data for each in found} == {b"value" * 20}
        assert [each.key for each in found] == [b"%d" % each for each in range(50)]


async def test_batches_give_values_and_arrow_gives_nulls(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        async with client.write_log("log") as log:
            await log.extend([b"a", None, b"c", b"d"], keys=[b"k", b"k", b"l", b"m"])
            await log.extend([b"plain"] * 4)
        enveloped, plain = await batches(client)
        assert enveloped.has_envelopes
        assert enveloped.payloads() == [b"a", b"", b"c", b"d"]
        assert enveloped.to_arrow().to_pylist() == [b"a", None, b"c", b"d"]
        assert [each.key for each in enveloped] == [b"k", b"k", b"l", b"m"]
        assert not plain.has_envelopes
        assert plain.to_arrow().to_pylist() == [b"plain"] * 4


async def test_envelopes_survive_a_takeover_and_a_roll(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, world.client() as other:
        async with client.write_log("log") as first:
            await first.append(b"1", key=b"a")
            async with other.write_log("log") as log:
                await log.append(b"2", key=b"b")
                await log.roll()
                await log.append(b"3", key=b"c", headers={"h": b"v"})
                with pytest.raises(replog.FencedError):
                    await first.append(b"lost", key=b"x")
        expected = [(b"1", b"a", {}, False), (b"2", b"b", {}, False), (b"3", b"c", {"h": b"v"}, False)]
        assert rows(await records(other)) == expected
        assert rows(await records(other, after=Position(1, 0))) == expected[1:]


async def test_iterating_raises_at_a_broken_envelope_and_goes_on(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        async with client.write_log("log", quorum=ONE) as log:
            writer = log._current.writer
            await writer.extend([Enveloped(b"\0good"), Enveloped(b"\xff"), Enveloped(b"\0more")])
        found: list[bytes] = []
        async with client.read_log("log") as reader:
            assert (await anext(reader)).data == b"good"
            with pytest.raises(EnvelopeError, match=r"entry 1 of ledger \d+: .*upgrade replog"):
                await anext(reader)
            found += [record.data async for record in reader]
        assert found == [b"more"]
        (batch,) = await batches(client)
        for broken in (batch.payloads, batch.to_arrow):
            with pytest.raises(EnvelopeError):
                broken()


async def test_invalid_keys_write_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client:
        async with client.write_log("log") as log:
            with pytest.raises(TypeError, match="a key must be bytes"):
                await log.append(b"", key="text")  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="headers must be a mapping"):
                log.push_nowait(b"", headers=[b"a"])  # type: ignore[arg-type]
            for without_key in (log.append(None), log.push(None)):
                with pytest.raises(TypeError, match="an entry must be bytes"):
                    await without_key
            with pytest.raises(TypeError, match="an entry must be bytes"):
                log.push_nowait(None)
            with pytest.raises(PayloadTooLargeError):
                await log.append(bytes(ENTRY_BYTES_MAX), key=b"")
            with pytest.raises(replog.ConfigError, match="1 keys for 2 entries"):
                await log.extend([b"a", b"b"], keys=[b"k"])
            assert await log.append(b"only") == Position(1, 0)
        assert rows(await records(client)) == [(b"only", None, {}, False)]


async def test_envelopes_count_for_the_byte_budget(autojump_clock: trio.testing.MockClock) -> None:
    options = ClientTuning(in_flight_bytes_max=1000, batch_bytes_max=1000)
    async with cluster() as world, world.client(options) as client, client.write_log("log") as log:
        log.push_nowait(b"", key=bytes(900))
        with pytest.raises(trio.WouldBlock):
            log.push_nowait(b"", key=bytes(100))
        await log.push(b"", key=bytes(100))
        await log.flush()
        assert log.unconfirmed_bytes == 0


class _Text(bytes):
    pass


async def test_subclasses_of_bytes_count_their_own_length(autojump_clock: trio.testing.MockClock) -> None:
    async with cluster() as world, world.client() as client, client.write_log("log") as log:
        await log.extend([_Text(b"one"), _Text(b"two"), b"three"])
        assert log.unconfirmed_bytes == 0
        assert log._current.writer.length_bytes == 11
