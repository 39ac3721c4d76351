"""Spreads the copies of every entry over zones: a zone that burns down takes no entry with it.

A zone is the value of a label of bookies, by default of `zone`. The write set of *every* entry spans at least so many zones,
even where an ensemble has more bookies than an entry has copies (E > Qw), and after each replacement. It is about write sets, not
about acknowledgements: an entry is confirmed as soon as any Qa of its write set have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from replog.abc import Candidate, PlacementPolicy, Random
from replog.errors import PlacementUnmetError
from replog.hookspecs import Backend, hookimpl
from replog.placements.arranging import (
    LEFT,
    Zone,
    arrange,
    check_enough,
    in_any_order,
    outside,
    shuffled,
    span,
    windows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replog.protocol.model import LedgerMetadata
    from replog.protocol.quorum import Quorum

_ZONES_MAX = 64


def _zones(value: object) -> str | None:
    is_valid = type(value) is int and 1 <= value <= _ZONES_MAX
    return None if is_valid else f"{value!r} is not a whole number from 1 to {_ZONES_MAX}"


def _option(default: object, doc: str, check: Callable[[object], str | None] | None = None) -> Any:
    return attrs.field(default=default, metadata={"doc": doc, "check": check})


@attrs.frozen(kw_only=True)
class ZonesOptions:
    """The options of `zones:`."""

    at_least: int = _option(2, "How many zones the write set of every entry spans.", _zones)
    strict: bool = _option(False, "Rather no ledger, and no replacement, than copies in fewer zones.")
    label: str = _option("zone", "The label of bookies whose value is the zone; another one for racks or rooms.")


class ZonesPlacement(PlacementPolicy):
    """Bookies by chance, arranged so that every write set spans at least N zones; otherwise as many as can be.

    A bookie without the label adds nothing to what a write set spans: it may stand in any zone."""

    __slots__ = ("_at_least", "_label", "is_strict")

    uses_free_bytes = False

    def __init__(self, at_least: int = 2, *, is_strict: bool = False, label: str = "zone") -> None:
        self._at_least = at_least
        self._label = label
        self.is_strict = is_strict

    def choose_ensemble(self, quorum: Quorum, candidates: Sequence[Candidate], random: Random) -> tuple[str, ...]:
        """E distinct ones of the candidates. Raises `NotEnoughBookiesError`, `PlacementUnmetError` if strict."""
        ids = shuffled(candidates, random)
        check_enough(quorum, ids)
        stock = self._by_zone(candidates, ids)
        counts = {zone: len(found) for zone, found in stock.items()}
        nothing: list[Zone] = [None] * quorum.ensemble
        for wanted in self._wishes(quorum):
            zones = arrange(nothing, [True] * quorum.ensemble, counts, quorum.write, wanted, random.random)
            if zones is not None:
                return tuple(stock[zone].pop() for zone in zones)
        have = ", ".join(f"{zone}: {count}" for zone, count in sorted(counts.items(), key=str) if zone is not None)
        raise PlacementUnmetError(
            f"each write set of {quorum.write} bookies must span {self._at_least} zones (label {self._label}), and an ensemble "
            f"of {quorum.ensemble} cannot with the usable bookies ({have or 'none of them has this label'}): start "
            f"bookies in other zones, ask for another quorum, or let the placement not be strict",
            needed=quorum.ensemble,
            usable=sorted(ids),
        )

    def replace_bookies(
        self,
        metadata: LedgerMetadata,
        failed: Sequence[int],
        candidates: Sequence[Candidate],
        members: Sequence[Candidate],
        random: Random,
    ) -> dict[int, str]:
        """Candidates for as many of the failed indices as there are (C2), where they serve the zones best; if strict, only as
        many as keep to them."""
        new = outside(candidates, members)
        stock = self._by_zone(new, shuffled(new, random))
        counts = {zone: len(found) for zone, found in stock.items()}
        own = [self._zone(each) for each in members]
        is_open = [index in set(failed) for index in range(len(members))]
        total = sum(is_open)
        fewest_left = max(0, total - sum(counts.values()))
        most_left = total if self.is_strict else fewest_left
        quorum = metadata.quorum
        # Replacing as many as possible comes before more zones, unless the policy is strict: a copy that is
        # missing now weighs more than a zone that may burn.
        for left in range(fewest_left, most_left + 1):
            for wanted in self._wishes(quorum):
                zones = arrange(own, is_open, {**counts, LEFT: left}, quorum.write, wanted, random.random)
                if zones is not None:
                    indices = [index for index in range(len(own)) if is_open[index] and zones[index] != LEFT]
                    return {index: stock[zones[index]].pop() for index in indices}
        return {}

    def read_order(self, write_set: Sequence[int], members: Sequence[Candidate], random: Random) -> list[int]:
        """These indices in any order; the client puts those of its own zone first."""
        return in_any_order(write_set, random)

    def shortfall(self, quorum: Quorum, members: Sequence[Candidate]) -> str:
        """Which write set spans too few zones, and which ones it spans."""
        zones = [self._zone(each) for each in members]
        poorest = min(windows(quorum.ensemble, quorum.write), key=lambda window: span(zones, window))
        if span(zones, poorest) >= self._at_least:
            return ""
        names = ", ".join(f"{members[index].bookie_id} in {zones[index] or 'no known zone'}" for index in poorest)
        return (
            f"a write set spans {span(zones, poorest)} of {self._at_least} zones (label {self._label}): {names}; start bookies "
            "in other zones"
        )

    def _wishes(self, quorum: Quorum) -> range:
        """How many zones to try for, the best first. Not strict, the last one is always met."""
        return range(self._at_least, self._at_least - 1 if self.is_strict else -1, -1)

    def _zone(self, bookie: Candidate) -> Zone:
        return bookie.labels.get(self._label) or None

    def _by_zone(self, candidates: Sequence[Candidate], ids: Sequence[str]) -> dict[Zone, list[str]]:
        zone_of = {each.bookie_id: self._zone(each) for each in candidates}
        found: dict[Zone, list[str]] = {}
        # As text, since None, the zone that is not known, has no order.
        for zone in sorted(set(zone_of.values()), key=str):
            found[zone] = [bookie_id for bookie_id in ids if zone_of[bookie_id] == zone]
        return found


@hookimpl
def replog_placements() -> Sequence[Backend[PlacementPolicy]]:
    """Offers "zones"."""
    return [
        Backend("zones", _open, ZonesOptions, summary="copies of every entry in several zones, by labels of bookies")
    ]


def _open(rest: str, options: ZonesOptions) -> PlacementPolicy:
    return ZonesPlacement(options.at_least, is_strict=options.strict, label=options.label)
