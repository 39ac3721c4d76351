"""Entries that bookies lack, as a writer or a recovery knows them, until they are recorded as gaps (W7)."""

from __future__ import annotations

from collections.abc import Container, Iterable

from replog.protocol.batch import Batch
from replog.protocol.entry_ranges import EntryRanges
from replog.protocol.gaps import Gap
from replog.protocol.model import LedgerMetadata
from replog.protocol.quorum import Quorum

_Member = tuple[int, str]  # an index, and a bookie that is or was at it


class WriterGaps:
    """The entries that the bookies of a writer lack.

    An index that failed lacks all entries written from its failure on. That ends where a bookie is at the index again,
    or where a new fragment begins; it is recorded at the writer's next change, roll or close, and only then forgotten
    here."""

    def __init__(self, missing: Iterable[int], first_entry_id: int = 0) -> None:
        self._since = dict.fromkeys(missing, first_entry_id)  # by index that lacks entries: the first of them
        self._proposed_since: dict[int, int] = {}  # `_since` when the change under way was proposed
        self._ended: list[Gap] = []  # known, and not proposed yet
        self._proposed: list[Gap] = []  # in the proposal under way, or in one that another client's change overtook
        self.full_before = 0  # entries below it were found to lack nowhere (W8)

    def failed(self, index: int, first_entry_id: int) -> None:
        """This index may lack this entry, and lacks all entries that are not sent to it from now on."""
        assert first_entry_id >= 0, "a gap begins at an entry"
        self._since[index] = min(first_entry_id, self._since.get(index, first_entry_id))

    def failed_before(self, gap: Gap) -> None:
        """A bookie that was replaced may lack these entries of the fragment that names it."""
        assert gap.last_entry_id is not None, "what a replaced bookie lacks has ended"
        self._ended.append(gap)

    def propose(self, recorded: Iterable[Gap], last_entry_id: int) -> list[Gap]:
        """All gaps that are known up to this entry, for a proposal; `recorded` are those in the metadata."""
        self._proposed += self._ended
        self._ended = []
        self._proposed_since = dict(self._since)
        assert all(gap.last_entry_id is not None for gap in self._proposed), "what is no longer going on has ended"
        since = [Gap(index, first, last_entry_id) for index, first in self._since.items() if first <= last_entry_id]
        return [*recorded, *self._proposed, *since]

    def that_go_on(self, last_entry_id: int, replaced: Container[int]) -> list[Gap]:
        """The gaps of a new fragment behind this entry: of the indices that are not replaced."""
        return [
            Gap(index, max(first, last_entry_id + 1)) for index, first in self._since.items() if index not in replaced
        ]

    def end(self, last_entry_id: int, replaced: Container[int], *, is_written: bool) -> None:
        """Ends the gaps of these indices at the last add confirmed: pending entries are sent to them. If a new fragment
        was written, the gaps of the other indices begin again with it."""
        if is_written:
            self._proposed = []
        for index, first in list(self._since.items()):
            if index not in replaced and not is_written:
                continue
            # What the proposal said is recorded. But an add that failed since may begin before what it said.
            is_recorded = is_written and first >= self._proposed_since.get(index, last_entry_id + 1)
            if first <= last_entry_id and not is_recorded:
                self._ended.append(Gap(index, first, last_entry_id))
            if index in replaced:
                del self._since[index]
            else:
                self._since[index] = max(first, last_entry_id + 1)


class RecoveryGaps:
    """Which bookies hold what a recovery writes back; all that it cannot say so of is a gap.

    The ensemble changes while batches are on their way, and a batch may begin in one fragment and end in a later one, where
    another bookie has the index. So what a bookie took is kept by bookie, and compared with the fragments at the close only."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self._taken: dict[_Member, EntryRanges] = {}
        self._unanswered: dict[_Member, dict[int, int]] = {}  # the batches on their way: first and last entry

    def sent(self, index: int, bookie_id: str, batch: Batch) -> None:
        """A batch is on its way to the bookie at this index."""
        assert self._quorum.stores(index, batch.first_entry_id), "a batch goes to its write set (W1)"
        self._unanswered.setdefault((index, bookie_id), {})[batch.first_entry_id] = batch.last_entry_id

    def taken(self, index: int, bookie_id: str, first_entry_id: int) -> None:
        """The batch that starts there is durable at this bookie."""
        last = self._unanswered.get((index, bookie_id), {}).pop(first_entry_id, None)
        if last is not None:
            assert last >= first_entry_id, "a batch has entries"
            ranges = self._taken.setdefault((index, bookie_id), EntryRanges(self._quorum.stride))
            ranges.add(first_entry_id, last)

    def failed(self, index: int, bookie_id: str, first_entry_id: int | None) -> None:
        """This bookie may lack the batch that starts there, whether or not it is in the ensemble any more."""
        if first_entry_id is not None:
            self._unanswered.get((index, bookie_id), {}).pop(first_entry_id, None)

    def all(self, closing: LedgerMetadata, start: int, last_entry_id: int) -> list[Gap]:
        """All gaps of a ledger that is closed there with these fragments. Everything behind `start` was written back:
        the gaps that its writer recorded end there, and the answers tell the rest.

        Entries on their way to a bookie of the last ensemble are taken for stored, as when a writer closes a ledger. A
        bookie that was replaced lacks what it did not acknowledge."""
        assert last_entry_id >= start, "a recovery does not cut off what it knows to be confirmed"
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

    def _held(self, member: _Member, *, is_last: bool) -> EntryRanges:
        ranges = self._taken.get(member, EntryRanges(self._quorum.stride)).copy()
        # An add on its way to a replaced bookie may have been lost: the writer does not wait for its answer.
        for first, last in self._unanswered.get(member, {}).items() if is_last else ():
            ranges.add(first, last)
        return ranges
