"""Frames of BookKeeper's protocol, version 3: an int32 length, big-endian, and a protobuf message.

`request` and `decode` are the client's end, `Question` is a bookie's.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Hashable
from typing import Any

from google.protobuf.message import DecodeError

from replog.errors import RemoteProtocolError
from replog_bookkeeper.schema import wire

VERSION = 3
HIGH_PRIORITY = 100
_LENGTH = struct.Struct(">I")
_HEADER_FIELD = 1
_STATUS_TAG = b"\x10"  # field 2, a number


class Operation(enum.IntEnum):
    """What a request asks for; the numbers pass over the wire."""

    READ_ENTRY = 1
    ADD_ENTRY = 2
    AUTHENTICATE = 5
    WRITE_CONFIRMED = 6
    READ_CONFIRMED = 7
    BOOKIE_INFO = 8
    START_TLS = 9
    FORCE_LEDGER = 10
    LIST_ENTRIES = 11
    BATCH_READ = 12  # of version 2 only


# By operation: the number of the field that has the body of a request and of a response, and the names of these.
_FIELDS = {
    Operation.READ_ENTRY: (100, "readRequest", "readResponse"),
    Operation.ADD_ENTRY: (101, "addRequest", "addResponse"),
    Operation.AUTHENTICATE: (102, "authRequest", "authResponse"),
    Operation.WRITE_CONFIRMED: (103, "writeLacRequest", "writeLacResponse"),
    Operation.READ_CONFIRMED: (104, "readLacRequest", "readLacResponse"),
    Operation.BOOKIE_INFO: (105, "getBookieInfoRequest", "getBookieInfoResponse"),
    Operation.START_TLS: (106, "startTLSRequest", "startTLSResponse"),
    Operation.FORCE_LEDGER: (107, "forceLedgerRequest", "forceLedgerResponse"),
    Operation.LIST_ENTRIES: (108, "getListOfEntriesOfLedgerRequest", "getListOfEntriesOfLedgerResponse"),
}


class ReadFlag(enum.IntEnum):
    """What a read does beside reading."""

    FENCE_LEDGER = 1
    ENTRY_PIGGYBACK = 2


RECOVERY_ADD = 1  # the flag of an add


class Code(enum.IntEnum):
    """A bookie's answer; the numbers pass over the wire."""

    OK = 0
    NO_LEDGER = 402
    NO_ENTRY = 403
    BAD_REQUEST = 404
    IO_ERROR = 501
    UNAUTHORIZED = 502
    BAD_VERSION = 503
    FENCED = 504
    READ_ONLY = 505
    TOO_MANY_REQUESTS = 506
    UNKNOWN_LEDGER_STATE = 507


_CODES = {int(code): code for code in Code}
_WITHOUT_STATUS = (Operation.START_TLS, Operation.AUTHENTICATE)
_BODIES = {
    operation: wire["AuthMessage" if name == "authResponse" else f"{name[0].upper()}{name[1:]}"]
    for operation, (_, _, name) in _FIELDS.items()
}


def code_of(number: int) -> Code:
    """The answer of this number; an I/O error, which tells nothing, for one that is not known."""
    return _CODES.get(number, Code.IO_ERROR)


def request(operation: Operation, transaction: int, body: Any, *, priority: int = 0) -> bytes:
    """The frame of a request. Its parts are joined here, so that the body of an add is copied once only."""
    header = wire["BKPacketHeader"](version=VERSION, operation=operation, txnId=transaction)
    if priority:
        header.priority = priority
    return _framed(header, b"", operation, body)


def _framed(header: Any, status: bytes, operation: Operation, body: Any) -> bytes:
    head, tail = header.SerializeToString(), body.SerializeToString()
    parts = (_tag(_HEADER_FIELD, len(head)), head, status, _tag(_FIELDS[operation][0], len(tail)), tail)
    return b"".join((_LENGTH.pack(sum(map(len, parts))), *parts))


