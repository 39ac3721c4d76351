"""Entries that members of an ensemble lack because they were away, as a ledger's record names them (W7).

A gap says: of the entries from its first to its last, the bookie at this index may lack those that it should store. It
lies within one fragment. A gap without a last entry has not ended yet: its bookie is away, or was when the record was
written. Gaps may be wider than the missing entries, never narrower: so there may be a bounded number of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import attrs

from replog.protocol.fragments import Fragment

GAPS_MAX = 8  # of one index in one fragment; the closest ones are joined


@attrs.frozen
class Gap:
    """The bookie at this index may lack these entries. `last_entry_id` is None while the gap goes on."""

    index: int
    first_entry_id: int
    last_entry_id: int | None = None

    def holds(self, entry_id: int) -> bool:
        """True if the entry lies in the gap."""
        return self.first_entry_id <= entry_id and (self.last_entry_id is None or entry_id <= self.last_entry_id)

    def until(self, entry_id: int) -> Gap:
        """The same, ending at this entry at the latest."""
        is_longer = self.last_entry_id is None or self.last_entry_id > entry_id
        return attrs.evolve(self, last_entry_id=entry_id) if is_longer else self


def merged(gaps: Iterable[Gap], fragments: Sequence[Fragment]) -> tuple[Gap, ...]:
    """The same gaps: each within one fragment, joined where they overlap or there are too many, by their first entries.

    A gap concerns the bookie that is at the index at its first entry: it is cut where another bookie takes that index."""
    by_place: dict[tuple[int, int], list[Gap]] = {}
    for gap in gaps:
        for place, part in _parts(gap, fragments):
            by_place.setdefault((place, gap.index), []).append(part)
    joined = [each for parts in by_place.values() for each in _joined(sorted(parts, key=_first))]
    return tuple(sorted(joined, key=lambda gap: (gap.first_entry_id, gap.index)))


def _parts(gap: Gap, fragments: Sequence[Fragment]) -> list[tuple[int, Gap]]:
    """The gap in each fragment that it touches, as long as the index has the same bookie."""
    found: list[tuple[int, Gap]] = []
    bookie_id = None
    for place, fragment in enumerate(fragments):
        end = fragments[place + 1].first_entry_id - 1 if place + 1 < len(fragments) else None
        if end is not None and end < gap.first_entry_id:
            continue
        # A gap belongs to the bookie at its first entry.
        bookie_id = bookie_id or fragment.ensemble[gap.index]
        first = max(gap.first_entry_id, fragment.first_entry_id)
        if fragment.ensemble[gap.index] != bookie_id or (gap.last_entry_id is not None and gap.last_entry_id < first):
            break
        last = gap.last_entry_id if end is None or (gap.last_entry_id is not None and gap.last_entry_id < end) else end
        found.append((place, Gap(gap.index, first, last)))
    return found


def _joined(gaps: Sequence[Gap]) -> list[Gap]:
    """Gaps of one index in one fragment, by their first entries."""
    found: list[Gap] = []
    for gap in gaps:
        if found and (found[-1].last_entry_id is None or gap.first_entry_id <= found[-1].last_entry_id + 1):
            found[-1] = _join(found[-1], gap)
        else:
            found.append(gap)
    while len(found) > GAPS_MAX:
        # Only the last gap can be open: an open one was joined with all behind it.
        distances = [later.first_entry_id - (gap.last_entry_id or 0) for gap, later in itertools.pairwise(found)]
        place = distances.index(min(distances))
        found[place : place + 2] = [_join(found[place], found[place + 1])]
    assert len(found) <= GAPS_MAX, "the record of a ledger stays small"
    return found


def _first(gap: Gap) -> int:
    return gap.first_entry_id


def _join(gap: Gap, later: Gap) -> Gap:
    assert gap.index == later.index, "gaps of one index are joined"
    assert gap.first_entry_id <= later.first_entry_id, "gaps are joined in their order"
    is_open = gap.last_entry_id is None or later.last_entry_id is None
    last = None if is_open else max(gap.last_entry_id or 0, later.last_entry_id or 0)
    return Gap(gap.index, gap.first_entry_id, last)
