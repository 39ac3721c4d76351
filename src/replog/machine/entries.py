"""The entries of a machine's log (format 1), and what callers and the leader say to each other.

An entry, little-endian: format and kind (one byte each), session, sequence, floor (8 bytes each), time in ns since the epoch
(8 bytes), then the body, which depends on the kind. The time is the machine's (L12), or 0 where the writer does not know it. A
request is the same, with a time of 0: the leader sets it. An answer is a code (one byte), a segment and an entry id (8 bytes
each), then the body.
"""

from __future__ import annotations

import enum
import struct

from replog.errors import RemoteProtocolError, UnknownCommandError

FORMAT = 1
_HEADER = struct.Struct("<BBQQQq")
_ANSWER = struct.Struct("<Bqq")
HEADER_BYTES, _ANSWER_BYTES = _HEADER.size, _ANSWER.size
_pack_header, _unpack_header, _pack_answer = _HEADER.pack, _HEADER.unpack_from, _ANSWER.pack


class Kind(enum.IntEnum):
    """The kinds of entries. The numbers are part of the format."""

    LEAD = 1  # a leader begins; the body is its member id
    OPEN = 2  # a session begins; the body is a text for people
    COMMAND = 3  # the body is the command; `floor`: the caller has the answers to all sequences below
    TOUCH = 4  # the session's caller lives; `floor` as in a command
    EXPIRE = 5  # these sessions end; the body is a JSON list of their ids
    BARRIER = 6  # nothing: it is confirmed, so its writer was the leader when it was sent
    CHECK = 7  # every member computes the hash of its state here
    HASH = 8  # the leader's hash at a CHECK; the body is a JSON list of segment, entry and hash
    BEGIN = 10  # nothing was applied before: this is the beginning of the machine
    READ = 9  # only in requests: answered after a barrier


class Code(enum.IntEnum):
    """The outcomes of a request. The numbers pass over the wire."""

    DONE = 1  # the body is the result
    FAILED = 2  # the command raised; the body is a JSON list of the error's type and text
    EXPIRED = 3  # the session has ended, or never began: this request did nothing
    FORGOTTEN = 4  # its sequence is below the floor: it had an answer, which is kept no longer
    REFUSED = 5  # the leader does not know the command: nothing was written; the body says why
    BUSY = 6  # too much is under way: nothing was written
    FULL = 7  # the session has too many answers that its caller has not confirmed: not applied


class MachineEntry:
    """One entry, or one request."""

    __slots__ = ("body", "floor", "kind", "sequence", "session", "time_ns")

    def __init__(
        self, kind: int, session: int = 0, sequence: int = 0, floor: int = 0, time_ns: int = 0, body: bytes = b""
    ) -> None:
        self.kind = kind
        self.session = session
        self.sequence = sequence
        self.floor = floor
        self.time_ns = time_ns
        self.body = body

    def encode(self) -> bytes:
        """Its bytes."""
        return _pack_header(FORMAT, self.kind, self.session, self.sequence, self.floor, self.time_ns) + self.body


_KINDS = frozenset(int(kind) for kind in Kind)


def decode_entry(data: bytes) -> MachineEntry:
    """Reads an entry, or a request. Raises `UnknownCommandError`."""
    if len(data) < HEADER_BYTES or data[0] != FORMAT or data[1] not in _KINDS:
        raise UnknownCommandError(
            f"{data[:40]!r} is not an entry of a machine that this replog knows: upgrade it, or use another log"
        )
    _, kind, session, sequence, floor, time_ns = _unpack_header(data)
    return MachineEntry(kind, session, sequence, floor, time_ns, data[HEADER_BYTES:])


class Answer:
    """The outcome of a request, and the position of the entry that it became."""

    __slots__ = ("body", "code", "position")

    def __init__(self, code: int, body: bytes = b"", position: tuple[int, int] = (0, 0)) -> None:
        self.code = code
        self.body = body
        self.position = position

    def encode(self) -> bytes:
        """Its bytes."""
        return _pack_answer(self.code, *self.position) + self.body


_CODES = frozenset(int(code) for code in Code)


def decode_answer(data: bytes) -> Answer:
    """Reads an answer. Raises `RemoteProtocolError`."""
    if len(data) < _ANSWER_BYTES or data[0] not in _CODES:
        raise RemoteProtocolError(f"{data[:40]!r} is not an answer of a machine's leader")
    code, segment, entry = _ANSWER.unpack_from(data)
    return Answer(code, data[_ANSWER_BYTES:], (segment, entry))
