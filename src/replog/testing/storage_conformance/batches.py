"""The batches that the suites store."""

from __future__ import annotations

from collections.abc import Sequence

from replog.protocol.batch import Batch, build
from replog.protocol.digest import Digest, DigestType
from replog.protocol.mutations import Mutation, PutBatch


def make_batch(
    ledger_id: int,
    first_entry_id: int,
    count: int = 3,
    *,
    stride: int = 1,
    stamp: int = 1,
    size_bytes: int = 20,
    last_add_confirmed: int | None = None,
    digest_type: DigestType = DigestType.CRC32C,
) -> Batch:
    """A batch whose payloads no other identity has."""
    ids = range(first_entry_id, first_entry_id + count * stride, stride)
    payloads = [(b"%d/%d/%d " % (ledger_id, entry_id, stamp)).ljust(size_bytes, b".")[:size_bytes] for entry_id in ids]
    return build(
        Digest(digest_type, ledger_id, b"password"),
        ledger_id=ledger_id,
        first_entry_id=first_entry_id,
        stride=stride,
        payloads=payloads,
        last_add_confirmed=min(first_entry_id - 1, -1 if last_add_confirmed is None else last_add_confirmed),
        stamp=stamp,
        timestamp_ns=first_entry_id & 0xFFFF,
        cumulative_length=size_bytes * count,
    )


def puts(batches: Sequence[Batch]) -> list[Mutation]:
    """One mutation for each batch."""
    return [PutBatch(batch) for batch in batches]
