"""Each known bug, put back, is found within its stated number of seeds: so the simulator would find its like."""

from pathlib import Path

import attrs
import pytest

from replog.errors import LocalProtocolError
from replog.protocol.absence import Hearing
from replog.protocol.quorum import Quorum
from tests.simulator import conversation, draw_plan, simulate
from tests.simulator.hunting import hunt
from tests.simulator.mutants import EQUIVALENT, MUTANTS, mutant_named
from tests.simulator.mutation import Mutant, Patch

CONVERSATIONS = Path(__file__).parent.parent / "protocol" / "conversations"
SEEDS_RARE = 450


def is_rare(mutant: Mutant) -> bool:
    """True if it takes seconds to find by seeds, and its conversation finds it in every run."""
    return mutant.seeds >= SEEDS_RARE and bool(mutant.conversation)


def first_hit(mutant: Mutant) -> int | None:
    """The seed that finds it. A mere crash of the mutated code doesn't count."""

    def breaks(seed: int) -> bool:
        plan = draw_plan(seed, mutant.scenario, mutant.strategy)
        result = simulate(attrs.evolve(plan, overlook=mutant.overlook))
        return result.violation is not None and result.rule != "bug"

    return hunt("machines", mutant, breaks)


def test_there_are_enough() -> None:
    assert len(MUTANTS) >= 20
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(each, marks=pytest.mark.long(is_sampled=False) if is_rare(each) else ()) for each in MUTANTS],
    ids=lambda mutant: mutant.name,
)
def test_a_known_bug_is_found(mutant: Mutant) -> None:
    with mutant.applied():
        assert first_hit(mutant) is not None, f"not within {mutant.seeds} seeds: {mutant.story}"


@pytest.mark.parametrize("mutant", [each for each in MUTANTS if each.conversation], ids=lambda mutant: mutant.name)
def test_a_rare_one_has_a_conversation(mutant: Mutant) -> None:
    """Where seeds find it only by luck, a scripted schedule finds it for sure."""
    written = conversation.read(CONVERSATIONS / f"{mutant.conversation}.txt")
    assert written.mutant == mutant.name
    assert written.expect


@pytest.mark.sized
@pytest.mark.parametrize("mutant", EQUIVALENT, ids=lambda mutant: mutant.name)
def test_equivalent_mutants_break_nothing(mutant: Mutant, is_long: bool) -> None:
    with mutant.applied():
        results = [simulate(draw_plan(seed)) for seed in range(150 if is_long else 20)]
        assert [each.violation for each in results if each.violation] == []


def test_a_mutant_leaves_nothing_behind() -> None:
    before = vars(Hearing)["decide"]
    with mutant_named("too-few-negatives").applied():
        assert vars(Hearing)["decide"] is not before
    assert vars(Hearing)["decide"] is before


def test_mutant_outgrown_by_the_code_is_an_error() -> None:
    outgrown = Mutant("outgrown", "-", "-", (Patch(Quorum, "write_set", "no such text", ""),), 1)
    with pytest.raises(LocalProtocolError, match="mend this mutant"), outgrown.applied():
        pass


def test_an_unknown_mutant_is_an_error() -> None:
    with pytest.raises(LocalProtocolError, match="known: too-few-negatives"):
        mutant_named("no-such-bug")
