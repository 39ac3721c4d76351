"""Frames on a byte stream: how they are sealed, and how a stream is cut into them. See `replog.protocol.wire`."""

from __future__ import annotations

import struct

from crc32c import crc32c

from replog.errors import RemoteProtocolError
from replog.protocol.batch import BATCH_BYTES_MAX

HEADER = struct.Struct("<IIIBBHQ")
GREETING_BYTES_MAX = 8192
FIELDS_BYTES_MAX = 1 << 20
FRAME_BYTES_MAX = HEADER.size + FIELDS_BYTES_MAX + BATCH_BYTES_MAX

_CHECKSUM = struct.Struct("<I")
_SEALED = struct.Struct("<IIBBHQ")  # the header without its checksum
_HEADER_BYTES, _CHECKSUM_BYTES, _SEALED_BYTES = HEADER.size, _CHECKSUM.size, _SEALED.size
_LARGE_FRAME_BYTES = 256 << 10  # from this size on, a system call for the body costs less than copying it
_SMALL_PART_BYTES = 64 << 10  # parts of a body that are smaller go together,
_PIECE_BYTES = 256 << 10  # into pieces of this size

_NO_PIECE = bytearray()


class Frame:
    """One frame whose checksum holds: `fields` begin with those of this version, and `body` is what follows them."""

    __slots__ = ("body", "fields", "flags", "kind", "request_id")

    def __init__(self, kind: int, flags: int, request_id: int, fields: bytes, body: bytes) -> None:
        self.kind = kind
        self.flags = flags
        self.request_id = request_id
        self.fields = fields
        self.body = body


def seal(kind: int, flags: int, request_id: int, fields: bytes, body_bytes: int = 0) -> bytes:
    """The header and the fields of a frame; a body of so many bytes is to follow."""
    fields_bytes = len(fields)
    sealed = _SEALED.pack(_HEADER_BYTES + fields_bytes + body_bytes, fields_bytes, kind, flags, 0, request_id) + fields
    return _CHECKSUM.pack(crc32c(sealed)) + sealed


