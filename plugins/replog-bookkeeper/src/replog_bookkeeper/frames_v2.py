"""Frames of BookKeeper's protocol, version 2: an int32 length, an int32 header, then fields without names; all big-endian.

It has adds and reads only; a read of entry -1 reads the last one. Answers repeat operation, ledger and entry, by which they are
told apart: they have no other number. `request` and `decode` are the client's end, `Question` is a bookie's.
"""

from __future__ import annotations

import enum
import struct
from typing import Any

import attrs
from google.protobuf.message import DecodeError

from replog.errors import RemoteProtocolError
from replog_bookkeeper.digests import MASTER_KEY_BYTES
from replog_bookkeeper.frames import RECOVERY_ADD, Answer, Code, Operation, ReadFlag
from replog_bookkeeper.schema import wire

VERSION = 2
FIRST_BYTE_OF_VERSION_3 = 0x0A  # the tag of a request's first field: no frame of version 2 begins so
BATCH_HEAD_BYTES = 24 + 8 + 4  # what an answer to a batch read counts for itself
BATCH_ENTRY_BYTES = 4  # and beside each entry


class Opcode(enum.IntEnum):
    """The kind of a request; the numbers pass over the wire."""

    ADD = 1
    READ = 2
    AUTHENTICATE = 3
    BATCH_READ = 7


class Flag(enum.IntFlag):
    """Bits of a request's header."""

    FENCING = 1
    RECOVERY_ADD = 2
    HIGH_PRIORITY = 4


_OPERATIONS = {
    Opcode.ADD: Operation.ADD_ENTRY,
    Opcode.READ: Operation.READ_ENTRY,
    Opcode.AUTHENTICATE: Operation.AUTHENTICATE,
    Opcode.BATCH_READ: Operation.BATCH_READ,
}
# A client of version 2 does not know 107, unknown ledger state: it would wait for another answer until its deadline.
RESULTS = {
    Code.OK: 0,
    Code.NO_LEDGER: 1,
    Code.NO_ENTRY: 2,
    Code.BAD_REQUEST: 100,
    Code.IO_ERROR: 101,
    Code.UNAUTHORIZED: 102,
    Code.BAD_VERSION: 103,
    Code.FENCED: 104,
    Code.READ_ONLY: 105,
    Code.TOO_MANY_REQUESTS: 106,
    Code.UNKNOWN_LEDGER_STATE: 101,
}
_CODES = {number: code for code, number in reversed(RESULTS.items())}
_HEADER = struct.Struct(">I")
_IDS = struct.Struct(">qq")
_BATCH = struct.Struct(">qqqiq")
_ANSWER = struct.Struct(">IIIqq")  # with the length before it
_ANSWERED = struct.Struct(">IIqq")
_LENGTH_BYTES = 4


def request(operation: Operation, body: Any, *, priority: int = 0) -> bytes:
    """The frame of an add or a read, with the message of version 3."""
    flags = Flag.HIGH_PRIORITY if priority else Flag(0)
    if operation is Operation.ADD_ENTRY:
        opcode = Opcode.ADD
        tail: bytes = body.masterKey + body.body
        flags |= Flag.RECOVERY_ADD if body.flag == RECOVERY_ADD else Flag(0)
    else:
        assert operation is Operation.READ_ENTRY, "version 2 has no other questions of this client"
        opcode, tail = Opcode.READ, _IDS.pack(body.ledgerId, body.entryId)
        if body.flag == ReadFlag.FENCE_LEDGER:
            flags, tail = flags | Flag.FENCING, tail + body.masterKey
    header = _HEADER.pack(VERSION << 24 | opcode << 16 | flags)
    return _HEADER.pack(len(header) + len(tail)) + header + tail


def key_of(operation: Operation, body: Any) -> tuple[int, int, int]:
    """By what the answer to a question is recognised."""
    return operation, body.ledgerId, body.entryId


def decode(data: bytes) -> Answer:
    """Decodes an answer to an add or a read; its `transaction` is as of `key_of`. Raises `RemoteProtocolError`, and nothing
    else."""
    if len(data) < _ANSWER.size - _LENGTH_BYTES:
        raise RemoteProtocolError(f"{len(data)} bytes are too few for an answer of version 2")
    header, result, ledger_id, entry_id = _ANSWERED.unpack_from(data)
    operation = _OPERATIONS.get(header >> 16 & 0xFF)
    if header >> 24 != VERSION or operation not in (Operation.ADD_ENTRY, Operation.READ_ENTRY):
        raise RemoteProtocolError(f"an answer with header {header:#x}, which was not asked for")
    code = _CODES.get(result, Code.IO_ERROR)
    found = wire["AddResponse" if operation is Operation.ADD_ENTRY else "ReadResponse"]
    body = found(ledgerId=ledger_id, entryId=entry_id)
    if operation is Operation.READ_ENTRY and code is Code.OK:
        body.body = data[_ANSWERED.size :]
    return Answer((operation, ledger_id, entry_id), operation, code, body)


