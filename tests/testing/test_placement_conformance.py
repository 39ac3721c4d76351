"""The conformance suite of placement policies: the built-in ones pass it, and a wrong one is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from replog.abc import Candidate, Random
from replog.placements.uniform import RandomPlacement
from replog.placements.weighted import WeightedPlacement
from replog.placements.zones import ZonesPlacement
from replog.protocol.model import LedgerMetadata
from replog.protocol.quorum import Quorum
from replog.testing import check_placement


@pytest.mark.parametrize(
    "make",
    [
        RandomPlacement,
        WeightedPlacement,
        ZonesPlacement,
        lambda: ZonesPlacement(2, is_strict=True),
        lambda: ZonesPlacement(3, label="rack"),
    ],
)
def test_a_built_in_policy_passes(make: Callable[[], RandomPlacement]) -> None:
    check_placement(make, labels=[{"rack": "r1"}, {"rack": "r2"}, {"rack": "r3"}])


class _TwiceInAnEnsemble(RandomPlacement):
    def choose_ensemble(self, quorum: Quorum, candidates: Sequence[Candidate], random: Random) -> tuple[str, ...]:
        found = super().choose_ensemble(quorum, candidates, random)
        return (found[0],) * len(found)


class _OrderDecides(RandomPlacement):
    def choose_ensemble(self, quorum: Quorum, candidates: Sequence[Candidate], random: Random) -> tuple[str, ...]:
        super().choose_ensemble(quorum, candidates, random)
        return tuple(each.bookie_id for each in candidates[: quorum.ensemble])


class _ReplacesByMembers(RandomPlacement):
    def replace_bookies(
        self,
        metadata: LedgerMetadata,
        failed: Sequence[int],
        candidates: Sequence[Candidate],
        members: Sequence[Candidate],
        random: Random,
    ) -> dict[int, str]:
        return {index: candidates[0].bookie_id for index in failed[:1] if candidates}


class _OnlyCallsItselfStrict(RandomPlacement):
    is_strict = True

    def shortfall(self, quorum: Quorum, members: Sequence[Candidate]) -> str:
        return "" if members[0].labels else "the first bookie has no labels"


class _ForgetsAReplica(RandomPlacement):
    def read_order(self, write_set: Sequence[int], members: Sequence[Candidate], random: Random) -> list[int]:
        return super().read_order(write_set, members, random)[:-1]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (_TwiceInAnEnsemble, "once"),
        (_OrderDecides, "has no say"),
        (_ReplacesByMembers, "not in the ensemble"),
        (_OnlyCallsItselfStrict, "finds wanting"),
        (_ForgetsAReplica, "each index"),
    ],
)
def test_a_wrong_policy_is_named(wrong: type[RandomPlacement], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_placement(wrong)
