"""The set of deleted ledgers."""

from hypothesis import given
from hypothesis import strategies as st

from replog.backends.ranges import LedgerRanges

IDS = st.integers(0, 60)


@given(st.lists(st.tuples(IDS, st.integers(0, 5))))
def test_ranges_are_a_set_in_as_few_ranges_as_possible(spans: list[tuple[int, int]]) -> None:
    ranges = LedgerRanges()
    model: set[int] = set()
    for first, more in spans:
        ranges.add(first, first + more)
        model.update(range(first, first + more + 1))
    assert {ledger_id for ledger_id in range(-2, 70) if ledger_id in ranges} == model
    assert [each for first, last in ranges for each in range(first, last + 1)] == sorted(model)
    assert len(ranges) == sum(ledger_id - 1 not in model for ledger_id in model)
    assert list(LedgerRanges(ranges)) == list(ranges)


def test_the_highest_id() -> None:
    ranges = LedgerRanges()
    ranges.add((1 << 63) - 1)
    ranges.add((1 << 63) - 2)
    assert list(ranges) == [((1 << 63) - 2, (1 << 63) - 1)]


def test_copy_does_not_change_with_the_original() -> None:
    ranges = LedgerRanges([(1, 3)])
    copied = ranges.copy()
    copied.add(4)
    assert (list(ranges), list(copied)) == ([(1, 3)], [(1, 4)])
