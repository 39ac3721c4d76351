"""Known bugs of shells, put back one by one: what proves that the simulation of the shells would find them.

Most were made, and mended, while replog was written, or are the classic ones of such systems. `seeds` is how many seeds,
from 0 on, at most are needed to find each.
"""

from __future__ import annotations

import attrs

from replog.bookie import garbage, maintenance, serving
from replog.bookie.groups import Committer
from replog.bookie.server import BookieServer
from replog.client.ledger_writer import LedgerWriter
from replog.client.ledgers import Ledgers
from replog.client.recovering import RecoveringShell
from replog.client.scan import LedgerScan, _Queries
from replog.client.sending import BatchSender
from replog.client.writer_background import Watching
from replog.errors import LocalProtocolError
from replog.log import log_driver, retention, trimming
from replog.log.log_driver import LogDriver
from replog.log.log_reader import LogReader
from replog.log.log_writer import LogWriter
from replog.log.producers import Producers
from replog.protocol.appending import LogAppending
from replog.protocol.filling import LedgerFilling
from replog.protocol.model import LogMetadata
from replog.protocol.writing import LedgerWriting
from replog.repair.completion import _Progress
from replog.repair.relocation import Relocation
from tests.simulator.change_mutants import CHANGE_MUTANTS
from tests.simulator.mutation import Mutant, Patch

