"""The batch: round trips, and a decoder that survives any bytes. Golden bytes stand in tests/formats."""

from __future__ import annotations

import itertools
import struct
import tracemalloc
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from replog.errors import PayloadTooLargeError, RemoteProtocolError
from replog.protocol import batch as batches
from replog.protocol.batch import (
    BATCH_BYTES_MAX,
    BATCH_COUNT_MAX,
    ENTRY_BYTES_MAX,
    ENTRY_ID_MAX,
    HEADER,
    Batch,
    PackedPayloads,
    build,
    check_damage,
    check_payload,
    decode,
    size_of,
)
from replog.protocol.compression import Compressor
from replog.protocol.digest import CODE_SIZES, Digest, DigestType
from tests.lanes.seeds import examples

CRC = Digest(DigestType.CRC32C, 7, b"secret")
KEYED = Digest(DigestType.HMAC_SHA256, 7, b"secret")


def batch_of(
    payloads: Sequence[bytes],
    digest: Digest = CRC,
    first_entry_id: int = 4,
    stride: int = 1,
    compressor: Compressor | None = None,
) -> Batch:
    return batches.builder(compressor)(
        digest,
        ledger_id=7,
        first_entry_id=first_entry_id,
        stride=stride,
        payloads=payloads,
        last_add_confirmed=first_entry_id - 1,
        stamp=1,
        timestamp_ns=5,
        cumulative_length=100,
    )


uneven = st.lists(st.binary(max_size=30), min_size=1, max_size=40)
even = st.tuples(st.integers(0, 20), st.integers(1, 40)).flatmap(
    lambda shape: st.lists(st.binary(min_size=shape[0], max_size=shape[0]), min_size=shape[1], max_size=shape[1])
)
large = st.lists(st.integers(0, 20_000), min_size=1, max_size=4).map(lambda sizes: [bytes(size) for size in sizes])
payload_lists = uneven | even | large


# -- round trips ---------------------------------------------------------------------------------------------------


@examples(5)
@given(
    payloads=payload_lists,
    digest=st.sampled_from([CRC, KEYED]),
    stride=st.integers(1, 9),
    ledger_id=st.integers(0, 1 << 62),
    first=st.integers(0, 1 << 62),
    lag=st.integers(1, 5),
    stamp=st.integers(1, 1 << 62),
    timestamp_ns=st.integers(-(1 << 63), (1 << 63) - 1),
    cumulative_length=st.integers(0, (1 << 64) - 1),
)
def test_built_batch_decodes_to_the_same(
    payloads: list[bytes],
    digest: Digest,
    stride: int,
    ledger_id: int,
    first: int,
    lag: int,
    stamp: int,
    timestamp_ns: int,
    cumulative_length: int,
) -> None:
    """W3: fields, payloads and bytes, even and uneven lengths, empty payloads, any stride."""
    confirmed = max(-1, first - lag)
    built = build(
        digest,
        ledger_id=ledger_id,
        first_entry_id=first,
        stride=stride,
        payloads=payloads,
        last_add_confirmed=confirmed,
        stamp=stamp,
        timestamp_ns=timestamp_ns,
        cumulative_length=cumulative_length,
    )
    found = decode(built.data)
    assert found == built
    assert hash(found) == hash(built)
    check_damage(found)  # after which both are known to be intact
    assert [getattr(found, name) for name in Batch.__slots__] == [getattr(built, name) for name in Batch.__slots__]
    assert found.payloads() == payloads
    assert found.verify(digest)
    assert (found.ledger_id, found.last_add_confirmed, found.stamp) == (ledger_id, confirmed, stamp)
    assert (found.timestamp_ns, found.cumulative_length) == (timestamp_ns, cumulative_length)
    assert list(found.entry_ids) == [first + stride * place for place in range(len(payloads))]
    assert [
        entry_id for entry_id in range(first - 2, first + stride * (len(payloads) + 1)) if found.holds(entry_id)
    ] == list(found.entry_ids)


