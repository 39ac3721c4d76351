"""Seeded schedules of the metastore's members break no rule, and each rule left out is found (Q1-Q14)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lanes.seeds import seeds
from tests.simulator.council.mutants import MUTANTS
from tests.simulator.council.scripts import SCRIPTS
from tests.simulator.council.violation import Violation
from tests.simulator.council.world import broken_by
from tests.simulator.mutation import Mutant

_AT_ONCE = 100  # seeds of one test

DEAR = {"copy-without-outcomes", "longer-log-wins", "swap-at-once"}  # five seconds of a processor and more
BY_CHANCE = [
    pytest.param(each, marks=pytest.mark.long(is_sampled=False) if each.name in DEAR else (), id=each.name)
    for each in MUTANTS
    if each.seeds
]


@pytest.mark.parametrize("block", seeds(200, few=12, fast=6))
def test_seeds_break_nothing(block: int) -> None:
    for seed in range(block * _AT_ONCE, (block + 1) * _AT_ONCE):
        assert not broken_by(seed), f"seed {seed}"


@pytest.mark.parametrize("mutant", BY_CHANCE)
def test_seeds_find_a_rule_left_out(mutant: Mutant) -> None:
    with mutant.applied():
        found = (broken_by(seed) for seed in range(mutant.seeds))
        assert any(each and not each.startswith("Q17") for each in found), f"not within {mutant.seeds} seeds"


@pytest.mark.parametrize("script", dict.fromkeys(SCRIPTS.values()), ids=lambda script: script.__name__)
def test_scripts_break_nothing(script: Callable[[], None]) -> None:
    script()


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_find_a_rule_left_out(name: str) -> None:
    (mutant,) = [each for each in MUTANTS if each.name == name]
    with mutant.applied(), pytest.raises((Violation, AssertionError)):
        SCRIPTS[name]()


def test_each_rule_left_out_is_found_by_seeds_or_by_a_script() -> None:
    assert {each.name for each in MUTANTS if not each.seeds} <= set(SCRIPTS)
    assert {each.rule for each in MUTANTS} == {f"Q{number}" for number in range(1, 15)}
