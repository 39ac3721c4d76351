"""Columns of bytes as entries, without an object for each value: Arrow has them as a batch has its payloads.

Rules:
- A part of a column is what one batch may hold. A value that is larger than that is a part of its own, in a list, which
  the writer looks at.
- Packed entries are not looked at again, so Arrow checks the column first: offsets that are out of order never reach a
  batch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial

import pyarrow as arrow
import pyarrow.compute as compute

from replog.protocol.batch import PackedPayloads

_PART_BYTES = 1 << 20  # what a batch may hold by default
_OFFSET_BYTES = 4
_FEW = 16  # of fewer values in a part, objects cost little


def packed(column: arrow.Array) -> list[Sequence[bytes]]:
    """The values of a column of bytes or texts, which are the entries in their order, in parts. There is no null among them.

    Raises `arrow.ArrowInvalid` for a column that is damaged."""
    assert not column.null_count, "a null is not an entry"
    if not len(column):
        return []
    column = column.cast(arrow.binary())
    column.validate(full=True)
    edges = memoryview(column.buffers()[1]).cast("i")[column.offset : column.offset + len(column) + 1]
    parts: list[Sequence[bytes]] = []
    start = 0
    while start < len(column):
        end = start + 1 + bisect_right(range(start + 2, len(column) + 1), _PART_BYTES, key=partial(_size, edges, start))
        parts.append(_part(column, edges, start, end))
        start = end
    return parts


def _size(edges: memoryview[int], start: int, end: int) -> int:
    return edges[end] - edges[start] + _OFFSET_BYTES * (end - start)


def _part(column: arrow.Array, edges: memoryview[int], start: int, end: int) -> Sequence[bytes]:
    if end - start < _FEW:
        values: list[bytes] = column.slice(start, end - start).to_pylist()
        return values
    first = edges[start]
    offsets = edges[start : end + 1].cast("B")
    if first:
        plain = arrow.Array.from_buffers(arrow.int32(), end + 1 - start, [None, arrow.py_buffer(offsets)])
        moved = compute.subtract(plain, arrow.scalar(first, arrow.int32()))
        offsets = memoryview(moved.buffers()[1])[: len(offsets)].cast("B")
    data = memoryview(column.buffers()[2] or b"")
    return PackedPayloads(offsets, data[first : edges[end]])
