"""F5: which entries were dropped, against a set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replog.backends.dropped import DroppedEntries, EntryDroppedError

IDS, STAMPS = st.integers(0, 40), st.integers(1, 2)
DROPS = st.tuples(st.just("drop"), STAMPS, IDS, st.integers(0, 20), st.just(1))
PUTS = st.tuples(st.just("put"), STAMPS, IDS, st.integers(0, 4), st.sampled_from([1, 2, 3, 5, 1 << 31]))


@given(st.lists(st.one_of(DROPS, PUTS)))
def test_dropped_entries_are_a_set(steps: list[tuple[str, int, int, int, int]]) -> None:
    dropped, model = DroppedEntries(), set[tuple[int, int]]()
    for kind, stamp, first, more, stride in steps:
        last = first + more * stride
        entries = {(stamp, entry_id) for entry_id in range(first, last + 1, stride)}
        if kind == "drop":
            dropped.add(stamp, first, last)
            model |= entries
        else:
            assert dropped.covers(stamp, first, last, stride) <= (entries <= model)
            dropped.stored(stamp, first, last, stride)
            model -= entries
        assert {(each, at) for each in (1, 2) for at in range(70) if dropped.holds(each, at)} == model
        assert bool(dropped) is bool(model)
    assert list(DroppedEntries(dropped)) == list(dropped) == list(dropped.copy())
    for stamp in (1, 2):
        assert round(70 * dropped.share(stamp, 0, 69)) == sum(each == stamp for each, _ in model)
        for first, last in ((20, 20), (7, 12), (30, 61)):
            # 1 only if all were dropped: a file in which nothing is live may go.
            held = sum((stamp, entry_id) in model for entry_id in range(first, last + 1))
            assert dropped.share(stamp, first, last) == held / (last + 1 - first)
            assert (held == last + 1 - first) is dropped.covers(stamp, first, last)


def test_a_batch_counts_as_dropped_when_all_its_entries_are() -> None:
    dropped = DroppedEntries()
    dropped.add(1, 0, 34)
    with pytest.raises(EntryDroppedError, match="ledger 7, entry 34 of stamp 1"):
        dropped.check(7, 34, 1)
    dropped.check(7, 35, 1)
    dropped.check(7, 34, 2)
    assert dropped.covers(1, 5, 30, 5)
    assert dropped.covers(1, 4, 34)
    assert not dropped.covers(1, 5, 35, 5)
    assert not dropped.covers(2, 5, 6)
    dropped.stored(1, 6, 16, 5)
    assert dropped.covers(1, 5, 30, 5)
    assert not dropped.covers(1, 1, 31, 5)
    assert dropped.covers(1, 17, 34)
    assert not dropped.covers(1, 15, 34)
