"""What a storage says that it holds: an audit and a repair rely on it (F3)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from replog.abc import Storage, StoredRange
from replog.protocol.batch import ENTRY_ID_MAX
from replog.protocol.mutations import DropLedger, Mutation, PutBatch, SetMarks
from replog.testing.storage_exam.batches import make_batch, puts
from replog.testing.storage_exam.candidate import Candidate, expect

_RANGES = "ranges: what is stored, by stamp and first entry, in as few ranges as possible (F3)"
_NOTHING = "ranges: nothing of a ledger that is unknown, has only marks, or was dropped"


def _expect_ranges(storage: Storage, ledger_id: int, wanted: Sequence[StoredRange], why: str = _RANGES) -> None:
    found = list(storage.ranges(ledger_id))
    expect(found == list(wanted), f"{why} [ledger {ledger_id}, wanted {wanted}]", found)


def _after_upkeep(storage: Storage) -> Iterator[Storage]:
    """The storage as it is, and after everything that may move what it holds."""
    yield storage
    storage.compact()
    storage.compact(is_major=True)
    storage.scrub()
    yield storage


def check_ranges_of_nothing(candidate: Candidate) -> None:
    mutations: list[Mutation] = [SetMarks(1, b"key", 5, 2), PutBatch(make_batch(2, 0)), DropLedger(2)]
    for storage in candidate.twice(mutations):
        for ledger_id in (1, 2, 3):
            _expect_ranges(storage, ledger_id, [], _NOTHING)


def check_ranges(candidate: Candidate) -> None:
    """Holes, stamps, ledgers side by side, and the highest ids."""
    batches = [make_batch(1, first, 10) for first in (0, 10, 20, 40, 50)]
    batches += [make_batch(1, 5, 3, stamp=2), make_batch(2, 7), make_batch(3, ENTRY_ID_MAX, 1)]
    for opened in candidate.twice([*puts(batches), *puts(batches[:2])]):
        for storage in _after_upkeep(opened):
            _expect_ranges(storage, 1, [StoredRange(1, 0, 29), StoredRange(1, 40, 59), StoredRange(2, 5, 7)])
            _expect_ranges(storage, 2, [StoredRange(1, 7, 9)])
            _expect_ranges(storage, 3, [StoredRange(1, ENTRY_ID_MAX, ENTRY_ID_MAX)])


def check_striped_ranges(candidate: Candidate) -> None:
    """A bookie of five, outside of two write sets, that missed one batch of a third."""
    batches = [make_batch(1, start + index, 7, stride=5) for start in range(0, 140, 35) for index in (0, 1, 3)]
    batches.remove(make_batch(1, 36, 7, stride=5))
    wanted = [
        StoredRange(1, 0, 135, 5),
        StoredRange(1, 1, 31, 5),
        StoredRange(1, 3, 138, 5),
        StoredRange(1, 71, 136, 5),
    ]
    for opened in candidate.twice(puts(batches)):
        for storage in _after_upkeep(opened):
            _expect_ranges(storage, 1, wanted)


def check_many_ranges(candidate: Candidate) -> None:
    """Batches in any order, among those of other ledgers, many of them without a neighbour."""
    batches = [make_batch(ledger_id, 3 * at, 2 if at % 2 else 3) for ledger_id in (1, 2) for at in range(400)]
    random.Random(5).shuffle(batches)
    wanted = [StoredRange(1, 6 * at, 6 * at + 4) for at in range(400 // 2)]
    with candidate.opened() as storage:
        for start in range(0, len(batches), 50):
            storage.commit(puts(batches[start : start + 50]))
        _expect_ranges(storage, 1, wanted)
    with candidate.opened() as opened:
        for storage in _after_upkeep(opened):
            _expect_ranges(storage, 1, wanted)
        opened.commit([DropLedger(1)])
        _expect_ranges(opened, 1, [], _NOTHING)
        _expect_ranges(opened, 2, wanted)


CHECKS: tuple[Callable[[Candidate], None], ...] = (
    check_ranges_of_nothing,
    check_ranges,
    check_striped_ranges,
    check_many_ranges,
)
