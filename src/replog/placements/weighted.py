"""Bookies by chance, in proportion to their free space: disks of different sizes fill up at about the same time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from replog.abc import Candidate, PlacementPolicy, Random
from replog.hookspecs import Backend, NoOptions, hookimpl
from replog.placements.arranging import check_enough, in_any_order, outside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replog.protocol.model import LedgerMetadata
    from replog.protocol.quorum import Quorum


class WeightedPlacement(PlacementPolicy):
    """Distinct bookies; one with twice the free space is twice as likely to be the first that is drawn.

    A bookie that does not report its free space counts as one with the mean of the others."""

    __slots__ = ()

    uses_labels = False

    def choose_ensemble(self, quorum: Quorum, candidates: Sequence[Candidate], random: Random) -> tuple[str, ...]:
        """E distinct ones of the candidates. Raises `NotEnoughBookiesError`: retry when bookies are back."""
        found = _drawn(candidates, random)
        check_enough(quorum, found)
        chosen = found[: quorum.ensemble]
        # Otherwise the large disks would have the low indices, which fewer entries begin at where ensembles are short.
        random.shuffle(chosen)
        return tuple(chosen)

    def replace_bookies(
        self,
        metadata: LedgerMetadata,
        failed: Sequence[int],
        candidates: Sequence[Candidate],
        members: Sequence[Candidate],
        random: Random,
    ) -> dict[int, str]:
        """Candidates that are not in the last ensemble yet, for as many of the failed indices as there are (C2)."""
        return dict(zip(dict.fromkeys(failed), _drawn(outside(candidates, members), random), strict=False))

    def read_order(self, write_set: Sequence[int], members: Sequence[Candidate], random: Random) -> list[int]:
        """These indices in any order: free space says nothing about reading."""
        return in_any_order(write_set, random)


def _drawn(candidates: Sequence[Candidate], random: Random) -> list[str]:
    """The ids in the order of drawing without replacement (Efraimidis and Spirakis, "Weighted random sampling", 2006)."""
    by_id = {each.bookie_id: each for each in candidates}
    known = [max(0, each.free_bytes) for each in by_id.values() if each.free_bytes is not None]
    mean_bytes = sum(known) / len(known) if known else 1.0
    drawn: list[tuple[float, str]] = []
    # Sorted, so that the same randomness gives the same choice for any order of the bookies.
    for bookie_id in sorted(by_id):
        free_bytes = by_id[bookie_id].free_bytes
        # At least 1: a full disk is the last choice, and still one.
        weight = max(1.0, mean_bytes if free_bytes is None else float(free_bytes))
        # `1 - random()`, since 0 is possible and has no logarithm. The smallest of these exponential times comes first.
        drawn.append((-math.log(1.0 - random.random()) / weight, bookie_id))
    return [bookie_id for _, bookie_id in sorted(drawn)]


@hookimpl
def replog_placements() -> Sequence[Backend[PlacementPolicy]]:
    """Offers "weighted"."""
    return [Backend("weighted", _open, summary="distinct bookies by chance, more often those with more free space")]


def _open(rest: str, options: NoOptions) -> PlacementPolicy:
    return WeightedPlacement()
