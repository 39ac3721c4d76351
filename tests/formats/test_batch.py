"""Golden bytes of the batch, format 1. If one of these tests fails, the format has changed: that is a new format.

Described in docs/reference/formats.md; read here a second time, from the description, without the library."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import struct
import sys
from pathlib import Path

import attrs
import pytest

from replog.protocol.batch import build, check_damage, decode
from replog.protocol.digest import Digest, DigestType
from replog.protocol.envelope import EntryId, pack

if sys.version_info >= (3, 14):
    from compression.zstd import decompress
else:
    from backports.zstd import decompress

HERE = Path(__file__).parent
PASSWORD = b"open sesame"


@attrs.frozen
class Golden:
    """What the golden bytes mean."""

    name: str
    digest_type: DigestType
    payloads: tuple[bytes, ...]
    ledger_id: int = 7
    first_entry_id: int = 3
    stride: int = 1
    last_add_confirmed: int = 2
    stamp: int = 1
    timestamp_ns: int = 1_700_000_000_123_456_789
    cumulative_length: int = 112
    flags: int = 0

    @property
    def data(self) -> bytes:
        """The golden bytes."""
        lines = (HERE / f"batch-v1-{self.name}.hex").read_text(encoding="ascii").splitlines()
        return bytes.fromhex("".join(line.partition("#")[0] for line in lines))

    @property
    def digest(self) -> Digest:
        """The ledger's."""
        return Digest(self.digest_type, self.ledger_id, PASSWORD)


SOME = (b"one", b"three", b"", b"four")
GOLDEN = [
    Golden("crc32c", DigestType.CRC32C, SOME),
    Golden("hmac-sha256", DigestType.HMAC_SHA256, SOME),
    Golden(
        "empty-payload",
        DigestType.CRC32C,
        (b"",),
        ledger_id=0,
        first_entry_id=0,
        last_add_confirmed=-1,
        timestamp_ns=0,
        cumulative_length=0,
    ),
    Golden(
        "striped",
        DigestType.CRC32C,
        (b"11", b"16", b"21"),
        ledger_id=0x0102030405060708,
        first_entry_id=11,
        stride=5,
        last_add_confirmed=9,
        stamp=4,
        cumulative_length=46,
    ),
    Golden(
        "envelopes",
        DigestType.CRC32C,
        (
            pack(b"value", key=b"k"),
            pack(b"", headers={"a": b"1", "é": b""}),
            pack(None, key=b"k"),
            pack(b"x", id=EntryId("me", 258), key=b"", headers={"b": b"2"}),
        ),
        flags=0x0200,
    ),
]
COMPRESSED = Golden(
    "zstd",
    DigestType.CRC32C,
    tuple(b'{"order": %d, "state": "paid"}' % number for number in range(100, 108)),
    cumulative_length=360,
)
each_golden = pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
each_read = pytest.mark.parametrize("golden", [*GOLDEN, COMPRESSED], ids=lambda golden: golden.name)


@each_golden
def test_built_batches_match_the_golden_bytes(golden: Golden) -> None:
    batch = build(
        golden.digest,
        ledger_id=golden.ledger_id,
        first_entry_id=golden.first_entry_id,
        stride=golden.stride,
        payloads=golden.payloads,
        last_add_confirmed=golden.last_add_confirmed,
        stamp=golden.stamp,
        timestamp_ns=golden.timestamp_ns,
        cumulative_length=golden.cumulative_length,
    )
    assert batch.data.hex() == golden.data.hex()


@each_read
def test_golden_bytes_are_read(golden: Golden) -> None:
    batch = decode(golden.data)
    assert tuple(batch.payloads()) == golden.payloads
    assert list(batch.entry_ids) == [golden.first_entry_id + golden.stride * place for place in range(batch.count)]
    for field in ("ledger_id", "stride", "last_add_confirmed", "stamp", "timestamp_ns", "cumulative_length"):
        assert getattr(batch, field) == getattr(golden, field), field
    assert batch.digest_type is golden.digest_type
    assert batch.verify(golden.digest)
    check_damage(batch)


@each_golden
def test_the_bytes_are_as_the_page_describes_them(golden: Golden) -> None:
    data = golden.data
    fields = struct.unpack_from("<4sBBHIIIIqqqqqQ", data)
    count = len(golden.payloads)
    assert fields == (
        b"rlog",
        1,
        {DigestType.CRC32C: 1, DigestType.HMAC_SHA256: 2}[golden.digest_type],
        golden.flags,
        len(data),
        count,
        golden.stride,
        0,
        golden.ledger_id,
        golden.first_entry_id,
        golden.last_add_confirmed,
        golden.stamp,
        golden.timestamp_ns,
        golden.cumulative_length,
    )
    offsets = struct.unpack_from(f"<{count + 1}i", data, 72)
    start = 72 + 4 * (count + 1)
    assert tuple(data[start + offsets[i] : start + offsets[i + 1]] for i in range(count)) == golden.payloads
    code_at = start + offsets[-1]
    if golden.digest_type is DigestType.CRC32C:
        expected = crc32c_bit_by_bit(data[:code_at]).to_bytes(4, "little")
    else:
        salt = b"replog digest key v1" + golden.ledger_id.to_bytes(8, "little")
        key = hmac.new(PASSWORD, salt, hashlib.sha256).digest()
        body_digest = hashlib.sha256(data[72:code_at]).digest()
        expected = body_digest + hmac.new(key, data[:72] + body_digest, hashlib.sha256).digest()
    assert data[code_at:] == expected


def test_compressed_bytes_are_as_the_page_describes_them() -> None:
    """Which bytes a frame has depends on the library's version: so the golden ones are only read."""
    data = COMPRESSED.data
    fields = struct.unpack_from("<4sBBHIIIIqqqqqQ", data)
    count, lengths = len(COMPRESSED.payloads), [len(payload) for payload in COMPRESSED.payloads]
    body = decompress(data[72:-4])
    assert fields == (b"rlog", 1, 1, 0x0100, len(data), count, 1, len(body), 7, 3, 2, 1, COMPRESSED.timestamp_ns, 360)
    assert struct.unpack_from(f"<{count + 1}i", body) == (0, *itertools.accumulate(lengths))
    assert body[4 * (count + 1) :] == b"".join(COMPRESSED.payloads)
    assert data[-4:] == crc32c_bit_by_bit(data[:-4]).to_bytes(4, "little")


def crc32c_bit_by_bit(data: bytes) -> int:
    """CRC-32C from its definition: reflected polynomial 0x82F63B78, start and final xor all ones."""
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder ^= byte
        for _ in range(8):
            remainder = (remainder >> 1) ^ (0x82F63B78 if remainder & 1 else 0)
    return remainder ^ 0xFFFFFFFF
