"""The errors of a recovery that cannot go on: which bookies it needs, and what an operator can do (R10, R12, B8a)."""

from __future__ import annotations

from collections.abc import Sequence

from replog.errors import FencedError, LedgerRolledBackError, NotEnoughBookiesError, RecoveryUndecidedError
from replog.protocol.absence import Absences, Hearing
from replog.protocol.fragments import Fragment
from replog.protocol.model import LedgerMetadata
from replog.protocol.quorum import Quorum
from replog.protocol.replacement import Members


def bookies_at(indices: int, ensemble: Sequence[str]) -> tuple[str, ...]:
    """The bookies at these indices of an ensemble."""
    assert indices >> len(ensemble) == 0, "only indices of the ensemble"
    return tuple(bookie_id for index, bookie_id in enumerate(ensemble) if indices >> index & 1)


def names(indices: int, ensemble: Sequence[str]) -> str:
    """The same as text."""
    return ", ".join(bookies_at(indices, ensemble)) or "nobody"


def why_not_fenced(awaited: int, ensemble: Sequence[str]) -> str:
    """Why a recovery does not read yet."""
    return f"{names(awaited, ensemble)} could not be fenced, and without them an ack quorum may still accept adds (R2)."


def why_undecided(hearing: Hearing, absences: Absences, ensemble: Sequence[str]) -> str:
    """Each answer of an entry's write set, where these neither find the entry nor prove it absent."""
    losers = hearing.losers(absences)
    clauses = [
        (hearing.members & absences.unreachable & ~hearing.heard, "could not be reached"),
        (hearing.silent(absences), "did not answer"),
        (hearing.unknown, "could not tell (damage or an I/O error)"),
        (losers & ~absences.lost, "know that their storage lost something (B8)"),
        (hearing.weak & ~losers, "cannot prove that their storage is complete (B8)"),
    ]
    reasons = "; ".join(f"{names(members, ensemble)} {what}" for members, what in clauses if members)
    return f"Entry {hearing.entry_id} is neither found nor proven absent: {reasons} (R4, R10)."


def undecided(ledger_id: int, problem: str, needed: tuple[str, ...]) -> RecoveryUndecidedError:
    """The error of a recovery that needs these bookies."""
    advice = (
        "The ledger stays in recovery and nothing was cut: retry when these bookies are back. One that never comes back "
        "can be declared lost: replog bookies lost"
    )
    return RecoveryUndecidedError(ledger_id, f"{problem}. {advice}", needed)


def entries_may_be_gone(
    ledger_id: int, frozen: Fragment, first_entry_id: int, quorum: Quorum, losers: int
) -> RecoveryUndecidedError:
    """The error of a recovery that finds that an ack quorum lost what it stored."""
    assert losers, "entries are gone only with somebody who lost them"
    bookies = bookies_at(losers, frozen.ensemble)
    problem = (
        f"Confirmed entries from {first_entry_id} on may be gone: {', '.join(bookies)} lost what they stored, or were "
        f"declared lost, and {quorum.ack} of a write set are an ack quorum (R10)"
    )
    advice = (
        "The ledger stays in recovery and nothing was cut. Bring the data of one of them back, or accept the loss: "
        f"recover_ledger({ledger_id}, accept_loss=True), "
        f"or replog ledger recover {ledger_id} --accept-loss"
    )
    return RecoveryUndecidedError(ledger_id, f"{problem}. {advice}", bookies)


def deposed(claimed: LedgerMetadata, metadata: LedgerMetadata) -> FencedError:
    """The error of a recovery whose claim was overtaken, as this record says (T2)."""
    assert not metadata.is_owned_by(claimed), "the claim was overtaken"
    problem = f"another client took it over in term {metadata.term}, while this one recovered it in term {claimed.term}"
    error = FencedError(claimed.ledger_id, f"{problem}: nothing was written to it")
    error.term = metadata.term
    return error


def rolled_back(metadata: LedgerMetadata, term: int) -> LedgerRolledBackError:
    """The error of a ledger whose bookies know this term, which its record does not (T1)."""
    assert term >= metadata.term, "a term that the record knows is not a later one"
    problem = (
        f"its metadata says term {metadata.term}, and a bookie knows of term {term}: the metadata is older than the bookies, as "
        "after a restore from an old back-up. Nothing was written, since entries of two writers could mix"
    )
    advice = (
        "Restore the newest metadata; if this is the newest that is left, raise the term: "
        f"raise_ledger_term({metadata.ledger_id}), or replog ledger raise-term {metadata.ledger_id}"
    )
    return LedgerRolledBackError(metadata.ledger_id, f"{problem}. {advice}", term)


def not_enough_bookies(ledger_id: int, members: Members) -> NotEnoughBookiesError:
    """The error of a recovery that cannot write its entries back."""
    problem = (
        f"ledger {ledger_id}: {names(members.missing, members.bookies)} failed while recovered "
        "entries were written back, and nothing can replace them; it stays in recovery: retry when bookies are back"
    )
    return NotEnoughBookiesError(problem, len(members.bookies), members.bookies)
