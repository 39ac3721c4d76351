"""Known bugs around bookies that lose what they stored, put back one by one: see `mutants`."""

from __future__ import annotations

from replog.abc import Doubt
from replog.protocol import healing
from replog.protocol.absence import Hearing
from replog.protocol.bookie import LedgerOnBookie
from replog.protocol.writing import LedgerWriting
from tests.simulator.bookies import SimulatedBookie
from tests.simulator.mutation import Mutant, Patch

LOSS_MUTANTS = (
    Mutant(
        "weak-is-strong",
        "R10",
        "the denial of a bookie that may have forgotten counts as one of a bookie that vouches",
        (Patch(Hearing, "denies", "if denial is Denial.PROVEN:", "if denial in type(denial):"),),
        300,
        strategy="shortened",
    ),
    Mutant(
        "decided-before-heard",
        "R10",
        "absence is decided before everybody who can be reached was heard",
        (Patch(Hearing, "decide", "not self.silent(absences) & ~absences.given_up", "True"),),
        300,
        strategy="traceless",
    ),
    Mutant(
        "adds-in-doubt",
        "B8",
        "a bookie that may have lost a fence takes plain adds",
        (Patch(LedgerOnBookie, "_refusal", "if self.is_in_doubt and is_of_writer(request):", "if False:"),),
        600,
        strategy="refenced",
        overlook=frozenset({"B8", "O10"}),
    ),
    Mutant(
        "heals-fences-away",
        "B8",
        "a bookie that vouches again takes plain adds to all ledgers, fenced again or not",
        (
            Patch(
                Doubt,
                "settled",
                "max(self.fences_lost_below, self.doubted_below)",
                "0",
            ),
        ),
        100,
        strategy="refenced",
    ),
    Mutant(
        "heals-fences-of-deleted-away",
        "B8",
        "a bookie that vouches again takes plain adds to all ledgers; also to those that were deleted",
        (
            Patch(
                Doubt,
                "settled",
                "max(self.fences_lost_below, self.doubted_below)",
                "0",
            ),
        ),
        100,
        strategy="buried",
    ),
    Mutant(
        "heals-open-ledger",
        "B8",
        "a bookie vouches again for an open ledger that names it, though others may count on what it lost",
        (Patch(healing, "fence_to_vouch", "bookie_id in last.ensemble", "False"),),
        600,
        strategy="shortened",
    ),
    Mutant(
        "heals-in-recovery",
        "B8",
        "a bookie vouches again for a ledger that is being recovered",
        (Patch(healing, "fence_to_vouch", "metadata.state is LedgerState.IN_RECOVERY", "False"),),
        600,
        strategy="shortened",
    ),
    Mutant(
        "heals-any-later-term",
        "B8",
        "a bookie vouches again for every term of an unbounded ledger but the first, whenever it was opened",
        (Patch(healing, "fence_to_vouch", "last.term <= seen_term", "last.term <= 1"),),
        600,
        strategy="retaken",
    ),
    Mutant(
        "heals-with-old-fence",
        "B8",
        "a bookie that vouches again fences an open ledger with its creator's term",
        (Patch(healing, "fence_to_vouch", "return metadata.term", "return 1"),),
        600,
        strategy="unseated",
    ),
    Mutant(
        "doubt-forgotten",
        "B8",
        "a bookie that restarts once more has forgotten that its disk lost something",
        (
            Patch(
                SimulatedBookie,
                "crash",
                "    self.alive = False",
                "    self.alive, self.doubt = False, type(self.doubt)()",
            ),
        ),
        600,
        strategy="shortened",
    ),
    Mutant(
        "gaps-not-recorded",
        "W7",
        "a writer does not record what a bookie lacks that was away",
        (Patch(LedgerWriting, "_propose_close", ".with_gaps(self._gaps_until(last))", ""),),
        20,
        scenario="ledger",
        strategy="crashing",
    ),
    Mutant(
        "lost-is-denial",
        "B8a",
        "a bookie that was declared lost counts as one that denies",
        (
            Patch(
                Hearing,
                "decide",
                "if expected == self.members and self._quorum.is_absent(self.entry_id, self.proven):",
                "if self._quorum.is_absent(self.entry_id, self.proven | absences.lost):",
            ),
        ),
        300,
        strategy="gone",
    ),
)
