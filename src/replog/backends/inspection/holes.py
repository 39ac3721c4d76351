"""Which ids of a ledger no batch here holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from replog.backends.inspection.reports import Hole

_STRIPES_MAX = 256  # an ensemble is smaller; no holes are computed for a ledger that claims more


class Coverage:
    """Takes batches in the order of their first ids; `holes` are then the gaps between them.

    Where entries stripe (W1) a batch has every so many-th id, so each remainder is looked at by itself."""

    def __init__(self, strides: Iterable[int]) -> None:
        self.stripes = 1
        for stride in strides:
            self.stripes = math.lcm(self.stripes, stride)
            if self.stripes > _STRIPES_MAX:
                break
        self.is_known = self.stripes <= _STRIPES_MAX
        if not self.is_known:
            self.stripes = 1
        self._reach: dict[int, int] = {}  # by remainder: the last id that is held
        self._holes: list[Hole] = []
        self._holes_max = 0
        self.hole_count = 0
        self._last = -1

    def add(self, first: int, last: int, stride: int) -> None:
        """These ids are held."""
        if not self.is_known:
            return
        self._last = max(self._last, last)
        # One look at each remainder that the batch has, however many entries it holds.
        for entry_id in range(first, min(last, first + self.stripes - stride) + 1, stride):
            self._add_stripe(entry_id, last - (last - entry_id) % self.stripes)

    def _add_stripe(self, first: int, last: int) -> None:
        remainder = first % self.stripes
        reached = self._reach.get(remainder, remainder - self.stripes)
        if first > reached + self.stripes:
            self.hole_count += 1
            if len(self._holes) < self._holes_max:
                self._holes.append(Hole(reached + self.stripes, first - self.stripes, self.stripes))
        self._reach[remainder] = max(reached, last)

    def keep(self, holes_max: int) -> None:
        """How many holes are kept; others are only counted."""
        self._holes_max = holes_max

    def holes(self) -> list[Hole]:
        """Those that were kept, by their first ids."""
        return sorted(self._holes, key=lambda hole: hole.first_entry_id)

    def absent(self) -> Iterator[int]:
        """The remainders of which nothing is held, though the ledger reaches over them."""
        return (each for each in range(min(self.stripes, self._last + 1)) if each not in self._reach)
