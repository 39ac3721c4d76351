"""Unbounded ledgers under simulation (T2): up to eight terms, striping, late and doubled messages, tail readers with old
records."""

from __future__ import annotations

from collections import Counter

import attrs
import pytest

from tests.simulator import draw_plan, simulate
from tests.simulator.mutation import Mutant
from tests.simulator.term_mutants import TERM_MUTANTS

SEEDS = 100
SITUATIONS = (
    *(f"opened in term {term}" for term in range(2, 9)),
    "as many bookies as an ensemble has",
    "CAS ambiguous and lost",
    "CAS ambiguous and won",
    "concurrent recoveries both read",
    "fragment appended",
    "reader failed: LedgerTrimmedError",
    "reader found newer metadata",
    "reader trimmed a batch",
    "unbounded ledger was trimmed",
    "unconfirmed entries dropped by a takeover",
    "unconfirmed entries kept by a takeover",
    "writer fenced with unconfirmed entries",
)


def test_no_seed_breaks_an_invariant_of_unbounded_ledgers() -> None:
    happened: Counter[str] = Counter()
    for seed in range(SEEDS):
        result = simulate(draw_plan(seed, "unbounded"))
        assert result.violation is None, f"python -m tests.simulator --scenario unbounded --first {seed} --seeds 1"
        happened.update(result.world.coverage)
    assert [situation for situation in SITUATIONS if not happened[situation]] == []


def test_no_seed_breaks_an_invariant_of_unbounded_logs() -> None:
    """In 49 and 103 clients fenced each other for ever: takeovers, and those that closed a ledger."""
    happened: Counter[str] = Counter()
    for seed in (*range(4), 49, 103):
        result = simulate(draw_plan(seed, "unbounded-log"))
        assert result.violation is None, f"python -m tests.simulator --scenario unbounded-log --first {seed} --seeds 1"
        happened.update(result.world.coverage)
    assert happened["log led on in its last ledger"]


def test_no_seed_breaks_an_invariant_of_index_chunks() -> None:
    """M4: records of two fragments, whose others are in chunks of three; rolls, trims, takeovers, readers with old records. In
    100 a reader's record was read for an earlier entry than the one that it had asked for: an assertion failed."""
    happened: Counter[str] = Counter()
    for seed in (*range(20), 33, 100):
        result = simulate(draw_plan(seed, "chunks"))
        assert result.violation is None, f"python -m tests.simulator --scenario chunks --first {seed} --seeds 1"
        happened.update(result.world.coverage)
    for seed in (71, 107):
        result = simulate(draw_plan(seed, "chunks-log"))
        assert result.violation is None, f"python -m tests.simulator --scenario chunks-log --first {seed} --seeds 1"
        assert result.world.coverage["record written with chunks"]
    wanted = ("record written with chunks", "chunk of level 1", "chunk of level 2", "unbounded ledger was trimmed")
    assert [situation for situation in wanted if not happened[situation]] == []


@pytest.mark.parametrize("mutant", TERM_MUTANTS, ids=lambda mutant: mutant.name)
def test_known_bug_of_terms_is_found(mutant: Mutant) -> None:
    """The last of its seeds finds it; the others are not run again."""
    with mutant.applied():
        plan = draw_plan(mutant.seeds - 1, mutant.scenario, mutant.strategy)
        result = simulate(attrs.evolve(plan, overlook=mutant.overlook))
    assert result.violation is not None, f"seed {mutant.seeds - 1}: {mutant.story}"
    assert result.rule != "bug"
