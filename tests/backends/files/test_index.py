"""The index: any batches in any order, against a plain list; and what it costs."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from replog.backends.files.index import BatchIndex, Index, Location

BATCHES = st.lists(st.tuples(st.integers(0, 80), st.integers(1, 9), st.integers(1, 5), st.integers(1, 50)), max_size=40)


@given(BATCHES, st.integers(0, 200))
def test_it_finds_what_a_plain_list_finds(batches: list[tuple[int, int, int, int]], bytes_max: int) -> None:
    index = BatchIndex()
    model: dict[tuple[int, int, int], Location] = {}
    for number, (first, count, stride, size) in enumerate(batches, 1):
        last = first + (count - 1) * stride
        old = model.get((first, last, stride))
        location = Location(number, number * 1000, size, number * 7)
        assert index.put(first, last, stride, location) == (old.number if old else -1)
        model[first, last, stride] = location
    assert len(index) == len(model)
    for entry_id in range(130):
        found = index.locate(entry_id, bytes_max)
        holders = {location: key for key, location in model.items() if entry_id in range(key[0], key[1] + 1, key[2])}
        assert bool(found) == bool(holders)
        if not found:
            continue
        first, _, _ = holders[found[0]]
        following = [key for key in model if key[0] > first]
        starts = {location: key[0] for key, location in model.items()}
        assert [starts[location] for location in found[1:]] == sorted(key[0] for key in following)[: len(found) - 1]
        assert len(found) == 1 or sum(location.size for location in found) <= bytes_max
        if len(found) <= len(following):
            taken = set(found)
            following_sizes = [model[key].size for key in following if model[key] not in taken]
            start = min(key[0] for key in following if model[key] not in taken)
            next_sizes = [model[key].size for key in following if key[0] == start and model[key] not in taken]
            assert following_sizes
            assert max(next_sizes) + sum(location.size for location in found) > bytes_max


def test_a_batch_costs_fifty_bytes_however_many_entries_it_has() -> None:
    index = BatchIndex()
    count = 10_000
    for number in range(count):
        index.put(1000 * number, 1000 * number + 999, 1, Location(1, 100_000 * number, 100_000, number))
    arrays = [getattr(index, name) for name in BatchIndex.__slots__]
    assert sum(sys.getsizeof(each) for each in arrays) / count <= 60
    assert index.find(1000 * 7777 + 5) == 7777


def test_live_batches_are_counted_by_file() -> None:
    index = Index()
    for number in (1, 1, 2):
        for ledger_id in (1, 2):
            index.put_batch(ledger_id, 1, 10 * number, 10 * number, 1, 0, Location(number, 0, 1, 0))
    assert index.live_batches == {1: 2, 2: 2}  # the second is the first again, in the same file
    index.put_batch(1, 1, 10, 10, 1, 0, Location(3, 0, 1, 0))
    assert index.live_batches == {1: 1, 2: 2, 3: 1}
    index.put_marks(2, None, 1, -1, 2)
    index.put_marks(2, None, 2, -1, 3)
    assert index.marked == {3: {2}}
    index.drop(2)
    assert index.live_batches == {2: 1, 3: 1}
    assert index.marked == {}
    index.put_batch(2, 1, 0, 0, 1, 0, Location(3, 0, 1, 0))
    assert sorted(index.ledgers) == [1]
