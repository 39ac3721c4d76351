"""A page: the batches of one section of an index, in memory, in the columns that an index file has.

A page has 44 bytes for each batch, in columns, in the order of first ids. Batches of one ledger may overlap in range without
sharing an entry (strides, W1) and may arrive in any order (recovery fills holes), so a page also knows how far the batches
before each one reach.

A page of few batches takes 870 bytes, nearly all of it for its arrays. A section keeps such a page as its *rows* instead: one
`bytes` with 36 for each batch. Most ledgers of a bookie that has very many are that small.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate

from replog.backends.files.index_file import BATCH_BYTES

PAGE_BATCHES = 4096
ROWS_MAX = 8  # batches; a page with more is kept as it is
ROW = struct.Struct("=qqIQII")  # the arguments of `IndexPage.put`
_COLUMNS = "qqQIII"  # first and last ids, offsets, strides, sizes, checksums


class IndexPage:
    """The batches of one section, in the order of their first ids."""

    __slots__ = ("checksums", "firsts", "lasts", "offsets", "reaches", "sizes", "strides")

    def __init__(self) -> None:
        self.firsts = array("q")
        self.lasts = array("q")
        self.offsets = array("Q")
        self.strides = array("I")
        self.sizes = array("I")
        self.checksums = array("I")
        self.reaches = array("q")  # the highest last id up to here

    def __len__(self) -> int:
        return len(self.firsts)

    @property
    def columns(self) -> tuple[array[int], ...]:
        """The page's columns, as an index file has them."""
        return self.firsts, self.lasts, self.offsets, self.strides, self.sizes, self.checksums

    @classmethod
    def from_bytes(cls, data: bytes, count: int) -> IndexPage:
        """The page of an index file; its checksum was compared, its length is right."""
        assert len(data) == count * BATCH_BYTES, "the caller compared its length and checksum"
        page = cls()
        start = 0
        for column, code in zip(page.columns, _COLUMNS, strict=True):
            stop = start + count * (8 if code in "qQ" else 4)
            column.frombytes(data[start:stop])
            start = stop
        assert start == len(data), "the columns are all of a page"
        page.reaches = array("q", accumulate(page.lasts, max))
        return page

    @classmethod
    def from_rows(cls, rows: bytes) -> IndexPage:
        """The page that `rows` made these of."""
        page = cls()
        for row in ROW.iter_unpack(rows):
            page.put(*row)
        return page

    def rows(self) -> bytes:
        """The batches one after the other, in the order of the page."""
        columns = self.firsts, self.lasts, self.strides, self.offsets, self.sizes, self.checksums
        return b"".join(map(ROW.pack, *columns))

    def put(self, first: int, last: int, stride: int, offset: int, size: int, checksum: int) -> bool:
        """Adds a batch. If the page has the same batch, only its place changes, and this returns False."""
        firsts = self.firsts
        # Nearly always: ids go upwards, and nothing is searched or moved.
        if not firsts or first > firsts[-1]:
            reach = self.reaches[-1] if firsts else last
            self.reaches.append(last if last > reach else reach)
            firsts.append(first)
            self.lasts.append(last)
            self.strides.append(stride)
            self.offsets.append(offset)
            self.sizes.append(size)
            self.checksums.append(checksum)
            return True
        at = self._place_of(first, last, stride)
        if at >= 0:
            self.offsets[at], self.sizes[at], self.checksums[at] = offset, size, checksum
            return False
        at = bisect_right(firsts, first)
        assert first <= last, "a batch holds an entry"
        for column, value in zip(self.columns, (first, last, offset, stride, size, checksum), strict=True):
            column.insert(at, value)
        assert len(set(map(len, self.columns))) == 1, "columns have one length"
        self.reaches = array("q", accumulate(self.lasts, max))
        return True

    def _place_of(self, first: int, last: int, stride: int) -> int:
        at = bisect_left(self.firsts, first)
        while at < len(self.firsts) and self.firsts[at] == first:
            if self.lasts[at] == last and self.strides[at] == stride:
                return at
            at += 1
        return -1

    def find(self, entry_id: int) -> int:
        """The position of the batch that holds the entry, or -1."""
        reaches, firsts, lasts = self.reaches, self.firsts, self.lasts
        at = bisect_right(firsts, entry_id) - 1
        while at >= 0 and reaches[at] >= entry_id:
            if entry_id <= lasts[at] and (entry_id - firsts[at]) % self.strides[at] == 0:
                return at
            at -= 1
        return -1

    def size(self, at: int) -> int:
        """The bytes of the batch at this position."""
        return self.sizes[at]

    def identity(self, at: int) -> tuple[int, int, int]:
        """First id, last id and stride of the batch at this position."""
        return self.firsts[at], self.lasts[at], self.strides[at]

    def offset(self, at: int) -> int:
        """Where the batch at this position begins in the file."""
        return self.offsets[at]

    def at_offset(self, offset: int) -> int:
        """The position of the batch at this offset of the file, or -1."""
        return self.offsets.index(offset) if offset in self.offsets else -1

    @property
    def memory_bytes(self) -> int:
        """About how many bytes the page takes in memory, where a section keeps it."""
        if len(self) <= ROWS_MAX:
            return 40 + len(self) * ROW.size
        # An empty page with its seven arrays, and for each batch the columns and how far it reaches.
        return 800 + len(self) * (BATCH_BYTES + 8)