@given(payloads=payload_lists)
def test_arrow_reads_the_payloads_without_a_copy(payloads: list[bytes]) -> None:
    """The layout is Arrow's BinaryArray: offsets and payloads are used where they stand."""
    batch = batch_of(payloads)
    offsets, values = batch.arrow_buffers()
    array = pa.BinaryArray.from_buffers(pa.binary(), batch.count, [None, pa.py_buffer(offsets), pa.py_buffer(values)])
    array.validate(full=True)
    assert array.to_pylist() == batch.payloads() == payloads
    start = pa.py_buffer(batch.data).address
    assert array.buffers()[1].address == start + HEADER.size
    assert not len(values) or array.buffers()[2].address == start + HEADER.size + 4 * (batch.count + 1)


@pytest.mark.parametrize("digest", [CRC, KEYED], ids=["crc32c", "hmac"])
@given(payloads=payload_lists)
def test_entries_in_one_piece_make_the_same_batch(digest: Digest, payloads: list[bytes]) -> None:
    """W3: nobody can tell how the writer had them."""
    batch = batch_of(payloads, digest)
    packed = PackedPayloads(*batch.arrow_buffers())
    assert (len(packed), packed.size_bytes) == (len(payloads), size_of(payloads))
    assert (size_of(packed), list(packed)) == (size_of(payloads), payloads)
    assert packed[-1] == payloads[-1]
    assert packed[1:] == payloads[1:]
    assert batch_of(packed, digest).data == batch.data


# -- hostile bytes -------------------------------------------------------------------------------------------------


def survives(data: bytes) -> None:
    """Decodes and reads everything, or raises RemoteProtocolError, and nothing else."""
    try:
        batch = decode(data)
    except RemoteProtocolError:
        return
    assert 1 <= batch.count <= BATCH_COUNT_MAX
    assert batch.last_entry_id <= ENTRY_ID_MAX
    around = HEADER.size + CODE_SIZES[batch.digest_type]
    body_bytes = struct.unpack_from("<I", data, 20)[0] if batch.is_compressed else len(data) - around
    assert 4 * (batch.count + 1) <= body_bytes <= BATCH_BYTES_MAX - around
    batch.verify(CRC)
    batch.verify(KEYED)
    for read in (lambda: check_damage(batch), batch.payloads, batch.arrow_buffers):
        try:
            read()
        except RemoteProtocolError:
            continue
    try:
        payloads = batch.payloads()
    except RemoteProtocolError:
        with pytest.raises(RemoteProtocolError):
            batch.arrow_buffers()
    else:
        assert len(payloads) == batch.count
        assert b"".join(payloads) == bytes(batch.arrow_buffers()[1])


@examples(8)
@given(data=st.binary(max_size=300))
@example(b"")
@example(b"rlog")
def test_any_bytes_are_survived(data: bytes) -> None:
    survives(data)
    survives((b"rlog\x01\x01" + data).ljust(HEADER.size, b"\0"))


@examples(10)
@given(
    payloads=payload_lists,
    digest=st.sampled_from([CRC, KEYED]),
    cut=st.integers(-5, 5),
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4),
    resealed=st.booleans(),
    compressor=st.sampled_from([None, Compressor()]),
)
def test_any_mutation_is_survived(
    payloads: list[bytes],
    digest: Digest,
    cut: int,
    changes: list[tuple[int, int]],
    resealed: bool,
    compressor: Compressor | None,
) -> None:
    """Also by somebody who can compute the code, and says the right size."""
    data = bytearray(batch_of(payloads, digest, compressor=compressor).data)
    for place, value in changes:
        data[place % len(data)] = value
    if cut < 0:
        del data[cut:]
    else:
        data += bytes(cut)
    if resealed:
        struct.pack_into("<I", data, 8, len(data))
        size = digest.code_size
        data[-size:] = digest.code(data[: HEADER.size], data[HEADER.size : -size])
    survives(bytes(data))


