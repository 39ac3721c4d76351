"""Known bugs of confirming while the ensemble changes (C9), put back one by one."""

from __future__ import annotations

from replog.protocol.machine import LedgerMachine
from replog.protocol.reshaping import Reshaping
from replog.protocol.writing import LedgerWriting
from tests.simulator.mutation import Mutant, Patch

CHANGE_MUTANTS = (
    Mutant(
        "replaced-index-counted",
        "C9",
        "an index that is being replaced goes on counting: the record may no longer name its bookie",
        (Patch(LedgerWriting, "_count", "& ~self._members.choosing", "| 1 << 300"),),
        120,
        scenario="ledger",
        strategy="silent",
    ),
    Mutant(
        "readmitted-after-time-out",
        "C9",
        "a change whose answer was lost is taken for undone: its index counts again, and the change lands",
        (
            Patch(
                LedgerMachine,
                "metadata_uncertain",
                "    self.metadata_conflict()",
                "    self.metadata_conflict()\n"
                "    if getattr(self, '_counted', 0):\n"
                "        self._counted = self._members.everybody | 1 << 300\n"
                "        self._members.in_use |= self._members.choosing",
            ),
        ),
        120,
        scenario="ledger",
        strategy="silent",
    ),
    Mutant(
        "fragment-at-an-older-mark",
        "C9",
        "the new fragment begins behind what was confirmed when the bookie failed, not when the change was sent",
        (
            Patch(
                LedgerWriting,
                "_choose",
                "    self._count()",
                "    self._mark = self.last_add_confirmed\n        self._count()",
            ),
            Patch(
                LedgerWriting,
                "_propose_ensemble",
                "last = self.last_add_confirmed",
                "last = max(self._mark, self.metadata.last_fragment.first_entry_id - 1)",
            ),
        ),
        40,
        scenario="ledger",
        strategy="silent",
    ),
    Mutant(
        "gap-of-dropped-forgotten",
        "C9",
        "what did not fit is neither sent to the replacement nor recorded",
        (Patch(LedgerWriting, "_ensemble_durable", "if is_written and first < unsent_before:", "if False:"),),
        40,
        scenario="ledger",
        strategy="silent",
    ),
    Mutant(
        "kept-never-sent",
        "C9",
        "the replacement never gets what was confirmed while it was being written to the record",
        (Patch(Reshaping, "end", "_kept_from, kept", "_kept_from, []"),),
        40,
        scenario="ledger",
        strategy="silent",
    ),
    Mutant(
        "proposal-rebuilt",
        "C9",
        "a repeated compare-and-set has other bytes: the fragment of one, and the first attempt lands",
        (
            Patch(
                LedgerMachine,
                "_repeat",
                "self.effects.append(",
                "if getattr(self, '_reshaping', None) and self._change.proposed.last_entry_id is None:\n"
                "        last = self._change.proposed.last_fragment\n"
                "        import attrs\n"
                "        moved = attrs.evolve(last, first_entry_id=self.last_add_confirmed + 1)\n"
                "        fragments = (*self._change.proposed.fragments[:-1], moved)\n"
                "        self._change.proposed = attrs.evolve(self._change.proposed, fragments=fragments)\n"
                "    self.effects.append(",
            ),
        ),
        120,
        scenario="ledger",
        strategy="silent",
    ),
)
