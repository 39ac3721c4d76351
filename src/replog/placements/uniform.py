"""The default placement: any bookies, evenly, by chance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replog.abc import Candidate, PlacementPolicy, Random
from replog.hookspecs import Backend, NoOptions, hookimpl
from replog.placements.arranging import check_enough, in_any_order, outside, shuffled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replog.protocol.model import LedgerMetadata
    from replog.protocol.quorum import Quorum


class RandomPlacement(PlacementPolicy):
    """Distinct bookies, each usable one as likely as any other. The same randomness gives the same choice."""

    __slots__ = ()

    uses_labels = False
    uses_free_bytes = False

    def choose_ensemble(self, quorum: Quorum, candidates: Sequence[Candidate], random: Random) -> tuple[str, ...]:
        """E distinct ones of the candidates. Raises `NotEnoughBookiesError`: retry when bookies are back."""
        found = shuffled(candidates, random)
        check_enough(quorum, found)
        return tuple(found[: quorum.ensemble])

    def replace_bookies(
        self,
        metadata: LedgerMetadata,
        failed: Sequence[int],
        candidates: Sequence[Candidate],
        members: Sequence[Candidate],
        random: Random,
    ) -> dict[int, str]:
        """Candidates that are not in the last ensemble yet, for as many of the failed indices as there are (C2)."""
        # Each index once, as an index may be reported as failed more than once.
        return dict(zip(dict.fromkeys(failed), shuffled(outside(candidates, members), random), strict=False))

    def read_order(self, write_set: Sequence[int], members: Sequence[Candidate], random: Random) -> list[int]:
        """These indices in any order, so that readers spread over the copies."""
        return in_any_order(write_set, random)


@hookimpl
def replog_placements() -> Sequence[Backend[PlacementPolicy]]:
    """Offers "random"."""
    return [Backend("random", _open, summary="distinct bookies by chance: the default")]


def _open(rest: str, options: NoOptions) -> PlacementPolicy:
    return RandomPlacement()
