"""The machine of a ledger's writer: adding, confirming, changing the ensemble, closing (rules W, C, R1).

Invariants:

- `last_add_confirmed` <= `last_add_pushed`, and neither ever sinks (W2).
- Entries are confirmed in one place, `_complete`, and never while the ledger closes (R1). During a change they are
  confirmed only where every write set has enough other indices (C1, C9).
- An acknowledgement counts for its index, and only if it comes from the bookie that is there now (C6). An index that is
  being replaced does not count until a record of a higher version is written or read, even if requests time out (C9).
- Entries confirmed while a change is being written are sent to the bookies that it brings in, or are a gap of theirs
  (C9, W7).
- A batch keeps its bytes, to whichever bookie it is sent (W3).
- A new fragment starts behind the last add confirmed (C2), and nothing is sent to it before it is durable (C3).
- One compare-and-set at a time is under way, in the stages CHANGING, CHANGING_LAST and CLOSING (C1, M1).
- From DONE on, every call changes nothing.

The actions are those of the published TLA+ model: add = WriterSendsAddEntryRequests, add_confirmed =
WriterReceivesAddConfirmedResponse, add_fenced = WriterReceivesAddFencedResponse, bookie_failed and what follows =
WriterChangesEnsemble, close = WriterClosesLedger.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial

from replog.errors import FencedError, LedgerClosedError, LedgerDeletedError, ReplogError
from replog.protocol import batch as batches
from replog.protocol import undecided
from replog.protocol.batch import Batch, PendingBatch
from replog.protocol.closed_contents import Contents
from replog.protocol.compression import Compressor
from replog.protocol.deposing import fenced, overtaken
from replog.protocol.digest import Digest
from replog.protocol.effects import Confirmed, Failed, Finished, SendAdd, SendLastAddConfirmed
from replog.protocol.fragments import Fragment
from replog.protocol.gaps import Gap
from replog.protocol.lacking_entries import WriterGaps
from replog.protocol.machine import LedgerMachine
from replog.protocol.model import NO_ENTRY, LedgerMetadata, LedgerState
from replog.protocol.mutations import DELETED_TERM
from replog.protocol.proofs import prove
from replog.protocol.replacement import Members
from replog.protocol.reshaping import Reshaping
from replog.protocol.stages import Transitions, after, from_each


class _Stage(enum.Enum):
    STEADY = enum.auto()
    CHOOSING = enum.auto()  # replacements are being chosen
    CHANGING = enum.auto()  # a new ensemble is being written to the metadata
    CHANGING_LAST = enum.auto()  # the same, and the ledger is closed as soon as that has ended
    CLOSING = enum.auto()  # the last entry is being written to the metadata
    DONE = enum.auto()


_OPEN = (_Stage.STEADY, _Stage.CHOOSING, _Stage.CHANGING)  # entries may be added
_CHANGING = (_Stage.CHANGING, _Stage.CHANGING_LAST)
_CLOSING = (_Stage.CHANGING_LAST, _Stage.CLOSING)
_ENDING = (_Stage.CLOSING, _Stage.DONE)

TRANSITIONS: Transitions[_Stage] = {
    (_Stage.STEADY, "a bookie failed"): _Stage.CHOOSING,
    (_Stage.CHOOSING, "replacements chosen"): _Stage.CHANGING,
    (_Stage.CHOOSING, "nothing differs"): _Stage.STEADY,
    (_Stage.CHANGING, "change written"): _Stage.STEADY,
    (_Stage.CHANGING_LAST, "change written"): _Stage.CLOSING,
    (_Stage.CHANGING_LAST, "change lost"): _Stage.CLOSING,
    **from_each((_Stage.STEADY, _Stage.CHOOSING), "close", _Stage.CLOSING),
    (_Stage.CHANGING, "close"): _Stage.CHANGING_LAST,
    **from_each(_CLOSING, "closed", _Stage.DONE),
    **from_each((each for each in _Stage if each is not _Stage.DONE), "failed", _Stage.DONE),
}


# Batches that were built together, and confirm together, behind their last entry id: so the last add confirmed, and with it
# every fragment's first entry, is at a batch boundary.
_Gathering = tuple[int, list[PendingBatch]]


class LedgerWriting(LedgerMachine):
    """The writer of one term of a ledger. `nonce` is unique to this machine (M1). Only the client that created the ledger, or
    that has just taken it over, makes one: with the record that it wrote, whose last fragment is still empty.

    `missing` has the indices whose bookies were away then, as a bit mask: they count as failed from the start, until
    `bookies_changed` (C7). `kept_bytes_max` limits the entries confirmed during a change, together with the unconfirmed
    ones (C9)."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        version: int,
        digest: Digest,
        nonce: str,
        *,
        missing: int = 0,
        compressor: Compressor | None = None,
        kept_bytes_max: int = 64 << 20,
    ) -> None:
        assert metadata.state is LedgerState.OPEN, "only an open ledger is written to"
        assert metadata.last_fragment.term == metadata.open_term == metadata.term, (
            "only the owner of its term writes (T2)"
        )
        assert metadata.quorum.may_lack(missing), "every write set can be written and recovered (C7)"
        super().__init__(metadata, version, nonce)
        first = metadata.last_fragment.first_entry_id
        self.last_add_pushed = first - 1
        self.last_add_confirmed = first - 1
        self.length = 0
        self._digest = digest
        self._build = partial(
            batches.builder(compressor),
            digest,
            ledger_id=metadata.ledger_id,
            stride=self.quorum.stride,
            stamp=self._stamp,
        )
        self._members = Members(metadata.last_fragment.ensemble, missing)
        # Computed once, because each batch needs them: by rotation, the indices and their mask
        rotations = range(self.quorum.ensemble)
        self._write_sets = [(self.quorum.write_set(each), self.quorum.write_mask(each)) for each in rotations]
        self._gatherings: deque[_Gathering] = deque()
        self._pending: dict[int, PendingBatch] = {}
        self._stage = _Stage.STEADY
        # The indices whose acknowledgements confirm, as a bit mask; 0 while nothing is confirmed (C9)
        self._counted = self._members.everybody
        self._reshaping = Reshaping(kept_bytes_max)
        self._gaps = WriterGaps((index for index in range(self.quorum.ensemble) if missing >> index & 1), first)
        # When entry 0 was sent, if this writer did that, and when the last gathering was, confirmed or not
        self._sent_ns: tuple[int | None, int] = (None, 0)
        # Of the last gathering that is confirmed: the ledger's length up to there, and when it was sent
        self._newest_confirmed: tuple[int | None, int | None] = (None, None)

    # -- what the shell asks ------------------------------------------------------------------------------------

    @property
    def _stamp(self) -> int:
        """The term of this writer: each of its fragments has it."""
        return self.metadata.last_fragment.term

    @property
    def unconfirmed(self) -> range:
        """The ids that were added and not confirmed."""
        return range(self.last_add_confirmed + 1, self.last_add_pushed + 1)

    @property
    def is_changing(self) -> bool:
        """True if a change of the ensemble is under way."""
        return self._stage in (_Stage.CHOOSING, _Stage.CHANGING, _Stage.CHANGING_LAST)

    @property
    def is_done(self) -> bool:
        """True if the machine finished or failed."""
        return self._stage is _Stage.DONE

    @property
    def missing(self) -> int:
        """The indices that failed and could not be replaced, as a bit mask."""
        return self._members.missing

    @property
    def unused(self) -> int:
        """The indices that nothing is sent to, because they failed or are being replaced, as a bit mask."""
        return self._members.everybody & ~self._members.in_use

    def ensemble(self) -> tuple[str, ...]:
        """The bookies that are written to, by index."""
        return tuple(self._members.bookies)

    # -- adding ---------------------------------------------------------------------------------------------------

    def add(self, payloads: Sequence[bytes], timestamp_ns: int, size_bytes: int | None = None) -> None:
        """Adds entries, as one gathering: one batch for each write set (W1, W3). `size_bytes` is what they have together, for a
        caller that knows it."""
        assert payloads, "a gathering has entries"
        assert self._stage in _OPEN, "a writer that closes adds nothing"
        first = self.last_add_pushed + 1
        # Times never go back, even if the clock was set back: a search by time relies on that.
        first_sent_ns, last_sent_ns = self._sent_ns
        timestamp_ns = max(timestamp_ns, last_sent_ns)
        self._sent_ns = timestamp_ns if first == 0 else first_sent_ns, timestamp_ns
        self.length += batches.size_of(payloads) if size_bytes is None else size_bytes
        self.last_add_pushed += len(payloads)
        stride = self.quorum.stride
        pending = []
        for rotation in range(min(stride, len(payloads))):
            batch = self._build(
                first_entry_id=first + rotation,
                payloads=payloads if stride == 1 else payloads[rotation::stride],
                last_add_confirmed=self.last_add_confirmed,
                timestamp_ns=timestamp_ns,
                cumulative_length=self.length,
            )
            _, write_mask = self._write_sets[batch.first_entry_id % self.quorum.ensemble]
            sent = self._pending[batch.first_entry_id] = PendingBatch(batch, write_mask)
            pending.append(sent)
            self._send(sent, self._members.in_use)
        self._gatherings.append((self.last_add_pushed, pending))

    def _send(self, pending: PendingBatch, indices: int) -> None:
        bookies = self._members.bookies
        write_set, _ = self._write_sets[pending.batch.first_entry_id % len(bookies)]
        for index in write_set:
            if indices >> index & 1:
                self.effects.append(SendAdd(index, bookies[index], pending.batch))

    def add_confirmed(self, index: int, bookie_id: str, first_entry_id: int) -> None:
        """This bookie has made the batch that starts there durable. Late and foreign ones count for nothing (C6)."""
        pending = self._pending.get(first_entry_id)
        # Unknown batches were confirmed or dropped; another bookie at the index means that this one was replaced (C6).
        if pending is None or self._members.bookies[index] != bookie_id:
            return
        pending.acknowledged |= 1 << index & pending.write_mask
        if self._counted:
            self._complete()

    def _complete(self) -> None:
        """Confirms what has its ack quorum, of the indices that count, and whose whole prefix has (W2, C9)."""
        confirmed = self.last_add_confirmed
        ack = self.quorum.ack
        counted = self._counted
        newest: Batch | None = None
        while self._gatherings:
            last_entry_id, gathered = self._gatherings[0]
            for pending in gathered:
                if (pending.acknowledged & counted).bit_count() < ack:
                    break
            else:
                self._gatherings.popleft()
                for pending in gathered:
                    del self._pending[pending.batch.first_entry_id]
                confirmed = last_entry_id
                newest = gathered[0].batch
                if self._stage is _Stage.CHANGING:
                    self._reshaping.keep(last_entry_id, gathered, self.length)
                continue
            break
        if newest is not None:
            assert self.last_add_confirmed < confirmed <= self.last_add_pushed, (
                "the last add confirmed never sinks (W2)"
            )
            self.last_add_confirmed = confirmed
            assert newest.timestamp_ns <= self._sent_ns[1], "what is confirmed was sent"
            self._newest_confirmed = newest.cumulative_length, newest.timestamp_ns
            self.effects.append(Confirmed(confirmed))

    def publish(self) -> None:
        """Tells the bookies the last add confirmed, though no entry follows that would carry it (W5). During a change, too: then
        the bookies that are in use (C9)."""
        confirmed = self.last_add_confirmed
        if self._stage in _OPEN and confirmed != NO_ENTRY:
            assert confirmed <= self.last_add_pushed, "what is confirmed was sent"
            proof = prove(self._digest, self.metadata.ledger_id, self._stamp, confirmed)
            for index, bookie_id in enumerate(self._members.bookies):
                if self._members.in_use >> index & 1:
                    self.effects.append(SendLastAddConfirmed(index, bookie_id, confirmed, proof))

    def add_fenced(self, term: int) -> None:
        """A bookie refused, because a client of this term recovers the ledger or took it over. Nothing is confirmed from here
        on (W4).

        While the ledger closes nothing is pending, and the metadata decides which client closed it (R1)."""
        if self._stage in _OPEN:
            self._fail(
                self._fenced("a bookie was told that it is deleted", LedgerDeletedError)
                if term == DELETED_TERM
                else self._fenced(f"fenced by term {term}", term=term)
            )

    def add_conflicting(self, index: int, bookie_id: str, batch: Batch) -> None:
        """A bookie has other bytes under this writer's own stamp (T3). In an unbounded ledger another client may have had the
        same term, if the record was rolled back between the two claims: their entries must not mix. Elsewhere the bookie is at
        fault."""
        assert batch.stamp == self._stamp, "a writer sends what has its own stamp"
        if not self.metadata.is_unbounded:
            self.bookie_failed(index, bookie_id, batch)
        elif self._stage in _OPEN:
            self._fail(undecided.rolled_back(self.metadata, self._stamp))

    # -- ensemble change ------------------------------------------------------------------------------------------

    def found_full(self, before: int) -> None:
        """All entries below this one are at their full write quorum, as their bookies say: the next proposal says so (W8)."""
        assert before <= self.metadata.last_fragment.first_entry_id, "only what is fixed is known to be full (F2, W8)"
        self._gaps.full_before = max(before, self._gaps.full_before)

    def roll(self) -> None:
        """Begins a new fragment behind the last add confirmed: a planned change, for which the placement may choose
        other bookies. Pending entries move along. During another change, and where the last fragment is empty, nothing
        happens."""
        if self._stage is _Stage.STEADY and self.last_add_confirmed >= self.metadata.last_fragment.first_entry_id:
            self._reshaping.is_planned = True
            for index in range(self.quorum.ensemble):
                self._members.fail(index)
            self._choose()

    def bookie_failed(self, index: int, bookie_id: str, batch: Batch | None = None) -> None:
        """This bookie refused, lost or did not answer something: the add of this batch, or another request. Never means "not
        written" (W4); but it may lack the batch, and does lack what it is not sent from now on (W7)."""
        if self._stage in _ENDING:
            return
        assert batch is None or batch.last_entry_id <= self.last_add_pushed, "only what was sent can fail"
        if self._members.bookies[index] != bookie_id:
            self._note_gap_of_former(index, bookie_id, batch)
            return
        self._gaps.failed(index, self.last_add_confirmed + 1 if batch is None else batch.first_entry_id)
        self._members.fail(index)
        self._choose()
        self._count()

    def _note_gap_of_former(self, index: int, bookie_id: str, batch: Batch | None) -> None:
        """An add to a bookie that was replaced has failed: it may lack the batch, if its fragment holds it (W7)."""
        assert self._members.bookies[index] != bookie_id, "the bookie that is there now is not a former member"
        # Where dozens of fragments were begun since, an audit finds what the bookie lacks, without a gap.
        if batch is None or not self.metadata.is_listed(batch.first_entry_id):
            return
        if self.metadata.fragment_of(batch.first_entry_id).ensemble[index] == bookie_id:
            self._gaps.failed_before(Gap(index, batch.first_entry_id, batch.last_entry_id))

    def bookies_changed(self) -> None:
        """Other bookies are available than before: try again to replace the missing ones."""
        if self._stage not in _ENDING and self.missing:
            self._members.retry_missing()
            self._choose()

    def _choose(self) -> None:
        if self._stage is _Stage.STEADY and self._members.failed:
            # From here on an entry may be in the old fragment here, and in the new one for others: it is confirmed only by
            # indices that have the same bookie in both (C9).
            self._move("a bookie failed")
            self.effects.append(self._members.choose(self.metadata))
            self._count()

    def _count(self) -> None:
        """Notes which indices count from now on (C1, C9), and confirms what these have acknowledged."""
        stage = self._stage
        if stage is _Stage.STEADY:
            counted = self._members.everybody
        elif stage in _OPEN and self.quorum.may_lack(self.unused):
            # A time-out ends nothing: the change may have been written, or may yet be (M1).
            counted = self._members.everybody & ~self._members.choosing
        else:
            counted = 0
        self._counted = counted
        if counted:
            self._complete()

    def replacements_chosen(self, chosen: Mapping[int, str]) -> None:
        """The placement's answer: a bookie for some of the failed indices. The same bookie again means: it is back."""
        if self._stage is not _Stage.CHOOSING:
            return
        is_planned = self._reshaping.is_planned
        if is_planned and len(chosen) < self._members.choosing.bit_count():
            # No bookie has failed: without others for all of them, all stay where they are.
            chosen = {index: each for index, each in enumerate(self.ensemble()) if self._members.choosing >> index & 1}
        self._reshaping.replaced = dict(chosen)
        if not is_planned and self._members.with_replacements(chosen) == self.ensemble():
            # There is nothing to write. But what failed is sent again all the same (C5).
            self._move("nothing differs")
            self._ensemble_durable(is_written=False)
        else:
            self._move("replacements chosen")
            self._propose_ensemble()

    def _propose_ensemble(self) -> None:
        last = self.last_add_confirmed
        assert last + 1 >= self.metadata.last_fragment.first_entry_id, "fragments ascend (C2)"
        fragment = Fragment(last + 1, self._members.with_replacements(self._reshaping.replaced), self._stamp)
        self._reshaping.propose(last + 1, self._newest_confirmed[0] or 0)
        gaps = [*self._gaps_until(last), *self._gaps.that_go_on(last, self._reshaping.replaced)]
        self._propose(self.metadata.full_to(self._gaps.full_before).with_fragment(fragment).with_gaps(gaps))

    def _gaps_until(self, last_entry_id: int) -> list[Gap]:
        return self._gaps.propose(self.metadata.ended_gaps, last_entry_id)

    def _ensemble_durable(self, *, is_written: bool) -> None:
        """All pending entries belong to the new fragment, even those that had their quorum in the old one (C5); and those that
        were confirmed since it was proposed (C9)."""
        first = self.metadata.last_fragment.first_entry_id if is_written else self.last_add_confirmed + 1
        replaced = self._reshaping.replaced
        kept_from, kept = self._reshaping.end(self.length)
        self._gaps.end(first - 1, replaced, is_written=is_written)
        resend = self._members.adopt(replaced)
        assert self.ensemble() == self.metadata.last_fragment.ensemble, (
            "the metadata names the bookies that are written to (C3)"
        )
        is_closing = self._stage is _Stage.CLOSING
        # A writer that closes sends nothing more.
        unsent_before = self.last_add_confirmed + 1 if is_closing else kept_from
        if is_written and first < unsent_before:
            for index in replaced:
                self._gaps.failed_before(Gap(index, first, unsent_before - 1))
        if is_closing:
            self._propose_close()
            return
        for pending in (*kept, *self._pending.values()):
            assert not pending.acknowledged & ~pending.write_mask, "only its write set acknowledges a batch (W1)"
            pending.acknowledged &= ~resend
            self._send(pending, resend & self._members.in_use)
        # Other indices may have failed during the change: they get one of their own.
        self._choose()
        self._count()

    # -- closing --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes the ledger at the last add confirmed (R1). Unconfirmed entries fail: their outcome is unknown, but no
        reader will see them. Flush first, to keep them."""
        if self._stage not in _OPEN:
            return
        self._gatherings.clear()
        self._pending.clear()
        self._counted = 0
        self._move("close")
        # Otherwise a change is under way and must be settled first: one CAS at a time.
        if self._stage is _Stage.CLOSING:
            self._propose_close()

    def _propose_close(self) -> None:
        last = self.last_add_confirmed
        assert self._stage is _Stage.CLOSING, "a writer closes once nothing else is proposed (R1)"
        size_bytes, last_sent_ns = self._newest_confirmed
        contents = Contents.of(last + 1, size_bytes, self._sent_ns[0], last_sent_ns)
        closed = self.metadata.with_gaps(self._gaps_until(last)).closed_at(last, contents)
        self._propose(closed.full_to(self._gaps.full_before))

    # -- what the metastore said ------------------------------------------------------------------------------------

    def metadata_silent(self, error: ReplogError) -> None:
        """The metastore did not answer in time, or could not. During a change it is asked again, as long as it takes: meanwhile
        entries are confirmed without the bookies that are being replaced (C9). The caller bounds how long a close may take."""
        if self._stage in _CHANGING:
            self.metadata_uncertain()
        else:
            super().metadata_silent(error)

    def metadata_missing(self) -> None:
        """The record is gone: another client deleted the ledger, for example by trimming a log that has a later leader."""
        if not self.is_done:
            self._fail(self._fenced("its record was deleted", LedgerDeletedError))

    def _lost(self, metadata: LedgerMetadata, proposed: LedgerMetadata) -> None:
        if metadata.state is LedgerState.CLOSED and metadata.last_entry_id == self.last_add_confirmed:
            self._finish_if_closing(metadata)
        elif metadata.state is not LedgerState.OPEN or not metadata.is_owned_by(proposed):
            self._fail(overtaken(metadata, self.unconfirmed))
        elif metadata.last_fragment == proposed.last_fragment and self._stage in _CHANGING:
            # The change was written, and then another client changed something that is not the writer's.
            self._settle()
        else:
            self._propose_again(metadata)

    def _settle(self) -> None:
        if self._stage in _CHANGING:
            self._move("change written")
            self._ensemble_durable(is_written=True)
        else:
            self._finish_if_closing(self.metadata)

    def _propose_again(self, metadata: LedgerMetadata) -> None:
        if metadata.last_fragment.ensemble != self.ensemble():
            problem = "another client changed the ensemble of an open ledger: this writer can't go on"
            self._fail(LedgerClosedError(self.metadata.ledger_id, problem, self.unconfirmed))
        elif self._stage is _Stage.CHANGING:
            # The ledger is still open: try again (C4).
            self._propose_ensemble()
        else:
            if self._stage is _Stage.CHANGING_LAST:
                self._move("change lost")
            self._propose_close()

    def _finish_if_closing(self, metadata: LedgerMetadata) -> None:
        if self._stage in _CLOSING:
            assert metadata.state is LedgerState.CLOSED, "a writer that is done leaves a closed ledger (R1)"
            self._move("closed")
            self.effects.append(Finished(metadata, self.version))
        else:
            self._fail(overtaken(metadata, self.unconfirmed))

    # -- failing --------------------------------------------------------------------------------------------------

    def _fenced(self, how: str, kind: type[FencedError] = FencedError, term: int | None = None) -> FencedError:
        return fenced(self.metadata.ledger_id, self.unconfirmed, how, kind, term)

    def _fail(self, error: ReplogError) -> None:
        self._counted = 0
        self._reshaping.end(self.length)
        self._move("failed")
        self._gatherings.clear()
        self._pending.clear()
        self.effects.append(Failed(error))

    def _move(self, event: str) -> None:
        self._stage = after(TRANSITIONS, self._stage, event)
