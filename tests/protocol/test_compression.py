"""Compressed batches: what is compressed, what is expanded, and what a hostile frame may cost."""

from __future__ import annotations

import builtins
import os
import struct
import sys
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replog.errors import CompressionUnavailableError, RemoteProtocolError
from replog.protocol import compression
from replog.protocol.batch import BATCH_BYTES_MAX, COMPRESSED, HEADER, Batch, check_damage, decode
from replog.protocol.compression import Compressor, compressor_for, expand
from replog.protocol.digest import Digest
from tests.protocol.test_batch import CRC, KEYED, batch_of, survives

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ORDERS = [b'{"order": %d, "status": "shipped"}' % number for number in range(50)]
MIB = 1 << 20


def forged(frame: bytes, plain_bytes: int, count: int = 1, digest: Digest = CRC) -> Batch:
    """A batch with this frame and a right code: what somebody with the password can make."""
    fields = (b"rlog", 1, digest.digest_type, COMPRESSED, HEADER.size + len(frame) + digest.code_size)
    header = HEADER.pack(*fields, count, 1, plain_bytes, 7, 4, 3, 1, 5, 100)
    return decode(header + frame + digest.code(header, frame))


@pytest.mark.parametrize("digest", [CRC, KEYED], ids=["crc32c", "hmac"])
def test_compressed_batch_has_the_same_entries_in_fewer_bytes(digest: Digest) -> None:
    plain, packed = batch_of(ORDERS, digest), batch_of(ORDERS, digest, compressor=Compressor())
    assert packed.is_compressed
    assert len(packed.data) < len(plain.data) / 2
    found = decode(packed.data)
    check_damage(found)
    assert found.verify(digest)
    assert found.payloads() == ORDERS
    assert list(map(bytes, found.arrow_buffers())) == list(map(bytes, plain.arrow_buffers()))
    code = digest.code_size
    assert found.plain().data[:-code] == plain.data[:-code], "expanded it is what would have been stored without"
    assert not found.plain().is_compressed
    assert plain.plain() is plain


@settings(max_examples=60, deadline=None)
@given(
    payloads=st.lists(st.binary(max_size=40) | st.integers(0, 3000).map(bytes), min_size=1, max_size=60),
    digest=st.sampled_from([CRC, KEYED]),
)
def test_any_entries_come_back_from_a_compressing_writer(payloads: list[bytes], digest: Digest) -> None:
    batch = batch_of(payloads, digest, compressor=Compressor())
    found = decode(batch.data)
    assert found.payloads() == payloads
    assert found.verify(digest)
    assert len(batch.data) <= len(batch_of(payloads, digest).data)


@pytest.mark.parametrize("payloads", [[b""], [b"a" * 100], [os.urandom(2000)]], ids=["empty", "short", "random"])
def test_batch_is_plain_when_compressing_saves_nothing(payloads: list[bytes]) -> None:
    assert batch_of(payloads, compressor=Compressor()).data == batch_of(payloads).data


def test_writer_seldom_tries_when_nothing_shrinks() -> None:
    tried: list[int] = []
    compressor = Compressor()
    counting = compressor._compressor

    class Counting:
        def compress(self, body: bytes, mode: int) -> bytes:
            tried.append(len(body))
            frame: bytes = counting.compress(body, mode=mode)
            return frame

    compressor._compressor = Counting()
    noise = os.urandom(1000)
    assert [compressor.compress(noise) for _ in range(1000)] == [None] * 1000
    assert len(tried) == 21, "after each try 1, 2, 4, ... 64 bodies are passed over, and then always 64"
    found = [compressor.compress(b"a" * 1000) for _ in range(200)]
    first = next(place for place, frame in enumerate(found) if frame is not None)
    assert first <= 64
    assert None not in found[first:], "once one shrank, each is tried again"