SHELL_MUTANTS = (
    Mutant(
        "acknowledged-before-durable",
        "B1",
        "the group commit answers a group when the one before it is durable",
        (
            Patch(
                Committer,
                "_commit_mutations",
                "        self.storage.commit(mutations)",
                "        late, self.late = getattr(self, 'late', []), list(mutations)\n"
                "        self.storage.commit(late)",
            ),
        ),
        3,
    ),
    Mutant(
        "fence-answered-early",
        "R3",
        "a fence is answered when it is accepted, not when it is durable",
        (
            Patch(
                BookieServer,
                "_accept",
                "    known = ledger.last_add_confirmed",
                "    if type(request).__name__ == 'FenceRequest':\n"
                "        accepted = ledger.accept(request)\n"
                "        reply([ledger.answer(accepted, [])])\n"
                "        self._commits.put(ledger, accepted, lambda responses: None, size_bytes)\n"
                "        return\n"
                "    known = ledger.last_add_confirmed",
            ),
        ),
        3,
    ),
    Mutant(
        "any-answer-counts",
        "W2",
        "a bookie that refuses an add is counted as one that stored it",
        (
            Patch(
                BatchSender,
                "_add_answered",
                "answer.status is Status.OK",
                "answer.status is not Status.FENCED",
            ),
        ),
        12,
        strategy="disks",
    ),
    Mutant(
        "published-too-early",
        "W5",
        "the last add pushed is published as the last add confirmed",
        (
            Patch(
                Watching,
                "_look",
                "is_idle = not backlog.in_flight and self._sent_at_look == machine.last_add_pushed",
                "is_idle = True",
            ),
            Patch(
                BatchSender,
                "_send_last_add_confirmed",
                "identity.term, effect.proof",
                "identity.term, __import__('replog.protocol.proofs').protocol.proofs.prove(\n"
                "    self._machine._digest, identity.ledger_id, 1, self.backlog.last_add_pushed)",
            ),
        ),
        12,
        strategy="network",
    ),
    Mutant(
        "bare-number-counts",
        "R11",
        "recovery starts where one bookie's bare number says, and a reader's bound trusts it as well",
        (
            Patch(
                RecoveringShell,
                "_problem_with",
                "self._machine.proven(answer.proof)",
                "answer.last_add_confirmed",
            ),
            Patch(_Queries, "_heard", "self._state.machine.proven(answer.proof)", "answer.last_add_confirmed"),
        ),
        5,
    ),
    Mutant(
        "failure-taken-for-confirmed",
        "W4",
        "an append that was woken by its writer's failure returns as if it was confirmed",
        (
            Patch(
                LedgerWriter,
                "append",
                "    if self._entries.backlog.confirmed < entry_id:\n        self._entries.check_usable()\n",
                "",
            ),
        ),
        5,
    ),
    Mutant(
        "conflict-taken-for-written",
        "L1",
        "a leader serves though its change of the log's record met a conflict",
        (
            Patch(
                LogDriver,
                "_write",
                "machine.log_conflict()",
                "machine.log_written((expected or 0) + 1)",
            ),
        ),
        4,
    ),
    Mutant(
        "deleted-before-cas",
        "L3",
        "trimming deletes the ledgers, and changes the log's record a while later",
        (
            Patch(
                trimming,
                "trim",
                "    with suppress(LogNotFoundError):",
                "    metadata, _ = await driver.records.get(name)\n"
                "    for segment in metadata.segments:\n"
                "        if segment.number < before.segment:\n"
                "            await ledgers.delete(segment.ledger_id)\n"
                "    await trio.sleep(1)\n"
                "    with suppress(LogNotFoundError):",
            ),
        ),
        5,
        strategy="crashes",
    ),
    Mutant(
        "believes-any-metastore",
        "B6a",
        "garbage collection does not compare the metastore with what the bookie has seen of it",
        (
            Patch(maintenance, "collect_garbage", "    await bookie.guard.raise_counter()\n", ""),
            Patch(garbage, "drop_absent", "        await bookie.guard.check()\n", "        pass\n"),
        ),
        3,
        strategy="went-back",
    ),
    Mutant(
        "garbage-listed-first",
        "B6",
        "garbage collection lists the metadata, which takes a while, then what is here, and does not look again",
        (
            Patch(
                maintenance,
                "collect_garbage",
                "    here = await bookie.call(bookie.storage.ledger_ids)\n",
                "    from replog.records.ledgers import list_ledger_ids\n"
                "    import trio\n"
                "    listed = await list_ledger_ids(metastore)\n"
                "    await trio.sleep(0.1)\n"
                "    here = await bookie.call(bookie.storage.ledger_ids)\n",
            ),
            Patch(
                maintenance,
                "collect_garbage",
                "dropped += await drop_absent(candidates[start : start + DROPS_MAX], bookie, metastore)",
                "for each in candidates[start : start + DROPS_MAX]:\n"
                "            await bookie.drop(each)\n"
                "            dropped.append(each)",
            ),
            Patch(
                maintenance,
                "collect_garbage",
                "await _candidates(here, metastore)",
                "[each for each in here if each not in listed]",
            ),
        ),
        5,
    ),
    Mutant(
        "cancelled-read-loses",
        "L6",
        "a read that is cancelled just when it has taken entries out loses them",
        (
            Patch(
                LedgerScan,
                "take",
                "await trio.lowlevel.cancel_shielded_checkpoint()",
                "await trio.lowlevel.checkpoint()",
            ),
        ),
        15,
    ),
    Mutant(
        "reader-skips-segments",
        "L6",
        "a reader that is several ledgers behind goes on with the last one",
        (
            Patch(
                LogReader,
                "_open_next",
                "begins_at = None if self._place is None else self._begins_at",
                "begins_at = None if self._place is None else self._begins_at\n"
                "        if self._metadata is not None and begins_at is not None and not begins_at.entry:\n"
                "            begins_at = max(begins_at, Position(self._metadata.next_segment_number - 1, 0))",
            ),
        ),
        3,
    ),
    Mutant(
        "page-not-written",
        "L3",
        "the log's record leaves segments out, and nobody writes their page",
        (
            Patch(
                LogDriver,
                "_write_page",
                'await self._store.persist(f"creating {key}", lambda: self._store.metastore.create(key, value))',
                "pass",
            ),
        ),
        5,
    ),
    Mutant(
        "deleting-forgets-numbers",
        "L4",
        "what a deleted log leaves behind begins with segment 1 again",
        (
            Patch(
                LogMetadata,
                "deleted",
                "first_segment_number=self.next_segment_number,\n"
                "        trimmed_to=Position(self.next_segment_number, 0),",
                "first_segment_number=1,\n        next_segment_number=1,\n        trimmed_to=Position(1, 0),",
            ),
        ),
        5,
    ),
    Mutant(
        "reader-leaves-early",
        "L6",
        "a reader goes on to the next ledger as soon as somebody recovers this one",
        (
            Patch(
                LogReader,
                "_at_end_of_known",
                "if scan.is_at_end:",
                "if scan.is_at_end or scan.metadata.state is not LedgerState.OPEN:",
            ),
        ),
        3,
    ),
    Mutant(
        "transaction-forgotten",
        "M1",
        "a transaction is committed again by who repeats it",
        (Patch(LogMetadata, "has_committed", "each.number >= transaction.number", "each.number > transaction.number"),),
        3,
    ),
    Mutant(
        "clock-not-confirmed",
        "L3a",
        "a leader drops what is old by its own clock, whatever the bookies' clocks say",
        (Patch(retention, "retain", "first = without_age", "pass"),),
        2,
        strategy="clocks",
    ),
    Mutant(
        "told-while-open",
        "L10",
        "a committer is told that its ledgers are added while the leader that added them may not know it yet",
        (Patch(LogAppending, "_settle", "if before:", "if False:"),),
        4,
        strategy="requests",
    ),
    Mutant(
        "told-when-disturbed",
        "L10",
        "a committer that fails to look for a moment says that its ledgers are added, though the leader may not know it yet",
        (
            Patch(log_driver, "_at_last", "except TransientError:", "except ():"),
            Patch(log_driver, "_may_have_changed", "except TransientError:", "except ():"),
        ),
        40,
        strategy="requests",
    ),
    Mutant(
        "unknown-is-absence",
        "R4",
        "a bookie that can't read an entry is counted as one that does not have it",
        (
            Patch(
                RecoveringShell,
                "_problem_with",
                "answer.status in DENIALS:",
                "answer.status in DENIALS or answer.status is Status.UNKNOWN:",
            ),
            Patch(
                RecoveringShell,
                "_problem_with",
                "DENIALS[answer.status]",
                "DENIALS.get(answer.status, DENIALS[Status.NO_ENTRY])",
            ),
        ),
        30,
        strategy="orphans",
    ),
    Mutant(
        "confirmed-not-frozen",
        "R5",
        "what a recovery writes back says that as much is confirmed as the batch says",
        (
            Patch(
                RecoveringShell,
                "_send_add",
                "effect.proof",
                "__import__('replog.protocol.proofs').protocol.proofs.prove(\n"
                "    self._machine._digest, self._ledger_id, 1, effect.batch.last_add_confirmed)",
            ),
        ),
        16,
        strategy="orphans",
    ),
    Mutant(
        "confirmed-runs-ahead",
        "R5",
        "what a recovery writes back says that it is confirmed itself",
        (
            Patch(
                RecoveringShell,
                "_send_add",
                "effect.proof",
                "__import__('replog.protocol.proofs').protocol.proofs.prove(\n"
                "    self._machine._digest, self._ledger_id, 1, effect.batch.last_entry_id)",
            ),
        ),
        5,
        strategy="orphans",
    ),
    Mutant(
        "any-password-opens",
        "B7",
        "a client does not check a ledger's password before it opens it",
        (
            Patch(
                Ledgers,
                "authorize",
                "if ledger_key_check(key) != metadata.key_check:",
                "if False:",
            ),
        ),
        6,
    ),
    Mutant(
        "doubt-not-bounded",
        "B8",
        "a bookie serves before it has found out which ledgers existed when its storage lost something",
        (
            Patch(
                serving,
                "settle_doubt",
                "if server.storage.doubt().is_unbounded and not server.guard.problem:",
                "if False:",
            ),
        ),
        2,
        strategy="forgetful",
    ),
    Mutant(
        "gaps-not-recorded",
        "W7",
        "a writer does not record at its end what a bookie lacks that was away",
        (Patch(LedgerWriting, "_propose_close", ".with_gaps(self._gaps_until(last))", ""),),
        16,
        strategy="burning",
    ),
    Mutant(
        "full-without-asking-again",
        "W8",
        "what could not be copied counts as full",
        (
            Patch(
                _Progress,
                "filled",
                "elif short and (result.refusals or any(each.entries != each.nowhere for each in result.lacking)):",
                "elif False:",
            ),
        ),
        3,
        strategy="full",
    ),
    Mutant(
        "adds-in-doubt",
        "B8",
        "a bookie that may have lost a ledger's fence takes plain adds to that ledger",
        (Patch(BookieServer, "ledger", "not self.doubt.takes_adds(ledger_id)", "False"),),
        1,
        strategy="forgetful",
    ),
    Mutant(
        "weak-denial-as-strong",
        "B8",
        "a bookie whose storage may have forgotten an entry answers a recovery read as if it could vouch",
        (Patch(Committer, "_look_up", ", denial=self.storage.doubt().denial(ledger_id)", ""),),
        2,
        strategy="forgetful",
    ),
    Mutant(
        "repairer-fences",
        "F2",
        "a repairer stores copies with the term of a recovery",
        (
            Patch(
                LedgerFilling,
                "_store",
                "SendCopy(bookie_id, batch, self.metadata.term)",
                "SendCopy(bookie_id, batch, 2)",
            ),
        ),
        1,
        strategy="repairs",
    ),
    Mutant(
        "lost-keeps-its-place",
        "F1",
        "a repair fills what is there, and leaves a bookie in its place that was declared lost",
        (Patch(Relocation, "without", "gone = {*bookies.lost, *bookies.draining,", "gone = {*bookies.draining,"),),
        1,
        strategy="repairs",
    ),
    Mutant(
        "ids-behind-the-record-unread",
        "L11",
        "a new leader knows only the ids of the record, and not those of the segments behind it",
        (Patch(Producers, "_read_behind", "for segment in found:", "for segment in found[:0]:"),),
        5,
        strategy="repeats",
    ),
    Mutant(
        "repetition-answered-early",
        "L11",
        "a repetition of an append in flight is answered before the first one is confirmed",
        (Patch(LogWriter, "_wait_confirmed", "last_add_confirmed < position.entry", "last_add_confirmed < -1"),),
        5,
        strategy="repeats",
    ),
    # These two are found under a writer that does not hear what became of its change (C9). A third mutant of the machines'
    # simulator, readmitted-after-time-out, shows here once in more than 60 schedules.
    *(
        attrs.evolve(each, name=f"{each.name}-by-client", seeds=30, scenario=None, strategy="unanswered")
        for each in CHANGE_MUTANTS
        if each.name in ("fragment-at-an-older-mark", "kept-never-sent")
    ),
)


def shell_mutant_named(name: str) -> Mutant:
    """The mutant of this name."""
    for mutant in SHELL_MUTANTS:
        if mutant.name == name:
            return mutant
    raise LocalProtocolError(f"no mutant {name!r}; known: {', '.join(mutant.name for mutant in SHELL_MUTANTS)}")
