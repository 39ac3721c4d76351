"""Changes that a bookie makes durable, and facts that it knows of a ledger: the types between its machine and its storage."""

from __future__ import annotations

import attrs

from replog.protocol.batch import Batch

# The fence term of a ledger that was deleted: no client may write to it again, so a deposed writer that wakes up late
# finds it fenced even after its ledger was trimmed away (L5).
DELETED_TERM = (1 << 63) - 1


@attrs.frozen
class Marks:
    """A bookie's knowledge of a ledger beside its entries.

    `fence_term` only rises; `last_add_confirmed` is the highest of all `SetMarks` and of all stored batches' headers;
    `last_entry_id` is the highest stored, or -1. `proof` is the one of all `SetMarks` that claims the most, as
    `replog.protocol.proofs.better_proof` decides, or nothing (R11). `key` is None until it is set, then never changes;
    it is what `replog.protocol.digest.stored_ledger_key` makes of a ledger's key, which itself is on no disk (B7).
    `revision` is the highest that the bookie was told of the ledger's record, and only rises (M5).
    """

    key: bytes | None = None
    fence_term: int = 0
    last_add_confirmed: int = -1
    last_entry_id: int = -1
    proof: bytes = b""
    revision: int = 0


@attrs.define
class PutBatch:
    """Store this batch. The caller has made sure that no other bytes are stored for one of its identities (T3)."""

    batch: Batch


@attrs.define
class SetMarks:
    """Raise these marks of a ledger; None leaves one as it is. A lower fence term, last add confirmed or revision changes
    nothing.

    `proof` is kept verbatim if it claims more than the one that is kept (R11); nothing leaves that one as it is."""

    ledger_id: int
    key: bytes | None = None
    fence_term: int | None = None
    last_add_confirmed: int | None = None
    proof: bytes = b""
    revision: int | None = None


@attrs.define
class DropLedger:
    """Forget the entries and marks of a ledger that was deleted (B6). An unknown ledger is not an error.

    It stays permanently fenced: from then on its marks are `Marks(fence_term=DELETED_TERM)`, even after a restart,
    and even though it is no longer listed among the ledgers."""

    ledger_id: int


@attrs.define
class DropEntries:
    """Drop the entries of a ledger and stamp from the first to the last (F5), each `stride`-th of them. An unknown ledger is not
    an error.

    A batch is forgotten once all its entries were dropped, by one such mutation or by several: until then all of it can be
    read. Marks stay. From then on a read of a dropped entry that finds no batch raises `StorageUncertainError`, until a batch
    with the entry is stored again: the storage cannot prove that the entry was never durable."""

    ledger_id: int
    stamp: int
    first_entry_id: int
    last_entry_id: int
    stride: int = 1


Mutation = PutBatch | SetMarks | DropLedger | DropEntries
