"""Known bugs, put back one by one: what proves that the simulator would find them.

A mutant is one or two changes of a method's text, applied to the class while a context lasts. A change whose old text
is not there exactly once is an error, so this table follows the code or fails. `seeds` is how many seeds, from 0 on, at
most are needed to find it. Chance finds some only once in some hundred seeds, and not always for the plain reason: for
these, `conversation` names a scripted schedule that shows the bug in one run.
"""

from __future__ import annotations

from replog.errors import LocalProtocolError
from replog.protocol.absence import Hearing
from replog.protocol.bookie import LedgerOnBookie
from replog.protocol.chaining import LogTakeover
from replog.protocol.compare_and_set import Change
from replog.protocol.fencing import Fencing
from replog.protocol.machine import LedgerMachine
from replog.protocol.quorum import Quorum
from replog.protocol.reading import LedgerReading
from replog.protocol.recovery import LedgerRecovery
from replog.protocol.writing import LedgerWriting
from replog.protocol.writing_back import WritingBack
from tests.simulator.bookies import SimulatedBookie
from tests.simulator.change_mutants import CHANGE_MUTANTS
from tests.simulator.disks import LedgerOnDisk
from tests.simulator.log_mutants import LOG_MUTANTS
from tests.simulator.loss_mutants import LOSS_MUTANTS
from tests.simulator.mutation import Mutant, Patch
from tests.simulator.readers import ReaderShell
from tests.simulator.recoveries import RecoveryShell
from tests.simulator.term_mutants import TERM_MUTANTS

