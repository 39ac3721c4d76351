"""How a connection begins and ends: the frames in which a client and a bookie agree on what they speak.

A connection begins with four frames, each at most `GREETING_BYTES_MAX` long: `Hello`, `Welcome`, `Prove`, `Ready`; in place
of its own ones a bookie may send `Refuse`, which also ends a connection later. Their first fields never change, so that
any two versions can agree on what they speak. See `replog.protocol.wire`.
"""

from __future__ import annotations

import struct

import attrs

from replog.errors import RemoteProtocolError
from replog.protocol.frames import GREETING_BYTES_MAX, Frame, seal

MAGIC = b"replog"
REASON_BYTES_MAX = GREETING_BYTES_MAX // 2
NONCE_BYTES = 32

HELLO, WELCOME, PROVE, READY, REFUSE, PING, PONG = range(1, 8)

_GREETING = struct.Struct("<6sHHQ32s")  # magic, lowest and highest version, features, nonce
_LIMITS = struct.Struct("<QQ")
_TEXT = struct.Struct("<H")


@attrs.frozen
class Hello:
    """A client's first frame: its versions and features, the bookie that it wants, and the way in which it proves its
    identity."""

    lowest_version: int
    highest_version: int
    features: int
    nonce: bytes
    bookie_id: str
    mechanism: str
    software: str


@attrs.frozen
class Welcome:
    """A bookie's first frame: the version and the features that both know, its identity, and its challenge."""

    version: int
    features: int
    nonce: bytes
    bookie_id: str
    challenge: bytes
    software: str


@attrs.frozen
class Prove:
    """The client's proof of its identity."""

    response: bytes


@attrs.frozen
class Ready:
    """The bookie's proof of its identity, the client's identity, the largest frame, and the silence after which the
    client counts as lost."""

    proof: bytes
    identity: str
    frame_bytes_max: int
    silence_max_ms: int


@attrs.frozen
class Refuse:
    """The connection ends, and why. With `retry` it may be different soon."""

    reason: str
    retry: bool


Greeting = Hello | Welcome | Prove | Ready | Refuse


def encode_greeting(greeting: Greeting) -> bytes:
    """The whole frame."""
    if isinstance(greeting, Hello):
        versions = greeting.lowest_version, greeting.highest_version
        fields = _GREETING.pack(MAGIC, *versions, greeting.features, greeting.nonce)
        return seal(HELLO, 0, 0, fields + _texts(greeting.bookie_id, greeting.mechanism, greeting.software))
    if isinstance(greeting, Welcome):
        fields = _GREETING.pack(MAGIC, greeting.version, greeting.version, greeting.features, greeting.nonce)
        return seal(WELCOME, 0, 0, fields + _texts(greeting.bookie_id, greeting.challenge, greeting.software))
    if isinstance(greeting, Prove):
        return seal(PROVE, 0, 0, _texts(greeting.response))
    if isinstance(greeting, Ready):
        limits = _LIMITS.pack(greeting.frame_bytes_max, greeting.silence_max_ms)
        return seal(READY, 0, 0, limits + _texts(greeting.proof, greeting.identity))
    return seal(REFUSE, int(greeting.retry), 0, _texts(greeting.reason.encode("utf-8", "replace")[:REASON_BYTES_MAX]))


def decode_greeting(frame: Frame) -> Greeting:
    """Reads one. Raises `RemoteProtocolError` for anything else, and nothing else."""
    try:
        return _decode_greeting(frame)
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"a greeting of kind {frame.kind} that does not parse: {error}") from error


def _decode_greeting(frame: Frame) -> Greeting:
    fields = frame.fields
    if frame.kind in (HELLO, WELCOME):
        magic, lowest, highest, features, nonce = _GREETING.unpack_from(fields)
        if magic != MAGIC:
            raise RemoteProtocolError(f"a greeting that begins with {magic!r}: this is not replog")
        one, two, three = _read_texts(fields, _GREETING.size, 3)
        if frame.kind == HELLO:
            return Hello(lowest, highest, features, nonce, one.decode(), two.decode(), three.decode())
        return Welcome(highest, features, nonce, one.decode(), two, three.decode())
    if frame.kind == PROVE:
        return Prove(*_read_texts(fields, 0, 1))
    if frame.kind == READY:
        frame_bytes_max, silence_max_ms = _LIMITS.unpack_from(fields)
        proof, identity = _read_texts(fields, _LIMITS.size, 2)
        return Ready(proof, identity.decode(), frame_bytes_max, silence_max_ms)
    if frame.kind == REFUSE:
        # The bookie cut the reason by bytes, maybe within a character.
        return Refuse(_read_texts(fields, 0, 1)[0].decode("utf-8", "replace"), frame.flags & 1 != 0)
    raise RemoteProtocolError(f"a frame of kind {frame.kind} instead of a greeting")


def _texts(*texts: bytes | str) -> bytes:
    found = b""
    for text in texts:
        encoded = text.encode("utf-8", "replace") if isinstance(text, str) else text
        found += _TEXT.pack(len(encoded)) + encoded
    return found


def _read_texts(fields: bytes, start: int, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        (length,) = _TEXT.unpack_from(fields, start)
        start += _TEXT.size
        if start + length > len(fields):
            raise RemoteProtocolError(f"a greeting that ends within a text of {length} bytes")
        found.append(fields[start : start + length])
        start += length
    return found


PING_FRAME = seal(PING, 0, 0, b"")
PONG_FRAME = seal(PONG, 0, 0, b"")
