"""Whether a log's record admits an addition, and the record with it: for committers and for leaders that answer them."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from replog.errors import CustomMismatchError, LedgerRefusedError, ReplogError, TransactionTableFullError
from replog.protocol.additions import Addition, Transaction
from replog.protocol.model import LogMetadata

_OLDEST_SHOWN = 5


def refusal(log: LogMetadata, begun: LogMetadata, addition: Addition) -> ReplogError | None:
    """Why the log can't take the addition, as far as its record tells; None if it can. `begun` is the record to add it to: of a
    log that was deleted, one without what ended with that."""
    named = {segment.ledger_id for segment in log.segments} & set(addition.ledger_ids)
    if named:
        return LedgerRefusedError(min(named), f"it is in log {log.name!r} already; nothing was changed")
    if addition.transaction is not None and not begun.has_room_for(addition.transaction):
        return table_full(begun, addition.transaction)
    different = {name for name, value in addition.custom.items() if begun.custom.get(name, value) != value}
    return _mismatch(begun, addition.custom, different) if different else None


def with_addition(begun: LogMetadata, addition: Addition, now_ms: int) -> LogMetadata:
    """The record with the addition. Which segments may be open then is for the caller to say (L8)."""
    log = begun
    if addition.transaction is not None:
        log = log.with_transaction(attrs.evolve(addition.transaction, committed_at_ms=now_ms))
    log = attrs.evolve(log, custom={**log.custom, **addition.custom})
    added = log.with_ledgers(addition.ledger_ids, now_ms)
    assert added.segment_count == begun.segment_count + len(addition.ledger_ids), "all ledgers are added"
    return added


def table_full(log: LogMetadata, transaction: Transaction) -> TransactionTableFullError:
    """The error for a transaction that a log has no room for. It names the oldest ones."""
    assert not log.has_room_for(transaction), "the table is full"
    table = log.table_of(transaction)
    oldest = [each.transaction_id for each in sorted(table, key=lambda each: each.committed_at_ms)[:_OLDEST_SHOWN]]
    kind = "streaming queries" if transaction.is_of_stream else "jobs"
    return TransactionTableFullError(
        log.name,
        f"it remembers the transactions of {len(table)} {kind}, and can't take {transaction.transaction_id!r} as well; nothing "
        f"was changed. Retire those that are not repeated any more, by id or by age: replog log transactions; the oldest "
        f"are {', '.join(map(repr, oldest))}",
        oldest,
    )


def _mismatch(log: LogMetadata, wanted: Mapping[str, str], names: set[str]) -> CustomMismatchError:
    name = min(names)
    return CustomMismatchError(
        log.name,
        f"its custom metadata says {name}={log.custom[name]!r}, and {wanted[name]!r} was asked for; nothing was changed",
        tuple(sorted(names)),
    )
