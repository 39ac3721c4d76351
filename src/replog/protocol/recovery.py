"""The machine of a ledger's recovery: fence, find the last entry, write back, close (rules R2-R12, W7, B8a).

Generous on positive results, strict on negative ones: one valid copy proves that an entry exists; that it does not
exist needs the denials that `absence` asks for. Anything else is unknown, and never shortens a ledger. While nothing can
be decided the machine waits: for a bookie to be reached, to tell more, or to be declared lost, until the shell gives up (R12).

Fencing and reading ask the ensemble as it stood when recovery began (`_frozen`), never a later one (R9). Writing back goes to the
private ensemble, which becomes visible only in the closing CAS.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import attrs

from replog.errors import (
    FencedError,
    NotEnoughBookiesError,
    RecoveryUndecidedError,
    ReplogError,
)
from replog.protocol.absence import Absences, Hearing, Verdict
from replog.protocol.batch import Batch
from replog.protocol.digest import Digest
from replog.protocol.effects import (
    AwaitSilentBookies,
    ChooseReplacements,
    Failed,
    Finished,
    SendAdd,
    SendFence,
    SendRecoveryRead,
)
from replog.protocol.lacking import RecoveryGaps
from replog.protocol.machine import LedgerMachine
from replog.protocol.messages import Denial
from replog.protocol.model import RECOVERY_TERM, Fragment, LedgerMetadata, LedgerState
from replog.protocol.pending import PendingBatch
from replog.protocol.proofs import prove, proven

_PENDING_MAX = 4  # batches of each rotation on their way back


class _Stage(enum.Enum):
    NEW = enum.auto()
    CLAIMING = enum.auto()  # the state IN_RECOVERY is being written
    FENCING = enum.auto()
    READING = enum.auto()
    CLOSING = enum.auto()
    DONE = enum.auto()


class LedgerRecovery(LedgerMachine):
    """One attempt to recover a ledger. `nonce` is unique to it (M1). Any number may run at once (R6).

    With `is_loss_accepted` it closes the ledger although confirmed entries may be gone with what bookies lost (R10)."""

    def __init__(
        self, metadata: LedgerMetadata, version: int, digest: Digest, nonce: str, *, is_loss_accepted: bool = False
    ) -> None:
        super().__init__(metadata, version, nonce)
        self.recovered_entries = 0
        self._digest = digest
        self._stage = _Stage.NEW
        # who can be asked
        self._absences = Absences(is_loss_accepted=is_loss_accepted)
        self._is_waiting_for_silent = False
        # fencing
        self._fenced = 0
        self._highest_reported = -1
        self.frozen_last_add_confirmed = -1
        self._frozen_proof = b""
        # reading
        self._frozen = metadata.last_fragment
        self._next_entry_id = 0
        self._is_reading = False
        self._hearing = Hearing(self.quorum, 0)
        self._last_entry_id: int | None = None
        self._covered: dict[int, int] = {}  # by rotation: the last id that a recovered batch holds
        # writing back
        self._pending: dict[int, PendingBatch] = {}
        self._written_through = -1  # every id up to here is at its ack quorum
        self._fragments: list[Fragment] = []  # the private ones, that the closing CAS adds
        self._ensemble: list[str] = []
        self._choosing = 0
        self._failed = 0
        self._missing = 0
        self._gaps = RecoveryGaps(self.quorum)

    # -- what the shell asks ------------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Whether the machine finished or failed."""
        return self._stage is _Stage.DONE

    def start(self) -> None:
        """Claims the ledger for recovery, or finds it closed."""
        assert self._stage is _Stage.NEW
        self._claim()

    def _claim(self) -> None:
        if self.metadata.state is LedgerState.CLOSED:
            self._finish()
        elif self.metadata.state is LedgerState.IN_RECOVERY:
            self._fence()  # somebody else recovers it too, or died doing so: they don't hinder each other (T2)
        else:
            self._stage = _Stage.CLAIMING
            claimed = attrs.evolve(self.metadata, state=LedgerState.IN_RECOVERY, term=RECOVERY_TERM)
            self._propose(claimed)

    # -- fencing --------------------------------------------------------------------------------------------------

    def _fence(self) -> None:
        self._stage = _Stage.FENCING
        self._frozen = self.metadata.last_fragment
        self._effects += [SendFence(index, bookie_id) for index, bookie_id in enumerate(self._frozen.ensemble)]

    def proven(self, proof: bytes) -> int:
        """The last add confirmed that a bookie's answer proves. Raises `RemoteProtocolError`: then it is no answer (R11)."""
        return proven(proof, self._digest, self.metadata)

    def fence_confirmed(self, index: int, last_add_confirmed: int) -> None:
        """The fence is durable on this index; its answer proved this last add confirmed (R2, R3, R11)."""
        self._absences.answered(index)
        if self._stage is not _Stage.FENCING:
            return
        self._fenced |= 1 << index
        self._highest_reported = max(self._highest_reported, last_add_confirmed)
        self._read_when_fenced()

    def _read_when_fenced(self) -> None:
        """Goes on to reading once no ack quorum of a write set can accept adds any more (R2). Where bookies were declared
        lost, all others must be fenced (B8a)."""
        others = self._everybody & ~self._absences.lost
        if self._absences.lost and self._fenced & others != others:
            return
        if self.quorum.is_covered(self._fenced) or (self._absences.lost and self._absences.is_loss_accepted):
            self._start_reading()
        elif self._absences.lost:
            self._entries_may_be_gone(self._absences.lost)

    @property
    def _everybody(self) -> int:
        return (1 << self.quorum.ensemble) - 1

    def _start_reading(self) -> None:
        self._stage = _Stage.READING
        # The fragments before the last are complete: only here may anything be missing (R4).
        start = max(self._highest_reported, self._frozen.first_entry_id - 1)
        self.frozen_last_add_confirmed = start  # written with every recovered batch, and never advanced (R5)
        self._frozen_proof = self._prove(start)
        self._written_through = start
        self._next_entry_id = start + 1
        self._ensemble = list(self._frozen.ensemble)
        self._read_next()

    def _prove(self, last_add_confirmed: int) -> bytes:
        stamp = self.metadata.fragment_of(last_add_confirmed).term
        return prove(self._digest, self.metadata.ledger_id, stamp, last_add_confirmed)

    # -- reading --------------------------------------------------------------------------------------------------

    def _read_next(self) -> None:
        self._is_reading = True
        self._hearing = Hearing(self.quorum, self._next_entry_id)
        for index in self.quorum.write_set(self._next_entry_id):
            if not (self._absences.unreachable | self._absences.lost) >> index & 1:
                self._ask(index)
        self._decide()  # if nobody can be reached, all that can be known is known

    def _ask(self, index: int) -> None:
        frozen = self._frozen
        self._effects.append(SendRecoveryRead(index, frozen.ensemble[index], self._next_entry_id, frozen.term))

    def is_wanted(self, effect: SendFence | SendRecoveryRead) -> bool:
        """Whether an answer to this could still matter: else it need not be asked again."""
        if isinstance(effect, SendFence):
            return self._stage is _Stage.FENCING and not self._fenced >> effect.index & 1
        return self._is_asked(effect.entry_id)

    def read_found(self, index: int, entry_id: int, batch: Batch) -> None:
        """This index has a batch that holds the entry. One valid copy is proof; a bad one is doubt (R4)."""
        self._absences.answered(index)
        if not self._is_asked(entry_id):
            return
        if not self._is_valid(batch, entry_id):
            self.read_unknown(index, entry_id)
            return
        self._write_back(batch)
        rotation = entry_id % self.quorum.stride
        self._covered[rotation] = batch.last_entry_id
        before = self._next_entry_id
        while self._covered.get(self._next_entry_id % self.quorum.stride, -1) >= self._next_entry_id:
            self._next_entry_id += 1
        self.recovered_entries += self._next_entry_id - before
        self._read_when_written()

    def _is_valid(self, batch: Batch, entry_id: int) -> bool:
        return (
            batch.ledger_id == self.metadata.ledger_id
            and batch.stamp == self._frozen.term
            and batch.stride == self.quorum.stride
            and batch.holds(entry_id)
            and batch.verify(self._digest)
        )

    def read_absent(self, index: int, entry_id: int, denial: Denial = Denial.PROVEN) -> None:
        """This index has no such entry and, being fenced, never will; `denial` says how far it vouches for that."""
        self._absences.answered(index)
        if self._is_asked(entry_id):
            self._hearing.denies(index, denial)
            self._decide()

    def read_unknown(self, index: int, entry_id: int) -> None:
        """This index answered, and could not tell: damage, an I/O error. It may be asked again."""
        self._absences.answered(index)
        if self._is_asked(entry_id):
            self._hearing.cannot_tell(index)
            self._decide()

    def _decide(self) -> None:
        if not self._is_reading:
            return
        verdict = self._hearing.decide(self._absences)
        if verdict is Verdict.ABSENT:
            self._last_entry_id = self._hearing.entry_id - 1
            self._is_reading = False
            self._close_when_written()
        elif verdict is Verdict.LOST:
            self._entries_may_be_gone(self._hearing.losers(self._absences))
        elif verdict is Verdict.WAIT and not self._is_waiting_for_silent:
            self._is_waiting_for_silent = True
            has_answered = self._absences.await_silent(self._hearing.silent(self._absences))
            self._effects.append(AwaitSilentBookies(has_answered))

    def _is_asked(self, entry_id: int) -> bool:
        return self._stage is _Stage.READING and self._is_reading and entry_id == self._next_entry_id

    def _read_when_written(self) -> None:
        """Reads on while few batches are on their way back: what is in memory stays bounded."""
        self._is_reading = len(self._pending) <= _PENDING_MAX * self.quorum.stride
        if self._is_reading:
            self._read_next()

    # -- who can be asked -------------------------------------------------------------------------------------------

    def bookie_unreachable(self, index: int) -> None:
        """This index of the frozen ensemble refuses connections, or is not announced: it is not waited for."""
        self._absences.unreachable |= 1 << index & ~self._absences.lost
        if self._stage is _Stage.READING:
            self._decide()

    def bookie_reachable(self, index: int) -> None:
        """This index can be asked again: it gets what it was not asked, or could not answer (R12)."""
        self._absences.unreachable &= ~(1 << index)
        if self._stage is _Stage.FENCING and not self._fenced >> index & 1:
            self._effects.append(SendFence(index, self._frozen.ensemble[index]))
        elif self._is_asked(self._next_entry_id) and self._hearing.members >> index & 1:
            self._ask(index)

    def bookie_declared_lost(self, index: int, *, is_loss_accepted: bool) -> None:
        """An operator declared this index of the frozen ensemble lost for good: it never serves again (B8a). With
        `is_loss_accepted` they know that confirmed entries may be gone with it and others."""
        self._absences.lost |= 1 << index
        self._absences.unreachable &= ~(1 << index)
        self._absences.is_loss_accepted |= is_loss_accepted
        if self._stage is _Stage.FENCING:
            self._read_when_fenced()
        elif self._stage is _Stage.READING:
            self._decide()

    def silent_awaited(self) -> None:
        """Silent bookies were waited for as long as `AwaitSilentBookies` asks: those that answered nothing meanwhile are not
        waited for again (R10). Who answers one question after the other is not silent, however long the recovery takes."""
        self._is_waiting_for_silent = False
        self._absences.patience_ended()
        if self._stage is _Stage.READING:
            self._decide()

    def give_up(self, after_s: float) -> None:
        """The deadline has passed: fails, and names the bookies that are needed (R12, W6)."""
        if self.lacks_bookies and not self.is_done:
            self._fail(self._not_enough_bookies())
        elif not self.is_done:
            self._undecided(f"{self._what_is_missing()} Recovery went on for {after_s:g} s")

    def _what_is_missing(self) -> str:
        if self._stage is _Stage.FENCING:
            needed = self._names(self._everybody & ~(self._fenced | self._absences.lost))
            return f"{needed} could not be fenced, and without them an ack quorum may still accept adds (R2)."
        if self._stage is not _Stage.READING or not self._is_reading:
            return "The metastore or the bookies that recovered entries are written to did not answer."
        hearing, absences = self._hearing, self._absences
        clauses = [
            (hearing.members & absences.unreachable & ~hearing.heard, "could not be reached"),
            (hearing.silent(absences), "did not answer"),
            (hearing.unknown, "could not tell (damage or an I/O error)"),
            (hearing.losers(absences) & ~absences.lost, "know that their storage lost something (B8)"),
            (hearing.weak & ~hearing.losers(absences), "cannot prove that their storage is complete (B8)"),
        ]
        reasons = "; ".join(f"{self._names(members)} {what}" for members, what in clauses if members)
        return f"Entry {hearing.entry_id} is neither found nor proven absent: {reasons} (R4, R10)."

    def _entries_may_be_gone(self, losers: int) -> None:
        first = self._hearing.entry_id if self._stage is _Stage.READING else self._frozen.first_entry_id
        problem = (
            f"Confirmed entries from {first} on may be gone: {self._names(losers)} lost what they stored, or were declared lost, "
            f"and {self.quorum.ack} of a write set are an ack quorum (R10)"
        )
        advice = (
            "The ledger stays in recovery and nothing was cut. Bring the data of one of them back, or accept the loss: "
            f"recover_ledger({self.metadata.ledger_id}, accept_loss=True), "
            f"or replog ledger recover {self.metadata.ledger_id} --accept-loss"
        )
        self._fail(RecoveryUndecidedError(self.metadata.ledger_id, f"{problem}. {advice}", self._bookies(losers)))

    # -- writing back ---------------------------------------------------------------------------------------------

    def _write_back(self, batch: Batch) -> None:
        pending = PendingBatch(batch, self.quorum.write_mask(batch.first_entry_id))
        self._pending[batch.first_entry_id] = pending
        self._send(pending, ~(self._failed | self._choosing | self._missing))

    def _send(self, pending: PendingBatch, indices: int) -> None:
        for index in self.quorum.write_set(pending.batch.first_entry_id):
            if indices >> index & 1:
                self._gaps.sent(index, self._ensemble[index], pending.batch)
                self._effects.append(SendAdd(index, self._ensemble[index], pending.batch, True, self._frozen_proof))

    def add_confirmed(self, index: int, bookie_id: str, first_entry_id: int) -> None:
        """A written-back batch is durable there. Counts only from the bookie that now stands at that index (C6)."""
        self._gaps.taken(index, bookie_id, first_entry_id)
        pending = self._pending.get(first_entry_id)
        if pending is None or self._stage is not _Stage.READING or self._ensemble[index] != bookie_id:
            return
        pending.acknowledged |= 1 << index & pending.write_mask
        if not self._choosing:
            self._advance()

    def _advance(self) -> None:
        """Lets go of batches that lie wholly in the prefix at its ack quorum: only they can't need another ensemble."""
        through = dict(self._covered)
        for pending in self._pending.values():
            if pending.acknowledged.bit_count() < self.quorum.ack:
                rotation = pending.batch.first_entry_id % self.quorum.stride
                through[rotation] = min(through[rotation], pending.batch.first_entry_id - 1)
        # The first id, by rotation, that is not known to be at its quorum; the lowest of them ends the prefix.
        self._written_through = max(self._written_through, self._prefix_end(through))
        done = [
            first for first, pending in self._pending.items() if pending.batch.last_entry_id <= self._written_through
        ]
        for first in done:
            del self._pending[first]
        if self._last_entry_id is not None:
            self._close_when_written()
        elif not self._is_reading:
            self._read_when_written()

    def _prefix_end(self, through: Mapping[int, int]) -> int:
        end = self._written_through
        while end + 1 < self._next_entry_id and through.get((end + 1) % self.quorum.stride, -1) >= end + 1:
            end += 1
        return end

    def bookie_failed(self, index: int, bookie_id: str, first_entry_id: int | None = None) -> None:
        """A bookie did not take the written-back batch that starts there: it is replaced in the private ensemble (R6)."""
        self._gaps.failed(index, bookie_id, first_entry_id)
        bit = 1 << index
        if self._stage is not _Stage.READING or self._ensemble[index] != bookie_id:
            return
        if not (self._missing | self._choosing) & bit:
            self._failed |= bit
            self._choose()

    def _choose(self) -> None:
        if self._choosing or not self._failed or self._stage is not _Stage.READING:
            return
        self._choosing, self._failed = self._failed, 0
        failed = tuple(index for index in range(self.quorum.ensemble) if self._choosing >> index & 1)
        in_use = frozenset(bookie for index, bookie in enumerate(self._ensemble) if index not in failed)
        private = attrs.evolve(self.metadata, fragments=(Fragment(0, tuple(self._ensemble)),))
        self._effects.append(ChooseReplacements(private, failed, in_use))

    def replacements_chosen(self, chosen: Mapping[int, str]) -> None:
        """The placement's answer: the private ensemble changes at the first id that is not yet at its quorum."""
        if self._stage is not _Stage.READING or not self._choosing:
            return
        resend = 0
        for index, bookie_id in chosen.items():
            assert self._choosing >> index & 1, "a replacement for what did not fail"
            self._ensemble[index] = bookie_id
            resend |= 1 << index
        assert len(set(self._ensemble)) == self.quorum.ensemble, "a bookie stands at one index only (C2)"
        self._missing |= self._choosing & ~resend
        self._choosing = 0
        if chosen:
            self._add_private_fragment()
        for pending in self._pending.values():
            pending.acknowledged &= ~resend
            self._send(pending, resend & ~self._failed)
        self._choose()
        if not self._choosing:
            self._advance()

    @property
    def lacks_bookies(self) -> bool:
        """Whether recovered entries cannot reach their ack quorum until bookies are back or others come (R12)."""
        return not self.quorum.may_acknowledge(self._everybody & ~self._missing)

    def bookies_changed(self) -> None:
        """Other bookies may be had than before: tries again to replace what is missing."""
        if self._stage is _Stage.READING and self._missing:
            self._failed |= self._missing
            self._missing = 0
            self._choose()

    def _not_enough_bookies(self) -> ReplogError:
        problem = (
            f"ledger {self.metadata.ledger_id}: {self._names(self._missing, self._ensemble)} failed while recovered "
            "entries were written back, and nothing can replace them; it stays in recovery: retry when bookies are back"
        )
        return NotEnoughBookiesError(problem, self.quorum.ensemble, self._ensemble)

    def _add_private_fragment(self) -> None:
        fragment = Fragment(self._written_through + 1, tuple(self._ensemble), self._frozen.term)
        if self._fragments and self._fragments[-1].first_entry_id == fragment.first_entry_id:
            self._fragments.pop()
        self._fragments.append(fragment)

    # -- closing --------------------------------------------------------------------------------------------------

    def _close_when_written(self) -> None:
        if self._stage is not _Stage.READING or self._last_entry_id is None or self._choosing:
            return
        if self._written_through >= self._last_entry_id:
            self._stage = _Stage.CLOSING
            self._propose_close()

    def _propose_close(self) -> None:
        assert self._last_entry_id is not None
        closing = self.metadata
        for fragment in self._fragments:
            closing = closing.with_fragment(fragment)
        gaps = self._gaps.all(closing, self.frozen_last_add_confirmed, self._last_entry_id)
        self._propose(closing.with_gaps(gaps).closed_at(self._last_entry_id))

    # -- what the metastore said ------------------------------------------------------------------------------------

    def _lost(self, metadata: LedgerMetadata, proposed: LedgerMetadata) -> None:
        if metadata.state is LedgerState.CLOSED:
            self._finish()  # somebody else was first: what the metadata says is the truth (R6)
        elif self._stage is _Stage.CLAIMING:
            self._claim()
        elif metadata.last_fragment == self._frozen and metadata.state is LedgerState.IN_RECOVERY:
            self._propose_close()
        else:
            self._undecided("its fragments changed during recovery")

    def _settle(self) -> None:
        if self._stage is _Stage.CLAIMING:
            self._fence()
        else:
            self._finish()

    def _finish(self) -> None:
        self._stage = _Stage.DONE
        self._effects.append(Finished(self.metadata, self.version))

    # -- failing --------------------------------------------------------------------------------------------------

    def refused(self, fence_term: int) -> None:
        """A bookie holds a fence above the recovery term: this is no bounded ledger's recovery to make (T1)."""
        if self._stage is not _Stage.DONE:
            self._fail(
                FencedError(self.metadata.ledger_id, f"a bookie is fenced at term {fence_term}, above recovery's")
            )

    def _undecided(self, problem: str) -> None:
        advice = (
            "The ledger stays in recovery and nothing was cut: retry when these bookies are back. One that never comes back "
            "can be declared lost: replog bookies lost"
        )
        needed = self._everybody & ~(self._fenced | self._absences.lost)
        if self._stage is _Stage.READING:
            needed = self._hearing.members & ~(self._hearing.proven | self._absences.lost)
        self._fail(RecoveryUndecidedError(self.metadata.ledger_id, f"{problem}. {advice}", self._bookies(needed)))

    def _fail(self, error: ReplogError) -> None:
        self._stage = _Stage.DONE
        self._pending.clear()
        self._effects.append(Failed(error))

    def _bookies(self, indices: int, ensemble: Sequence[str] | None = None) -> tuple[str, ...]:
        return tuple(each for index, each in enumerate(ensemble or self._frozen.ensemble) if indices >> index & 1)

    def _names(self, indices: int, ensemble: Sequence[str] | None = None) -> str:
        return ", ".join(self._bookies(indices, ensemble)) or "nobody"
