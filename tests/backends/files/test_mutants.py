"""B1, B3, B6: each order that matters, once broken, is found by the crashes of `exploring`."""

import pytest

from replog.errors import StorageError
from tests.backends.files.exploring import Explorer, WrongAfterCrash
from tests.backends.files.mutants import EQUIVALENT, MUTANTS
from tests.backends.files.workload import PROFILES
from tests.simulator.mutation import Mutant


def finding(mutant: Mutant, *, share: float = 1.0) -> str:
    """What the first crash that shows the bug says, or "" if none does within the mutant's seeds."""
    for seed in range(mutant.seeds):
        explorer = Explorer(seed + 1, PROFILES[mutant.scenario or "inside"], outcomes=1, share=share)
        try:
            with mutant.applied():
                explorer.run()
        except (WrongAfterCrash, StorageError, AssertionError) as error:
            return f"seed {seed + 1}: {error}"
    return ""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_crashes_find_each_broken_order(mutant: Mutant) -> None:
    assert finding(mutant)


@pytest.mark.parametrize("mutant", EQUIVALENT, ids=lambda mutant: mutant.name)
def test_equivalent_mutants_change_nothing(mutant: Mutant) -> None:
    assert not finding(mutant, share=0.06)
