"""Known bugs of logs made of ledgers, put back one by one: see `mutants`."""

from __future__ import annotations

from replog.protocol import chaining
from replog.protocol.bookie import LedgerOnBookie
from replog.protocol.chaining import LogTakeover
from replog.protocol.dropping import LogDeleting, LogTrimming, _LogDropping
from replog.protocol.model import LogMetadata
from tests.simulator.bookies import SimulatedBookie
from tests.simulator.dropping import Dropping
from tests.simulator.leaders import LeaderShell, LogShell
from tests.simulator.mutation import Mutant, Patch

LOG_MUTANTS = (
    Mutant(
        "only-last-fenced",
        "L1",
        "X19: taking over fences only the last ledger",
        (Patch(LogTakeover, "_start_over", "self.metadata.to_recover())", "self.metadata.to_recover()[-1:])"),),
        100,
        scenario="log",
        conversation="last-two-fenced-not",
    ),
    Mutant(
        "serving-before-cas",
        "L1",
        "a leader serves before the CAS that names its ledger",
        (
            Patch(
                LogTakeover,
                "ledger_created",
                "self._propose(added.open_from(log.next_segment_number), pages)",
                "self._propose(added.open_from(log.next_segment_number), pages)\n"
                "    self._stage = _Stage.DONE\n"
                "    self._effects.append(LogChanged(self._change.proposed, (self._change.version or 0) + 1, ledger_id))",
            ),
        ),
        40,
        overlook=frozenset({"L1"}),
        scenario="log",
    ),
    Mutant(
        "trim-deletes-first",
        "L3",
        "ledgers are deleted before the list is cut",
        (
            Patch(
                LogTrimming,
                "_start_over",
                "self._propose(trimmed)",
                "gone = [each for each in self.metadata.segments if each.number < trimmed.first_segment_number]\n"
                "            from replog.protocol.chaining import DeleteLedger\n"
                "            self._effects += [DeleteLedger(each.ledger_id, 'log', each.number) for each in gone]\n"
                "            self._propose(trimmed)",
            ),
        ),
        120,
        scenario="log",
    ),
    Mutant(
        "dropped-not-written-down",
        "L7",
        "a trim's change of the record does not say which ledgers are to be deleted after it",
        (Patch(LogMetadata, "trimmed_before", "dropped=dropped,", ""),),
        200,
        scenario="log",
    ),
    Mutant(
        "created-before-pending",
        "L7",
        "a ledger is created for a log, and nothing says so",
        (
            Patch(
                LogShell,
                "_announce",
                "self.client.metastore.cas(self.client, pending_key(pending.ledger_id), None, pending, answered)",
                "answered(Outcome.DONE, pending, 1)",
            ),
        ),
        50,
        scenario="log",
    ),
    Mutant(
        "pending-deleted-without-change",
        "L3",
        "what is pending is deleted though its creator may be about to add it",
        (
            Patch(
                _LogDropping,
                "_clear",
                "if cleared == log and (self._has_changed or not self._pending):",
                "if cleared == log:",
            ),
        ),
        100,
        scenario="log",
    ),
    Mutant(
        "head-before-page",
        "L3",
        "the log's record is changed before the page is written that has what it leaves out",
        (
            Patch(
                chaining.LogMachine,
                "_write",
                "    else:\n        self._effects.append(WriteLog(proposed, version))",
                "    self._effects.append(WriteLog(proposed, version))\n    self._pages.clear()",
            ),
        ),
        10,
        scenario="log",
    ),
    Mutant(
        "incomplete-page",
        "L3",
        "a page leaves the head though the log may have more segments for it",
        (
            Patch(
                LogMetadata,
                "split",
                "min(self.next_segment_number // size - 1, self.page_of(self.first_open_number))",
                "self.next_segment_number // size + bool(self.segments)",
            ),
        ),
        10,
        scenario="log",
    ),
    Mutant(
        "head-keeps-too-little",
        "L1",
        "every page that is complete leaves the head: then it may name only one ledger, and a takeover fences only that",
        (
            Patch(
                LogMetadata,
                "split",
                "min(self.next_segment_number // size - 1, self.page_of(self.first_open_number))",
                "self.next_segment_number // size",
            ),
            Patch(LogMetadata, "open_from", "assert self", "assert True or self"),
        ),
        120,
        scenario="log",
    ),
    Mutant(
        "trim-beyond-page",
        "L3",
        "trimming deletes the page that the position lies in",
        (Patch(Dropping, "_answered", "(each + 1) * self", "each * self"),),
        120,
        scenario="log",
    ),
    Mutant(
        "deleting-forgets-numbers",
        "L3",
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
        40,
        scenario="log",
    ),
    Mutant(
        "deleting-does-not-fence",
        "L5",
        "a log is deleted without its writer being fenced",
        (
            Patch(
                LogDeleting,
                "_start_over",
                "self._effects += [RecoverLedger(each.ledger_id) for each in log.to_recover()]",
                "for each in log.to_recover():\n            self._to_recover.discard(each.ledger_id)",
            ),
        ),
        120,
        scenario="log",
    ),
    Mutant(
        "drop-forgets-fence",
        "L5",
        "a bookie that drops a deleted ledger forgets its fence",
        (
            Patch(LedgerOnBookie, "drop", "self.fence_term = DELETED_TERM", "self.fence_term = 0"),
            Patch(SimulatedBookie, "tombstone", "disk.fence_term, disk.deleted = DELETED_TERM, True", "pass"),
        ),
        700,
        overlook=frozenset({"R3", "O10"}),
        scenario="log",
        strategy="calm",
        conversation="late-add-after-trim-not",
    ),
    Mutant(
        "roll-does-not-wait",
        "L2",
        "records for the new ledger are sent while the previous one has unconfirmed ones",
        (
            Patch(
                LeaderShell,
                "holds_back",
                "return bool(self._held) or bool(self._previous.machine.unconfirmed)",
                "return False",
            ),
        ),
        150,
        scenario="log",
        strategy="lossy",
    ),
)
