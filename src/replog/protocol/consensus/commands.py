"""Changes that clients request from the cluster, and their outcomes, as bytes.

    body      stamp in ms (u64), an earlier index (u64) and the sum of the state as of it (u64), then the commands in their order
    command   size (u32), token (16 bytes), known index (u64), what (u8), expected version (i64), key's size (u16), key, value

A command's token is random. Its known index is that of a committed entry that its client knew when it first sent it (Q13). The
value of ANNOUNCE begins with the lease in ms (u32); that of EXPIRE is the term whose leader has counted the time (Q15).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence

import attrs

from replog.errors import RemoteProtocolError

TOKEN_BYTES = 16
_ANY_VERSION, _NO_VERSION = -1, -2  # as stored: whatever the version is, and one that no key has
_VERSION_MAX = (1 << 63) - 1
_BODY = struct.Struct(">QQQ")
_SIZE = struct.Struct(">I")
_HEAD = struct.Struct(f">{TOKEN_BYTES}sQBqH")
_OUTCOME = struct.Struct(">BQ")
LEASE = struct.Struct(">I")
LEASE_MS_MAX = (1 << 32) - 1
TERM = struct.Struct(">Q")


class What(enum.IntEnum):
    """The kinds of commands. The numbers are written to disks and messages."""

    CREATE = 1
    PUT = 2
    DELETE = 3
    ANNOUNCE = 4  # creates a key that exists while its holder is heard of
    EXPIRE = 5  # deletes an announced key whose holder was not heard of for its lease: of leaders only (Q15)


CREATING = frozenset((What.CREATE, What.ANNOUNCE))
DELETING = frozenset((What.DELETE, What.EXPIRE))


class Status(enum.IntEnum):
    """The outcomes of a command."""

    DONE = 0
    EXISTS = 1
    MISSING = 2
    CONFLICT = 3  # the version is another one
    UNKNOWN = 4  # its outcome may be forgotten: it was not applied now, and maybe was before (Q13)


@attrs.frozen
class Command:
    """One change of one key."""

    token: bytes
    known: int
    what: What
    key: str
    value: bytes = b""
    expected: int | None = None  # None: whatever its version is


@attrs.frozen
class Outcome:
    """The outcome of a command; `version` is the key's, or the index to know for a repetition that is refused as unknown."""

    status: Status
    version: int = 0

    def encode(self) -> bytes:
        """As it is stored with its token."""
        return _OUTCOME.pack(self.status, self.version)

    @staticmethod
    def decode(data: bytes) -> Outcome:
        """Reads what `encode` made."""
        status, version = _OUTCOME.unpack(data)
        return Outcome(Status(status), version)


def encode_commands(stamp_ms: int, commands: Sequence[Command], as_of: tuple[int, int] = (0, 0)) -> bytes:
    """The body of an entry. `as_of` is the index of an earlier one, and the sum of the state behind it (Q19); 0: of none."""
    pieces = [_BODY.pack(stamp_ms, *as_of)]
    for each in commands:
        key = each.key.encode()
        expected = _ANY_VERSION if each.expected is None else each.expected
        if each.expected is not None and not 0 <= each.expected <= _VERSION_MAX:
            expected = _NO_VERSION
        command = _HEAD.pack(each.token, each.known, each.what, expected, len(key)) + key + each.value
        pieces += (_SIZE.pack(len(command)), command)
    return b"".join(pieces)


def decode_commands(body: bytes) -> tuple[int, list[Command]]:
    """The stamp and the commands of an entry. Raises `RemoteProtocolError` for anything else (Q20)."""
    try:
        stamp_ms, _, _ = _BODY.unpack_from(body)
        return stamp_ms, list(_commands(body))
    except (struct.error, ValueError) as error:
        raise RemoteProtocolError(
            f"an entry of {len(body)} bytes has no commands that this version reads: {error}"
        ) from error


def sum_as_of(body: bytes) -> tuple[int, int]:
    """The index of an earlier entry, and the sum of its sender's state behind it (Q19). The body is that of an entry."""
    _, index, state_sum = _BODY.unpack_from(body)
    return index, state_sum


def _commands(body: bytes) -> Iterator[Command]:
    at = _BODY.size
    while at < len(body):
        (size,) = _SIZE.unpack_from(body, at)
        at += _SIZE.size
        end = at + size
        token, known, what, expected, key_bytes = _HEAD.unpack_from(body, at)
        at += _HEAD.size
        if at + key_bytes > end or end > len(body):
            raise ValueError(f"a command of {size} bytes ends behind its entry")
        key = body[at : at + key_bytes].decode()
        value = body[at + key_bytes : end]
        if what == What.ANNOUNCE and len(value) < LEASE.size:
            raise ValueError(f"an announcement of {len(value)} bytes has no lease")
        yield Command(token, known, What(what), key, value, None if expected == _ANY_VERSION else expected)
        at = end
