"""B1, B3, B6: each order that matters, once broken, is found by the crashes of `exploring`."""

from functools import partial

import pytest

from replog.errors import StorageError
from tests.backends.files.exploring import Explorer, WrongAfterCrash
from tests.backends.files.mutants import EQUIVALENT, MUTANTS
from tests.backends.files.workload import PROFILES
from tests.simulator.hunting import hunt
from tests.simulator.mutation import Mutant


def is_wrong(mutant: Mutant, seed: int, *, share: float = 1.0) -> bool:
    """Whether a crash shows the bug."""
    explorer = Explorer(seed + 1, PROFILES[mutant.scenario or "inside"], outcomes=1, share=share)
    try:
        with mutant.applied():
            explorer.run()
    except (WrongAfterCrash, StorageError, AssertionError):
        return True
    return False


DEAR = {"journal-names-not-settled"}  # seconds each, even with the seed that finds it


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(each, marks=pytest.mark.long(is_sampled=False) if each.name in DEAR else ()) for each in MUTANTS],
    ids=lambda mutant: mutant.name,
)
def test_crashes_find_each_broken_order(mutant: Mutant) -> None:
    assert hunt("files", mutant, partial(is_wrong, mutant)) is not None


@pytest.mark.parametrize("mutant", EQUIVALENT, ids=lambda mutant: mutant.name)
def test_equivalent_mutants_change_nothing(mutant: Mutant) -> None:
    assert not any(is_wrong(mutant, seed, share=0.04) for seed in range(mutant.seeds))