@examples(5)
@given(
    fields=st.tuples(
        st.sampled_from([b"rlog", b"rlo\0"]),
        st.sampled_from([1, 0, 2, 255]),
        st.sampled_from([1, 2, 0, 3]),
        st.sampled_from([0, 1, 0xFF, 0x100, 0xFFFF]),
        st.sampled_from([0, 1, 4, 0xFFFFFFFF]) | st.none(),
        st.sampled_from([1, 0, 2, BATCH_COUNT_MAX, BATCH_COUNT_MAX + 1, 0xFFFFFFFF]),
        st.sampled_from([1, 0, 5, 0xFFFFFFFF]),
        st.just(0),
        st.sampled_from([7, 0, -1, (1 << 63) - 1]),
        st.sampled_from([4, 0, -1, (1 << 63) - 1]),
        st.sampled_from([3, -1, 4, -2, (1 << 63) - 1]),
        st.sampled_from([1, 0, -1, (1 << 63) - 1]),
        st.sampled_from([5, -1]),
        st.sampled_from([100, (1 << 64) - 1]),
    ),
    tail=st.binary(max_size=60),
)
def test_any_header_is_survived(fields: tuple[object, ...], tail: bytes) -> None:
    """Extreme values in each field, in any combination; None stands for the true size."""
    fields = tuple(HEADER.size + len(tail) if field is None else field for field in fields)
    survives(HEADER.pack(*fields) + tail)


def header(**changes: object) -> bytes:
    """The bytes of a good batch of one payload, with some header fields changed and the code made good again."""
    names = "magic format digest flags size count stride reserved ledger first confirmed stamp timestamp length"
    data = batch_of([b"abc"]).data
    fields = dict(zip(names.split(), HEADER.unpack_from(data), strict=True)) | changes
    changed, body = HEADER.pack(*fields.values()), data[HEADER.size : -4]
    return changed + body + CRC.code(changed, body)


@pytest.mark.parametrize(
    "changes",
    [
        {"magic": b"RLOG"},
        {"format": 2},
        {"digest": 3},
        {"flags": 0x0100},  # compressed, into nothing
        {"flags": 0x0100, "reserved": 7},  # too short for the offsets
        {"flags": 0x0100, "reserved": BATCH_BYTES_MAX},
        {"flags": 0x0100, "reserved": 0xFFFFFFFF},
        {"flags": 0x8000},
        {"size": 0},
        {"size": 0xFFFFFFFF},
        {"count": 0},
        {"count": 2},
        {"count": 0xFFFFFFFF},
        {"stride": 0},
        {"ledger": -1},
        {"first": -1},
        {"confirmed": 4},
        {"confirmed": -2},
        {"stamp": 0},
        {"stamp": -1},
    ],
    ids=str,
)
def test_impossible_fields_are_refused_though_the_code_is_right(changes: dict[str, object]) -> None:
    if changes == {"count": 2}:  # four more bytes of offsets would have to come out of the payload
        with pytest.raises(RemoteProtocolError):
            decode(header(**changes)).payloads()
        return
    with pytest.raises(RemoteProtocolError):
        decode(header(**changes))


@pytest.mark.parametrize("flags", [0x01, 0x80, 0xFF])
def test_flags_of_the_low_byte_may_be_ignored(flags: int) -> None:
    """Mixed versions (fault 50): an unknown flag that may be ignored is kept, in the bytes."""
    data = header(flags=flags, reserved=9)
    assert decode(data).payloads() == [b"abc"]
    assert decode(data).data is data


def test_ids_beyond_the_largest_are_refused() -> None:
    good = header(first=ENTRY_ID_MAX, confirmed=3)
    assert decode(good).last_entry_id == ENTRY_ID_MAX
    two = batch_of([b"", b""]).data
    packed = list(HEADER.unpack_from(two))
    packed[9] = ENTRY_ID_MAX
    with pytest.raises(RemoteProtocolError, match="range"):
        decode(HEADER.pack(*packed) + two[HEADER.size :])


@pytest.mark.parametrize(
    "offsets",
    [(1, 2, 6), (0, 4, 2), (0, 7, 6), (0, -1, 6), (0, 3, 5), (0, 3, 7), (-6, 0, 6), (0, 0x7FFFFFFF, 6), (6, 3, 0)],
    ids=str,
)
def test_hostile_offsets_are_refused(offsets: tuple[int, int, int]) -> None:
    """They would leave the payloads, or make Arrow read beyond the buffer."""
    data = bytearray(batch_of([b"abc", b"def"]).data)
    struct.pack_into("<3i", data, HEADER.size, *offsets)
    data[-4:] = CRC.code(data[: HEADER.size], data[HEADER.size : -4])
    batch = decode(bytes(data))
    assert batch.verify(CRC)
    with pytest.raises(RemoteProtocolError, match="offsets"):
        batch.payloads()
    with pytest.raises(RemoteProtocolError, match="offsets"):
        batch.arrow_buffers()


