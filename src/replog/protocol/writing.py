"""The machine of a ledger's writer: adding, confirming, changing the ensemble, closing (rules W, C, R1).

Two rules for this file. Confirmation happens in one place, `_complete`, and never while the ensemble changes or the
ledger closes. A batch counts acknowledgements by index, and only from the bookie that metadata names there.

The actions are those of the published TLA+ model: add = WriterSendsAddEntryRequests, add_confirmed =
WriterReceivesAddConfirmedResponse, add_fenced = WriterReceivesAddFencedResponse, bookie_failed and what follows =
WriterChangesEnsemble, close = WriterClosesLedger.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping, Sequence

from replog.errors import FencedError, LedgerClosedError, ReplogError
from replog.protocol import batch as batches
from replog.protocol.batch import Batch
from replog.protocol.digest import Digest
from replog.protocol.effects import (
    ChooseReplacements,
    Confirmed,
    Failed,
    Finished,
    SendAdd,
    SendLastAddConfirmed,
)
from replog.protocol.gaps import Gap
from replog.protocol.machine import LedgerMachine
from replog.protocol.model import NO_ENTRY, Fragment, LedgerMetadata, LedgerState
from replog.protocol.pending import PendingBatch
from replog.protocol.proofs import prove


class _Gathering:
    """The batches that were built together, and confirm together: so the last add confirmed, and with it every
    fragment's first entry, stands at a batch boundary."""

    __slots__ = ("last_entry_id", "pending")

    def __init__(self, last_entry_id: int, pending: list[PendingBatch]) -> None:
        self.last_entry_id = last_entry_id
        self.pending = pending


class _Stage(enum.Enum):
    STEADY = enum.auto()
    CHOOSING = enum.auto()  # replacements are being chosen
    CHANGING = enum.auto()  # a new ensemble is being written to the metadata
    CLOSING = enum.auto()
    DONE = enum.auto()