@attrs.frozen
class BatchRead:
    """Several entries, one after the other. Fields that a read has, too, have the same names."""

    ledgerId: int
    entryId: int
    request_id: int
    count_max: int
    bytes_max: int
    flag: int = 0
    masterKey: bytes = b""


class Question:
    """A request as a bookie gets it, of version 2, with the messages of version 3.

    Raises `RemoteProtocolError`, and nothing else, for bytes that are not a request: a bookie closes the connection then."""

    __slots__ = ("body", "is_known_version", "opcode", "operation")

    def __init__(self, data: bytes) -> None:
        if len(data) < _HEADER.size:
            raise RemoteProtocolError(f"{len(data)} bytes are too few for a header of version 2")
        (header,) = _HEADER.unpack_from(data)
        # The first version had a header that was the opcode alone.
        version = header >> 24
        self.opcode = header >> 16 & 0xFF if version else header
        if self.opcode not in _OPERATIONS:
            raise RemoteProtocolError(f"opcode {self.opcode} of version {version}: not a request of version 2")
        self.is_known_version: bool = version <= VERSION
        self.operation: int = _OPERATIONS[Opcode(self.opcode)]
        flags = Flag(header & 0xFFFF if version else 0)
        try:
            self.body: Any = _READERS[Opcode(self.opcode)](data, flags)
        except (struct.error, DecodeError) as error:
            raise RemoteProtocolError(f"a request of opcode {self.opcode} in {len(data)} bytes: {error}") from error

    def answer(self, code: Code, **fields: Any) -> bytes:
        """The frame of the answer."""
        header = VERSION << 24 | self.opcode << 16
        if self.operation == Operation.AUTHENTICATE:
            data: bytes = wire["AuthMessage"](**fields).SerializeToString()
            return _HEADER.pack(_HEADER.size + len(data)) + _HEADER.pack(header) + data
        body = self.body
        tail: bytes = fields.get("body", b"")
        if self.operation == Operation.BATCH_READ:
            tail = body.request_id.to_bytes(8, "big", signed=True) + tail
        size = _ANSWER.size - _LENGTH_BYTES + len(tail)
        return _ANSWER.pack(size, header, RESULTS[code], body.ledgerId, body.entryId) + tail


def _read_add(data: bytes, flags: Flag) -> Any:
    start = _HEADER.size + MASTER_KEY_BYTES
    ledger_id, entry_id = _IDS.unpack_from(data, start)
    key, body = data[_HEADER.size : start], data[start:]
    fields = {"flag": RECOVERY_ADD} if flags & Flag.RECOVERY_ADD else {}
    return wire["AddRequest"](ledgerId=ledger_id, entryId=entry_id, masterKey=key, body=body, **fields)


def _read_read(data: bytes, flags: Flag) -> Any:
    ledger_id, entry_id = _IDS.unpack_from(data, _HEADER.size)
    fields = _fence(data[_HEADER.size + _IDS.size :], flags)
    return wire["ReadRequest"](ledgerId=ledger_id, entryId=entry_id, **fields)


def _read_batch(data: bytes, flags: Flag) -> BatchRead:
    numbers = _BATCH.unpack_from(data, _HEADER.size)
    return BatchRead(*numbers, **_fence(data[_HEADER.size + _BATCH.size :], flags))


def _fence(rest: bytes, flags: Flag) -> dict[str, Any]:
    if not flags & Flag.FENCING:
        return {}
    if len(rest) < MASTER_KEY_BYTES:
        raise struct.error("a read that fences has a key")
    return {"flag": ReadFlag.FENCE_LEDGER, "masterKey": rest[:MASTER_KEY_BYTES]}


def _read_authentication(data: bytes, _flags: Flag) -> Any:
    return wire["AuthMessage"].FromString(data[_HEADER.size :])


_READERS = {
    Opcode.ADD: _read_add,
    Opcode.READ: _read_read,
    Opcode.AUTHENTICATE: _read_authentication,
    Opcode.BATCH_READ: _read_batch,
}
