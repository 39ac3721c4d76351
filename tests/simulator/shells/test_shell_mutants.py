"""Each known bug of a shell, put back, is found within its stated number of seeds: so its like would be found."""

import pytest

from replog.errors import LocalProtocolError
from tests.simulator.hunting import hunt
from tests.simulator.mutation import Mutant
from tests.simulator.shells import simulate_shells
from tests.simulator.shells.mutants import SHELL_MUTANTS, shell_mutant_named

# Two seconds of a processor and more.
DEAR = {
    "adds-in-doubt",
    "bare-number-counts",
    "clock-not-confirmed",
    "confirmed-runs-ahead",
    "conflict-taken-for-written",
    "deleted-before-cas",
    "failure-taken-for-confirmed",
    "fragment-at-an-older-mark-by-client",
    "ids-behind-the-record-unread",
    "kept-never-sent-by-client",
    "page-not-written",
    "confirmed-not-frozen",
    "doubt-not-bounded",
    "gaps-not-recorded",
    "full-without-asking-again",
    "garbage-listed-first",
    "lost-keeps-its-place",
    "reader-leaves-early",
    "reader-skips-segments",
    "repairer-fences",
    "repetition-answered-early",
    "told-while-open",
    "transaction-forgotten",
    "unknown-is-absence",
    "weak-denial-as-strong",
}


def is_dear(mutant: Mutant) -> bool:
    return mutant.seeds // mutant.step > 5 or mutant.name in DEAR


def first_hit(mutant: Mutant) -> int | None:
    """The seed that finds it. A mere crash of the mutated code doesn't count."""

    def breaks(seed: int) -> bool:
        violation = simulate_shells(seed, strategy=mutant.strategy).violation
        return violation is not None and violation.rule != "bug"

    return hunt("shells", mutant, breaks)


def test_there_are_enough() -> None:
    assert len(SHELL_MUTANTS) >= 10
    assert len({mutant.name for mutant in SHELL_MUTANTS}) == len(SHELL_MUTANTS)


@pytest.mark.parametrize("mutant", SHELL_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_known_bug_can_be_put_back(mutant: Mutant) -> None:
    """Also those that only the long lane looks for: the code that they change is still there."""
    with mutant.applied():
        pass


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(each, marks=pytest.mark.long(is_sampled=False) if is_dear(each) else ()) for each in SHELL_MUTANTS],
    ids=lambda mutant: mutant.name,
)
def test_a_known_bug_is_found(mutant: Mutant) -> None:
    with mutant.applied():
        assert first_hit(mutant) is not None, f"not within {mutant.seeds} seeds: {mutant.story}"


def test_an_unknown_one_is_an_error() -> None:
    with pytest.raises(LocalProtocolError, match="known: acknowledged-before-durable"):
        shell_mutant_named("no-such-bug")
