"""Fences: the marks that a storage has to persist for a ledger, after a commit has raised them (T1, B7, R11).

A fence is a term, kept beside the ledger's key, last add confirmed and proof, all in one record. `files/committing.py` writes it
to the journal (`files/record.py` has its bytes), `lmdb/writing.py` as the value of the ledger's key (`lmdb/records.py`).
"""

from __future__ import annotations

from replog.protocol.mutations import Marks, SetMarks
from replog.protocol.proofs import better_proof


def raised(marks: Marks, wanted: SetMarks) -> Marks:
    """The marks after this mutation. None of them ever falls, and a key stays as it was set first."""
    confirmed = -1 if wanted.last_add_confirmed is None else wanted.last_add_confirmed
    return Marks(
        wanted.key if marks.key is None else marks.key,
        max(marks.fence_term, wanted.fence_term or 0),
        max(marks.last_add_confirmed, confirmed),
        marks.last_entry_id,
        better_proof(marks.proof, wanted.proof),
        max(marks.revision, wanted.revision or 0),
    )
