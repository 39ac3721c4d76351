"""A storage that lost nothing reports no doubt (B8). The suite of damage checks storages that lost something."""

from __future__ import annotations

from collections.abc import Callable

from replog.abc import Doubt
from replog.protocol.mutations import DropLedger, PutBatch, SetMarks
from replog.testing.storage_conformance.batches import make_batch
from replog.testing.storage_conformance.candidate import Candidate, expect

_NONE = "doubt: a storage that was closed, and lost nothing, doubts nothing (B8)"
_SETTLED = "settle_doubt: changes nothing if the doubt is not the one that was found"
_BOUND = "bound_doubt: changes nothing where nothing is doubted"


def check_doubt(candidate: Candidate) -> None:
    for life in range(3):
        with candidate.opened() as storage:
            expect(storage.doubt() == Doubt(), f"{_NONE} [opening {life + 1}]", storage.doubt())
            storage.commit([PutBatch(make_batch(life, 0)), SetMarks(life, b"key", 1), DropLedger(life - 1)])
            storage.bound_doubt(life)
            expect(storage.doubt() == Doubt(), _BOUND, storage.doubt())
            storage.settle_doubt(Doubt(9, 9), Doubt(5, 5))
            expect(storage.doubt() == Doubt(), _SETTLED, storage.doubt())
            if life == 1:
                storage.compact(is_major=True)
                storage.scrub()
                expect(storage.doubt() == Doubt(), f"{_NONE} [after compaction and scrubbing]", storage.doubt())


CHECKS: tuple[Callable[[Candidate], None], ...] = (check_doubt,)