class FrameSplitter:
    """Cuts what a stream gives into frames. Keeps no more than what arrived, and of that no more than one frame.

    `begun_bytes` is the size of the frame whose header has arrived and whose end has not, 0 if there is none: the caller
    may wait until there is room for it. `wanted_bytes` is how much is best received next, 0 for as much as there is: a large body
    that arrives by itself is not copied, and as large frames seldom come alone, the head of the next one is asked for by
    itself, too. `is_empty` is True if no incomplete frame has arrived. `frame_bytes_max` may be raised once
    the peer is trusted."""

    __slots__ = (
        "_fields_bytes_max",
        "_frame",
        "_head_bytes",
        "_missing",
        "_needed",
        "_parts",
        "_piece",
        "_rest",
        "_room",
        "begun_bytes",
        "frame_bytes_max",
        "is_empty",
        "wanted_bytes",
    )

    def __init__(self, frame_bytes_max: int, fields_bytes_max: int = FIELDS_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._fields_bytes_max = fields_bytes_max
        self.begun_bytes = 0
        self.wanted_bytes = 0
        self.is_empty = True
        self._rest = bytearray()  # the beginning of a header and its fields
        self._needed = HEADER.size  # look again when `_rest` has so many bytes
        self._frame: Frame | None = None  # whose body is arriving, in parts
        self._parts: list[bytes | bytearray] = []
        self._piece = _NO_PIECE  # the last part, if it has room for more
        self._room = 0  # so many bytes
        self._missing = 0
        self._head_bytes = 0  # of the last frame whose body came behind it

    @property
    def arrived_bytes(self) -> int:
        """How much of a frame has arrived that is not complete."""
        return len(self._rest) if self._frame is None else self.begun_bytes - self._missing

    def feed(self, data: bytes) -> list[Frame]:
        """Takes what arrived, and returns the frames that are complete now.

        Raises `RemoteProtocolError` if this cannot be a frame; then the stream cannot be used any more, close it."""
        found: list[Frame] = []
        start = 0
        if not self.is_empty:
            data, start = self._complete(data, found)
            if not self.is_empty:
                return found
        end = len(data)
        while end - start >= _HEADER_BYTES:
            checksum, size, fields_bytes, kind, flags, _, request_id = HEADER.unpack_from(data, start)
            body = start + _HEADER_BYTES + fields_bytes
            # Sizes come before the checksum can be checked: they bound what a peer can make us keep.
            if size > self.frame_bytes_max or fields_bytes > self._fields_bytes_max or body > start + size:
                raise self._wrong_sizes(size, fields_bytes)
            if body > end:
                self.begun_bytes = size
                self._keep_rest(data, start, body - start)
                return found
            # The body is not covered: a batch has its own code, and is checked by the bookie or the reader.
            sealed = data[start + _CHECKSUM_BYTES : body]
            if crc32c(sealed) != checksum:
                raise RemoteProtocolError("a frame that does not match its checksum")
            frame = Frame(kind, flags, request_id, sealed[_SEALED_BYTES:], data[body : start + size])
            head_bytes = body - start
            start += size
            if start > end:
                self._begin(frame, size, head_bytes, start - end)
                return found
            found.append(frame)
            self.begun_bytes = 0
            self.wanted_bytes = head_bytes if size >= _LARGE_FRAME_BYTES else 0
        if start < end:
            self._keep_rest(data, start, _HEADER_BYTES)
        return found

    def forget(self) -> None:
        """Drops what has arrived of a frame: the stream has ended. Its memory must not wait for the collector of cycles."""
        self._rest = bytearray()
        self._frame, self._parts, self._piece, self._room = None, [], _NO_PIECE, 0

    def _keep_rest(self, data: bytes, start: int, needed_bytes: int) -> None:
        """Keeps what begins there, to look at it again when so many bytes of it have arrived."""
        assert needed_bytes > len(data) - start, "what has arrived is not enough yet"
        self.wanted_bytes = 0
        self.is_empty = False
        self._needed = needed_bytes
        self._rest = bytearray(data[start:])

    def _begin(self, frame: Frame, size: int, head_bytes: int, missing_bytes: int) -> None:
        """The end of this frame's body is missing."""
        assert missing_bytes > 0, "only a frame whose end is missing is kept"
        self._frame = frame
        self._parts = [frame.body] if frame.body else []
        self._missing = missing_bytes
        self._head_bytes = head_bytes
        self.is_empty = False
        self.begun_bytes = size
        self.wanted_bytes = missing_bytes if size >= _LARGE_FRAME_BYTES else 0

    def _complete(self, data: bytes, found: list[Frame]) -> tuple[bytes, int]:
        """Adds arrived bytes to the kept ones. Returns the bytes to split, and where to begin."""
        start = 0
        if self._frame is not None:
            start = min(self._missing, len(data))
            self._keep(data if start == len(data) else data[:start])
            self._missing -= start
            assert self._missing >= 0, "no more of a body is taken than is missing"
            if self.wanted_bytes:
                self.wanted_bytes = self._missing or self._head_bytes
            if self._missing:
                return b"", 0
            self._frame.body = b"".join(self._parts)
            found.append(self._frame)
            self._frame, self._parts, self._piece, self.begun_bytes = None, [], _NO_PIECE, 0
        else:
            self._rest += data
            if len(self._rest) < self._needed:
                return b"", 0
            data, self._rest = bytes(self._rest), bytearray()
        self.is_empty = True
        return data, start

    def _keep(self, part: bytes) -> None:
        """Small parts go together into pieces of one size. The objects around them, and what the C library leaves unused behind
        each of them, would cost as much as they hold."""
        if len(part) >= _SMALL_PART_BYTES or len(part) == self._missing:
            if self._room:
                del self._piece[-self._room :]
                self._room = 0
            self._parts.append(part)
            return
        start = 0
        while start < len(part):
            if not self._room:
                self._room = min(_PIECE_BYTES, self._missing - start)
                self._piece = bytearray(self._room)
                self._parts.append(self._piece)
            count = min(self._room, len(part) - start)
            at = len(self._piece) - self._room
            self._piece[at : at + count] = part[start : start + count]
            self._room -= count
            start += count

    def _wrong_sizes(self, size: int, fields_bytes: int) -> RemoteProtocolError:
        return RemoteProtocolError(
            f"a frame of {size} bytes with {fields_bytes} bytes of fields; at most {self.frame_bytes_max} are taken"
        )
