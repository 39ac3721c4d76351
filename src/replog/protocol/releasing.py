"""Entries of an existing ledger that a bookie may drop, because the ledger's record gives them to others (F5).

A repair stores copies on a bookie before the record names it, so the record alone proves nothing: a filler may be about
to name this bookie for entries that it drops. A release is safe in this order:

1. Read the record. Of the ranges that it proves foreign nothing is shown to repairers from now on. No copy of them is
   taken either: it would be dropped with the rest.
2. Write the record once more, unchanged, upon the version that was read. This proves that it was current (M1). Any
   filler that has asked before loses its compare-and-set, and asks again.
3. Drop. Only then show the stored entries again, and take copies.

A question about stored entries ends a release: at once, or after the piece that is being dropped. Otherwise a filler
that asks after step 2 hears of no entries. If all others that had the entries are lost, it takes them for lost
everywhere (F1), and names this bookie, which then drops the last copies.

Foreign are fragments whose range is fixed (F2) and that don't name the bookie, or are in an archive; and, where entries stripe,
of those that name it the rotations that its index does not store: it may have had another index before. The last fragment of a
ledger that is open may name it again for entries that it holds: a writer that changes its ensemble back counts them. While a
ledger is in recovery nothing is dropped.

Of an unbounded ledger two more kinds of entries are nobody's, whichever bookies are named: those below its trim, and
those with a stamp of an earlier term than the last fragment's that lie behind the end of that term. Deposed writers
left the latter, and no fragment ever names them (T3).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import attrs

from replog.protocol.batch import ENTRY_ID_MAX, Batch
from replog.protocol.entry_ranges import EntryRanges
from replog.protocol.fragment_copies import FixedFragment, all_fixed_fragments
from replog.protocol.model import LedgerMetadata, LedgerState

PIECE_ENTRIES = 10_000  # that one commit drops: others wait for it


@attrs.frozen
class ForeignRange:
    """Entries under one stamp of which a bookie should have none: each `stride`-th from the first to the last."""

    stamp: int
    first_entry_id: int
    last_entry_id: int
    stride: int = 1

    def has_some_of(self, first_entry_id: int, last_entry_id: int, stride: int) -> bool:
        """True if some of these entries, `stride` apart, may be among them."""
        is_near = self.first_entry_id <= last_entry_id and first_entry_id <= self.last_entry_id
        return is_near and (first_entry_id - self.first_entry_id) % math.gcd(self.stride, stride) == 0


def foreign_ranges(metadata: LedgerMetadata, bookie_id: str, stamps: Iterable[int] = ()) -> list[ForeignRange]:
    """The entries that this record proves to belong to other bookies alone, or to nobody. Neighbours are one range: a
    batch may straddle them.

    `stamps` are those of an unbounded ledger that the bookie has entries of."""
    if metadata.state is LedgerState.IN_RECOVERY:
        return []
    found: list[ForeignRange] = _of_nobody(metadata, stamps)
    for fragment in all_fixed_fragments(metadata):
        first, last = fragment.first_entry_id, fragment.last_entry_id
        if bookie_id in fragment.ensemble and not fragment.archive:
            found += _of_other_rotations(metadata, fragment, bookie_id)
            continue
        if found and found[-1].stride == 1 and (found[-1].stamp, found[-1].last_entry_id + 1) == (fragment.term, first):
            first = found.pop().first_entry_id
        if metadata.state is LedgerState.CLOSED and last == metadata.last_entry_id:
            # With what lies behind the end, which nobody reads (R7): a batch that straddles the end would never go.
            last = ENTRY_ID_MAX
        found.append(ForeignRange(fragment.term, first, last))
    is_open, written = metadata.state is LedgerState.OPEN, metadata.last_fragment
    unfixed = [each for each in found if each.stamp >= written.term and each.last_entry_id >= written.first_entry_id]
    assert not (is_open and unfixed), "the last fragment is not fixed (F2)"
    return found


def _of_other_rotations(metadata: LedgerMetadata, fragment: FixedFragment, bookie_id: str) -> list[ForeignRange]:
    """The entries of a fragment naming this bookie that only other indices store. Empty if each entry is on all of them."""
    quorum, first, last = metadata.quorum, fragment.first_entry_id, fragment.last_entry_id
    indices = [index for index, each in enumerate(fragment.ensemble) if each == bookie_id]
    found = [
        ForeignRange(fragment.term, start, last - (last - start) % quorum.ensemble, quorum.ensemble)
        for start in range(first, min(first + quorum.ensemble, last + 1))
        if not any(quorum.stores(index, start) for index in indices)
    ]
    assert not found or quorum.write < quorum.ensemble, "without rotations a member stores everything (W1)"
    return found


def _of_nobody(metadata: LedgerMetadata, stamps: Iterable[int]) -> list[ForeignRange]:
    """The entries that no fragment names any more, or ever will."""
    found: list[ForeignRange] = []
    for stamp in sorted(stamps):
        if metadata.trim_to:
            found.append(ForeignRange(stamp, 0, metadata.trim_to - 1))
        if stamp < metadata.last_fragment.term:
            assert metadata.is_unbounded, "a bounded ledger has one stamp"
            found.append(ForeignRange(stamp, max(metadata.trim_to, metadata.end_of_stamp(stamp) + 1), ENTRY_ID_MAX))
    return found


class Release:
    """The entries of one ledger that a bookie is about to drop."""

    def __init__(self, ranges: Sequence[ForeignRange]) -> None:
        self.ranges = tuple(ranges)
        self._is_dropping = False
        self._is_ended = False

    def asked(self) -> None:
        """A client asks for stored entries, from now on and not before."""
        self._is_ended = True

    def may_drop(self) -> bool:
        """Asked before each piece, once the record is proven: False if the rest has to stay until the next release."""
        if not self._is_ended:
            self._is_dropping = True
        return not self._is_ended

    @property
    def _keeps_everything(self) -> bool:
        return self._is_ended and not self._is_dropping

    def refuses(self, batch: Batch) -> bool:
        """True if a copy of this batch would be dropped with the rest."""
        return not self._keeps_everything and any(
            each.stamp == batch.stamp and each.has_some_of(batch.first_entry_id, batch.last_entry_id, batch.stride)
            for each in self.ranges
        )

    def shown(self, stamp: int, held: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """The ranges stored under a stamp (first entry, last entry, stride) that are not about to be dropped."""
        if self._keeps_everything:
            return list(held)
        found: list[tuple[int, int, int]] = []
        for first, last, stride in held:
            left = EntryRanges(stride, [(first, last)])
            for each in self.ranges:
                if each.stamp == stamp and each.has_some_of(first, last, stride):
                    # Of this one's rotation; or, of a batch that is not striped as its ledger is, more than is dropped.
                    left.remove(each.first_entry_id, each.last_entry_id)
            found += [(start, end, stride) for start, end in left]
        return found

    def pieces(self, stamp: int, held: Iterable[tuple[int, int, int]]) -> Iterator[ForeignRange]:
        """The ranges stored under a stamp that must be dropped, a commit's worth at a time."""
        stored = list(held)
        for each in self.ranges:
            if each.stamp != stamp:
                continue
            overlaps = [
                (max(first, each.first_entry_id), min(last, each.last_entry_id))
                for first, last, stride in stored
                if each.has_some_of(first, last, stride)
            ]
            if overlaps:
                # Those of several rotations interleave: one range from the first to the last has them all.
                first, last = min(first for first, _ in overlaps), max(last for _, last in overlaps)
                assert each.first_entry_id <= first <= last <= each.last_entry_id, (
                    "only what is foreign is dropped (F5)"
                )
                span = PIECE_ENTRIES * each.stride
                first -= (first - each.first_entry_id) % each.stride
                for start in range(first, last + 1, span):
                    end = min(start + span - each.stride, last)
                    yield ForeignRange(stamp, start, end - (end - start) % each.stride, each.stride)
