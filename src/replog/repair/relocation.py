"""Chooses the bookies of a fragment to replace, and their replacements: gone or draining ones, and where the placement
is not met."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

import attrs

from replog.client.ledger_effects import ClientContext
from replog.protocol.effects import ChooseReplacements
from replog.protocol.fragment_copies import FixedFragment
from replog.protocol.fragments import Fragment
from replog.protocol.model import LedgerMetadata
from replog.repair.auditor import Bookies

# Bookies of a misplaced fragment, in one filling: what needs more is tried with two, and named by the audit.
_MOVED_MAX = 2


class Relocation:
    """Chooses other bookies for fragments of one client's cluster."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context

    async def without(
        self, metadata: LedgerMetadata, fragment: FixedFragment, bookies: Bookies, replace: Collection[str]
    ) -> dict[int, str]:
        """A bookie for each index of the fragment whose bookie is gone or drains, as far as there are any."""
        gone = {*bookies.lost, *bookies.draining, *(each for each in replace if each not in bookies.announced)}
        failed = [index for index, bookie_id in enumerate(fragment.ensemble) if bookie_id in gone]
        if not failed:
            return {}
        effect = ChooseReplacements(_alone(metadata, fragment), tuple(failed), frozenset(fragment.ensemble))
        chosen = await self._context.choose_replacements(effect)
        # Where there are too few others, bookies that drain are chosen, too: good for
        # a writer, but copies gain nothing there.
        unwanted = {*fragment.ensemble, *bookies.draining}
        return {index: bookie_id for index, bookie_id in chosen.items() if bookie_id not in unwanted}

    async def in_place(self, metadata: LedgerMetadata, fragment: FixedFragment) -> dict[int, str]:
        """The fewest replacements with which the fragment meets the wishes of the placement policy; {} if it does, or none do.
        Two of its own bookies change places only if no others will do: that moves two copies where one might be enough.
        Raises `MetastoreError`."""
        placing, ensemble = self._context.placing, fragment.ensemble
        if await self._is_in_place(metadata, ensemble, {}):
            return {}
        usable = await self._context.membership.usable(set(ensemble))
        alone = _alone(metadata, fragment)
        for count in range(1, _MOVED_MAX + 1):
            for indices in itertools.combinations(range(len(ensemble)), count):
                chosen = await placing.replacements(alone, indices, usable)
                if chosen and await self._is_in_place(metadata, ensemble, chosen):
                    return chosen
        for one, other in itertools.combinations(range(len(ensemble)), 2):
            exchanged = {one: ensemble[other], other: ensemble[one]}
            if await self._is_in_place(metadata, ensemble, exchanged):
                return exchanged
        return {}

    async def _is_in_place(
        self, metadata: LedgerMetadata, ensemble: Sequence[str], replaced: Mapping[int, str]
    ) -> bool:
        """True if the ensemble meets the wishes of the placement policy with these replacements."""
        moved = [replaced.get(index, bookie_id) for index, bookie_id in enumerate(ensemble)]
        return not await self._context.placing.shortfall(metadata.quorum, moved)


def _alone(metadata: LedgerMetadata, fragment: FixedFragment) -> LedgerMetadata:
    """The record as if it had only this fragment: a placement policy sees the last one of what it is given."""
    return attrs.evolve(metadata, fragments=(Fragment(0, fragment.ensemble, fragment.term),))
