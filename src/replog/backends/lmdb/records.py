"""The keys and values of the LMDB environment (version 1). All numbers of this module are big-endian.

    \\0format                                         what this is, its version, and the bookie it belongs to
    \\0openings                                       how often it was opened
    b LEDGER STAMP FIRST LAST STRIDE                  a batch: checksum, then the batch, verbatim
    d FIRST                                           ledgers deleted permanently: checksum, last id of the range
    e LEDGER                                          entries of a ledger that were dropped: checksum, of each range: stamp,
                                                      first and last id, stride
    g LEDGER                                          a deleted ledger of which batches are left to be removed
    l LEDGER                                          marks: checksum, fence term, last add confirmed, last entry,
                                                      revision, length of the key or -1, key, proof
    l LEDGER STAMP                                    series, what is stored of a ledger under a stamp: checksum, greatest
                                                      distance of a batch's last id from its first, whether the ranges are
                                                      all, number of ranges, then of each: first and last id, stride

A checksum is the CRC32C of the key, the last four bytes of the content, and the CRC32C of all before these: most
batches end with their own CRC32C, and a plain one over such bytes is always the same. LMDB's own pages have none.

The *series* makes absence provable without a search. Its ranges say which entries are stored, those of a whole ledger in
one range as a rule; its distance bounds how far before an entry the batch that holds it can begin.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from crc32c import crc32c

from replog.backends.dropped import DroppedEntries
from replog.errors import RemoteProtocolError
from replog.protocol.batch import Batch, decode
from replog.protocol.mutations import Marks

VERSION = 1
FORMAT_KEY = b"\0format"
OPENINGS_KEY = b"\0openings"
BATCH, DELETED, DROPPED, GARBAGE, LEDGER = b"b", b"d", b"e", b"g", b"l"

CHECKSUM_BYTES = 4
RANGES_MAX = 64
LEDGER_KEY_BYTES = 9
_PLACE = struct.Struct(">cqqQ")
_BATCH_KEY = struct.Struct(">cqqQQI")
_ID_KEY = struct.Struct(">cq")
_SERIES_KEY = struct.Struct(">cqq")
_NUMBER = struct.Struct(">q")
_CHECKSUM = struct.Struct(">I")
_MARKS = struct.Struct(">qqqqi")
_SERIES = struct.Struct(">QBH")
_RANGE = struct.Struct(">QQI")
_DROPPED = struct.Struct(">qqqQ")

BATCH_KEY_BYTES = _BATCH_KEY.size
unpack_batch_key = _BATCH_KEY.unpack  # kind, ledger id, stamp, first id, last id, stride
SERIES_KEY_BYTES = _SERIES_KEY.size
unpack_series_key = _SERIES_KEY.unpack  # kind, ledger id, stamp
Bytes = bytes | memoryview


class DamagedError(Exception):
    """A value does not match its checksum. Never leaves this package."""


def format_text(bookie_id: str) -> bytes:
    """The value below `FORMAT_KEY`."""
    return f"replog lmdb storage {VERSION} {bookie_id}".encode()


# -- keys ---------------------------------------------------------------------------------------------------------


def batch_key(batch: Batch) -> bytes:
    """Where a batch stands."""
    return _BATCH_KEY.pack(BATCH, batch.ledger_id, batch.stamp, batch.first_entry_id, batch.last_entry_id, batch.stride)


def batch_place(ledger_id: int, stamp: int, first_entry_id: int) -> bytes:
    """At or before all keys of batches that begin at this entry or later, behind those that begin earlier."""
    return _PLACE.pack(BATCH, ledger_id, stamp, first_entry_id)


def id_key(kind: bytes, ledger_id: int) -> bytes:
    """The key of a ledger's marks, of its garbage, or of a range of deleted ledgers; the start of all its batches'."""
    return _ID_KEY.pack(kind, ledger_id)


def unpack_id_key(key: Bytes) -> int:
    """The ledger id in such a key."""
    return int(_ID_KEY.unpack(key)[1])


def series_key(ledger_id: int, stamp: int) -> bytes:
    """The key of a series."""
    return _SERIES_KEY.pack(LEDGER, ledger_id, stamp)


# -- checksums ----------------------------------------------------------------------------------------------------


def seal(key: bytes, content: bytes) -> bytes:
    """The value for this content: its checksum before it."""
    return b"".join((_CHECKSUM.pack(_checksum(key, content)), content))


def unseal(key: bytes, value: Bytes) -> bytes:
    """A copy of a value's content. Raises `DamagedError`."""
    content = bytes(value[CHECKSUM_BYTES:])
    if len(value) < CHECKSUM_BYTES or _CHECKSUM.unpack_from(value)[0] != _checksum(key, content):
        raise DamagedError
    return content


def _checksum(key: bytes, content: bytes) -> int:
    before = _CHECKSUM.pack(crc32c(memoryview(content)[:-4]))
    return int(crc32c(b"".join((key, content[-4:], before))))


