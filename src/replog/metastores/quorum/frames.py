"""The bodies of messages between members, as bytes.

    kind (u8), sizes of cluster, sender and address (u8, u8, u16), cluster's id, sender's name, sender's address, payload

The payload is that of `replog.protocol.consensus.codec`, except for copies of the state, which travel in pages:

    PAGE   the copy's number (u64), the page's number (u32), then rows: size of the key (u32), of the value (u32), both
    COPY   the copy's number (u64), how many pages there were (u32), then the message that they belong to
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator

import attrs

from replog.errors import RemoteProtocolError

PAGE_BYTES = 1 << 20  # about, unless one row has more
_HEAD = struct.Struct(">BBBH")
_COPY = struct.Struct(">QI")
_ROW = struct.Struct(">II")

Rows = dict[bytes, bytes]


class FrameKind(enum.IntEnum):
    """The kinds of messages. Their numbers pass over the wire."""

    MESSAGE = 1  # of the machine
    PAGE = 2  # of a copy of the state
    COPY = 3  # the end of a copy
    FOUNDING = 4  # of a cluster that begins, or of one that wants to know whether it must
    JOIN = 5  # the sender wants to be let in under its name
    REFUSED = 6  # why it is not: text for people


@attrs.frozen
class MemberFrame:
    """A message of one process to another: `cluster` is "" for a sender that belongs to none yet."""

    kind: FrameKind
    cluster: str
    sender: str
    address: str
    payload: bytes = b""

    def encode(self) -> bytes:
        """The bytes that `decode` reads."""
        cluster, sender, address = self.cluster.encode(), self.sender.encode(), self.address.encode()
        head = _HEAD.pack(self.kind, len(cluster), len(sender), len(address))
        return b"".join((head, cluster, sender, address, self.payload))

    @staticmethod
    def decode(data: bytes) -> MemberFrame:
        """Raises `RemoteProtocolError`."""
        try:
            kind, *sizes = _HEAD.unpack_from(data)
            texts, at = [], _HEAD.size
            for size in sizes:
                texts.append(data[at : at + size].decode())
                at += size
            if at > len(data):
                raise ValueError(f"it ends within its head of {at} bytes")
            cluster, sender, address = texts
            return MemberFrame(FrameKind(kind), cluster, sender, address, data[at:])
        except (struct.error, ValueError) as error:
            raise RemoteProtocolError(f"{len(data)} bytes are no message of a member: {error}") from error


def pages(number: int, rows: Rows) -> Iterator[bytes]:
    """The payloads of all pages of a copy."""
    page, size_bytes = 0, 0
    pieces: list[bytes] = []
    for row, value in rows.items():
        pieces += (_ROW.pack(len(row), len(value)), row, value)
        size_bytes += len(row) + len(value)
        if size_bytes >= PAGE_BYTES:
            yield b"".join((_COPY.pack(number, page), *pieces))
            page, pieces, size_bytes = page + 1, [], 0
    if pieces:
        yield b"".join((_COPY.pack(number, page), *pieces))


def copy_payload(number: int, page_count: int, message: bytes) -> bytes:
    """The payload of a COPY."""
    return _COPY.pack(number, page_count) + message


class CopyInParts:
    """The pages of one copy, as they arrive. Pages that are lost or late make it worthless: `message` finds that out."""

    def __init__(self) -> None:
        self._number = -1
        self._pages = 0
        self._rows: Rows = {}

    def page(self, payload: bytes) -> None:
        """Takes a page. Raises `RemoteProtocolError`."""
        number, page, at = *_numbers(payload), _COPY.size
        if page == 0:
            self._number, self._pages, self._rows = number, 0, {}
        if (number, page) != (self._number, self._pages):
            self._number, self._rows = -1, {}
            return
        self._pages += 1
        try:
            while at < len(payload):
                row_bytes, value_bytes = _ROW.unpack_from(payload, at)
                at += _ROW.size
                if at + row_bytes + value_bytes > len(payload):
                    raise RemoteProtocolError("a page of a copy ends within a row")
                row = payload[at : at + row_bytes]
                at += row_bytes
                self._rows[row] = payload[at : at + value_bytes]
                at += value_bytes
        except struct.error as error:
            raise RemoteProtocolError(f"a page of a copy ends within a row: {error}") from error

    def message(self, payload: bytes) -> tuple[bytes, Rows] | None:
        """The message of a COPY, and its rows; None if pages are missing. Raises `RemoteProtocolError`."""
        number, count = _numbers(payload)
        is_whole = not count or (number, count) == (self._number, self._pages)
        rows = self._rows if count else {}
        self._number, self._rows = -1, {}
        return (payload[_COPY.size :], rows) if is_whole else None


def _numbers(payload: bytes) -> tuple[int, int]:
    try:
        number, count = _COPY.unpack_from(payload)
    except struct.error as error:
        raise RemoteProtocolError(f"a part of a copy of {len(payload)} bytes") from error
    return number, count
