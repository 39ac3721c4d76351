"""Entries of several write sets, put in order: to bytes, to Arrow, one by one (W1, D3)."""

from __future__ import annotations

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replog.client import entries
from replog.client.entries import Entry, EntryBatch
from replog.protocol import batch as batches
from replog.protocol.batch import Batch
from replog.protocol.digest import Digest, DigestType
from replog.protocol.effects import Delivered

DIGEST = Digest(DigestType.CRC32C, 7, b"")


def stored(first: int, stride: int, payloads: list[bytes], timestamp_ns: int) -> Batch:
    return batches.build(
        DIGEST,
        ledger_id=7,
        first_entry_id=first,
        stride=stride,
        payloads=payloads,
        last_add_confirmed=-1,
        stamp=1,
        timestamp_ns=timestamp_ns,
        cumulative_length=1,
    )


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[Delivered, list[Entry]]:
    """A reader's delivery, and its content: one batch of each write set, which begins and ends anywhere around it."""
    stride = draw(st.sampled_from((1, 2, 3, 5)))
    first = draw(st.integers(20, 30))
    last = first + draw(st.integers(0, 23))
    is_even = draw(st.booleans())
    found: dict[int, Entry] = {}
    holders = []
    for rotation in range(stride):
        start = first + (rotation - first) % stride  # the first of this write set that is handed out
        if start > last and draw(st.booleans()):
            continue  # a write set that has none of them may be held, or not
        start -= stride * draw(st.integers(0, 3))
        stop = last + 1 + stride * draw(st.integers(0, 3))
        ids = range(start, max(stop, start + 1), stride)
        payloads = [b"%04d" % each if is_even else b"x" * (each % 3) + b"%d" % each for each in ids]
        holders.append(stored(start, stride, payloads, 1000 + rotation))
        found.update((each, Entry(each, data, 1000 + rotation)) for each, data in zip(ids, payloads, strict=True))
    return Delivered(first, last, tuple(holders)), [found[each] for each in range(first, last + 1)]


@given(deliveries())
@pytest.mark.slow
def test_they_are_handed_out_in_the_order_of_their_ids(given: tuple[Delivered, list[Entry]]) -> None:
    delivered, expected = given
    batch = EntryBatch(delivered)
    assert len(batch) == len(expected)
    assert list(batch) == expected
    assert batch.payloads() == [entry.data for entry in expected]
    array = batch.to_arrow()
    array.validate(full=True)
    assert array.type == pyarrow.binary()
    assert array.to_pylist() == batch.payloads()
    part = batch.through(expected[len(expected) // 2].entry_id)
    assert list(part) == expected[: len(expected) // 2 + 1]
    assert part.to_arrow().to_pylist() == part.payloads()


@pytest.mark.parametrize("count", [10, entries._CACHED_COUNT_MAX + 1])
def test_any_number_of_entries_becomes_one_array(count: int) -> None:
    """An array that is too large to keep is computed each time."""
    holders = [stored(at, 3, [b"%d" % each for each in range(at, count, 3)], 1) for at in range(3)]
    batch = EntryBatch(Delivered(0, count - 1, tuple(holders)))
    for _ in range(2):
        assert batch.to_arrow().to_pylist() == [b"%d" % each for each in range(count)]
    assert batch.payloads() == batch.to_arrow().to_pylist()


def test_a_gap_is_never_handed_out() -> None:
    """D3: a reader that gave out too little would be broken."""
    holders = (stored(0, 2, [b"0", b"2"], 1), stored(1, 2, [b"1"], 1))
    with pytest.raises(AssertionError, match="gap"):
        EntryBatch(Delivered(0, 3, holders)).payloads()