MUTANTS = (
    Mutant(
        "too-few-negatives",
        "R4",
        "BOOKKEEPER-355, -365: one negative too few proves absence",
        (
            Patch(
                Hearing,
                "decide",
                "self._quorum.is_absent(self.entry_id, self.proven)",
                "self.proven.bit_count() >= max(1, self._quorum.negatives_needed - 1)",
            ),
        ),
        100,
        scenario="ledger",
        strategy="crashing",
    ),
    Mutant(
        "reads-dont-fence",
        "R4",
        "issue 2614 (X1): recovery reads look, but do not fence",
        (
            Patch(
                LedgerOnBookie,
                "_raise_marks",
                'confirmed, proof = -1, b""',
                "confirmed, proof = -1, b''\n    if isinstance(request, RecoveryReadRequest):\n        return None",
            ),
        ),
        1500,
        overlook=frozenset({"R3", "O10"}),
        scenario="ledger",
        strategy="patient",
        conversation="recovery-reads-fence-not",
    ),
    Mutant(
        "advancing-confirmed",
        "R5",
        "commit 5d69fdd (X6): recovery adds carry an advancing last add confirmed",
        (
            Patch(
                LedgerRecovery,
                "_advance",
                "    self._back.advance()",
                "    self._back.advance()\n    self._back._proof = self._prove(self._back.written_through)",
            ),
        ),
        150,
        scenario="ledger",
        conversation="confirmed-stays-frozen-not",
    ),
    Mutant(
        "ensemble-before-cas",
        "C3",
        "issue 1591 (X14): the new ensemble is used before the metadata names it",
        (
            Patch(
                LedgerWriting,
                "_propose_ensemble",
                ".with_fragment(fragment).with_gaps(gaps))",
                ".with_fragment(fragment).with_gaps(gaps))\n"
                "    self._change.written(self.version + 1)\n    self._settle()",
            ),
            Patch(
                LedgerMachine,
                "metadata_written",
                "if not self.is_done:",
                "if not self.is_done and self._change.proposed is not None:",
            ),
            Patch(
                LedgerMachine,
                "metadata_conflict",
                "if not self.is_done:",
                "if not self.is_done and self._change.proposed is not None:",
            ),
        ),
        60,
    ),
    Mutant(
        "replaced-acks-kept",
        "C5",
        "X5: acknowledgements of a replaced bookie stay counted",
        (Patch(LedgerWriting, "_ensemble_durable", "pending.acknowledged &= ~resend", "pass"),),
        120,
    ),
    Mutant(
        "late-acks-counted",
        "C6",
        "a late acknowledgement counts for the index, whoever stands there now",
        (Patch(LedgerWriting, "add_confirmed", " or self._members.bookies[index] != bookie_id", ""),),
        250,
        scenario="ledger",
        strategy="late",
    ),
    Mutant(
        "completion-during-change",
        "C1",
        "issues 3005, 4097, 4651 (X15): whoever acknowledged, entries are confirmed while the ensemble changes",
        (
            Patch(
                LedgerWriting,
                "_count",
                "if stage is _Stage.STEADY:",
                "if stage in _OPEN:",
            ),
        ),
        150,
        scenario="ledger",
        strategy="late",
    ),
    Mutant(
        "fragment-starts-late",
        "C2",
        "the new fragment starts one entry too late",
        (
            Patch(
                LedgerWriting,
                "_propose_ensemble",
                "Fragment(last + 1,",
                "Fragment(min(last + 2, self.last_add_pushed + 1),",
            ),
        ),
        120,
    ),
    Mutant(
        "confirmed-out-of-order",
        "W2",
        "an entry is confirmed at its own quorum, whatever lower ids are doing",
        (
            Patch(
                LedgerWriting,
                "add_confirmed",
                "        self._complete()",
                "        last = pending.batch.last_entry_id\n"
                "        if pending.acknowledged.bit_count() >= self.quorum.ack and last > self.last_add_confirmed:\n"
                "            self.last_add_confirmed = last\n            self.effects.append(Confirmed(last))",
            ),
        ),
        20,
    ),
    Mutant(
        "partial-gathering",
        "W2",
        "a gathering is confirmed when the first of its striped batches is",
        (
            Patch(
                LedgerWriting,
                "_complete",
                "if (pending.acknowledged & counted).bit_count() < ack:",
                "if (pending.acknowledged & counted).bit_count() < ack and pending is gathered[0]:",
            ),
        ),
        60,
    ),
    Mutant(
        "resend-other-bytes",
        "W3",
        "a resend builds the batch anew, with today's last add confirmed",
        (
            Patch(
                LedgerWriting,
                "_ensemble_durable",
                "        self._send(pending, resend & self._members.in_use)",
                "        old = pending.batch\n"
                "        pending.batch = batches.build(self._digest, ledger_id=old.ledger_id, stride=old.stride,\n"
                "            first_entry_id=old.first_entry_id, payloads=old.payloads(), stamp=old.stamp,\n"
                "            last_add_confirmed=self.last_add_confirmed, timestamp_ns=old.timestamp_ns,\n"
                "            cumulative_length=old.cumulative_length)\n"
                "        self._send(pending, resend & self._members.in_use)",
            ),
        ),
        120,
    ),
    Mutant(
        "writer-ignores-fenced",
        "W4",
        "a fenced writer goes on as if nothing had been said",
        (Patch(LedgerWriting, "add_fenced", "if self._stage in", "if False and self._stage in"),),
        20,
    ),
    Mutant(
        "recovery-ignored",
        "C4",
        "a writer whose ensemble change meets a recovery tries again, instead of giving up",
        (
            Patch(
                LedgerWriting,
                "_lost",
                "elif metadata.state is not LedgerState.OPEN or not metadata.is_owned_by(proposed):",
                "elif metadata.state is LedgerState.CLOSED:",
            ),
        ),
        200,
    ),
    Mutant(
        "close-without-freezing",
        "R1",
        "entries are confirmed between the closing CAS and its answer",
        (
            Patch(LedgerWriting, "close", "    self._gatherings.clear()\n    self._pending.clear()\n", ""),
            Patch(LedgerWriting, "close", "self._counted = 0", "self._counted = self._members.everybody"),
        ),
        300,
        scenario="ledger",
        strategy="metastore",
    ),
    Mutant(
        "uncertain-is-written",
        "M1",
        "a CAS whose answer was lost is taken for written",
        (
            Patch(
                LedgerMachine,
                "metadata_uncertain",
                "self.metadata_conflict()",
                "self.metadata_written(self.version + 1)",
            ),
        ),
        60,
        scenario="ledger",
        strategy="metastore",
    ),
    Mutant(
        "error-is-absence",
        "R4",
        "issue 2908 (X17): silence or damage counts as a negative",
        (Patch(Hearing, "cannot_tell", "self.unknown |= bit", "self.proven |= bit"),),
        200,
        scenario="ledger",
        strategy="doubtful",
    ),
    Mutant(
        "recovery-publishes-early",
        "R6",
        "X3: recovery's ensemble change is in the metadata before it closes",
        (
            Patch(
                LedgerRecovery,
                "replacements_chosen",
                "        self.effects += self._back.adopt(chosen)",
                "        self.effects += self._back.adopt(chosen)\n"
                "        if chosen and self._change.proposed is None:\n"
                "            self._propose(self.metadata.with_fragment(self._back.fragments[-1]))",
            ),
            Patch(
                LedgerRecovery,
                "_settle",
                "else:",
                "elif self._stage is not _Stage.CLOSING:\n"
                "        if self._stage is _Stage.WRITING:\n            self._close_when_written()\n    else:",
            ),
            Patch(
                LedgerRecovery,
                "_close_when_written",
                "if self._back.members.choosing or",
                "if self._change.proposed is not None or self._back.members.choosing or",
            ),
        ),
        120,
        overlook=frozenset({"R6"}),
    ),
    Mutant(
        "reads-changed-ensemble",
        "R9",
        "X4: recovery reads ask recovery's own new ensemble",
        (Patch(LedgerRecovery, "_ask", "frozen.ensemble[index]", "self._back.members.bookies[index]"),),
        450,
        scenario="ledger",
        strategy="doubtful",
        conversation="recovery-reads-frozen-ensemble-not",
    ),
    Mutant(
        "starts-behind-fragment",
        "R4",
        "issue 2615 (X2): recovery starts at the last add confirmed reported, before the last fragment",
        (
            Patch(
                LedgerRecovery,
                "_start_reading",
                "max(self._fencing.highest_proven, self._frozen.first_entry_id - 1)",
                "self._fencing.highest_proven",
            ),
        ),
        1300,
        scenario="ledger",
    ),
    Mutant(
        "written-back-once",
        "R4",
        "a recovered entry counts as written back with one copy",
        (Patch(WritingBack, "advance", "< self._quorum.ack", "< 1"),),
        250,
        scenario="ledger",
    ),
    Mutant(
        "recovery-resends-nothing",
        "R6",
        "recovery keeps the acknowledgements of bookies that it replaced",
        (Patch(WritingBack, "adopt", "pending.acknowledged &= ~resend", "pass"),),
        400,
        scenario="ledger",
        strategy="lossy",
    ),
    Mutant(
        "fence-forgotten",
        "R3",
        "BOOKKEEPER-500, -815: the fence is not durable, and a restart forgets it",
        (Patch(LedgerOnDisk, "raise_marks", "self.fence_term = max(self.fence_term, mutation.fence_term)", "pass"),),
        1200,
        overlook=frozenset({"R3", "O10"}),
        scenario="ledger",
        strategy="crashing",
        conversation="fence-survives-crash-not",
    ),
    Mutant(
        "answer-before-durable",
        "B1",
        "an add is acknowledged before it is synced",
        (
            Patch(
                SimulatedBookie,
                "handle",
                "    self._sync_next()",
                "    if isinstance(request, AddRequest) and accepted.refusal is None:\n"
                "        reply(ledger.answer(accepted))\n    self._sync_next()",
            ),
        ),
        20,
        overlook=frozenset({"B1"}),
    ),
    Mutant(
        "bare-number-counts",
        "R11",
        "recovery starts where one bookie's bare number says, and a reader's bound trusts it as well",
        (
            Patch(RecoveryShell, "_send_fence", "machine.proven(response.proof)", "response.last_add_confirmed"),
            Patch(ReaderShell, "_send_poll", "machine.proven(response.proof)", "response.last_add_confirmed"),
        ),
        20,
    ),
    *LOG_MUTANTS,
    Mutant(
        "negatives-carried-over",
        "R4",
        "who denied one entry counts as denying the next one, too",
        (
            Patch(
                LedgerRecovery,
                "_read_next",
                "self._hearing = Hearing(self.quorum, self._back.next_entry_id)",
                "before, self._hearing = self._hearing, Hearing(self.quorum, self._back.next_entry_id)\n"
                "    self._hearing.proven = before.proven & self._hearing.members",
            ),
        ),
        300,
        strategy="holes",
    ),
    Mutant(
        "any-password-will-do",
        "B7",
        "a bookie does not look at the password of adds and fences",
        (Patch(LedgerOnBookie, "_refusal", "if not is_known and self.is_foreign(request.key) and", "if False and"),),
        40,
    ),
    *CHANGE_MUTANTS,
    *LOSS_MUTANTS,
    Mutant(
        "closed-elsewhere-is-closed",
        "R1",
        "a writer that closes takes a ledger that ends elsewhere for closed by itself",
        (Patch(LedgerWriting, "_lost", " and metadata.last_entry_id == self.last_add_confirmed", ""),),
        300,
        strategy="closing",
    ),
    Mutant(
        "found-is-own",
        "M1",
        "a record that somebody else created first is taken for one's own",
        (
            Patch(
                Change,
                "read_back",
                "if record.token == self.proposed.token else",
                "if record.token == self.proposed.token or self.version is None else",
            ),
            # The machine's own assertion would find it at once: the simulator must find what follows.
            Patch(
                LogTakeover,
                "_won",
                'assert self.metadata.segments[-1].ledger_id == self._ledger_id, "the log names the ledger (L1)"',
                "pass",
            ),
        ),
        300,
        strategy="founding",
    ),
    Mutant(
        "reads-past-end",
        "R7",
        "a reader takes what it got for confirmed",
        (
            Patch(LedgerReading, "_accept", "        and entry_id <= self.last_readable\n", ""),
            Patch(LedgerReading, "_accept", "_heard(batch.last_add_confirmed)", "_heard(batch.last_entry_id)"),
        ),
        80,
    ),
)

