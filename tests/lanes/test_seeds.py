"""Which cases of a test each lane runs."""

from hypothesis import settings

from tests.lanes.seeds import examples, seeds, some


def marks_of(cases: object) -> list[list[str]]:
    return [[mark.name for mark in each.marks] for each in cases]  # type: ignore[attr-defined]


def test_cases_after_the_first_few_are_long_or_slow() -> None:
    assert marks_of(seeds(5, few=3, fast=1)) == [[], ["slow"], ["slow"], ["long"], ["long"]]
    assert marks_of(seeds(3, few=1)) == [[], ["long"], ["long"]]
    assert marks_of(some("abc", fast=2)) == [[], [], ["slow"]]
    assert [each.values for each in some([("a", 1), ("b", 2)])] == [("a", 1), ("b", 2)]


def test_excluded_tests_are_not_in_the_sample() -> None:
    (_, (left_out,)) = [each.marks for each in seeds(2, few=1)]
    assert left_out.kwargs == {"is_sampled": False}


def test_conformanceples_grow_with_the_lane() -> None:
    assert examples(3).max_examples == 3 * settings().max_examples
