"""What the built-in policies share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replog.errors import NotEnoughBookiesError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replog.abc import Candidate, Random
    from replog.protocol.quorum import Quorum


def shuffled(candidates: Sequence[Candidate], random: Random) -> list[str]:
    """The id of each bookie once; sorted before shuffling, so that the order in which they were found has no say."""
    distinct = sorted({each.bookie_id for each in candidates})
    random.shuffle(distinct)
    return distinct


def check_enough(quorum: Quorum, bookie_ids: Sequence[str]) -> None:
    """Raises `NotEnoughBookiesError` if there are fewer bookies than an ensemble has."""
    if len(bookie_ids) < quorum.ensemble:
        raise NotEnoughBookiesError(
            f"an ensemble of {quorum.ensemble} bookies was asked for, and only {len(bookie_ids)} can be used "
            f"({', '.join(sorted(bookie_ids)) or 'none'}): start more bookies, or ask for a smaller quorum",
            needed=quorum.ensemble,
            usable=sorted(bookie_ids),
        )


def outside(candidates: Sequence[Candidate], members: Sequence[Candidate]) -> list[Candidate]:
    """The candidates that are not in the ensemble already (C2)."""
    taken = {each.bookie_id for each in members}
    return [each for each in candidates if each.bookie_id not in taken]


def in_any_order(write_set: Sequence[int], random: Random) -> list[int]:
    """These indices in any order, so that readers spread over the copies."""
    return sorted(write_set, key=lambda _index: random.random())
