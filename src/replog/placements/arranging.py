"""Arranges zones around an ensemble, so that every write set spans enough of them. Pure.

An ensemble is a circle of E indices, and the write set of an entry is a window of Qw neighbours (W1): there are E
windows, or one if Qw = E. A search puts zones on the open indices, one after the other, and gives up a branch as soon
as a window cannot span enough zones any more. Dead ends are remembered, so that a search without hope ends soon too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from replog.errors import NotEnoughBookiesError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replog.abc import Candidate, Random
    from replog.protocol.quorum import Quorum


# -- choosing ---------------------------------------------------------------------------------------------------------
#
# Helpers of the built-in policies.


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


# -- arranging --------------------------------------------------------------------------------------------------------
#
# Arranges zones around an ensemble, so that every write set spans enough of them. Pure.
#
# An ensemble is a circle of E indices, and the write set of an entry is a window of Qw neighbours (W1): there are E
# windows, or one if Qw = E. A search puts zones on the open indices, one after the other, and gives up a branch as soon
# as a window cannot span enough zones any more. Dead ends are remembered, so that a search without hope ends soon too.


Zone = str | None  # None: not known, and so it adds nothing to what a window spans
LEFT = "\0left"  # at an index whose bookie stays although it failed

_STEPS_MAX = 4000  # of one search: some tens of milliseconds


def windows(ensemble: int, write: int) -> list[tuple[int, ...]]:
    """The write sets of an ensemble."""
    count = 1 if ensemble == write else ensemble
    return [tuple((first + offset) % ensemble for offset in range(write)) for first in range(count)]


def span(zones: Sequence[Zone], window: Sequence[int]) -> int:
    """How many zones a window spans."""
    return len({zones[index] for index in window} - {None})


def arrange(
    zones: Sequence[Zone],
    is_open: Sequence[bool],
    stock: Mapping[Zone, int],
    write: int,
    wanted: int,
    random: Callable[[], float],
) -> list[Zone] | None:
    """Zones for all indices: those that are open get one from the stock, of which each zone has so many bookies. An index may get
    `LEFT` from the stock: then its own zone in `zones` counts.

    None if no arrangement was found in which each window spans `wanted` zones."""
    return _Search(zones, is_open, stock, write, wanted, random).found()


class _Search:
    def __init__(
        self,
        zones: Sequence[Zone],
        is_open: Sequence[bool],
        stock: Mapping[Zone, int],
        write: int,
        wanted: int,
        random: Callable[[], float],
    ) -> None:
        self._own = list(zones)
        self._counted: list[Zone] = list(zones)  # the zone that counts at each index
        self._placed: list[Zone] = list(zones)  # the same, or LEFT
        self._open = [index for index, each in enumerate(is_open) if each]
        self._is_set = [not each for each in is_open]
        self._stock = dict(stock)
        self._wanted = wanted
        self._random = random
        everything = windows(len(zones), write)
        self._windows = [[each for each in everything if index in each] for index in range(len(zones))]
        self._steps = 0
        self._hopeless: set[tuple[object, ...]] = set()

    def found(self) -> list[Zone] | None:
        if not all(self._may_still_span(index) for index in range(len(self._placed))):
            return None
        return self._placed if self._place(0) else None

    def _place(self, number: int) -> bool:
        """True if the open indices from this one on can be filled; then they are."""
        if number == len(self._open):
            return True
        # What is placed before this index decides all that follows. Bookies of a zone are all alike.
        state = (number, *(self._counted[index] for index in self._open[:number]), *self._stock.values())
        if state in self._hopeless or self._steps >= _STEPS_MAX:
            return False
        index = self._open[number]
        self._is_set[index] = True
        for zone in self._choices(index):
            self._steps += 1
            self._stock[zone] -= 1
            self._placed[index] = zone
            self._counted[index] = self._own[index] if zone == LEFT else zone
            if self._may_still_span(index) and self._place(number + 1):
                return True
            self._stock[zone] += 1
        self._is_set[index] = False
        self._hopeless.add(state)
        return False

    def _choices(self, index: int) -> list[Zone]:
        """The zones to try, the most promising first: one that the windows of the index lack, of which there are many."""
        near = {self._counted[each] for window in self._windows[index] for each in window if self._is_set[each]}
        ranked: list[tuple[bool, float, Zone]] = []
        for zone, count in self._stock.items():
            if count > 0:
                # By chance, weighted with the count: always the fullest zone would put the same zones at the same indices.
                ranked.append((zone is None or zone in near, -count * self._random(), zone))
        ranked.sort(key=lambda each: each[:2])
        return [zone for _, _, zone in ranked]

    def _may_still_span(self, index: int) -> bool:
        for window in self._windows[index]:
            known = {self._counted[each] for each in window if self._is_set[each]} - {None}
            if len(known) + sum(not self._is_set[each] for each in window) < self._wanted:
                return False
        return True
