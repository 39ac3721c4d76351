"""Messages between members as bytes.

    message   format (u8), kind (u8), then the fields of its class in their order, each a u64; a truth is a u8
    Append    term, previous, previous term, commit, probe (u64), number of entries (u32), then of each: size (u32), entry
    Copy      term, probe (u64), base

A message of a format or a kind that this version does not know is refused (Q20), and so is one that ends early or late.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable

import attrs

from replog.errors import RemoteProtocolError
from replog.protocol.consensus.codec import decode_base, decode_entry, encode_base, encode_entry
from replog.protocol.consensus.log import LogEntry
from replog.protocol.consensus.messages import Append, Appended, Ask, Copy, MayAsk, Message, Vote, VoteRequest

_FORMAT = 1
_HEAD = struct.Struct(">BB")
_APPEND = struct.Struct(">QQQQQI")
_COPY = struct.Struct(">QQ")
_SIZE = struct.Struct(">I")


class _Kind(enum.IntEnum):
    """The number of each class in messages."""

    ASK = 1
    MAY_ASK = 2
    VOTE_REQUEST = 3
    VOTE = 4
    APPEND = 5
    COPY = 6
    APPENDED = 7


_PLAIN: dict[int, tuple[Callable[..., Message], struct.Struct]] = {
    _Kind.ASK: (Ask, struct.Struct(">QQQQ")),
    _Kind.MAY_ASK: (MayAsk, struct.Struct(">QQ?")),
    _Kind.VOTE_REQUEST: (VoteRequest, struct.Struct(">QQQ")),
    _Kind.VOTE: (Vote, struct.Struct(">Q?")),
    _Kind.APPENDED: (Appended, struct.Struct(">Q?QQ")),
}
_PLAIN_KINDS = {made: kind for kind, (made, _) in _PLAIN.items()}


def encode_message(message: Message) -> bytes:
    """The bytes that `decode_message` reads."""
    if isinstance(message, Append):
        return _HEAD.pack(_FORMAT, _Kind.APPEND) + _encode_append(message)
    if isinstance(message, Copy):
        return _HEAD.pack(_FORMAT, _Kind.COPY) + _COPY.pack(message.term, message.probe) + encode_base(message.base)
    kind = _PLAIN_KINDS[type(message)]
    return _HEAD.pack(_FORMAT, kind) + _PLAIN[kind][1].pack(*attrs.astuple(message, recurse=False))


def decode_message(data: bytes) -> Message:
    """Raises `RemoteProtocolError` for bytes that are not a message, are damaged, or are of a later format (Q20)."""
    if len(data) < _HEAD.size:
        raise RemoteProtocolError(f"{len(data)} bytes are too few for a message of the metastore")
    number, kind = _HEAD.unpack_from(data)
    if number != _FORMAT or kind not in set(_Kind):
        raise RemoteProtocolError(
            f"a message of the metastore has format {number} and kind {kind}: this version does not read it, update replog"
        )
    try:
        if kind == _Kind.APPEND:
            return _decode_append(data)
        if kind == _Kind.COPY:
            term, probe = _COPY.unpack_from(data, _HEAD.size)
            return Copy(term, decode_base(data[_HEAD.size + _COPY.size :]), probe)
        made, fields = _PLAIN[kind]
        values = fields.unpack(data[_HEAD.size :])
    except struct.error as error:
        raise RemoteProtocolError(f"a message of {len(data)} bytes ends early or late: {error}") from error
    if fields.pack(*values) != data[_HEAD.size :]:
        raise RemoteProtocolError(f"a message of {len(data)} bytes has a truth that is neither 0 nor 1")
    return made(*values)


def _encode_append(message: Append) -> bytes:
    head = _APPEND.pack(
        message.term,
        message.previous,
        message.previous_term,
        message.commit,
        message.probe,
        len(message.entries),
    )
    pieces = [head]
    for each in message.entries:
        entry = encode_entry(each)
        pieces += (_SIZE.pack(len(entry)), entry)
    return b"".join(pieces)


def _decode_append(data: bytes) -> Append:
    term, previous, previous_term, commit, probe, count = _APPEND.unpack_from(data, _HEAD.size)
    at = _HEAD.size + _APPEND.size
    entries: list[LogEntry] = []
    for _ in range(count):
        (size,) = _SIZE.unpack_from(data, at)
        at += _SIZE.size + size
        if at > len(data):
            raise struct.error(f"an entry has {size} bytes")
        entries.append(decode_entry(data[at - size : at]))
    if at != len(data):
        raise struct.error(f"{len(data) - at} bytes are behind the last entry")
    return Append(term, previous, previous_term, tuple(entries), commit, probe)
