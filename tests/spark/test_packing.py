"""Columns of bytes and texts as entries in one piece: what is written is what Arrow has, in parts that batches hold."""

from __future__ import annotations

import itertools
import random

import pyarrow as arrow
import pytest

from replog.protocol.batch import ENTRY_BYTES_MAX, PackedPayloads
from replog.spark import packing
from replog.spark.packing import packed

TYPES = [arrow.binary(), arrow.string(), arrow.large_binary(), arrow.large_string()]


@pytest.mark.parametrize("of_type", TYPES, ids=str)
@pytest.mark.parametrize("seed", range(20))
def test_entries_are_the_values(of_type: arrow.DataType, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the column begins amid others, and wherever parts end."""
    chance = random.Random(seed)
    part_bytes = chance.choice([1, 100, 1000, 10_000])
    monkeypatch.setattr(packing, "_PART_BYTES", part_bytes)
    values = [b"x" * chance.choice([0, 1, 7, 100]) + b"%d" % number for number in range(chance.randrange(500))]
    begin = chance.randrange(len(values) + 1)
    column = arrow.array(values, arrow.binary()).cast(of_type).slice(begin)
    parts = packed(column)
    assert [value for part in parts for value in part] == values[begin:]
    for part in parts:
        assert len(part) == 1 or sum(map(len, part)) + 4 * len(part) <= part_bytes
    # No part is smaller than it must be: the first value of the next one would not fit.
    for part, following in itertools.pairwise(parts):
        assert sum(map(len, part)) + len(following[0]) + 4 * len(part) + 4 > part_bytes


def test_few_values_are_looked_at_one_by_one() -> None:
    """A large one may be more than an entry holds: the writer refuses it."""
    large = bytes(ENTRY_BYTES_MAX + 1)
    small, alone, rest = packed(arrow.array([*[b"a"] * 100, large, *[b"b"] * 100], arrow.binary()))
    assert isinstance(small, PackedPayloads)
    assert isinstance(rest, PackedPayloads)
    assert alone == [large]
    assert packed(arrow.array([], arrow.binary())) == []
    assert list(map(list, packed(arrow.array([b""] * 100, arrow.binary())))) == [[b""] * 100]


def test_a_damaged_column_is_refused() -> None:
    """Its offsets would stand in a batch, and nobody could read that."""
    offsets = arrow.py_buffer(arrow.array([0, 5, 3, 9], arrow.int32()).buffers()[1])
    column = arrow.Array.from_buffers(arrow.binary(), 3, [None, offsets, arrow.py_buffer(b"123456789")])
    with pytest.raises(arrow.ArrowInvalid):
        packed(column)
