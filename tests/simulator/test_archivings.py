"""Seeds of `tests/simulator/archivings.py`, what they must have met, and known bugs that they find."""

from __future__ import annotations

import collections

import pytest

from replog.protocol.archiving import LedgerArchiving
from replog.protocol.filling import LedgerFilling
from replog.repair.archive_objects import _Collection
from replog.repair.archiver import Archiver
from tests.protocol import driving_filling
from tests.simulator.archivings import Violation, run
from tests.simulator.mutation import Mutant, Patch

MET = {
    "a call arrived late",
    "archiver killed",
    "archiver killed before a call",
    "archiving",
    "collection: objects",
    "collection: young",
    "deleted",
    "garbled",
    "named",
    "overslept",
    "recall",
    "recalled",
    "recaller killed",
}
# The last look at a copy, before it is named, finds most of what went wrong before: what follows without it is wanted.
_UNSEEN = Patch(Archiver, "_check_copy", "covering([name for name, _ in objects], first, last) <= last", "not objects")
MUTANTS = (
    Mutant(
        "named-before-stored",
        "F5",
        "the record names a copy whose last object is being stored",
        (
            Patch(
                LedgerArchiving,
                "_go_on",
                "if is_all and not self._batches and not self._storing:",
                "if is_all and not self._batches:",
            ),
            _UNSEEN,
        ),
        30,
    ),
    Mutant(
        "not-read-back",
        "F5",
        "an object counts as soon as the store has acknowledged it",
        (Patch(Archiver, "_perform", "await read_back(stored)", "pass"),),
        300,
    ),
    Mutant(
        "object-lacks-its-first",
        "F5",
        "an object's name begins one entry too late",
        (
            Patch(LedgerArchiving, "_store", "self._object_first = self._next", "self._object_first = self._next + 1"),
            _UNSEEN,
        ),
        60,
    ),
    Mutant(
        "collected-copy-named",
        "F6",
        "a copy is named although its objects were collected, while its archiver's machine slept",
        (_UNSEEN,),
        100,
    ),
    Mutant(
        "collects-what-is-named",
        "B6",
        "a collection does not look whether the record names a copy",
        (
            Patch(
                _Collection,
                "_stays_in",
                "if any(each.archive == self._name(copy) for each in metadata.fragments):",
                "if False:",
            ),
        ),
        100,
    ),
    Mutant(
        "collects-nothing-of-deleted",
        "F6",
        "the objects of a ledger that is gone stay",
        (Patch(_Collection, "_stays", "return False", "return True"),),
        300,
    ),
    Mutant(
        "recalled-before-whole",
        "F1",
        "a recall clears the archive while a bookie lacks entries",
        (Patch(LedgerFilling, "_changed", "len(self._whole) < self.quorum.ensemble", "False"),),
        100,
    ),
    Mutant(
        "archived-stay-on-bookies",
        "F5",
        "a bookie keeps what is archived",
        (Patch(driving_filling, "foreign_ranges", "and not fragment.archive", ""),),
        60,
    ),
)


@pytest.mark.sized
def test_archivings_lose_leak_and_falsify_nothing(is_long: bool) -> None:
    """F1, F5, F6, B6, T3."""
    counts: collections.Counter[str] = collections.Counter()
    for seed in range(5_000 if is_long else 60):
        counts.update(run(seed))
    assert MET - counts.keys() == set()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name)
def test_archivings_find_a_known_bug(mutant: Mutant) -> None:
    with mutant.applied(), pytest.raises(Violation):
        for seed in range(mutant.seeds):
            run(seed)