# What changes nothing that anybody could see, and why.
EQUIVALENT = (
    Mutant(
        "token-ignored",
        "M1",
        "An ambiguous CAS that was written is taken for lost. Every machine has a second look, because a change may be"
        " followed by somebody else's before it is read back: the writer compares the last fragment or the end, a takeover"
        " and a roll look for their ledger in the list, a recovery adopts what it finds.",
        (
            Patch(
                Change,
                "read_back",
                "Settled.WRITTEN if record.token == self.proposed.token else Settled.LOST",
                "Settled.LOST",
            ),
        ),
        0,
    ),
    Mutant(
        "unanswered-fence-counts",
        "R2",
        "A bookie that could not be fenced counts as fenced. Recovery reads fence as well (R4), and absence is decided by who was"
        " read from; the fencing phase only finds a better place to start.",
        (
            Patch(
                Fencing,
                "is_enough",
                "self._quorum.is_covered(self.fenced)",
                "self._quorum.is_covered(self.fenced | absences.unreachable)",
            ),
        ),
        0,
    ),
    Mutant(
        "fence-cover-in-total",
        "R2",
        "Fences are counted in total instead of for each write set. Recovery reads fence as well (R4), and a negative"
        " counts only from the write set of its entry; the fencing phase only finds a better place to start.",
        (
            Patch(
                Quorum,
                "is_covered",
                "all(self.is_absent(rotation, indices) for rotation in range(self.ensemble))",
                "indices.bit_count() >= self.negatives_needed",
            ),
        ),
        0,
    ),
)


def mutant_named(name: str) -> Mutant:
    """The mutant of this name."""
    for mutant in (*MUTANTS, *TERM_MUTANTS, *EQUIVALENT):
        if mutant.name == name:
            return mutant
    raise LocalProtocolError(f"no mutant {name!r}; known: {', '.join(mutant.name for mutant in MUTANTS)}")
