"""What members of an ensemble lack because they were away, as a ledger's record says it (W7).

A gap says: of the entries from its first to its last, the bookie at this index may lack those that it should store. It lies
within one fragment. A gap without a last entry has not ended yet: its bookie is away, or was when the record was written.
Gaps may be wider than what is lacking, never narrower: so there may be a bounded number of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from replog.protocol.batch import Batch
    from replog.protocol.model import Fragment, LedgerMetadata
    from replog.protocol.quorum import Quorum

GAPS_MAX = 8  # of one index in one fragment; the closest ones are joined

_Member = tuple[int, str]  # an index, and a bookie that is or was at it


@attrs.frozen
class Gap:
    """The bookie at this index may lack these entries. `last_entry_id` is None while the gap goes on."""

    index: int
    first_entry_id: int
    last_entry_id: int | None = None

    def holds(self, entry_id: int) -> bool:
        """Whether the entry lies in the gap."""
        return self.first_entry_id <= entry_id and (self.last_entry_id is None or entry_id <= self.last_entry_id)

    def until(self, entry_id: int) -> Gap:
        """The same, ending at this entry at the latest."""
        is_longer = self.last_entry_id is None or self.last_entry_id > entry_id
        return attrs.evolve(self, last_entry_id=entry_id) if is_longer else self


class RecoveryGaps:
    """Which bookies hold what a recovery writes back; all that it cannot say so of is a gap.

    The ensemble changes while batches are on their way, and a batch may begin in one fragment and end in a later one, where
    another bookie has the index. So what a bookie took is kept by bookie, and compared with the fragments at the close only."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self._taken: dict[_Member, _Ranges] = {}
        self._unanswered: dict[_Member, dict[int, int]] = {}  # the batches on their way: first and last entry

    def sent(self, index: int, bookie_id: str, batch: Batch) -> None:
        """A batch is on its way to the bookie at this index."""
        self._unanswered.setdefault((index, bookie_id), {})[batch.first_entry_id] = batch.last_entry_id

    def taken(self, index: int, bookie_id: str, first_entry_id: int) -> None:
        """The batch that starts there is durable at this bookie."""
        last = self._unanswered.get((index, bookie_id), {}).pop(first_entry_id, None)
        if last is not None:
            ranges = self._taken.setdefault((index, bookie_id), _Ranges(self._quorum.stride))
            ranges.add(first_entry_id, last)

    def failed(self, index: int, bookie_id: str, first_entry_id: int | None) -> None:
        """This bookie may lack the batch that starts there, whether or not it is in the ensemble any more."""
        if first_entry_id is not None:
            self._unanswered.get((index, bookie_id), {}).pop(first_entry_id, None)

    def all(self, closing: LedgerMetadata, start: int, last_entry_id: int) -> list[Gap]:
        """All gaps of a ledger that is closed there with these fragments. Everything behind `start` was written back: the gaps
        that its writer recorded end there, and what follows is known from the answers.

        What is on its way to a bookie of the last ensemble is taken for stored, as when a writer closes a ledger. A bookie that
        was replaced lacks what it did not acknowledge."""
        found = [gap.until(start) for gap in closing.gaps if gap.first_entry_id <= start]
        ends = [fragment.first_entry_id - 1 for fragment in closing.fragments[1:]]
        for fragment, end in zip(closing.fragments, [*ends, last_entry_id], strict=True):
            first, last = max(fragment.first_entry_id, start + 1), min(end, last_entry_id)
            for index, bookie_id in enumerate(fragment.ensemble):
                ranges = self._held((index, bookie_id), is_last=closing.last_fragment.ensemble[index] == bookie_id)
                found += [
                    Gap(index, *lacking)
                    for entry_id in range(first, min(first + self._quorum.stride, last + 1))
                    if self._quorum.stores(index, entry_id)
                    for lacking in ranges.missing(entry_id, last)
                ]
        return found

    def _held(self, member: _Member, *, is_last: bool) -> _Ranges:
        ranges = self._taken.get(member, _Ranges(self._quorum.stride))
        under_way = self._unanswered.get(member, {}) if is_last else {}
        return ranges.with_batches(under_way.items())


class _Ranges:
    """Entries of many batches, by rotation: those of one batch have the distance of the stride."""

    __slots__ = ("_by_rotation", "_stride")

    def __init__(self, stride: int, by_rotation: Mapping[int, list[tuple[int, int]]] | None = None) -> None:
        self._stride = stride
        self._by_rotation = dict(by_rotation or {})  # apart from each other, in order; no list is changed in place

    def add(self, first_entry_id: int, last_entry_id: int) -> None:
        """Adds a batch."""
        rotation = first_entry_id % self._stride
        joined: list[tuple[int, int]] = []
        for first, last in sorted([*self._by_rotation.get(rotation, ()), (first_entry_id, last_entry_id)]):
            if joined and first <= joined[-1][1] + self._stride:
                joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
            else:
                joined.append((first, last))
        self._by_rotation[rotation] = joined

    def with_batches(self, batches: Iterable[tuple[int, int]]) -> _Ranges:
        """A copy with these batches, too."""
        copy = _Ranges(self._stride, self._by_rotation)
        for first, last in batches:
            copy.add(first, last)
        return copy

    def missing(self, first_entry_id: int, last_entry_id: int) -> list[tuple[int, int]]:
        """What is not here of the first entry's rotation, up to the last entry: first and last of each range."""
        found, next_id = [], first_entry_id
        for first, last in self._by_rotation.get(first_entry_id % self._stride, ()):
            if first > last_entry_id:
                break
            if next_id < first:
                found.append((next_id, first - self._stride))
            next_id = max(next_id, last + self._stride)
        if next_id <= last_entry_id:
            found.append((next_id, last_entry_id - (last_entry_id - next_id) % self._stride))
        return found


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
        distances = [later.first_entry_id - (gap.last_entry_id or 0) for gap, later in itertools.pairwise(found)]
        place = distances.index(min(distances))
        found[place : place + 2] = [_join(found[place], found[place + 1])]
    return found


def _first(gap: Gap) -> int:
    return gap.first_entry_id


def _join(gap: Gap, later: Gap) -> Gap:
    is_open = gap.last_entry_id is None or later.last_entry_id is None
    last = None if is_open else max(gap.last_entry_id or 0, later.last_entry_id or 0)
    return Gap(gap.index, gap.first_entry_id, last)
