"""Which bookies hold which entries of one fragment, and which they should: what an audit says and a filling does (F1, F3).

Only fragments whose range is fixed are looked at: all but the last, and every one of a CLOSED ledger (F2). A bookie's
holdings are those in its answer, within the fragment and with the ledger's stride; it may hold more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import attrs

from replog.protocol.batch import Batch
from replog.protocol.entry_ranges import EntryRanges
from replog.protocol.model import LedgerMetadata, LedgerState
from replog.protocol.quorum import Quorum


@attrs.frozen
class FixedFragment:
    """A fragment of which it is decided which entries it has: all from the first to the last. With an `archive`, bookies hold
    none of them for it."""

    place: int
    first_entry_id: int
    last_entry_id: int
    ensemble: tuple[str, ...]
    term: int
    archive: str = ""


def fixed_fragments(metadata: LedgerMetadata) -> list[FixedFragment]:
    """The listed fragments of a ledger that may be filled, without those that have no entry (F2), or are archived."""
    return [each for each in all_fixed_fragments(metadata) if not each.archive]


def all_fixed_fragments(metadata: LedgerMetadata) -> list[FixedFragment]:
    """The same with those that are archived."""
    found = []
    ends = [fragment.first_entry_id - 1 for fragment in metadata.fragments[1:]]
    if metadata.chunks:  # behind a fragment that was loaded there may be a chunk that was not
        firsts = [fragment.first_entry_id for fragment in metadata.fragments[:-1]]
        ends = [min(end, metadata.listed_through(first)) for first, end in zip(firsts, ends, strict=True)]
    if metadata.state is LedgerState.CLOSED:
        assert metadata.last_entry_id is not None, "a closed ledger has an end"
        ends.append(metadata.last_entry_id)
    assert len(ends) >= len(metadata.fragments) - 1, "each fragment but the last ends before the next (F2)"
    for place, (fragment, end) in enumerate(zip(metadata.fragments, ends, strict=False)):
        if fragment.first_entry_id <= end:
            where = fragment.ensemble, fragment.term, fragment.archive
            found.append(FixedFragment(place, fragment.first_entry_id, end, *where))
    return found


def archived_part(metadata: LedgerMetadata) -> bool | None:
    """Whether all entries of a ledger are archived, or none of its listed fragments is; None if a part is."""
    found = {bool(each.archive) for each in all_fixed_fragments(metadata)}
    if True not in found:
        return False
    return None if False in found or metadata.state is not LedgerState.CLOSED else True


def empty_fragment(metadata: LedgerMetadata) -> FixedFragment | None:
    """The last fragment of a CLOSED ledger if it has no entry, and never gets one: the ledger was closed empty, or all of it was
    trimmed."""
    last, end = metadata.last_fragment, metadata.last_entry_id
    if metadata.state is not LedgerState.CLOSED or end is None or last.first_entry_id <= end:
        return None
    return FixedFragment(len(metadata.fragments) - 1, last.first_entry_id, end, last.ensemble, last.term)


class Copies:
    """The answers of bookies about copies of one fragment. A bookie without an answer is taken to hold nothing."""

    def __init__(self, quorum: Quorum, fragment: FixedFragment) -> None:
        self.fragment = fragment
        self._quorum = quorum
        self._held: dict[str, EntryRanges] = {}

    def told(self, bookie_id: str, ranges: Iterable[tuple[int, int, int]]) -> None:
        """This bookie holds these ranges: first entry, last entry, stride. Replaces what it said before."""
        held = self._held[bookie_id] = EntryRanges(self._quorum.stride)
        for first, last, stride in ranges:
            # Other bytes than the writer's: this ledger's batches all have one stride (T3).
            if stride == self._quorum.stride:
                assert first <= last, "the answer was checked"
                held.add(first, last)

    def silent(self, bookie_id: str) -> None:
        """This bookie does not say what it holds."""
        self._held.pop(bookie_id, None)

    def lacks(self, bookie_id: str, entry_id: int) -> None:
        """This bookie has no intact copy of the entry, even if it answered otherwise."""
        held = self._held.get(bookie_id)
        if held is not None:
            assert entry_id >= self.fragment.first_entry_id, "only entries of the fragment are read"
            held.discard(entry_id, entry_id)

    def is_heard(self, bookie_id: str) -> bool:
        """True if this bookie has said what it holds."""
        return bookie_id in self._held

    def holders(self, entry_id: int) -> list[str]:
        """The bookies that hold this entry, as they say."""
        return [bookie_id for bookie_id, held in self._held.items() if held.holds(entry_id)]

    def wanted(self, index: int) -> Iterator[tuple[int, int]]:
        """The first and last entry of each rotation that a bookie at this index should hold (W1)."""
        fragment, stride = self.fragment, self._quorum.stride
        assert 0 <= index < self._quorum.ensemble, "an index of the ensemble"
        for first in range(fragment.first_entry_id, min(fragment.first_entry_id + stride, fragment.last_entry_id + 1)):
            if self._quorum.stores(index, first):
                yield first, fragment.last_entry_id - (fragment.last_entry_id - first) % stride

    def missing(self, index: int, bookie_id: str) -> EntryRanges:
        """The entries that this bookie should hold at this index, and does not."""
        held = self._held.get(bookie_id, EntryRanges(self._quorum.stride))
        found = EntryRanges(self._quorum.stride)
        for first, last in self.wanted(index):
            for lacking in held.missing(first, last):
                found.add(*lacking)
        return found

    def held_anywhere(self, entries: EntryRanges) -> EntryRanges:
        """The entries among these that some bookie holds."""
        found = EntryRanges(self._quorum.stride)
        nowhere = self.held_nowhere(entries)
        for first, last in entries:
            assert first <= last, "a range has entries"
            for some in nowhere.missing(first, last):
                found.add(*some)
        return found

    def held_nowhere(self, entries: EntryRanges) -> EntryRanges:
        """The entries among these that no bookie holds."""
        found = entries
        for held in self._held.values():
            rest = EntryRanges(self._quorum.stride)
            for first, last in found:
                for lacking in held.missing(first, last):
                    rest.add(*lacking)
            found = rest
        return found


class ToCopy:
    """The entries to copy to one bookie, until they are sent or given up."""

    def __init__(self) -> None:
        self._todo: dict[str, EntryRanges] = {}

    def __bool__(self) -> bool:
        return bool(self._todo)

    def put(self, bookie_id: str, entries: EntryRanges) -> None:
        """Notes that all of this must be copied there."""
        if entries:
            self._todo[bookie_id] = entries

    def first(self) -> int:
        """The lowest entry that must be copied."""
        assert self._todo, "there is something to copy"
        # Ranges ascend, so that the first one of each bookie has its lowest entry.
        return min(next(iter(todo))[0] for todo in self._todo.values())

    def give_up(self, bookie_id: str) -> None:
        """Nothing more is copied there."""
        self._todo.pop(bookie_id, None)

    def skip(self, first_entry_id: int, last_entry_id: int) -> None:
        """These entries, of one rotation, are copied nowhere."""
        for todo in self._todo.values():
            todo.discard(first_entry_id, last_entry_id)
        self._drop_done()

    def take(self, batch: Batch) -> list[str]:
        """The bookies that must get this batch. They get it whole, even if they lack a part of it only."""
        taken = []
        for bookie_id, todo in self._todo.items():
            before = len(todo)
            todo.discard(batch.first_entry_id, batch.last_entry_id)
            if len(todo) < before:
                taken.append(bookie_id)
        self._drop_done()
        return taken

    def _drop_done(self) -> None:
        self._todo = {bookie_id: todo for bookie_id, todo in self._todo.items() if todo}


class Sent:
    """Copies that were sent, until all bookies have answered."""

    def __init__(self) -> None:
        self.size_bytes = 0
        # By first and last entry of a batch, because two may begin with the same one: who has not answered.
        self._awaited: dict[tuple[int, int], set[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._awaited)

    def put(self, batch: Batch, bookie_ids: Collection[str]) -> None:
        """This batch was sent to these bookies."""
        key = batch.first_entry_id, batch.last_entry_id
        assert key not in self._awaited, "a batch is taken once in a round"
        self._awaited[key] = set(bookie_ids)
        self.size_bytes += len(batch.data)

    def is_awaited(self, bookie_id: str, batch: Batch) -> bool:
        """Whether this bookie still has to answer."""
        return bookie_id in self._awaited.get((batch.first_entry_id, batch.last_entry_id), ())

    def answered(self, bookie_id: str, batch: Batch) -> None:
        """It has."""
        key = batch.first_entry_id, batch.last_entry_id
        self._awaited[key].remove(bookie_id)
        if not self._awaited[key]:
            del self._awaited[key]
            self.size_bytes -= len(batch.data)