# -- hostile frames ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"\x00",
        zstd.compress(b"x" * 7),
        zstd.compress(b"x" * 9),
        zstd.compress(b"x" * 8)[:-1],
        zstd.compress(b"x" * 8) + b"\x00",
        zstd.compress(b"x" * 8) + zstd.compress(b""),
        b"\x50\x2a\x4d\x18\x08\x00\x00\x00" + b"x" * 8,  # a frame to be skipped
        os.urandom(30),
    ],
    ids=["empty", "no-frame", "short", "long", "cut", "behind", "two", "skippable", "random"],
)
def test_frame_is_refused_when_it_differs_from_its_declaration(wrong: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="compressed"):
        expand(wrong, 8)


def test_bomb_takes_no_more_memory_than_it_declares() -> None:
    """A few bytes that hold 64 MiB."""
    bomb = zstd.compress(bytes(64 * MIB), level=1)
    assert len(bomb) < 64 << 10
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match="does not expand to the 1000 bytes"):
            forged(bomb, 1000).payloads()
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_bomb_is_refused_by_its_header_when_it_declares_too_much() -> None:
    bomb = zstd.compress(bytes(MIB), level=1)
    for plain_bytes in (BATCH_BYTES_MAX - HEADER.size - CRC.code_size + 1, BATCH_BYTES_MAX, 64 * MIB, 0xFFFFFFFF):
        with pytest.raises(RemoteProtocolError, match="claims"):
            forged(bomb, plain_bytes)


def test_window_larger_than_a_batch_is_refused() -> None:
    options: dict[int, int] = {zstd.CompressionParameter.window_log: 26, zstd.CompressionParameter.compression_level: 1}
    compressor = zstd.ZstdCompressor(options=options)
    frame = compressor.compress(b"x" * 8) + compressor.flush()
    with pytest.raises(RemoteProtocolError, match="does not read"):
        expand(frame, 8)


@pytest.mark.parametrize("offsets", [(0, 9), (1, 8), (0, -1), (5, 3)], ids=str)
def test_offsets_in_a_frame_are_checked(offsets: tuple[int, int]) -> None:
    body = struct.pack("<2i", *offsets) + b"12345678"
    batch = forged(zstd.compress(body), len(body))
    assert batch.verify(CRC)
    for read in (batch.payloads, batch.arrow_buffers):
        with pytest.raises(RemoteProtocolError, match="offsets"):
            read()


@settings(max_examples=150, deadline=None)
@given(
    frame=st.binary(max_size=80) | st.binary(max_size=80).map(zstd.compress),
    plain_bytes=st.integers(0, 200) | st.sampled_from([BATCH_BYTES_MAX, 0xFFFFFFFF]),
    count=st.integers(1, 12),
    changes=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4),
)
def test_any_frame_is_survived(frame: bytes, plain_bytes: int, count: int, changes: list[tuple[int, int]]) -> None:
    """Also with a right code: nothing but `RemoteProtocolError` is raised."""
    changed = bytearray(frame)
    for place, value in changes:
        if changed:
            changed[place % len(changed)] = value
    try:
        batch = forged(bytes(changed), plain_bytes, count)
    except RemoteProtocolError:
        return
    survives(batch.data)


# -- without the package ---------------------------------------------------------------------------------------------


def test_missing_package_is_named_to_writers_and_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = batch_of(ORDERS, compressor=Compressor())
    importing = builtins.__import__

    def without_zstd(name: str, *rest: Any) -> Any:
        if name in ("backports", "compression"):
            raise ImportError(f"No module named {name!r}")
        return importing(name, *rest)

    compression._zstd.cache_clear()
    monkeypatch.setattr(builtins, "__import__", without_zstd)
    check_damage(decode(packed.data))  # as a bookie does
    assert compressor_for("none") is None
    for needs_it in (lambda: compressor_for("zstd"), decode(packed.data).payloads, decode(packed.data).arrow_buffers):
        with pytest.raises(CompressionUnavailableError, match=r"pip install 'replog\[zstd\]'"):
            needs_it()
