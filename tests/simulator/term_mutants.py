"""Known bugs of takeovers and terms, put back one by one: see `mutants`, where those are that a bounded ledger has, too.

`seeds` is how many seeds, from 0 on, are needed to find each: the last of them does."""

from __future__ import annotations

from replog.protocol import proofs, reading
from replog.protocol.chaining import LogTakeover
from replog.protocol.model import LedgerMetadata
from replog.protocol.reading import LedgerReading
from replog.protocol.recovery import LedgerRecovery
from replog.protocol.writing import LedgerWriting
from replog.protocol.writing_back import WritingBack
from tests.simulator.mutation import Mutant, Patch
from tests.simulator.plan import UNBOUNDED_LOG

_UNQUALIFIED = "stamp <= metadata.last_fragment.term"

TERM_MUTANTS = (
    Mutant(
        "confirmed-without-its-term",
        "R11",
        "X11: a reader with an old record believes the last add confirmed of a later term, and reads a deposed writer's entries",
        (
            Patch(proofs, "is_qualified", _UNQUALIFIED, "True"),
            Patch(reading, "is_qualified", _UNQUALIFIED, "True"),
        ),
        254,
        scenario="unbounded",
    ),
    Mutant(
        "takeover-raises-no-term",
        "T2",
        "a takeover fences, reads and writes under the term of the writer that it deposes",
        (Patch(LedgerMetadata, "claimed", "term=self.term + 1", "term=self.term"),),
        1,
        scenario="unbounded",
    ),
    Mutant(
        "lost-claim-opens",
        "T2",
        "a takeover that another client overtook opens the ledger all the same, under the other one's term (X20)",
        (Patch(LedgerRecovery, "_lost", "elif not metadata.is_owned_by(self._claimed):", "elif False:"),),
        9,
        scenario="unbounded",
    ),
    Mutant(
        "term-without-owner",
        "M1",
        "a lost answer is taken for one's own by the term alone: two takeovers own it (X20)",
        (
            Patch(
                LedgerMetadata,
                "is_owned_by",
                "self.term == claim.term and self.owner == claim.owner",
                "self.term == claim.term",
            ),
        ),
        3,
        scenario="unbounded",
    ),
    Mutant(
        "deposed-writer-changes-ensemble",
        "C4",
        "a writer finds the record open, does not look for whom, and goes on",
        (Patch(LedgerWriting, "_lost", " or not metadata.is_owned_by(proposed)", ""),),
        143,
        scenario="unbounded",
    ),
    Mutant(
        "batch-beyond-its-term",
        "R7",
        "a reader hands out what a batch holds behind the end of its term",
        (
            Patch(LedgerReading, "_accept", "< batch.last_entry_id", "< 0"),
            Patch(LedgerReading, "_deliver", "min(self.last_readable, end, *map", "min(self.last_readable, *map"),
            Patch(LedgerReading, "_adopt", "< rotation.next_entry_id", "< 0"),
        ),
        106,
        scenario="unbounded",
    ),
    Mutant(
        "empty-fragment-kept",
        "C2",
        "a takeover leaves an empty fragment where its own begins",
        (Patch(WritingBack, "opened", "each.first_entry_id < first", "each.first_entry_id <= first"),),
        2,
        scenario="unbounded",
    ),
    Mutant(
        "takeover-forgets-private-fragments",
        "R6",
        "a takeover opens its term without naming the bookies that it wrote recovered entries to",
        (Patch(WritingBack, "_ended", "for fragment in self.fragments:", "for fragment in ():"),),
        7,
        scenario="unbounded",
    ),
    Mutant(
        "opens-before-written-back",
        "R6",
        "a takeover opens its term before what it found is at its ack quorum",
        (
            Patch(
                LedgerRecovery,
                "_close_when_written",
                "or self._back.written_through < self._last_entry_id",
                "",
            ),
            Patch(WritingBack, "_ended", "self.written_through >= last_entry_id", "True"),
        ),
        6,
        scenario="unbounded",
    ),
    Mutant(
        "leads-before-naming-its-term",
        "L9",
        "a takeover goes on in the log's last ledger, and serves before the CAS that names its term: the deposed leader rolls",
        (
            Patch(
                LogTakeover,
                "_go_on_when_recovered",
                "self._propose(led.open_from(log.next_segment_number - 1), pages)",
                "self._finish(self._ledger_id)",
            ),
        ),
        12,
        scenario=UNBOUNDED_LOG,
    ),
)
