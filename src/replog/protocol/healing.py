"""When a bookie that lost something, or cannot know, may vouch for a ledger again (B8).

What the storage lost may be entries that it acknowledged, and the ledger's fence. The record of the ledger, read after the bookie
was started, says what that can still harm:

- CLOSED: its end is fixed, so no absence decides anything. What is missing is filled as any missing copy is. A deposed writer may
  still be on its way: the record's term is a fence against it.
- OPEN, and the last fragment does not name this bookie: a recovery would not ask it, and the writer counts nothing of it. Whoever
  fences a ledger has raised the record's term first, so the record's term is all that the lost fence can have been. If the
  writer takes this bookie in again, it sends what counts once more (C5).
- OPEN, and the last fragment names this bookie; or IN_RECOVERY: undecided. Plain adds are refused, so a writer replaces this
  bookie or closes the ledger, and a recovery ends: then one of the above holds.

Of a ledger that was deleted there is no record: the bookie drops what it still knows of it, which fences it permanently (L5).

The fence is made durable before the doubt ends. The doubt is a bound on ledger ids, and sinks below the last undecided ledger.
"""

from __future__ import annotations

from replog.protocol.model import LedgerMetadata, LedgerState


def fence_to_vouch(metadata: LedgerMetadata, bookie_id: str) -> int | None:
    """The term with which this bookie must be fenced, durably, to vouch for the ledger again; None while that is undecided."""
    if metadata.state is LedgerState.IN_RECOVERY:
        return None
    if metadata.state is LedgerState.OPEN and bookie_id in metadata.last_fragment.ensemble:
        return None
    assert metadata.term >= 1, "a ledger has a writer's term at least (T2)"
    return metadata.term
