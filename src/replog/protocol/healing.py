"""The conditions on which a bookie with a loss, or a possible loss, may vouch for a ledger again (B8).

The fence: the bookie takes nothing more from the writers of any ledger that existed then, permanently. So no fence is
needed for ledgers that are closed or deleted, and a live writer is not fenced, but goes on with other bookies. The
exception are ledgers that were OPEN when the bookie looked, and that it has fenced with the term of their record first:
any client that fences a ledger has raised that term before, so the lost fence cannot have been higher.

The entries: a denial of the bookie counts again where the record of the ledger, read after the start, says that it can't harm:

- CLOSED: its end is fixed, so no absence decides anything. A repair fills missing copies as usual.
- OPEN, and the last fragment does not name this bookie: a recovery would not ask it, and the writer counts nothing of
  it. If the writer takes this bookie in again, it sends what counts once more (C5).
- OPEN, and the last fragment names this bookie, but its term was opened after the bookie was started: nobody asks for
  entries of this fragment that were sent before. So a takeover of an unbounded ledger decides it, even where no other
  bookie could be taken.
- OPEN, with a fragment that names this bookie and may have been written before the loss; or IN_RECOVERY: undecided. To
  compare copies with other bookies decides nothing here: the writer may count an acknowledgement of what was lost for
  an entry that arrives at the others after they were asked. Only a recovery fences them all, and it needs the password.

A deleted ledger has no record, and decides nothing.
"""

from __future__ import annotations

from replog.protocol.model import LedgerMetadata, LedgerState


def fence_to_vouch(metadata: LedgerMetadata, bookie_id: str, seen_term: int) -> int | None:
    """The term with which this bookie must be fenced, durably, to vouch for the ledger again; None while that is undecided.

    `seen_term` is that of the ledger's last fragment when the bookie first looked since it was started."""
    if metadata.state is LedgerState.IN_RECOVERY:
        return None
    last = metadata.last_fragment
    if metadata.state is LedgerState.OPEN and bookie_id in last.ensemble and last.term <= seen_term:
        return None
    assert metadata.term >= 1, "a ledger has a writer's term at least (T2)"
    return metadata.term
