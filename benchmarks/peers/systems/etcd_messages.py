"""etcd's requests and answers as protocol buffers, as far as a log needs them: https://etcd.io/docs/v3.4/dev-guide/api_reference_v3/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from benchmarks.peers.system import NotMeasured

PUT = "/etcdserverpb.KV/Put"
RANGE = "/etcdserverpb.KV/Range"
DELETE = "/etcdserverpb.KV/DeleteRange"
COMPACT = "/etcdserverpb.KV/Compact"
WATCH = "/etcdserverpb.Watch/Watch"
STATUS = "/etcdserverpb.Maintenance/Status"

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_HEADER, _REVISION, _MEMBER = 1, 3, 2
_LEADER, _APPLIED = 4, 7
_KEY_VALUES, _COUNT, _VALUE = 2, 4, 5
_CREATED, _CANCELED, _EVENTS, _KEY_VALUE = 3, 4, 11, 2


def varint(number: int) -> bytes:
    """Seven bits in each byte, the lowest first."""
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def field(number: int, value: int | bytes) -> bytes:
    """One field of a message."""
    if isinstance(value, bytes):
        return varint(number << 3 | _BYTES) + varint(len(value)) + value
    return varint(number << 3 | _VARINT) + varint(value)


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message, in their order. Raises `NotMeasured` for one that is cut off or of no known kind."""
    position, end = 0, len(message)
    try:
        while position < end:
            tag, position = _varint_at(message, position)
            number, kind = tag >> 3, tag & 7
            value, position = _varint_at(message, position) if kind in (_VARINT, _BYTES) else (8, position)
            if kind == _VARINT:
                yield number, value
                continue
            length = value if kind == _BYTES else {_FIXED_64: 8, _FIXED_32: 4}[kind]
            if position + length > end:
                raise IndexError
            yield number, message[position : position + length]
            position += length
    except (IndexError, KeyError):
        raise NotMeasured(f"etcd's answer is no message: {message[:64].hex()}...") from None


def _varint_at(message: bytes, position: int) -> tuple[int, int]:
    """What stands there, and where it ends."""
    byte = message[position]
    value, shift, position = byte & 0x7F, 7, position + 1
    while byte & 0x80:
        byte = message[position]
        value |= (byte & 0x7F) << shift
        shift, position = shift + 7, position + 1
    return value, position


def _number(message: bytes, wanted: int) -> int:
    return next((value for number, value in fields(message) if number == wanted and isinstance(value, int)), 0)


def _parts(message: bytes, wanted: int) -> Iterator[bytes]:
    return (value for number, value in fields(message) if number == wanted and isinstance(value, bytes))


# --- requests ----------------------------------------------------------------------------------------------------------


def put(key: bytes, value: bytes) -> bytes:
    return field(1, key) + field(2, value)


def after(prefix: bytes) -> bytes:
    """The end of the range that holds all keys with this prefix."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def key_range(first: bytes, end: bytes) -> bytes:
    """Asks for these keys and their values."""
    return field(1, first) + field(2, end)


def count_of(first: bytes, end: bytes) -> bytes:
    """Asks how many keys there are."""
    return key_range(first, end) + field(9, 1)


def compact(revision: int) -> bytes:
    """Answered when what it frees is free."""
    return field(1, revision) + field(2, 1)


def watch(first: bytes, end: bytes) -> bytes:
    return field(1, key_range(first, end))


# --- answers -----------------------------------------------------------------------------------------------------------


def revision(answer: bytes) -> int:
    """Of the store, as every answer tells it."""
    return _number(next(_parts(answer, _HEADER), b""), _REVISION)


def is_leader(status: bytes) -> bool:
    leader = _number(status, _LEADER)
    return bool(leader) and leader == _number(next(_parts(status, _HEADER), b""), _MEMBER)


def applied(status: bytes) -> int:
    """The index of the last entry of Raft's log that this member's store has."""
    return _number(status, _APPLIED)


def count(answer: bytes) -> int:
    return _number(answer, _COUNT)


def values(answer: bytes, key_bytes: int) -> list[bytes]:
    """Of a range, in the order of the keys, which are so long (quickly; those of another length are found as well)."""
    found, match = [], _before_value(key_bytes).match
    position = _behind_header(answer)
    while before := match(answer, position):
        start = before.end()
        position = start + _varint_at(before[1], 0)[0]
        found.append(answer[start:position])
    return found + [_value(pair) for pair in _parts(answer[position:], _KEY_VALUES)]


def _behind_header(answer: bytes) -> int:
    if not answer.startswith(varint(_HEADER << 3 | _BYTES)):
        return 0
    length, position = _varint_at(answer, 1)
    return position + length


@cache
def _before_value(key_bytes: int) -> re.Pattern[bytes]:
    """A key and what is told of it, and then the length of its value: fields 1 to 5, of which 2 to 4 are revisions."""
    number = rb"[\x80-\xff]*[\x00-\x7f]"
    key = rb"\x0a%b.{%d}" % (re.escape(varint(key_bytes)), key_bytes)
    return re.compile(rb"\x12%b%b\x10%b\x18%b\x20%b\x2a(%b)" % (number, key, *[number] * 4), re.DOTALL)


def _value(pair: bytes) -> bytes:
    return next(_parts(pair, _VALUE), b"")


def is_watching(answer: bytes) -> bool:
    """Whether it says that the watch has begun. Raises `NotMeasured` if it was ended by the server."""
    if _number(answer, _CANCELED):
        raise NotMeasured(f"etcd ended a watch: {answer!r}")
    return bool(_number(answer, _CREATED))


def events(answer: bytes) -> list[bytes]:
    """The values that were put, in their order."""
    return [_value(pair) for event in _parts(answer, _EVENTS) for pair in _parts(event, _KEY_VALUE)]
