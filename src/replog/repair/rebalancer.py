"""Rebalancing: copies move onto a bookie that has few, from those that have most, by the same fillings as of repairs (F1-F4).

A bookie's load is counted in entries, as the records say: no bookie is asked. Only fragments whose range is fixed are moved (F2),
none of them to where the placement policy does not want it, and none from a bookie that would have less than the new one then.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from replog.client.ledger_effects import ClientContext
from replog.errors import AdministrationError
from replog.protocol.fragment_copies import FixedFragment, fixed_fragments
from replog.protocol.model import LedgerMetadata
from replog.protocol.quorum import Quorum
from replog.repair.auditor import Bookies
from replog.repair.progress import ProgressTracker, ReportProgress
from replog.repair.repairer import Repairer


@attrs.frozen
class RebalanceReport:
    """The result of a rebalancing: so many fragments were to be `planned`, and so many have `moved`. `entries` are the
    copies of entries on the bookie by then, `share` those that it would have if all bookies had as many."""

    bookie_id: str
    planned: int
    moved: int
    entries: int
    share: int


@attrs.frozen
class _Movable:
    """A fragment, and how many copies of entries each of its bookies has."""

    ledger_id: int
    first_entry_id: int
    ensemble: tuple[str, ...]
    quorum: Quorum
    weight: int


class Rebalancer:
    """Rebalances the bookies of one client's cluster."""

    def __init__(self, context: ClientContext, repairer: Repairer) -> None:
        self._context = context
        self._repairer = repairer

    async def rebalance(self, bookie_id: str, report: ReportProgress | None = None) -> RebalanceReport:
        """Moves copies onto this bookie until it has its share. Raises `AdministrationError`, `MetastoreError`."""
        bookies = await self._repairer.bookies()
        if bookie_id not in bookies.announced or bookie_id in bookies.draining:
            problem = "it is to be left" if bookie_id in bookies.draining else "it is not announced"
            raise AdministrationError(bookie_id, f"{problem}, so no copies are moved there")
        movable = await self._movable()
        moves = await self._plan(bookie_id, movable, bookies)

        async def choose(metadata: LedgerMetadata, fragment: FixedFragment) -> dict[int, str]:
            former = moves[metadata.ledger_id, fragment.first_entry_id]
            # Somebody else may have changed the fragment since.
            if former not in fragment.ensemble or bookie_id in fragment.ensemble:
                return {}
            return {fragment.ensemble.index(former): bookie_id}

        progress = ProgressTracker(self._repairer.counts, report)
        moved = await self._repairer.fill_all("move", list(moves), choose, bookies, progress)
        # From the records, and not from the plan: some moves may have failed.
        after = await self._movable() if moves else movable
        loads = _loads(after, bookies)
        return RebalanceReport(bookie_id, len(moves), moved, loads.get(bookie_id, 0), _share(loads))

    async def _movable(self) -> list[_Movable]:
        found: list[_Movable] = []

        def look(metadata: LedgerMetadata) -> None:
            quorum = metadata.quorum
            for each in fixed_fragments(metadata):
                entries = each.last_entry_id - each.first_entry_id + 1
                weight = -(-entries * quorum.write // quorum.ensemble)
                found.append(_Movable(metadata.ledger_id, each.first_entry_id, each.ensemble, quorum, weight))

        await self._context.records.each(look)
        return found

    async def _plan(self, bookie_id: str, movable: Sequence[_Movable], bookies: Bookies) -> dict[tuple[int, int], str]:
        """By ledger and first entry: whose copy moves to the bookie."""
        loads, moves = _loads(movable, bookies), dict[tuple[int, int], str]()
        share = _share(loads)
        # Large ones first: so few fragments are moved, and small ones fill what is left.
        for each in sorted(movable, key=lambda each: (-each.weight, each.ledger_id, each.first_entry_id)):
            # One that is too large ends nothing: a smaller one behind it may fit.
            if bookie_id in each.ensemble or loads[bookie_id] + each.weight > share:
                continue
            # Not: all that keep their share. Segments of one size leave a part of one over, and would all stay.
            after = loads[bookie_id] + each.weight
            givers = [other for other in each.ensemble if loads.get(other, 0) - each.weight >= after]
            givers.sort(key=lambda other: (-loads[other], other))
            for former in givers:
                if await self._is_wanted(each, former, bookie_id):
                    moves[each.ledger_id, each.first_entry_id] = former
                    loads[former] -= each.weight
                    loads[bookie_id] += each.weight
                    break
        return moves

    async def _is_wanted(self, fragment: _Movable, former: str, new: str) -> bool:
        placing = self._context.placing
        moved = [new if each == former else each for each in fragment.ensemble]
        if not await placing.shortfall(fragment.quorum, moved):
            return True
        # What is misplaced already may move.
        return bool(await placing.shortfall(fragment.quorum, fragment.ensemble))


def _loads(movable: Sequence[_Movable], bookies: Bookies) -> dict[str, int]:
    """The copies of entries on each bookie that is there, and is not to be left."""
    loads = dict.fromkeys(sorted(bookies.announced - bookies.draining), 0)
    for each in movable:
        for bookie_id in each.ensemble:
            if bookie_id in loads:
                loads[bookie_id] += each.weight
    return loads


def _share(loads: dict[str, int]) -> int:
    """As many as each would have if all had the same."""
    return sum(loads.values()) // max(1, len(loads))
