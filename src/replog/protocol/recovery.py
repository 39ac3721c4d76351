"""The machine of a ledger's recovery: fence, find the last entry, write back, close or go on (rules R2-R12, T2, W7, B8a).

Generous on positive results, strict on negative ones: one valid copy proves that an entry exists; that it does not
exist needs the denials that `absence` asks for. Anything else is unknown, and never shortens a ledger. While nothing can
be decided the machine waits: for a bookie to be reached, to answer more, or to be declared lost, until the shell gives up (R12).

Its parts: `fencing` (which members are fenced), `absence` (what denials say), `writing_back` (the private ensemble, W7),
`undecided` (the errors).

Invariants:

- Fencing and reading ask the ensemble as it was when recovery began (`_frozen`), never a later one (R9).
- Nothing is read before enough members are fenced (R2). A read fences as well (R4).
- One entry is asked for at a time, in READING only: the first one that no recovered batch holds.
- The end is decided once, and is not below an entry that was found (R4).
- The ledger is closed, or opened for this client's term, when everything up to the end is at its ack quorum (R6).
- Nothing is opened by a client that lost its claim: the term and its owner in the record must still be its own (T2, M1).
- From DONE on, every call changes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from replog.errors import LedgerDeletedError, LedgerFinishedError, ReplogError
from replog.protocol import undecided
from replog.protocol.absence import Absences, Hearing, Verdict
from replog.protocol.batch import Batch
from replog.protocol.digest import Digest
from replog.protocol.effects import (
    AwaitSilentBookies,
    Failed,
    Finished,
    ReadMetadata,
    SendFence,
    SendRecoveryRead,
)
from replog.protocol.fencing import Fencing
from replog.protocol.machine import LedgerMachine
from replog.protocol.messages import Denial
from replog.protocol.model import NO_ENTRY, LedgerMetadata, LedgerState
from replog.protocol.mutations import DELETED_TERM
from replog.protocol.proofs import is_outlived, is_qualified, prove, proven, read_claim
from replog.protocol.stages import Transitions, after, from_each
from replog.protocol.writing_back import WritingBack


class _Stage(enum.Enum):
    NEW = enum.auto()
    CLAIMING = enum.auto()  # the state IN_RECOVERY is being written
    FENCING = enum.auto()
    READING = enum.auto()  # the next entry is asked for
    PAUSED = enum.auto()  # reading goes on when fewer batches are on their way back
    WRITING = enum.auto()  # the end is known; the entries found are being written back
    CLOSING = enum.auto()
    DONE = enum.auto()


_COPYING = (_Stage.READING, _Stage.PAUSED, _Stage.WRITING)

TRANSITIONS: Transitions[_Stage] = {
    **from_each((_Stage.NEW, _Stage.CLAIMING), "found open", _Stage.CLAIMING),
    **from_each((_Stage.NEW, _Stage.CLAIMING), "found in recovery", _Stage.FENCING),
    (_Stage.CLAIMING, "claimed"): _Stage.FENCING,
    (_Stage.FENCING, "enough fenced"): _Stage.READING,
    (_Stage.READING, "enough on their way back"): _Stage.PAUSED,
    (_Stage.PAUSED, "some written back"): _Stage.READING,
    (_Stage.READING, "end found"): _Stage.WRITING,
    (_Stage.WRITING, "all written back"): _Stage.CLOSING,
    (_Stage.CLOSING, "closed"): _Stage.DONE,
    **from_each((_Stage.NEW, _Stage.CLAIMING, _Stage.CLOSING), "found closed", _Stage.DONE),
    **from_each((each for each in _Stage if each is not _Stage.DONE), "failed", _Stage.DONE),
}


class LedgerRecovery(LedgerMachine):
    """One attempt to recover a ledger. `nonce` is unique to it (M1). Any number may run at once (R6).

    With `is_loss_accepted` it ends even if confirmed entries may be gone with what bookies lost (R10). With `takes_over` it
    does not close the ledger, which must be unbounded, but opens it for the writer of a new term."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        version: int,
        digest: Digest,
        nonce: str,
        *,
        is_loss_accepted: bool = False,
        takes_over: bool = False,
    ) -> None:
        assert metadata.is_unbounded or not takes_over, "only an unbounded ledger has further terms"
        super().__init__(metadata, version, nonce)
        self._nonce = nonce
        self._takes_over = takes_over
        self._claimed = metadata  # the record with this client's claim, once it is written
        self._are_members_checked = False  # whether the bookies of the new term's first fragment are known to be there
        self._higher_term = 0  # a fence that a bookie holds above this client's term, while the record is read again
        self._digest = digest
        self._stage = _Stage.NEW
        self._absences = Absences(is_loss_accepted=is_loss_accepted)
        self._is_waiting_for_silent = False
        self._frozen = metadata.last_fragment
        self._fencing = Fencing(self.quorum)
        self._hearing = Hearing(self.quorum, 0)
        self._last_entry_id: int | None = None
        self._back = WritingBack(self.quorum, self._frozen, -1, b"")

    # -- what the shell asks ------------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """True if the machine finished or failed."""
        return self._stage is _Stage.DONE

    @property
    def term(self) -> int:
        """The term of this client's requests, once it has claimed the ledger."""
        return self._claimed.term

    @property
    def missing(self) -> int:
        """The indices of the new term's ensemble whose bookies are away, as a bit mask (C7)."""
        return self._back.members.missing

    @property
    def frozen_last_add_confirmed(self) -> int:
        """The last entry that was known to be confirmed when recovery began to read (R5)."""
        return self._back.start

    @property
    def recovered_entries(self) -> int:
        """How many entries were found behind that."""
        return self._back.next_entry_id - self._back.start - 1

    @property
    def lacks_bookies(self) -> bool:
        """True if recovered entries cannot reach their ack quorum until bookies are back or others come (R12)."""
        if self._takes_over and self._are_members_checked:
            return not self.quorum.may_lack(self.missing)
        return not self.quorum.may_acknowledge((1 << self.quorum.ensemble) - 1 & ~self.missing)

    def proven(self, proof: bytes) -> int:
        """The last add confirmed that a bookie's answer proves. Raises `RemoteProtocolError`: then it is not an answer (R11)."""
        # Bookies keep their highest proof. One of a lost term may be it for long: then they know nothing, but they are fenced.
        if proof and self.metadata.is_unbounded and is_outlived(read_claim(proof), self.metadata):
            return NO_ENTRY
        confirmed = proven(proof, self._digest, self.metadata)
        # Another client that wrote under this client's term, before it wrote anything, claimed the term from a record
        # that was lost since.
        if proof and not self.is_done and self.metadata.is_unbounded:
            stamp = read_claim(proof).stamp
            if not is_qualified(stamp, self.metadata) and stamp >= self.term:
                self._fail(undecided.rolled_back(self.metadata, stamp))
        return confirmed

    def is_wanted(self, effect: SendFence | SendRecoveryRead) -> bool:
        """True if an answer to this could still matter; otherwise it need not be asked again."""
        if isinstance(effect, SendFence):
            return self._stage is _Stage.FENCING and not self._fencing.is_fenced(effect.index)
        return self._is_asked(effect.entry_id)

    # -- claiming and fencing -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Claims the ledger for recovery, or finds it closed."""
        assert self._stage is _Stage.NEW, "a recovery starts once"
        self._claim()

    def _claim(self) -> None:
        if self.metadata.state is LedgerState.CLOSED:
            self._finish("found closed")
        elif self.metadata.state is LedgerState.IN_RECOVERY and not self.metadata.is_unbounded:
            # Somebody else recovers it too, or died doing so: both have the same term, and don't hinder each other (T2).
            self._claimed = self.metadata
            self._move("found in recovery")
            self._fence()
        else:
            self._move("found open")
            self._propose(self.metadata.claimed(self._nonce), is_claim=True)

    def _fence(self) -> None:
        assert self.metadata.state is LedgerState.IN_RECOVERY, "a ledger is claimed before it is fenced"
        self._frozen = self.metadata.last_fragment
        self.effects += [SendFence(index, bookie_id) for index, bookie_id in enumerate(self._frozen.ensemble)]

    def fence_confirmed(self, index: int, last_add_confirmed: int) -> None:
        """The fence is durable on this index; its answer proved this last add confirmed (R2, R3, R11)."""
        self._absences.answered(index)
        assert last_add_confirmed >= NO_ENTRY, "what is proven is an entry, or nothing"
        if self._stage is _Stage.FENCING:
            self._fencing.confirm(index, last_add_confirmed)
            self._read_when_fenced()

    def _read_when_fenced(self) -> None:
        if self._fencing.is_enough(self._absences):
            self._start_reading()
        elif self._fencing.cannot_be_enough(self._absences):
            self._fail(
                undecided.entries_may_be_gone(
                    self.metadata.ledger_id, self._frozen, self._frozen.first_entry_id, self.quorum, self._absences.lost
                )
            )

    def _start_reading(self) -> None:
        self._move("enough fenced")
        # The fragments before the last are complete: only here may anything be missing (R4).
        start = max(self._fencing.highest_proven, self._frozen.first_entry_id - 1)
        # Written with every recovered batch, and never advanced (R5).
        self._back = WritingBack(self.quorum, self._frozen, start, self._prove(start))
        self._read_next()

    def _prove(self, last_add_confirmed: int) -> bytes:
        assert last_add_confirmed >= NO_ENTRY, "only an entry, or nothing, can be proven"
        stamp = self.metadata.fragment_of(last_add_confirmed).term
        return prove(self._digest, self.metadata.ledger_id, stamp, last_add_confirmed)

    # -- reading --------------------------------------------------------------------------------------------------

    def _read_next(self) -> None:
        assert self._stage is _Stage.READING, "entries are asked for in READING only"
        self._hearing = Hearing(self.quorum, self._back.next_entry_id)
        for index in self.quorum.write_set(self._hearing.entry_id):
            if not (self._absences.unreachable | self._absences.lost) >> index & 1:
                self._ask(index)
        # If no bookie can be reached, all that can be known is known already.
        self._decide()

    def _ask(self, index: int) -> None:
        assert self._hearing.members >> index & 1, "only members of the write set are asked"
        frozen, entry_id = self._frozen, self._hearing.entry_id
        self.effects.append(SendRecoveryRead(index, frozen.ensemble[index], entry_id, frozen.term))

    def _is_asked(self, entry_id: int) -> bool:
        return self._stage is _Stage.READING and entry_id == self._hearing.entry_id

    def read_found(self, index: int, entry_id: int, batch: Batch) -> None:
        """This index has a batch that holds the entry. One valid copy is proof; a bad one is doubt (R4)."""
        self._absences.answered(index)
        if not self._is_asked(entry_id):
            return
        if not (
            batch.ledger_id == self.metadata.ledger_id
            and batch.stamp == self._frozen.term
            and batch.stride == self.quorum.stride
            and batch.holds(entry_id)
            and batch.verify(self._digest)
        ):
            # A copy that does not verify says nothing: the bookie may hold the entry, and be damaged.
            self.read_unknown(index, entry_id)
            return
        self.effects += self._back.add(batch)
        assert self._back.next_entry_id > entry_id, "an entry that was found is not asked for again"
        # What is in memory stays bounded: a long ledger is not read faster than it is written back.
        if self._back.is_full:
            self._move("enough on their way back")
        else:
            self._read_next()

    def read_absent(self, index: int, entry_id: int, denial: Denial = Denial.PROVEN) -> None:
        """This index has no such entry and, being fenced, never will; `denial` says how far it vouches for that."""
        self._absences.answered(index)
        if self._is_asked(entry_id):
            self._hearing.denies(index, denial)
            self._decide()

    def read_unknown(self, index: int, entry_id: int) -> None:
        """This index answered with doubt: damage, or an I/O error. It may be asked again."""
        self._absences.answered(index)
        if self._is_asked(entry_id):
            self._hearing.cannot_tell(index)
            self._decide()

    def _decide(self) -> None:
        if self._stage is not _Stage.READING:
            return
        assert self._hearing.entry_id == self._back.next_entry_id, "denials are of the entry that comes next"
        verdict = self._hearing.decide(self._absences)
        if verdict is Verdict.ABSENT:
            assert self._last_entry_id is None, "the end is decided once"
            self._last_entry_id = self._hearing.entry_id - 1
            self._move("end found")
            self._close_when_written()
        elif verdict is Verdict.LOST:
            losers = self._hearing.losers(self._absences)
            self._fail(
                undecided.entries_may_be_gone(
                    self.metadata.ledger_id, self._frozen, self._hearing.entry_id, self.quorum, losers
                )
            )
        elif verdict is Verdict.WAIT and not self._is_waiting_for_silent:
            self._is_waiting_for_silent = True
            # A bookie that has answered before gets the whole wait again: it is slow, not silent.
            has_answered = self._absences.await_silent(self._hearing.silent(self._absences))
            self.effects.append(AwaitSilentBookies(has_answered))

    # -- which bookies can be asked -------------------------------------------------------------------------------------------

    def bookie_unreachable(self, index: int) -> None:
        """This index of the frozen ensemble refuses connections, or is not announced: it is not waited for."""
        assert index < self.quorum.ensemble, "only members of the frozen ensemble are asked (R9)"
        # A bookie that was declared lost stays lost, and is in one of the two masks only (B8a).
        self._absences.unreachable |= 1 << index & ~self._absences.lost
        self._decide()

    def bookie_reachable(self, index: int) -> None:
        """This index can be asked again: it gets what it was not asked, or could not answer (R12)."""
        self._absences.unreachable &= ~(1 << index)
        if self._stage is _Stage.FENCING and not self._fencing.is_fenced(index):
            self.effects.append(SendFence(index, self._frozen.ensemble[index]))
        elif self._stage is _Stage.READING and self._hearing.members >> index & 1:
            self._ask(index)

    def bookie_declared_lost(self, index: int, *, is_loss_accepted: bool) -> None:
        """An operator declared this index of the frozen ensemble permanently lost: it never serves again (B8a). With
        `is_loss_accepted` they know that confirmed entries may be gone with it and others."""
        assert index < self.quorum.ensemble, "only members of the frozen ensemble count (R9)"
        self._absences.lost |= 1 << index
        self._absences.unreachable &= ~(1 << index)
        self._absences.is_loss_accepted |= is_loss_accepted
        if self._stage is _Stage.FENCING:
            self._read_when_fenced()
        else:
            self._decide()

    def silent_awaited(self) -> None:
        """Silent bookies were waited for as long as `AwaitSilentBookies` asks: those that answered nothing meanwhile are not
        waited for again (R10). A bookie that answers one question after the other is not silent, however long the recovery
        takes."""
        self._is_waiting_for_silent = False
        self._absences.patience_ended()
        self._decide()

    # -- writing back ---------------------------------------------------------------------------------------------

    def add_confirmed(self, index: int, bookie_id: str, first_entry_id: int) -> None:
        """A written-back batch is durable there. Counts only from the bookie that is at that index now (C6)."""
        self._back.confirm(index, bookie_id, first_entry_id)
        self._advance()

    def bookie_failed(self, index: int, bookie_id: str, first_entry_id: int | None = None) -> None:
        """A bookie did not take the written-back batch that starts there: it is replaced in the private ensemble (R6)."""
        self._back.fail(index, bookie_id, first_entry_id)
        self._choose()

    def bookies_changed(self) -> None:
        """Other bookies may be available than before: tries again to replace the missing ones."""
        if self._stage in _COPYING:
            self._back.members.retry_missing()
            self._choose()

    def _choose(self) -> None:
        members = self._back.members
        if self._stage in _COPYING and members.failed and not members.choosing:
            self.effects.append(self._back.choose(self.metadata))

    def replacements_chosen(self, chosen: Mapping[int, str]) -> None:
        """The placement's answer: a bookie for some of the failed indices. The same bookie again means: it is back."""
        if self._stage in _COPYING and self._back.members.choosing:
            self.effects += self._back.adopt(chosen)
            self._choose()
            self._advance()

    def _advance(self) -> None:
        if self._stage not in _COPYING or self._back.members.choosing:
            return
        self._back.advance()
        if self._stage is _Stage.WRITING:
            self._close_when_written()
        elif self._stage is _Stage.PAUSED and not self._back.is_full:
            self._move("some written back")
            self._read_next()

    # -- closing --------------------------------------------------------------------------------------------------

    def _close_when_written(self) -> None:
        assert self._last_entry_id is not None, "the end is known"
        assert self._last_entry_id >= self._back.start, "what is known to be confirmed is not cut off"
        if self._back.members.choosing or self._back.written_through < self._last_entry_id:
            return
        # With a higher fence somewhere, the record that is being read ends this client, regardless of other findings (T1).
        if self._higher_term or (self._takes_over and not self._are_members_there()):
            return
        self._move("all written back")
        self._propose_end()

    def _are_members_there(self) -> bool:
        """True if the new term can be written: of its bookies only as many are away as may be (C7). Otherwise others are
        chosen."""
        members = self._back.members
        if not self._are_members_checked:
            self._are_members_checked = True
            # A bookie that has not answered anything can't be written to either. Behind the end nothing depends on
            # which bookies are asked.
            for index, bookie_id in enumerate(self._frozen.ensemble):
                if members.bookies[index] == bookie_id and not self._absences.is_there(index):
                    members.fail(index)
            self._choose()
        return not members.choosing and self.quorum.may_lack(members.missing)

    def _propose_end(self) -> None:
        assert self._last_entry_id is not None, "the end is known"
        record, last = self.metadata, self._last_entry_id
        self._propose(self._back.opened(record, last) if self._takes_over else self._back.closed(record, last))

    def _lost(self, metadata: LedgerMetadata, proposed: LedgerMetadata) -> None:
        if metadata.state is LedgerState.CLOSED:
            # Somebody else was first: what the metadata says is the truth, even if it ends elsewhere (R6).
            self._finish("found closed")
        elif metadata.is_unbounded and metadata.is_owned_by(proposed) and metadata.state is proposed.state:
            # The change was written, and then another client changed something else.
            self._settle()
        elif self._stage is _Stage.CLAIMING:
            self._claim()
        elif not metadata.is_owned_by(self._claimed):
            self._fail(undecided.deposed(self._claimed, metadata))
        # A repair may change earlier fragments meanwhile. The last one was fenced and read: only it must be the same (R9).
        elif metadata.last_fragment == self._frozen and metadata.state is LedgerState.IN_RECOVERY:
            self._propose_end()
        else:
            self._undecided("its fragments changed during recovery")

    def _settle(self) -> None:
        if self._stage is _Stage.CLAIMING:
            self._claimed = self.metadata
            self._move("claimed")
            self._fence()
        else:
            self._finish("closed")

    def _finish(self, how: str) -> None:
        if self._takes_over and self.metadata.state is LedgerState.CLOSED:
            last = self.metadata.last_entry_id
            self._fail(
                LedgerFinishedError(
                    self.metadata.ledger_id, f"it was finished at entry {last}: no client can write to it"
                )
            )
            return
        ending = LedgerState.OPEN if self._takes_over else LedgerState.CLOSED
        assert self.metadata.state is ending, "a recovery ends with a closed ledger, or with one that is open for it"
        self._move(how)
        self.effects.append(Finished(self.metadata, self.version))

    # -- failing --------------------------------------------------------------------------------------------------

    def refused(self, fence_term: int) -> None:
        """A bookie holds a fence above this client's term: another client has taken the ledger over, or the record was rolled
        back. The record says which (T1)."""
        if self.is_done or self._higher_term:
            return
        if fence_term == DELETED_TERM:
            self._fail(LedgerDeletedError(self.metadata.ledger_id, "it was deleted while it was recovered"))
            return
        self._higher_term = fence_term
        # While a change is under way, the record is read anyway if another client changed it.
        if self._change.proposed is None:
            self.effects.append(ReadMetadata(self.metadata.ledger_id))

    def metadata_read(self, metadata: LedgerMetadata, version: int) -> None:
        """The record as it was read: after a conflict or a lost answer, or since a bookie holds a higher fence."""
        if self._higher_term and not self.is_done and self._change.proposed is None:
            if metadata.is_owned_by(self._claimed):
                self._fail(undecided.rolled_back(self.metadata, self._higher_term))
            else:
                self._fail(undecided.deposed(self._claimed, metadata))
        else:
            super().metadata_read(metadata, version)

    def give_up(self, after_s: float) -> None:
        """The deadline has passed: fails, and names the bookies that are needed (R12, W6)."""
        if self.is_done:
            return
        if self.lacks_bookies:
            self._fail(undecided.not_enough_bookies(self.metadata.ledger_id, self._back.members))
            return
        if self._stage is _Stage.FENCING:
            problem = undecided.why_not_fenced(self._fencing.awaited(self._absences), self._frozen.ensemble)
        elif self._stage is _Stage.READING:
            problem = undecided.why_undecided(self._hearing, self._absences, self._frozen.ensemble)
        else:
            problem = "The metastore or the bookies that recovered entries are written to did not answer."
        self._undecided(f"{problem} Recovery went on for {after_s:g} s")

    def _undecided(self, problem: str) -> None:
        needed = self._fencing.awaited(self._absences)
        if self._stage in _COPYING:
            needed = self._hearing.members & ~(self._hearing.proven | self._absences.lost)
        bookies = undecided.bookies_at(needed, self._frozen.ensemble)
        self._fail(undecided.undecided(self.metadata.ledger_id, problem, bookies))

    def _fail(self, error: ReplogError) -> None:
        self._move("failed")
        self.effects.append(Failed(error))

    def _move(self, event: str) -> None:
        self._stage = after(TRANSITIONS, self._stage, event)
