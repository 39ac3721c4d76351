"""The parts of a commit to a log: its ledgers, its transaction, and the committer's request to the log's leader."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

STREAM_PREFIX = "query:"  # of the ids of streaming queries, which have a table of their own
_LEDGER_ID_MAX = (1 << 63) - 1


@attrs.frozen
class Transaction:
    """The highest number that was committed to a log under one name. A later commit with that number or a lower one is
    a repetition, and changes nothing. `committed_at_ms` is by the committer's clock."""

    transaction_id: str
    number: int
    committed_at_ms: int = 0

    @property
    def is_of_stream(self) -> bool:
        """True if its id is that of a streaming query. Jobs never take the place of one."""
        return self.transaction_id.startswith(STREAM_PREFIX)


@attrs.frozen
class Addition:
    """A change of a log: these ledgers at its end, in this order, this transaction committed, these pairs in its
    custom metadata. `job`: the job for which all the ledgers must have been made; "" for any."""

    ledger_ids: tuple[int, ...]
    transaction: Transaction | None = None
    job: str = ""
    custom: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen
class AppendRequest:
    """A request in a log's record: the committer with this token asks the log's leader to make this addition (L10)."""

    token: str
    addition: Addition

    @property
    def is_possible(self) -> bool:
        """True if it names ledgers, each once, by ids that ledgers can have."""
        ids = self.addition.ledger_ids
        return bool(ids) and len(set(ids)) == len(ids) and min(ids) >= 0 and max(ids) <= _LEDGER_ID_MAX
