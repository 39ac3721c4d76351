"""The records of a machine's snapshots, which are in a log of their own beside the machine's: `NAME.snapshots`.

A snapshot is a header (JSON: format, position, bytes, SHA-256), then chunks of bytes, each a record. One counts only if all of
it can be read, and its hash fits; of several, the one of the highest position counts. Machines write and read them; a back-up
reads them to know which part of the machine's log belongs to what it has saved (V1).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import attrs

from replog.errors import PositionError
from replog.protocol.model import Position

FORMAT = 1
CHUNK_BYTES = 1 << 20
POSITION_KEY = "position"  # in the custom metadata of a snapshot's ledgers
_SUFFIX = ".snapshots"
_HEADER, _CHUNK = b"H", b"C"


def snapshots_name(name: str) -> str:
    """The name of the log that has a machine's snapshots."""
    return name + _SUFFIX


def machine_name(name: str) -> str:
    """The name of the machine whose snapshots are in the log of this name, if it is such a log; otherwise this name."""
    return name.removesuffix(_SUFFIX) or name


@attrs.frozen
class Header:
    """The facts about a snapshot that are known before it is read."""

    position: Position
    size_bytes: int
    sha256: str

    @classmethod
    def of(cls, position: Position, data: bytes) -> Header:
        """The header of the snapshot with this data."""
        return cls(position, len(data), hashlib.sha256(data).hexdigest())

    def encode(self) -> bytes:
        """Its record."""
        fields = {"format": FORMAT, "position": str(self.position), "bytes": self.size_bytes, "sha256": self.sha256}
        return _HEADER + json.dumps(fields).encode()


def decode_header(data: bytes) -> Header | None:
    """The header that this record is; None if it is of a later format, or damaged: then that snapshot does not count."""
    try:
        fields = json.loads(data[1:])
        if fields["format"] != FORMAT:
            return None
        return Header(Position.parse(fields["position"]), int(fields["bytes"]), str(fields["sha256"]))
    except (ValueError, LookupError, TypeError, PositionError):
        return None


def chunks(data: bytes) -> Iterator[bytes]:
    """The records behind the header of the snapshot with this data."""
    for start in range(0, len(data), CHUNK_BYTES):
        yield _CHUNK + data[start : start + CHUNK_BYTES]


class SnapshotReader:
    """Finds the snapshot that counts in the records of a log. With `keeps_data` False it only finds where it is."""

    def __init__(self, *, keeps_data: bool = True) -> None:
        self.position: Position | None = None  # of the best one that is whole
        self.data = b""
        self._keeps_data = keeps_data
        self._header: Header | None = None
        self._chunks: list[bytes] = []
        self._read_bytes = 0
        self._hash = hashlib.sha256()

    def add(self, data: bytes) -> tuple[int, int] | None:
        """The data of the next record. Returns how many bytes of a snapshot were read, and how many it has; None if this belongs
        to none."""
        if data[:1] == _HEADER:
            self._header, self._chunks, self._read_bytes = decode_header(data), [], 0
            self._hash = hashlib.sha256()
        elif self._header is not None and data[:1] == _CHUNK:
            self._hash.update(data[1:])
            self._read_bytes += len(data) - 1
            if self._keeps_data:
                self._chunks.append(data[1:])
        header = self._header
        if header is None:
            return None
        if self._read_bytes >= header.size_bytes:
            self._end(header)
        return self._read_bytes, header.size_bytes

    def _end(self, header: Header) -> None:
        is_whole = self._hash.hexdigest() == header.sha256
        if is_whole and (self.position is None or header.position > self.position):
            self.position, self.data = header.position, b"".join(self._chunks)
        self._header, self._chunks = None, []