def test_no_claimed_size_is_allocated() -> None:
    """Faults 35: headers that claim the largest counts and sizes cost next to nothing."""
    tracemalloc.start()
    try:
        for size, count in itertools.product((0, 80, BATCH_BYTES_MAX, 0xFFFFFFFF), (1, BATCH_COUNT_MAX, 0xFFFFFFFF)):
            survives(header(size=size, count=count))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_reading_many_shapes_of_batches_keeps_no_memory() -> None:
    """The cache for reading even lengths fast stays small, however large and however different the batches are."""
    tracemalloc.start()
    try:
        for count in range(8_000, 8_070):
            assert len(batch_of([b"x"] * count).payloads()) == count

        assert tracemalloc.get_traced_memory()[0] < 4 << 20
    finally:
        tracemalloc.stop()


def test_offsets_of_large_batches_of_one_shape_are_made_once() -> None:
    """As bulk loads write them: making ten thousand offsets takes longer than copying the entries."""
    payloads = [b"x" * 100] * 10_000
    made = batches._recent_even_offsets.cache_info().misses
    for _ in range(3):
        assert decode(batch_of(payloads).data).payloads() == payloads
        assert bytes(decode(batch_of(payloads).data).arrow_buffers()[1]) == b"".join(payloads)
    assert batches._recent_even_offsets.cache_info().misses <= made + 1


# -- limits and damage ---------------------------------------------------------------------------------------------


def test_payloads_are_bytes_of_a_limited_size() -> None:
    check_payload(b"")
    check_payload(bytes(ENTRY_BYTES_MAX))
    with pytest.raises(PayloadTooLargeError):
        check_payload(bytes(ENTRY_BYTES_MAX + 1))
    for wrong in ("text", bytearray(b"x"), memoryview(b"x"), None, 1):
        with pytest.raises(TypeError):
            check_payload(wrong)


def test_the_largest_entry_fits_into_a_batch() -> None:
    payload = bytes(ENTRY_BYTES_MAX)
    batch = decode(batch_of([payload]).data)
    assert batch.payloads() == [payload]


def test_undecodable_batch_is_not_built() -> None:
    """A batch above the limits would be refused by every bookie, for ever: that is the builder's bug."""
    largest = bytes(ENTRY_BYTES_MAX)
    with pytest.raises(AssertionError):
        batch_of([largest, largest])
    with pytest.raises(AssertionError):
        batch_of([b""] * (BATCH_COUNT_MAX + 1))


@pytest.mark.parametrize("digest", [CRC, KEYED], ids=["crc32c", "hmac"])
def test_each_flipped_bit_is_found(digest: Digest) -> None:
    """By the reader always; by a bookie, without the password, if the code is a CRC32C."""
    batch = batch_of([b"ab", b"", b"c"], digest)
    for place in range(len(batch.data)):
        changed = bytearray(batch.data)
        changed[place] ^= 1
        try:
            damaged = decode(bytes(changed))
        except RemoteProtocolError:
            continue
        assert not damaged.verify(digest)
        if damaged.digest_type is DigestType.CRC32C:
            with pytest.raises(RemoteProtocolError, match="CRC32C"):
                check_damage(damaged)


def test_a_code_of_another_kind_does_not_verify() -> None:
    """B7: a CRC32C batch is no valid entry of a ledger whose digest is keyed."""
    assert not batch_of([b"a"], CRC).verify(KEYED)
    assert not batch_of([b"a"], KEYED).verify(CRC)


@given(payloads=payload_lists, digest=st.sampled_from([CRC, KEYED]))
def test_equal_means_the_same_bytes(payloads: list[bytes], digest: Digest) -> None:
    assume(payloads != [b""])
    assert batch_of(payloads, digest) == batch_of(payloads, digest)
    assert batch_of(payloads, digest) != batch_of([b""], digest)
    assert batch_of(payloads, digest) != "a batch"
    assert batches.decode(batch_of(payloads, digest).data).payloads() == payloads