class LedgerWriting(LedgerMachine):
    """One ledger's writer. `nonce` is unique to this machine (M1). Only the client that created the ledger makes one.

    `missing` has the indices whose bookies were away when the ledger was created, as a bit mask: they count as failed from
    the start, until `bookies_changed` (C7)."""

    def __init__(self, metadata: LedgerMetadata, version: int, digest: Digest, nonce: str, *, missing: int = 0) -> None:
        assert metadata.state is LedgerState.OPEN, "only the creator writes, and only an open ledger"
        assert metadata.quorum.may_lack(missing), "every write set can be written and recovered (C7)"
        super().__init__(metadata, version, nonce)
        self.last_add_pushed = NO_ENTRY
        self.last_add_confirmed = NO_ENTRY
        self.length = 0
        self.missing = missing  # indices that failed and could not be replaced, as a bit mask
        self._digest = digest
        self._ensemble = list(metadata.last_fragment.ensemble)
        self._ledger_id = metadata.ledger_id
        self._stamp = metadata.last_fragment.term  # each of this writer's fragments has it
        self._stride = self.quorum.stride
        self._write_masks = [self.quorum.write_mask(rotation) for rotation in range(self.quorum.ensemble)]
        self._write_sets = [self.quorum.write_set(rotation) for rotation in range(self.quorum.ensemble)]
        self._gatherings: deque[_Gathering] = deque()
        self._pending: dict[int, PendingBatch] = {}
        self._stage = _Stage.STEADY
        self._failed = 0  # indices whose failure waits for the change under way to end
        self._choosing = 0  # indices that the change under way is about
        self._replaced: dict[int, str] = {}
        self._close_wanted = False
        # what bookies lack (W7): since when, of those that failed; what is known of before, in the proposal and not yet in one
        self._lacking = {index: 0 for index in range(self.quorum.ensemble) if missing >> index & 1}
        self._proposed_lacking: dict[int, int] = {}
        self._proposed_gaps: list[Gap] = []
        self._new_gaps: list[Gap] = []

    # -- what the shell asks ------------------------------------------------------------------------------------

    @property
    def unconfirmed(self) -> range:
        """The ids that were added and not confirmed."""
        return range(self.last_add_confirmed + 1, self.last_add_pushed + 1)

    @property
    def is_changing(self) -> bool:
        """Whether completions are frozen by an ensemble change."""
        return self._stage in (_Stage.CHOOSING, _Stage.CHANGING)

    @property
    def is_done(self) -> bool:
        """Whether the machine finished or failed."""
        return self._stage is _Stage.DONE

    def ensemble(self) -> tuple[str, ...]:
        """The bookies that are written to, by index."""
        return tuple(self._ensemble)

    # -- adding ---------------------------------------------------------------------------------------------------

    def add(self, payloads: Sequence[bytes], timestamp_ns: int) -> None:
        """Adds entries, as one gathering: one batch for each write set (W1, W3)."""
        assert payloads, "a gathering has entries"
        assert self._stage not in (_Stage.CLOSING, _Stage.DONE), "closed writers add nothing"
        assert not self._close_wanted, "closing writers add nothing"
        first = self.last_add_pushed + 1
        self.length += sum(map(len, payloads))
        self.last_add_pushed += len(payloads)
        stride = self._stride
        pending = []
        for rotation in range(min(stride, len(payloads))):
            batch = batches.build(
                self._digest,
                ledger_id=self._ledger_id,
                first_entry_id=first + rotation,
                stride=stride,
                payloads=payloads if stride == 1 else payloads[rotation::stride],
                last_add_confirmed=self.last_add_confirmed,
                stamp=self._stamp,
                timestamp_ns=timestamp_ns,
                cumulative_length=self.length,
            )
            sent = PendingBatch(batch, self._write_masks[batch.first_entry_id % self.quorum.ensemble])
            self._pending[batch.first_entry_id] = sent
            pending.append(sent)
            self._send(sent, ~(self.missing | self._failed | self._choosing))
        self._gatherings.append(_Gathering(self.last_add_pushed, pending))

    def _send(self, pending: PendingBatch, indices: int) -> None:
        for index in self._write_sets[pending.batch.first_entry_id % len(self._ensemble)]:
            if indices >> index & 1:
                self._effects.append(SendAdd(index, self._ensemble[index], pending.batch))

    def add_confirmed(self, index: int, bookie_id: str, first_entry_id: int) -> None:
        """This bookie has made the batch that starts there durable. Late and foreign ones count for nothing (C6)."""
        pending = self._pending.get(first_entry_id)
        if pending is None or self._ensemble[index] != bookie_id or self._stage is _Stage.DONE:
            return
        pending.acknowledged |= 1 << index & pending.write_mask
        if self._stage is _Stage.STEADY:
            self._complete()

    def _complete(self) -> None:
        """Confirms what has its ack quorum and whose whole prefix has (W2)."""
        confirmed = self.last_add_confirmed
        ack = self.quorum.ack
        while self._gatherings:
            gathering = self._gatherings[0]
            for pending in gathering.pending:
                if pending.acknowledged.bit_count() < ack:
                    break
            else:
                self._gatherings.popleft()
                for pending in gathering.pending:
                    del self._pending[pending.batch.first_entry_id]
                confirmed = gathering.last_entry_id
                continue
            break
        if confirmed != self.last_add_confirmed:
            self.last_add_confirmed = confirmed
            self._effects.append(Confirmed(confirmed))

    def publish(self) -> None:
        """Tells the bookies the last add confirmed, though no entry follows that would carry it (W5)."""
        confirmed = self.last_add_confirmed
        if self._stage is _Stage.STEADY and confirmed != NO_ENTRY:
            proof = prove(self._digest, self._ledger_id, self._stamp, confirmed)
            for index in range(self.quorum.ensemble):
                if not self.missing >> index & 1:
                    self._effects.append(SendLastAddConfirmed(index, self._ensemble[index], confirmed, proof))

    def add_fenced(self, term: int) -> None:
        """A bookie refused: a client of this term recovers the ledger. Nothing is confirmed from here on (W4).

        While the ledger closes nothing is pending, and the metadata decides who closed it (R1)."""
        if self._stage not in (_Stage.DONE, _Stage.CLOSING) and not self._close_wanted:
            self._fail(self._fenced(f"fenced by term {term}"))

    # -- ensemble change ------------------------------------------------------------------------------------------

    def bookie_failed(self, index: int, bookie_id: str, batch: Batch | None = None) -> None:
        """This bookie refused, lost or did not answer something: the add of this batch, or another request. Never means "not
        written" (W4); but it may lack the batch, and does lack what it is not sent from now on (W7)."""
        if self._stage in (_Stage.DONE, _Stage.CLOSING):
            return
        if self._ensemble[index] != bookie_id:
            self._note_gap_of_former(index, bookie_id, batch)
            return
        first = self.last_add_confirmed + 1 if batch is None else batch.first_entry_id
        self._lacking[index] = min(first, self._lacking.get(index, first))
        bit = 1 << index
        if (self.missing | self._choosing) & bit:
            return
        self._failed |= bit
        self._choose()

    def bookies_changed(self) -> None:
        """Other bookies can be had than before: try again to replace what is missing."""
        if self._stage not in (_Stage.DONE, _Stage.CLOSING) and self.missing:
            self._failed |= self.missing
            self.missing = 0
            self._choose()

    def _choose(self) -> None:
        if self._stage is not _Stage.STEADY or not self._failed:
            return
        self._stage = _Stage.CHOOSING  # completions freeze from here (C1)
        self._choosing, self._failed = self._failed, 0
        failed = tuple(index for index in range(self.quorum.ensemble) if self._choosing >> index & 1)
        in_use = frozenset(bookie for index, bookie in enumerate(self._ensemble) if index not in failed)
        self._effects.append(ChooseReplacements(self.metadata, failed, in_use))

    def replacements_chosen(self, chosen: Mapping[int, str]) -> None:
        """The placement's answer: a bookie for some of the failed indices. The same bookie again means: it is back."""
        if self._stage is not _Stage.CHOOSING:
            return
        assert all(self._choosing >> index & 1 for index in chosen), "a replacement for what did not fail"
        self._replaced = dict(chosen)
        if all(self._ensemble[index] == bookie_id for index, bookie_id in chosen.items()):
            self._ensemble_durable()  # nothing differs, so nothing to write; what failed is sent again all the same (C5)
            return
        self._stage = _Stage.CHANGING
        self._propose_ensemble()

    def _propose_ensemble(self) -> None:
        ensemble = list(self._ensemble)
        for index, bookie_id in self._replaced.items():
            ensemble[index] = bookie_id
        assert len(set(ensemble)) == len(ensemble), "a bookie stands at one index only (C2)"
        last = self.last_add_confirmed
        gone_on = [
            Gap(index, max(first, last + 1)) for index, first in self._lacking.items() if index not in self._replaced
        ]
        gaps = [*self._gaps_until(last), *gone_on]
        fragment = Fragment(last + 1, tuple(ensemble), self._stamp)
        self._propose(self.metadata.with_fragment(fragment).with_gaps(gaps))

    def _ensemble_durable(self) -> None:
        """All pending entries belong to the new fragment, also those that had their quorum in the old one (C5)."""
        self._end_gaps(is_written=self._stage is _Stage.CHANGING)
        self._stage = _Stage.STEADY
        resend = 0
        for index, bookie_id in self._replaced.items():
            self._ensemble[index] = bookie_id
            resend |= 1 << index
        self.missing |= self._choosing & ~resend
        self._choosing, self._replaced = 0, {}
        for pending in self._pending.values():
            pending.acknowledged &= ~resend
            self._send(pending, resend & ~self._failed)
        if self._close_wanted:
            self._propose_close()
            return
        self._choose()  # what failed meanwhile
        if self._stage is _Stage.STEADY:
            self._complete()

    # -- what bookies lack (W7) -------------------------------------------------------------------------------------

    def _note_gap_of_former(self, index: int, bookie_id: str, batch: Batch | None) -> None:
        """An add to a bookie that was replaced has failed: it may lack the batch in the fragment in which it stands."""
        if batch is not None and self.metadata.fragment_of(batch.first_entry_id).ensemble[index] == bookie_id:
            self._new_gaps.append(Gap(index, batch.first_entry_id, batch.last_entry_id))

    def _gaps_until(self, last_entry_id: int) -> list[Gap]:
        """All gaps that are known, up to this entry, to be proposed."""
        self._proposed_gaps += self._new_gaps
        self._new_gaps = []
        self._proposed_lacking = dict(self._lacking)
        since = [Gap(index, first, last_entry_id) for index, first in self._lacking.items() if first <= last_entry_id]
        return [*self.metadata.ended_gaps, *self._proposed_gaps, *since]

    def _end_gaps(self, *, is_written: bool) -> None:
        """The gaps of indices that are replaced or back end at the last add confirmed: what is pending is sent to them. If a
        new fragment was written, the others begin again there."""
        last = self.last_add_confirmed
        if is_written:
            self._proposed_gaps = []
        for index, first in list(self._lacking.items()):
            if index not in self._replaced and not is_written:
                continue
            if first <= last and not (is_written and first >= self._proposed_lacking.get(index, last + 1)):
                self._new_gaps.append(Gap(index, first, last))
            if index in self._replaced:
                del self._lacking[index]
            else:
                self._lacking[index] = max(first, last + 1)

    # -- closing --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes the ledger at the last add confirmed (R1). Unconfirmed entries fail: their outcome is unknown, but
        nobody will read them. Flush first, to keep them."""
        if self._stage in (_Stage.CLOSING, _Stage.DONE) or self._close_wanted:
            return
        self._close_wanted = True
        self._gatherings.clear()
        self._pending.clear()
        if self._stage is not _Stage.CHANGING:  # else the change under way is settled first: one CAS at a time
            self._propose_close()

    def _propose_close(self) -> None:
        self._stage = _Stage.CLOSING
        last = self.last_add_confirmed
        self._propose(self.metadata.with_gaps(self._gaps_until(last)).closed_at(last))

    # -- what the metastore said ------------------------------------------------------------------------------------

    def _lost(self, metadata: LedgerMetadata, proposed: LedgerMetadata) -> None:
        if metadata.state is LedgerState.CLOSED and metadata.last_entry_id == self.last_add_confirmed:
            self._finish_if_closing(metadata)
        elif metadata.state is not LedgerState.OPEN:
            self._fail(self._deposed(metadata))
        elif metadata.last_fragment == proposed.last_fragment and self._stage is _Stage.CHANGING:
            self._settle()  # ours, and then somebody changed something that is not the writer's
        else:
            self._propose_again(metadata)

    def _settle(self) -> None:
        if self._stage is _Stage.CHANGING:
            self._ensemble_durable()
        else:
            self._finish_if_closing(self.metadata)

    def _propose_again(self, metadata: LedgerMetadata) -> None:
        if metadata.last_fragment.ensemble != tuple(self._ensemble):
            problem = "somebody else changed the ensemble of an open ledger: this writer can't go on"
            self._fail(LedgerClosedError(self.metadata.ledger_id, problem, self.unconfirmed))
        elif self._stage is _Stage.CHANGING and not self._close_wanted:
            self._propose_ensemble()  # state OPEN: try again (C4)
        else:
            self._propose_close()

    def _finish_if_closing(self, metadata: LedgerMetadata) -> None:
        if self._stage is _Stage.CLOSING or self._close_wanted:
            self._stage = _Stage.DONE
            self._effects.append(Finished(metadata, self.version))
        else:
            self._fail(self._deposed(metadata))

    # -- failing --------------------------------------------------------------------------------------------------

    def _deposed(self, metadata: LedgerMetadata) -> FencedError:
        if metadata.state is LedgerState.CLOSED:
            return self._fenced(f"somebody closed it at {metadata.last_entry_id}", LedgerClosedError)
        return self._fenced(f"found {metadata.state.value}")

    def _fenced(self, how: str, kind: type[FencedError] = FencedError) -> FencedError:
        unconfirmed = self.unconfirmed
        fate = "nothing was under way"
        if unconfirmed:
            fate = f"entries {unconfirmed[0]}..{unconfirmed[-1]} have an unknown fate: read them back after recovery"
        return kind(self.metadata.ledger_id, f"{how} (W4): this writer is deposed; {fate}", unconfirmed)

    def _fail(self, error: ReplogError) -> None:
        self._stage = _Stage.DONE
        self._gatherings.clear()
        self._pending.clear()
        self._effects.append(Failed(error))
