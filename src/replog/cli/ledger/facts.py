"""What is known of a ledger: its record, and what its bookies say about its end."""

from __future__ import annotations

import attrs

from replog.api import Client
from replog.cli.entries import as_time
from replog.errors import ReplogError
from replog.protocol.digest import ledger_key, ledger_key_check
from replog.protocol.model import LedgerMetadata


@attrs.frozen
class LedgerFacts:
    """A ledger's record, its last entry as far as is known (-1: none, None: unknown) and its payload bytes.

    `problem` says why bookies could not answer."""

    metadata: LedgerMetadata
    last_entry_id: int | None
    size_bytes: int | None = None
    problem: str | None = None

    @property
    def entries(self) -> int | None:
        """The number of its entries, as far as is known."""
        return None if self.last_entry_id is None else self.last_entry_id + 1 - self.metadata.trim_to


async def last_entry_of(client: Client, ledger_id: int, password: bytes) -> int:
    """The last entry of a ledger, as far as is known; -1 if it has none. Asks its bookies if it is not closed.

    Raises as `open_ledger`."""
    metadata = await client.ledger_metadata(ledger_id)
    if metadata.last_entry_id is not None:
        return metadata.last_entry_id
    async with client.open_ledger(ledger_id, password=password) as reader:
        return reader.last_add_confirmed


async def facts_of(client: Client, ledger_id: int, password: bytes, *, with_size: bool) -> LedgerFacts:
    """What is known of a ledger, with its size only if `with_size`, because that costs a read.

    Raises `LedgerNotFoundError`, `MetastoreError`. If bookies fail, the result says so."""
    metadata = await client.ledger_metadata(ledger_id)
    last = metadata.last_entry_id
    size_bytes: int | None = None
    problem = None
    try:
        if last is None:
            last = await last_entry_of(client, ledger_id, password)
        if with_size:
            size_bytes = await _size_of(client, ledger_id, last, password)
    except ReplogError as error:
        problem = str(error)
    return LedgerFacts(metadata, last, size_bytes, problem)


async def _size_of(client: Client, ledger_id: int, last: int, password: bytes) -> int | None:
    if last < 0:
        return 0
    # Each batch has the length of the ledger up to it: one read of the last one tells all.
    async with client.open_ledger(ledger_id, first=last, password=password) as reader:
        batch = await reader.receive_batch()
        return None if batch is None else batch.ledger_bytes


def has_password(metadata: LedgerMetadata) -> bool:
    """True if the ledger needs a password."""
    # The record does not say it, but anybody can compute the check of the empty password.
    return metadata.key_check != ledger_key_check(ledger_key(metadata.ledger_id, b""))


def as_json(facts: LedgerFacts) -> dict[str, object]:
    """All fields for programs, without keys."""
    metadata = facts.metadata
    starts = [fragment.first_entry_id for fragment in metadata.fragments]
    ends: list[int | None] = [*(start - 1 for start in starts[1:]), metadata.last_entry_id]
    return {
        "ledger_id": metadata.ledger_id,
        "state": metadata.state.value,
        "entries": facts.entries,
        "last_entry_id": facts.last_entry_id,
        "size_bytes": facts.size_bytes,
        "quorum": attrs.asdict(metadata.quorum),
        "digest_type": metadata.digest_type.name.lower(),
        "has_password": has_password(metadata),
        "created_at": time_of(metadata.created_at_ms),
        "custom": dict(metadata.custom),
        "fragments": [
            {
                "first_entry_id": each.first_entry_id,
                "last_entry_id": end,
                "ensemble": list(each.ensemble),
                "term": each.term,
            }
            for each, end in zip(metadata.fragments, ends, strict=True)
        ],
        "gaps": [attrs.asdict(gap) for gap in metadata.gaps],
        "unbounded": metadata.is_unbounded,
        "term": metadata.term,
        "open_term": metadata.open_term,
        "trimmed_before": metadata.trim_to,
        "durability": metadata.durability.value,
        "problem": facts.problem,
    }


def time_of(created_at_ms: int) -> str | None:
    """The creation time as ISO 8601; None if it is unknown."""
    return as_time(created_at_ms * 1_000_000) if created_at_ms else None


def time_for_people(created_at_ms: int) -> str | None:
    """The same, without fractions of a second."""
    return as_time(created_at_ms * 1_000_000, timespec="seconds") if created_at_ms else None
