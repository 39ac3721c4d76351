"""The entries of a ledger that a storage holds, as ranges (F3)."""

from __future__ import annotations

from collections.abc import Iterable

from replog.abc import Damage, StoredRange
from replog.protocol.entry_ranges import EntryRanges


class Holdings:
    """Gathers the batches of one ledger into ranges, however many there are."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], EntryRanges] = {}  # by stamp and stride

    def add(self, stamp: int, first_entry_id: int, last_entry_id: int, stride: int) -> None:
        """A batch with these entries is stored. One whose numbers do not fit together is damaged, and left out."""
        if first_entry_id > last_entry_id or stride < 1 or (last_entry_id - first_entry_id) % stride:
            return
        held = self._held.get((stamp, stride))
        if held is None:
            held = self._held[stamp, stride] = EntryRanges(stride)
        held.add(first_entry_id, last_entry_id)

    def ranges(self, damage: Iterable[Damage] = ()) -> list[StoredRange]:
        """The ranges, by stamp and first entry, without these damaged batches."""
        for each in damage:
            for (stamp, _), held in self._held.items():
                if stamp == each.stamp:
                    held.remove(each.first_entry_id, each.last_entry_id)
        return [
            StoredRange(stamp, first, last, stride)
            for (stamp, stride), held in sorted(self._held.items(), key=lambda item: item[0])
            for first, last in held
        ]