def unseal_batch(key: Bytes, value: Bytes) -> Batch:
    """The batch in a value. Raises `DamagedError`."""
    try:
        return decode(unseal(bytes(key), value))
    except RemoteProtocolError as error:
        raise DamagedError from error


# -- values -------------------------------------------------------------------------------------------------------


def pack_marks(marks: Marks) -> bytes:
    """The content of marks."""
    numbers = marks.fence_term, marks.last_add_confirmed, marks.last_entry_id, marks.revision
    size = -1 if marks.key is None else len(marks.key)
    return _MARKS.pack(*numbers, size) + (marks.key or b"") + marks.proof


def unpack_marks(content: bytes) -> Marks:
    """The marks of a ledger."""
    fence_term, last_add_confirmed, last_entry_id, revision, size = _MARKS.unpack_from(content)
    key = content[_MARKS.size : _MARKS.size + size] if size >= 0 else None
    proof = content[_MARKS.size + max(size, 0) :]
    return Marks(key, fence_term, last_add_confirmed, last_entry_id, proof, revision)


def pack_number(number: int) -> bytes:
    """The last id of a range of deleted ledgers, or the number of openings."""
    return _NUMBER.pack(number)


def unpack_number(content: Bytes) -> int:
    """Such a number."""
    return int(_NUMBER.unpack(content)[0])


def pack_dropped(dropped: DroppedEntries) -> bytes:
    """The content of the record of dropped entries."""
    return b"".join([_DROPPED.pack(*each) for each in dropped])


def unpack_dropped(content: bytes) -> DroppedEntries:
    """The dropped entries of a ledger."""
    return DroppedEntries(_DROPPED.iter_unpack(content))


class Series:
    """The stored batches of one ledger under one stamp: which entries, and how far batches reach.

    Ranges are (first id, last id, stride), and never touch one another. If there are more than `RANGES_MAX`, those with
    the lowest last ids are forgotten, and `is_whole` is False: entries outside all ranges may still be stored."""

    __slots__ = ("is_whole", "ranges", "span_max")

    def __init__(self, span_max: int = 0, is_whole: bool = True, ranges: Iterable[tuple[int, int, int]] = ()) -> None:
        self.span_max = span_max
        self.is_whole = is_whole
        self.ranges = list(ranges)

    def copy(self) -> Series:
        """The same, apart from this one."""
        return Series(self.span_max, self.is_whole, self.ranges)

    def add(self, first: int, last: int, stride: int) -> None:
        """A batch with these entries is stored."""
        self.span_max = max(self.span_max, last - first)
        ranges = self.ranges
        if ranges:
            start, end, step = ranges[-1]
            # What an append does: the ledger's one range grows at its end, and no list is built.
            if step == stride and first == end + step and len(ranges) == 1:
                ranges[0] = (start, last, step)
                return
        kept = []
        for each in ranges:
            start, end, step = each
            touches = first <= end + step and start <= last + step
            if step == stride and touches and (first - start) % step == 0:
                first, last = min(first, start), max(last, end)
            else:
                kept.append(each)
        kept.append((first, last, stride))
        if len(kept) > RANGES_MAX:
            kept.remove(min(kept, key=lambda each: each[1]))
            self.is_whole = False
        self.ranges = kept

    def remove(self, first: int, last: int, stride: int) -> None:
        """No batch with one of these entries is stored any more."""
        kept = []
        for start, end, step in self.ranges:
            if stride > 1 and (step != stride or (start - first) % stride):
                kept.append((start, end, step))
                continue
            below = start + (first - 1 - start) // step * step
            above = start + max(0, -(-(last + 1 - start) // step)) * step
            kept += [
                (low, high, step) for low, high in ((start, min(end, below)), (max(start, above), end)) if low <= high
            ]
        # Two parts may be more than there is room for.
        for each in sorted(kept, key=lambda each: each[1])[: max(0, len(kept) - RANGES_MAX)]:
            kept.remove(each)
            self.is_whole = False
        self.ranges = kept

    def holds(self, entry_id: int) -> bool:
        """Whether a batch with this entry was stored, for sure."""
        return any(
            first <= entry_id <= last and (entry_id - first) % stride == 0 for first, last, stride in self.ranges
        )

    def may_hold(self, entry_id: int) -> bool:
        """Whether a batch with this entry may have been stored: if not, that is proven."""
        return not self.is_whole or self.holds(entry_id)

    def covers(self, first: int, last: int, stride: int) -> bool:
        """Whether all these entries are in one range."""
        return any(
            start <= first and last <= end and step == stride and (first - start) % step == 0
            for start, end, step in self.ranges
        )

    def pack(self) -> bytes:
        """The content of its record."""
        head = _SERIES.pack(self.span_max, self.is_whole, len(self.ranges))
        return head + b"".join([_RANGE.pack(*each) for each in self.ranges])

    @classmethod
    def unpack(cls, content: bytes) -> Series:
        """The series in a record."""
        span_max, is_whole, _ = _SERIES.unpack_from(content)
        return cls(span_max, bool(is_whole), _RANGE.iter_unpack(content[_SERIES.size :]))
