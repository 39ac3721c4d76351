"""The entries that a recovery has found, on their way to an ack quorum (R5, R6, C5, C6, W7).

They are written to a *private* ensemble. It begins as the frozen one; a bookie that does not take them is replaced in it at
once, and the fragments that follow from that become visible only in the closing compare-and-set (R6).

Invariants:

- All ids below `next_entry_id` are held by recovered batches; all up to `written_through` are at their ack quorum.
- Neither ever sinks, and `written_through` < `next_entry_id`.
- A batch is kept until it lies wholly in the written prefix: until then a change of the ensemble concerns it.
- Every add carries the last add confirmed with which recovery began, and never another one (R5).
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from replog.protocol.batch import Batch, PendingBatch
from replog.protocol.closed_contents import Contents
from replog.protocol.effects import ChooseReplacements, SendAdd
from replog.protocol.fragments import Fragment
from replog.protocol.gaps import Gap
from replog.protocol.lacking_entries import RecoveryGaps
from replog.protocol.model import LedgerMetadata, LedgerState
from replog.protocol.quorum import Quorum
from replog.protocol.replacement import Members

_PENDING_MAX = 4  # batches of each rotation on their way back


class WritingBack:
    """The entries that one recovery writes back behind entry `start`, the last one that it knows to be confirmed;
    `proof` proves that."""

    def __init__(self, quorum: Quorum, frozen: Fragment, start: int, proof: bytes) -> None:
        self.start = start
        self.next_entry_id = start + 1
        self.written_through = start
        self.members = Members(frozen.ensemble)
        self.fragments: list[Fragment] = []  # the private ones, which the closing compare-and-set adds
        self._quorum = quorum
        self._term = frozen.term
        self._proof = proof
        self._pending: dict[int, PendingBatch] = {}  # by first entry
        self._covered: dict[int, int] = {}  # by rotation: the last id that a recovered batch holds
        self._gaps = RecoveryGaps(quorum)
        self._first_sent_ns: int | None = None  # when entry 0 was sent, if it was recovered
        self._newest: dict[int, tuple[int, int]] = {}  # by rotation: length and time of the last recovered batch

    @property
    def is_full(self) -> bool:
        """True if so many batches are on their way that reading waits: memory stays bounded."""
        return len(self._pending) > _PENDING_MAX * self._quorum.stride

    def add(self, batch: Batch) -> list[SendAdd]:
        """Writes back a batch that holds the next entry."""
        assert batch.holds(self.next_entry_id), "entries are recovered in the order of their ids"
        pending = PendingBatch(batch, self._quorum.write_mask(batch.first_entry_id))
        self._pending[batch.first_entry_id] = pending
        stride = self._quorum.stride
        self._covered[self.next_entry_id % stride] = batch.last_entry_id
        self._newest[self.next_entry_id % stride] = (batch.cumulative_length, batch.timestamp_ns)
        if batch.first_entry_id == 0:
            self._first_sent_ns = batch.timestamp_ns
        while self._covered.get(self.next_entry_id % stride, -1) >= self.next_entry_id:
            self.next_entry_id += 1
        return self._sends(pending, self.members.in_use)

    def _sends(self, pending: PendingBatch, indices: int) -> list[SendAdd]:
        assert not indices & ~self.members.in_use, "nothing is sent to an index that failed or is being replaced"
        sends = []
        for index in self._quorum.write_set(pending.batch.first_entry_id):
            if indices >> index & 1:
                self._gaps.sent(index, self.members.bookies[index], pending.batch)
                sends.append(SendAdd(index, self.members.bookies[index], pending.batch, True, self._proof))
        return sends

    def confirm(self, index: int, bookie_id: str, first_entry_id: int) -> None:
        """A batch is durable there. It counts only if the bookie is at that index now (C6)."""
        # Kept even if it no longer counts: the bookie may be in an earlier fragment, which then has no gap (W7).
        self._gaps.taken(index, bookie_id, first_entry_id)
        pending = self._pending.get(first_entry_id)
        if pending is not None and self.members.bookies[index] == bookie_id:
            pending.acknowledged |= 1 << index & pending.write_mask
            assert not pending.acknowledged & ~pending.write_mask, "only its write set acknowledges a batch (W1)"

    def fail(self, index: int, bookie_id: str, first_entry_id: int | None) -> None:
        """A bookie did not take the batch that starts there, or something else. If it is at that index now, it must be
        replaced."""
        # Kept even if the bookie was replaced: its fragment may be recorded with a gap (W7).
        self._gaps.failed(index, bookie_id, first_entry_id)
        if self.members.bookies[index] == bookie_id:
            self.members.fail(index)

    def advance(self) -> None:
        """Moves the written prefix on, and lets go of the batches that lie wholly in it. Not during a change (C1)."""
        assert not self.members.choosing, "nothing advances during a change (C1)"
        # By rotation, the last id that is known to be at its quorum; the lowest of them ends the prefix.
        through = dict(self._covered)
        for pending in self._pending.values():
            if pending.acknowledged.bit_count() < self._quorum.ack:
                rotation = pending.batch.first_entry_id % self._quorum.stride
                through[rotation] = min(through[rotation], pending.batch.first_entry_id - 1)
        before, self.written_through = self.written_through, self._prefix_end(through)
        assert before <= self.written_through < self.next_entry_id, "the written prefix never shrinks"
        done = [
            first for first, pending in self._pending.items() if pending.batch.last_entry_id <= self.written_through
        ]
        for first in done:
            del self._pending[first]

    def _prefix_end(self, through: Mapping[int, int]) -> int:
        end = self.written_through
        while end + 1 < self.next_entry_id and through.get((end + 1) % self._quorum.stride, -1) >= end + 1:
            end += 1
        return end

    def choose(self, metadata: LedgerMetadata) -> ChooseReplacements:
        """Asks for bookies in place of those that failed."""
        # The placement must see the private ensemble: the metadata still names the frozen one (R6).
        private = Fragment(0, tuple(self.members.bookies))
        return self.members.choose(attrs.evolve(metadata, fragments=(private,)))

    def adopt(self, chosen: Mapping[int, str]) -> list[SendAdd]:
        """The private ensemble changes at the first id that is not yet at its quorum."""
        resend = self.members.adopt(chosen)
        if chosen:
            self._add_fragment()
        sends: list[SendAdd] = []
        for pending in self._pending.values():
            pending.acknowledged &= ~resend
            sends += self._sends(pending, resend & self.members.in_use)
        return sends

    def _add_fragment(self) -> None:
        fragment = Fragment(self.written_through + 1, tuple(self.members.bookies), self._term)
        if self.fragments and self.fragments[-1].first_entry_id == fragment.first_entry_id:
            # Nothing was written to its quorum since the last change: that fragment would be empty.
            self.fragments.pop()
        assert not self.fragments or self.fragments[-1].first_entry_id < fragment.first_entry_id, "fragments ascend"
        self.fragments.append(fragment)

    def closed(self, metadata: LedgerMetadata, last_entry_id: int) -> LedgerMetadata:
        """The metadata of the ledger closed at this entry, with the private fragments and what bookies lack (R6, W7)."""
        return self._ended(metadata, last_entry_id).closed_at(last_entry_id, self._contents(last_entry_id))

    def _contents(self, last_entry_id: int) -> Contents:
        stride = self._quorum.stride
        size_bytes, last_sent_ns = self._newest.get(last_entry_id % stride, (None, None))
        # A striped batch says how long the ledger is behind all batches that were built with it, and some may be missing.
        size_bytes = size_bytes if stride == 1 else None
        return Contents.of(last_entry_id + 1, size_bytes, self._first_sent_ns, last_sent_ns)

    def opened(self, metadata: LedgerMetadata, last_entry_id: int) -> LedgerMetadata:
        """The metadata of the ledger open for the writer of its term, whose first fragment begins behind this entry (T2)."""
        ended = self._ended(metadata, last_entry_id)
        first = last_entry_id + 1
        # A private fragment that would begin there has no entries: the new one takes its place, as an empty last one's (C2).
        left = [each for each in ended.fragments if each.first_entry_id < first]
        opening = Fragment(first, tuple(self.members.bookies), metadata.term)
        missing = [Gap(index, first) for index in range(self._quorum.ensemble) if self.members.missing >> index & 1]
        opened = attrs.evolve(
            ended, fragments=(*left, opening), state=LedgerState.OPEN, open_term=metadata.term, last_entry_id=None
        )
        return opened.with_gaps([*(gap.until(last_entry_id) for gap in ended.gaps), *missing])

    def _ended(self, metadata: LedgerMetadata, last_entry_id: int) -> LedgerMetadata:
        assert self.written_through >= last_entry_id, "a term ends when all of it is at its ack quorum"
        for fragment in self.fragments:
            metadata = metadata.with_fragment(fragment)
        return metadata.with_gaps(self._gaps.all(metadata, self.start, last_entry_id))
