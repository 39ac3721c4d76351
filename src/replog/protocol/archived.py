"""The objects of an archive: batches as they are stored, one behind the other, and an index of them at the end.

An object has some consecutive entries of one fragment, all under one stamp; its batches have more where one of them reaches
beyond. It belongs to one copy of the fragment. Its name has its first and last entry and the SHA-256 of its bytes, so it is never
written with others:

    ledgers/LEDGER-ID/COPY/FIRST-LAST-DIGEST

The index has a row for each batch, in the order of their first entries: first and last entry, stride, bytes, and the CRC32C of
the batch, which shows damage without the ledger's password. The footer has the number of rows, their CRC32C and a magic.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import re
import struct
from collections.abc import Sequence

import attrs
from crc32c import crc32c

from replog.errors import RemoteProtocolError
from replog.protocol.batch import Batch, decode

OBJECT_BYTES_MAX = 64 << 20  # of batches; one more may make it larger
BATCHES_MAX = 1 << 16  # of one object: its index is small enough to be read at once
MAGIC = b"rlarch01"
_ROW = struct.Struct("<QQIII")
_FOOTER = struct.Struct("<II8s")
FOOTER_BYTES = _FOOTER.size
INDEX_BYTES_MAX = BATCHES_MAX * _ROW.size + FOOTER_BYTES
LEDGERS_PREFIX = "ledgers/"
_NAME = re.compile(r"ledgers/(\d{19})/([0-9a-z]{1,40})/(\d{19})-(\d{19})-([0-9a-f]{64})")


@attrs.frozen
class ObjectName:
    """The name of an object, in its parts."""

    ledger_id: int
    copy: str
    first_entry_id: int
    last_entry_id: int
    digest: str

    def __str__(self) -> str:
        place = copy_prefix(self.ledger_id, self.copy)
        return f"{place}{self.first_entry_id:019d}-{self.last_entry_id:019d}-{self.digest}"

    @classmethod
    def parse(cls, text: str) -> ObjectName | None:
        """The parts of a name; None if no object has such a name."""
        match = _NAME.fullmatch(text)
        return cls(int(match[1]), match[2], int(match[3]), int(match[4]), match[5]) if match else None


def copy_prefix(ledger_id: int, copy: str) -> str:
    """The beginning of the names of one copy's objects."""
    return f"{LEDGERS_PREFIX}{ledger_id:019d}/{copy}/"


def covering(names: Sequence[ObjectName], first_entry_id: int, last_entry_id: int) -> int:
    """The first of these entries that no object has; behind the last one if there are all."""
    for name in sorted(names, key=lambda each: each.first_entry_id):
        if name.first_entry_id <= first_entry_id <= name.last_entry_id:
            first_entry_id = name.last_entry_id + 1
    return min(first_entry_id, last_entry_id + 1)


def pack(
    ledger_id: int, copy: str, first_entry_id: int, last_entry_id: int, batches: Sequence[Batch]
) -> tuple[ObjectName, list[bytes]]:
    """The name of the object that has these entries, which the batches hold between them, and its bytes, in pieces. Takes some
    100 ms for a large one: shells call it in a thread."""
    assert batches, "an object has entries"
    assert len(batches) <= BATCHES_MAX, "the index of an object is bounded"
    assert any(each.holds(first_entry_id) for each in batches), "its name says which entries it has"
    ordered = sorted(batches, key=lambda each: each.first_entry_id)
    rows = b"".join(
        _ROW.pack(each.first_entry_id, each.last_entry_id, each.stride, len(each.data), crc32c(each.data))
        for each in ordered
    )
    footer = _FOOTER.pack(len(ordered), crc32c(rows), MAGIC)
    # They are not joined: copying 64 MiB costs as much as their digest.
    pieces = [*(each.data for each in ordered), rows, footer]
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return ObjectName(ledger_id, copy, first_entry_id, last_entry_id, digest.hexdigest()), pieces


class ObjectIndex:
    """The index of one object."""

    __slots__ = ("_checksums", "firsts", "lasts", "offsets", "strides")

    def __init__(self, rows: Sequence[tuple[int, int, int, int, int]]) -> None:
        self.firsts, self.lasts, self.strides, sizes, self._checksums = map(list, zip(*rows, strict=True))
        self.offsets = [0, *itertools.accumulate(sizes)]  # where each batch begins, and where the last one ends

    def place_of(self, entry_id: int) -> int | None:
        """The place of the batch that holds this entry; None if none does."""
        for place in range(bisect.bisect_right(self.firsts, entry_id) - 1, -1, -1):
            if entry_id <= self.lasts[place] and not (entry_id - self.firsts[place]) % self.strides[place]:
                return place
        return None

    def through(self, place: int, size_bytes: int) -> int:
        """The place behind those batches from this one on that have so many bytes together: it alone, at least."""
        return max(place + 1, bisect.bisect_right(self.offsets, self.offsets[place] + size_bytes) - 1)

    def batches(self, place: int, end: int, data: bytes | memoryview) -> list[Batch]:
        """The batches from a place to before an end, which are these bytes. Raises `RemoteProtocolError` if they are damaged."""
        assert 0 <= place < end < len(self.offsets), "a batch at least, of this object"
        found, start = [], self.offsets[place]
        assert len(data) == self.offsets[end] - start, "the bytes of these batches"
        for each in range(place, end):
            piece = bytes(data[self.offsets[each] - start : self.offsets[each + 1] - start])
            if crc32c(piece) != self._checksums[each]:
                raise RemoteProtocolError(
                    f"the batch of entry {self.firsts[each]}, at byte {self.offsets[each]}, is damaged"
                )
            found.append(decode(piece))
        return found


def index_bytes(footer: bytes) -> int:
    """The size of the index, footer included, that ends with these bytes. Raises `RemoteProtocolError`."""
    if len(footer) < FOOTER_BYTES:
        raise RemoteProtocolError(f"it ends with {len(footer)} bytes, and a footer has {FOOTER_BYTES}")
    count, _, magic = _FOOTER.unpack(footer[-FOOTER_BYTES:])
    if magic != MAGIC or not 1 <= count <= BATCHES_MAX:
        raise RemoteProtocolError(
            f"it ends with {magic!r} and {count} rows: not an object of replog, or of a newer one"
        )
    return int(count) * _ROW.size + FOOTER_BYTES


def decode_index(data: bytes, object_bytes: int) -> ObjectIndex:
    """The index in these last bytes of an object of this size. Raises `RemoteProtocolError` if it is damaged."""
    size_bytes = index_bytes(data)
    if size_bytes != len(data):
        raise RemoteProtocolError(f"its index has {len(data)} bytes, and its footer says {size_bytes}")
    rows, (_, checksum, _) = data[:-FOOTER_BYTES], _FOOTER.unpack(data[-FOOTER_BYTES:])
    if crc32c(rows) != checksum:
        raise RemoteProtocolError("its index is damaged")
    index = ObjectIndex(list(_ROW.iter_unpack(rows)))
    if index.offsets[-1] + size_bytes != object_bytes:
        raise RemoteProtocolError(f"it has {object_bytes} bytes, and its index says {index.offsets[-1] + size_bytes}")
    return index
