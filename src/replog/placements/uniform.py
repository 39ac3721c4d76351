"""Which bookies store what, if nobody says otherwise: any of them, evenly, by chance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replog.abc import PlacementPolicy, Random
from replog.errors import NotEnoughBookiesError
from replog.hookspecs import Backend, NoOptions, hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replog.protocol.model import LedgerMetadata
    from replog.protocol.quorum import Quorum


class RandomPlacement(PlacementPolicy):
    """Distinct bookies, each usable one as likely as any other. The same randomness gives the same choice."""

    __slots__ = ()

    def choose_ensemble(self, quorum: Quorum, usable: Sequence[str], random: Random) -> tuple[str, ...]:
        """E distinct ones of the usable. Raises `NotEnoughBookiesError`: retry when bookies are back."""
        candidates = _shuffled(usable, random)
        if len(candidates) < quorum.ensemble:
            raise NotEnoughBookiesError(
                f"an ensemble of {quorum.ensemble} bookies was asked for, and only {len(candidates)} can be used "
                f"({', '.join(sorted(candidates)) or 'none'}): start more bookies, or ask for a smaller quorum",
                needed=quorum.ensemble,
                usable=sorted(candidates),
            )
        return tuple(candidates[: quorum.ensemble])

    def replace_bookies(
        self, metadata: LedgerMetadata, failed: Sequence[int], usable: Sequence[str], random: Random
    ) -> dict[int, str]:
        """Usable bookies that are not in the last ensemble yet, for as many of the failed indices as there are (C2)."""
        ensemble = set(metadata.last_fragment.ensemble)
        candidates = [bookie for bookie in _shuffled(usable, random) if bookie not in ensemble]
        return dict(zip(dict.fromkeys(failed), candidates, strict=False))

    def read_order(self, write_set: Sequence[int], random: Random) -> list[int]:
        """These indices in any order, so that readers spread over the copies."""
        return sorted(write_set, key=lambda _index: random.random())


def _shuffled(bookies: Sequence[str], random: Random) -> list[str]:
    """Each bookie once; sorted before shuffling, so that the order in which they were found has no say."""
    distinct = sorted(set(bookies))
    random.shuffle(distinct)
    return distinct


@hookimpl
def replog_placements() -> Sequence[Backend[PlacementPolicy]]:
    """Offers "random"."""
    return [Backend("random", _open, summary="distinct bookies by chance: the default")]


def _open(rest: str, options: NoOptions) -> PlacementPolicy:
    return RandomPlacement()