def _tag(field: int, size: int) -> bytes:
    return _varint(field << 3 | 2) + _varint(size)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


class Answer:
    """A decoded response: to which transaction (in version 2: operation, ledger and entry), with what code, and its body, which
    is there if the code is OK."""

    __slots__ = ("body", "code", "operation", "transaction")

    def __init__(self, transaction: Hashable, operation: Operation, code: Code, body: Any) -> None:
        self.transaction = transaction
        self.operation = operation
        self.code = code
        self.body = body


def decode(data: bytes) -> Answer:
    """Decodes the message of a response. Raises `RemoteProtocolError`, and nothing else."""
    try:
        found = wire["Response"].FromString(data)
    except DecodeError as error:
        raise RemoteProtocolError(f"{len(data)} bytes that are not a response of BookKeeper: {error}") from error
    header = found.header
    field = _FIELDS.get(header.operation)
    if field is None:
        raise RemoteProtocolError(f"a response to operation {header.operation}, which was not asked for")
    code, body, name = code_of(found.status), None, field[2]
    if found.HasField(name):
        body = getattr(found, name)
        if code is Code.OK and header.operation not in _WITHOUT_STATUS:
            code = code_of(body.status)  # a bookie may say OK of the request, and not of what it asked for
    elif code is Code.OK:
        raise RemoteProtocolError(f"a response to operation {header.operation} without {name}")
    return Answer(header.txnId, Operation(header.operation), code, body)


class Question:
    """A request as a bookie gets it, of version 3. `body` is its message; None if it has none, or if that lacks a field.

    Raises `RemoteProtocolError`, and nothing else, for bytes that are not a request: then no answer could name it."""

    __slots__ = ("body", "is_known_version", "operation", "transaction")

    def __init__(self, data: bytes) -> None:
        try:
            found = wire["Request"].FromString(data)
        except DecodeError as error:
            raise RemoteProtocolError(f"{len(data)} bytes that are not a request of BookKeeper: {error}") from error
        header = found.header
        if not header.IsInitialized():
            raise RemoteProtocolError("a request without operation or transaction")
        self.operation: int = header.operation
        self.transaction: int = header.txnId
        self.is_known_version: bool = header.version == VERSION
        self.body: Any = None
        field = _FIELDS.get(header.operation)
        if field is not None and found.HasField(field[1]):
            body = getattr(found, field[1])
            self.body = body if body.IsInitialized() else None

    def answer(self, code: Code, **fields: Any) -> bytes:
        """The frame of the answer: the code, and the message with these fields, if any are given."""
        header = wire["BKPacketHeader"](version=VERSION, operation=self.operation, txnId=self.transaction)
        status = _STATUS_TAG + _varint(code)
        if not fields:
            head = header.SerializeToString()
            data: bytes = _tag(_HEADER_FIELD, len(head)) + head + status
            return _LENGTH.pack(len(data)) + data
        operation = Operation(self.operation)
        body = _BODIES[operation](**fields)
        if operation not in _WITHOUT_STATUS:
            body.status = code
        return _framed(header, status, operation, body)


class Splitter:
    """Cuts a stream into messages. Raises `RemoteProtocolError` for a frame above the limit: then nothing more can be read."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._data = bytearray()

    @property
    def begun_bytes(self) -> int:
        """The bytes of a message that has not come whole."""
        return len(self._data)

    def feed(self, data: bytes | bytearray) -> list[bytes]:
        """The messages that are complete with these bytes."""
        self._data += data
        found, start = [], 0
        while len(self._data) - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._data, start)
            if size > self._bytes_max:
                raise RemoteProtocolError(f"a frame of {size} bytes: the limit is {self._bytes_max}")
            end = start + _LENGTH.size + size
            if end > len(self._data):
                break
            found.append(bytes(memoryview(self._data)[start + _LENGTH.size : end]))
            start = end
        del self._data[:start]
        return found
