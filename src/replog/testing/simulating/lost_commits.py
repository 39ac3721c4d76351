"""The last commits to a simulated disk, so that the disk can lose them.

A deletion is never undone: what came back of a deleted ledger would be dropped as garbage again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import attrs

from replog.abc import DropLedger, Mutation, PutBatch
from replog.backends.memory import _Batches, _Content, _Ledger
from replog.protocol.model import WRITER_TERM

_COMMITS_KEPT = 64


@attrs.define
class Lost:
    """Lost entries, as (ledger id, entry id), and by ledger the highest term of a fence that was lost."""

    entries: set[tuple[int, int]] = attrs.field(factory=set)
    fences: dict[int, int] = attrs.field(factory=dict)


class CommitHistory:
    """The content of one disk before each of its last commits, as far as they changed it."""

    def __init__(self) -> None:
        self._before: deque[dict[int, _Ledger | None]] = deque(maxlen=_COMMITS_KEPT)

    def remember(self, content: _Content, mutations: Sequence[Mutation]) -> None:
        """Remember what these mutations, which are about to be committed, will change."""
        touched = [each.batch.ledger_id if isinstance(each, PutBatch) else each.ledger_id for each in mutations]
        self._before.append({each: _copied(content.ledgers.get(each)) for each in touched})
        for mutation in mutations:
            if isinstance(mutation, DropLedger):
                for changed in self._before:
                    changed.pop(mutation.ledger_id, None)

    def forget(self, content: _Content, commits: int) -> Lost:
        """Undo the last commits, and return the losses."""
        lost = Lost()
        for _ in range(min(commits, len(self._before))):
            for ledger_id, before in self._before.pop().items():
                now = content.ledgers.pop(ledger_id, None)
                if before is not None:
                    content.ledgers[ledger_id] = before
                gone = _entry_ids(now) - _entry_ids(before)
                lost.entries.update((ledger_id, entry_id) for entry_id in gone)
                if _fence_term(before) < (term := _fence_term(now)):
                    lost.fences[ledger_id] = max(term, lost.fences.get(ledger_id, 0))
        return lost


def _copied(ledger: _Ledger | None) -> _Ledger | None:
    if ledger is None:
        return None
    stamps = {stamp: _copied_batches(batches) for stamp, batches in ledger.stamps.items()}
    return attrs.evolve(ledger, stamps=stamps, dropped=ledger.dropped and ledger.dropped.copy())


def _copied_batches(batches: _Batches) -> _Batches:
    copied = _Batches()
    copied.keys, copied._batches = list(batches.keys), list(batches._batches)
    copied._reaches = list(batches._reaches)
    return copied


def _entry_ids(ledger: _Ledger | None) -> set[int]:
    if ledger is None or WRITER_TERM not in ledger.stamps:
        return set()
    return {entry_id for batch in ledger.stamps[WRITER_TERM]._batches for entry_id in batch.entry_ids}


def _fence_term(ledger: _Ledger | None) -> int:
    return 0 if ledger is None else ledger.marks.fence_term
