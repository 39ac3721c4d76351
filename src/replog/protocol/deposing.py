"""The errors of a writer that is deposed: by whom, and which of its entries have an unknown fate (W4)."""

from __future__ import annotations

from replog.errors import FencedError, LedgerClosedError
from replog.protocol.model import LedgerMetadata, LedgerState


def fenced(
    ledger_id: int, unconfirmed: range, how: str, kind: type[FencedError] = FencedError, term: int | None = None
) -> FencedError:
    """The error of a writer that learned in this way that it is deposed, maybe by a client of this term."""
    fate = "nothing was under way"
    if unconfirmed:
        fate = f"entries {unconfirmed[0]}..{unconfirmed[-1]} have an unknown fate: read them back after recovery"
    error = kind(ledger_id, f"{how} (W4): this writer is deposed; {fate}", unconfirmed)
    error.term = term
    return error


def overtaken(metadata: LedgerMetadata, unconfirmed: range) -> FencedError:
    """The error of a writer that found this record instead of its own."""
    assert metadata.last_entry_id is None or metadata.state is LedgerState.CLOSED, "only a closed ledger has an end"
    ledger_id = metadata.ledger_id
    if metadata.state is LedgerState.CLOSED:
        return fenced(
            ledger_id, unconfirmed, f"another client closed it at {metadata.last_entry_id}", LedgerClosedError
        )
    return fenced(ledger_id, unconfirmed, f"found {metadata.state.value} in term {metadata.term}", term=metadata.term)
