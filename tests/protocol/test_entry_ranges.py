"""Sets of entries as ranges, compared with plain sets."""

import random

import pytest

from replog.protocol.entry_ranges import EntryRanges
from tests.cases import case


@pytest.mark.sized
def test_ranges_hold_the_same_as_a_set(is_long: bool) -> None:
    for seed in range(60 if is_long else 20):
        with case(seed):
            chance = random.Random(seed)
            stride = chance.choice((1, 1, 3, 5))
            ranges, wanted = EntryRanges(stride), set[int]()
            for _ in range(60):
                first = chance.randrange(200)
                last = first + stride * chance.randrange(8)
                if chance.random() < 0.6:
                    ranges.add(first, last)
                    wanted.update(range(first, last + 1, stride))
                elif chance.random() < 0.5:
                    ranges.discard(first, last)
                    wanted.difference_update(range(first, last + 1, stride))
                else:
                    ranges.remove(first, last)
                    wanted.difference_update(range(first, last + 1))
                assert {each for low, high in ranges for each in range(low, high + 1, stride)} == wanted
                assert len(ranges) == len(wanted)
                assert bool(ranges) is bool(wanted)
                assert all(ranges.holds(each) is (each in wanted) for each in range(260))
                lacking = {each for low, high in ranges.missing(first, 230) for each in range(low, high + 1, stride)}
                assert lacking == set(range(first, 231, stride)) - wanted


def test_neighbours_are_one_range() -> None:
    ranges = EntryRanges(5, [(0, 10), (20, 30), (15, 15), (1, 6)])
    assert list(ranges) == [(0, 30), (1, 6)]


def test_copy_changes_alone() -> None:
    ranges = EntryRanges(1, [(0, 9)])
    ranges.copy().remove(3, 5)
    assert list(ranges) == [(0, 9)]
