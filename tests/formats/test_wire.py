"""Golden bytes of wire version 1 and of what bookies announce. If one of these tests fails, the format has changed: that is a
new version. Described in docs/reference/formats.md; read here a second time, from the description, without the library."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from replog.errors import MetastoreCorruptError
from replog.protocol import wire
from replog.protocol.batch import Batch, decode
from replog.protocol.holding import Holding, encode_holding
from replog.protocol.messages import (
    AddRequest,
    AdminCommand,
    AdminRequest,
    CopyReadRequest,
    CopyRequest,
    FenceRequest,
    LedgerAwaited,
    MetastorePurpose,
    MetastoreRequest,
    RangesRequest,
    ReadLastAddConfirmedRequest,
    ReadRequest,
    RecoveryReadRequest,
    Response,
    Status,
    WriteLastAddConfirmedRequest,
    ledger_awaited,
)
from replog.protocol.unasked import decode_awaited, encode_awaited
from replog.protocol.wire import FrameSplitter
from replog.records.bookies import (
    BookieAddress,
    Cookie,
    Endpoint,
    decode_address,
    decode_cookie,
    encode_address,
    encode_cookie,
)
from tests.formats.test_batch import crc32c_bit_by_bit

HERE = Path(__file__).parent
KEY = bytes(range(32))
NONCE = bytes(range(0x40, 0x60))


def golden(name: str) -> bytes:
    lines = (HERE / f"{name}.hex").read_text(encoding="ascii").splitlines()
    return bytes.fromhex("".join(line.partition("#")[0] for line in lines))


def batch(name: str) -> Batch:
    return decode(golden(f"batch-v1-{name}"))


def texts(*found: bytes) -> bytes:
    return b"".join(struct.pack("<H", len(text)) + text for text in found)


@attrs.frozen
class Golden:
    """What a golden frame means, to the library and to the page."""

    name: str
    kind: int
    fields: bytes
    message: Any = None
    flags: int = 0
    request_id: int = 0
    body: bytes = b""

    @property
    def data(self) -> bytes:
        return golden(f"wire-v1-{self.name}")


CRC, HMAC, EMPTY = batch("crc32c"), batch("hmac-sha256"), batch("empty-payload")
# An explicit proof that entry 2 of ledger 7, of the writer with term 1, is confirmed.
EXPLICIT = struct.pack("<4sBBHqqq", b"rlac", 1, 1, 0, 7, 1, 2)
EXPLICIT += struct.pack("<I", crc32c_bit_by_bit(EXPLICIT))
GOLDEN = [
    Golden(
        "hello",
        1,
        struct.pack("<6sHHQ", b"replog", 1, 3, 5) + NONCE + texts(b"bookie-7", b"none", b"replog 1.0"),
        wire.Hello(1, 3, 5, NONCE, "bookie-7", "none", "replog 1.0"),
    ),
    Golden(
        "welcome",
        2,
        struct.pack("<6sHHQ", b"replog", 1, 1, 5) + NONCE + texts(b"bookie-7", b"challenge", b"replog 1.0"),
        wire.Welcome(1, 5, NONCE, "bookie-7", b"challenge", "replog 1.0"),
    ),
    Golden("prove", 3, texts(b"response"), wire.Prove(b"response")),
    Golden(
        "ready",
        4,
        struct.pack("<QQ", 34603032, 30000) + texts(b"proof", b"writer"),
        wire.Ready(b"proof", "writer", 34603032, 30000),
    ),
    Golden(
        "refuse",
        5,
        texts("wer da? überall nobody".encode()),
        wire.Refuse("wer da? überall nobody", retry=True),
        flags=1,
    ),
    Golden("ping", 6, b""),
    Golden("pong", 7, b""),
    Golden(
        "add",
        16,
        struct.pack("<qqq", 7, 2, 5) + KEY + struct.pack("<II", 0, 36) + EXPLICIT,
        AddRequest(0x0102030405060708, 7, KEY, 2, CRC, True, EXPLICIT, revision=5),
        flags=1,
        request_id=0x0102030405060708,
        body=CRC.data,
    ),
    Golden(
        "add-hmac",
        16,
        struct.pack("<qqq", 7, 1, 0) + KEY + struct.pack("<II", crc32c_bit_by_bit(HMAC.data), 0),
        AddRequest(1, 7, KEY, 1, HMAC),
        request_id=1,
        body=HMAC.data,
    ),
    Golden("fence", 17, struct.pack("<qqq", 7, 3, 6) + KEY, FenceRequest(2, 7, KEY, 3, 6), request_id=2),
    Golden(
        "recovery-read",
        18,
        struct.pack("<qqqqq", 7, 3, 6, 11, 2) + KEY,
        RecoveryReadRequest(3, 7, KEY, 3, 11, 2, 6),
        request_id=3,
    ),
    Golden(
        "read", 19, struct.pack("<qqqq", 7, 11, 2, 1 << 20) + KEY, ReadRequest(4, 7, KEY, 11, 2, 1 << 20), request_id=4
    ),
    Golden(
        "read-last-add-confirmed",
        20,
        struct.pack("<qqq", 7, -1, 30000) + KEY,
        ReadLastAddConfirmedRequest(5, 7, KEY, -1, 30000),
        request_id=5,
    ),
    Golden(
        "read-last-add-confirmed-and-batches",
        20,
        struct.pack("<qqq", 7, 10, 1000) + KEY + struct.pack("<qqq", 11, 2, 1 << 14),
        ReadLastAddConfirmedRequest(9, 7, KEY, 10, 1000, 11, 2, 1 << 14),
        request_id=9,
    ),
    Golden(
        "write-last-add-confirmed",
        21,
        struct.pack("<qq", 7, 3) + KEY + struct.pack("<I", 36) + EXPLICIT,
        WriteLastAddConfirmedRequest(6, 7, KEY, 3, EXPLICIT),
        request_id=6,
    ),
    Golden("admin", 22, struct.pack("<I", 5), AdminRequest(7, AdminCommand.SCRUB), request_id=7),
    Golden(
        "copy",
        23,
        struct.pack("<qqq", 7, 2, 0) + KEY + struct.pack("<I", 0) + bytes(32),
        CopyRequest(12, 7, KEY, 2, CRC, recovery=True),
        request_id=12,
        body=CRC.data,
    ),
    Golden(
        "copy-by-role",
        23,
        struct.pack("<qqq", 7, 2, 9) + bytes(32) + struct.pack("<I", crc32c_bit_by_bit(HMAC.data)) + KEY,
        CopyRequest(13, 7, b"", 2, HMAC, recovery=True, revision=9, stored_key=KEY),
        request_id=13,
        body=HMAC.data,
    ),
    Golden(
        "copy-read",
        24,
        struct.pack("<qqqq", 7, 11, 2, 1 << 20) + KEY + bytes(32),
        CopyReadRequest(14, 7, KEY, 11, 2, 1 << 20),
        request_id=14,
    ),
    Golden(
        "ranges",
        25,
        struct.pack("<qqqq", 7, 1, 0, 99) + bytes(32) + KEY,
        RangesRequest(15, 7, b"", 1, 0, 99, KEY),
        request_id=15,
    ),
    Golden(
        "metastore",
        26,
        struct.pack("<II", 2, crc32c_bit_by_bit(b"question")),
        MetastoreRequest(17, MetastorePurpose.CLIENT, b"question"),
        request_id=17,
        body=b"question",
    ),
    Golden(
        "response-metastore",
        32,
        struct.pack("<IqqIIII", 0, -1, 0, 0, 0, 0, crc32c_bit_by_bit(b"answer")),
        Response(17, Status.OK, body=b"answer"),
        request_id=17,
        body=b"answer",
    ),
    Golden(
        "response-ranges",
        32,
        struct.pack("<IqqIII", 0, 11, 2, 65, 0, 0)
        + b'{"through":99,"denial":1,"ranges":[[0,40,1],[50,90,5],[51,91,5]]}',
        Response(
            16,
            Status.OK,
            11,
            2,
            detail=encode_holding(Holding(((0, 40, 1), (50, 90, 5), (51, 91, 5)), 99, Status.NO_ENTRY)),
        ),
        request_id=16,
    ),
    Golden(
        "admin-ledger-deleted",
        22,
        struct.pack("<Iq", 6, 7),
        AdminRequest(8, AdminCommand.LEDGER_DELETED, 7),
        request_id=8,
    ),
    Golden(
        "response",
        32,
        struct.pack("<IqqIII", 3, -1, 9, 8, 0, 0) + "déposé".encode(),
        Response((1 << 64) - 1, Status.FENCED, -1, 9, (), "déposé"),
        request_id=(1 << 64) - 1,
    ),
    Golden(
        "response-awaited",
        32,
        struct.pack("<IqqIII", 0, 11, 2, 0, 0, 0),
        Response(10, Status.OK, 11, 2, awaited=True),
        flags=1,
        request_id=10,
    ),
    Golden(
        "response-batches",
        32,
        struct.pack("<IqqIII", 0, 11, 2, 0, 2, 0),
        Response(8, Status.OK, 11, 2, (CRC, EMPTY)),
        request_id=8,
        body=CRC.data + EMPTY.data,
    ),
    Golden(
        "response-proof",
        32,
        struct.pack("<IqqIII", 0, 2, 2, 0, 0, 136) + HMAC.data[:72] + HMAC.data[-64:],
        Response(11, Status.OK, 2, 2, proof=HMAC.data[:72] + HMAC.data[-64:]),
        request_id=11,
    ),
    Golden("awaited", 33, struct.pack("<q", 7), ledger_awaited(7)),
]
each_golden = pytest.mark.parametrize("each", GOLDEN, ids=lambda each: each.name)


def encoded(message: Any) -> bytes:
    pieces: list[bytes] = []
    if isinstance(message, LedgerAwaited):
        pieces.append(encode_awaited(message.ledger_id))
    elif isinstance(message, Response):
        wire.encode_response(message, pieces)
    elif isinstance(message, wire.Greeting):
        pieces.append(wire.encode_greeting(message))
    else:
        wire.encode_request(message, pieces)
    return b"".join(pieces)


@each_golden
def test_sent_messages_match_the_golden_bytes(each: Golden) -> None:
    data = {"ping": wire.PING_FRAME, "pong": wire.PONG_FRAME}.get(each.name) or encoded(each.message)
    assert data.hex() == each.data.hex()


@each_golden
def test_golden_messages_are_read(each: Golden) -> None:
    (frame,) = FrameSplitter(1 << 20).feed(each.data)
    assert (frame.kind, frame.flags, frame.request_id) == (each.kind, each.flags, each.request_id)
    decoder: Callable[[Any], Any] = wire.decode_request
    if isinstance(each.message, LedgerAwaited):
        decoder = decode_awaited
    elif isinstance(each.message, Response):
        decoder = wire.decode_response
    elif isinstance(each.message, wire.Greeting):
        decoder = wire.decode_greeting
    if each.message is not None:
        assert decoder(frame) == each.message


@each_golden
def test_the_bytes_are_as_the_page_describes_them(each: Golden) -> None:
    data = each.data
    checksum, size, fields_bytes, kind, flags, reserved, request_id = struct.unpack_from("<IIIBBHQ", data)
    assert (size, kind, flags, reserved, request_id) == (len(data), each.kind, each.flags, 0, each.request_id)
    assert data[24 : 24 + fields_bytes].hex() == each.fields.hex()
    assert data[24 + fields_bytes :] == each.body
    assert checksum == crc32c_bit_by_bit(data[4 : 24 + fields_bytes])


def test_every_kind_of_frame_has_golden_bytes() -> None:
    assert {each.kind for each in GOLDEN} == {*range(1, 8), *range(16, 27), 32, 33}
    assert {path.stem for path in HERE.glob("wire-v1-*.hex")} == {f"wire-v1-{each.name}" for each in GOLDEN}


# -- announcements ----------------------------------------------------------------------------------------------------


def test_an_announcement_has_its_golden_bytes() -> None:
    data = (HERE / "bookie-announcement-v1.json").read_bytes()
    address = BookieAddress((Endpoint("memory", "bookie-7"), Endpoint("tcp", "[2001:db8::7]:3181")), read_only=True)
    assert encode_address(address) + b"\n" == data
    assert decode_address("bookies/bookie-7", data) == address
    assert json.loads(data) == {
        "format": 1,
        "endpoints": [["memory", "bookie-7"], ["tcp", "[2001:db8::7]:3181"]],
        "read_only": True,
    }


def test_announcement_with_a_reason() -> None:
    data = (HERE / "bookie-announcement-v1-problem.json").read_bytes()
    problem = "could not sync /wal/journal-7: [Errno 5] Input/output error (EIO)"
    address = BookieAddress((Endpoint("memory", "bookie-7"),), read_only=True, problem=problem, has_failed=True)
    assert encode_address(address) + b"\n" == data
    assert decode_address("read-only-bookies/bookie-7", data) == address
    for name, value in (("problem", 7), ("has_failed", "yes")):
        with pytest.raises(MetastoreCorruptError, match=name):
            decode_address("bookies/bookie-7", json.dumps({**json.loads(data), name: value}).encode())


def test_an_announcement_with_a_lock() -> None:
    data = (HERE / "bookie-announcement-v1-lock.json").read_bytes()
    endpoints = (Endpoint("memory", "bookie-7"), Endpoint("tcp", "[2001:db8::7]:3181"))
    address = BookieAddress(endpoints, read_only=True, lock="00112233445566778899aabbccddeeff")
    assert encode_address(address) + b"\n" == data
    assert decode_address("bookies/bookie-7", data) == address


def test_announcement_of_a_draining_bookie() -> None:
    data = (HERE / "bookie-announcement-v1-draining.json").read_bytes()
    labels = {"zone": "a", "rack": "r1"}
    address = BookieAddress((Endpoint("tcp", "[2001:db8::7]:3181"),), labels=labels, is_draining=True)
    assert encode_address(address) + b"\n" == data
    assert decode_address("read-only-bookies/bookie-7", data) == address
    for name, value in (("labels", ["zone"]), ("labels", {"zone": 1}), ("draining", 1)):
        with pytest.raises(MetastoreCorruptError, match=name):
            decode_address("bookies/bookie-7", json.dumps({**json.loads(data), name: value}).encode())


def test_announcement_of_a_bookie_doubting_its_metastore() -> None:
    data = (HERE / "bookie-announcement-v1-doubting.json").read_bytes()
    problem = "its next ledger id is 5, and had been 21"
    address = BookieAddress((), read_only=True, problem=problem, doubts_metastore=True, ledgers_below=21)
    assert encode_address(address) + b"\n" == data
    assert decode_address("read-only-bookies/bookie-7", data) == address
    for name, value in (("doubts_metastore", 1), ("ledgers_below", -1), ("ledgers_below", "21")):
        with pytest.raises(MetastoreCorruptError, match=name):
            decode_address("bookies/bookie-7", json.dumps({**json.loads(data), name: value}).encode())


# -- cookies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "cookie"),
    [
        ("bookie-cookie-v1", Cookie()),
        ("bookie-cookie-lost-v1", Cookie(is_lost=True)),
        ("bookie-cookie-draining-v1", Cookie(is_draining=True, labels={"zone": "a"}, free_bytes=123456789)),
        ("bookie-cookie-raised-v1", Cookie(token="00112233445566778899aabbccddeeff", times_raised=17)),
    ],
)
def test_a_cookie_has_its_golden_bytes(name: str, cookie: Cookie) -> None:
    data = (HERE / f"{name}.json").read_bytes()
    assert encode_cookie(cookie) == data
    assert decode_cookie("cookies/bookie-7", data) == cookie
