"""The holdings that a storage reports: an audit and a repair rely on them (F3)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence

import trio

from replog.abc import Storage, StoredRange
from replog.errors import StorageUncertainError
from replog.protocol.batch import ENTRY_ID_MAX
from replog.protocol.mutations import DropLedger, Mutation, PutBatch, SetMarks
from replog.testing.storage_conformance.batches import make_batch, puts
from replog.testing.storage_conformance.candidate import PLENTY_BYTES, Candidate, expect, expect_read

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


def check_dropped_entries(candidate: Candidate) -> None:
    """Dropped entries are in doubt, not absent; the rest stays as it is, and entries stored again exist again."""
    batches = [make_batch(1, first, 10) for first in range(0, 60, 10)]
    others = [make_batch(1, 20, 10, stamp=2), make_batch(2, 20, 10)]
    kept, again = [batches[0], batches[1], batches[4], batches[5]], [batches[at] for at in (0, 1, 3, 4, 5)]
    with candidate.opened() as storage:
        storage.commit([SetMarks(1, b"key", 5, 2), *puts([*batches, *others])])
        marks = storage.marks(1)
        storage.drop(1, 1, 20, 34)
        storage.drop(3, 1, 0, 9)
    for _ in range(2):
        with candidate.opened() as opened:
            for storage in _after_upkeep(opened):
                _expect_in_doubt(storage, range(20, 30))
                _expect_ranges(storage, 1, [StoredRange(1, 0, 19), StoredRange(1, 30, 59), StoredRange(2, 20, 29)])
                expect_read(
                    storage, (1, 34, 1), 0, batches[3:4], "drop: a batch stays until all its entries were dropped"
                )
                expect_read(
                    storage, (1, 5, 1), PLENTY_BYTES, [*batches[:2], *batches[3:]], "drop: what is left is read"
                )
                expect_read(storage, (1, 25, 2), 0, others[:1], "drop: only one stamp (T3)")
                expect_read(storage, (2, 25, 1), 0, others[1:], "drop: only one ledger")
                expect(storage.marks(1) == marks, "drop: marks stay", storage.marks(1))
                expect(storage.marks(3) is None, "drop: an unknown ledger stays unknown", storage.marks(3))
    with candidate.opened() as storage:
        storage.drop(1, 1, 35, 39)
        _expect_in_doubt(storage, range(20, 40))
        expect_read(storage, (1, 0, 1), PLENTY_BYTES, kept, "drop: a batch goes with the last of its entries")
        storage.commit(puts([batches[3]]))
    with candidate.opened() as opened:
        for storage in _after_upkeep(opened):
            _expect_in_doubt(storage, range(20, 30))
            expect_read(storage, (1, 0, 1), PLENTY_BYTES, again, "drop: a batch that is stored again can be read again")
        opened.drop(1, 1, 0, ENTRY_ID_MAX)
        _expect_in_doubt(opened, (0, 25, 59, 60, ENTRY_ID_MAX))
        expect(opened.marks(1) == marks, "drop: marks stay, even if nothing else is left", opened.marks(1))
        expect(opened.ledger_ids() == [1, 2], "drop: the ledger is listed as long as it has marks", opened.ledger_ids())
        opened.commit([DropLedger(1)])
        expect_read(opened, (1, 25, 1), 0, [], "DropLedger: nothing of the ledger is left to be in doubt about (L5)")


def check_dropped_just_stored(candidate: Candidate) -> None:
    """Entries still in memory are dropped as well, whether one drop covers a batch or several do."""
    batches = [make_batch(1, first, 10) for first in (0, 10, 20)]
    striped = [make_batch(1, 30 + index, 4, stride=3) for index in range(3)]
    with candidate.opened() as storage:
        storage.commit([SetMarks(1, b"key", 5, 2), *puts([*batches, *striped])])
        for each in (*batches, *striped):
            expect_read(storage, (1, each.first_entry_id, 1), 0, [each], "read: what was committed")
        storage.drop(1, 1, 0, 9)
        _expect_in_doubt(storage, range(10))
        storage.drop(1, 1, 10, 14)
        expect_read(storage, (1, 12, 1), 0, batches[1:2], "drop: a batch stays until all its entries were dropped")
        storage.drop(1, 1, 15, 19)
        _expect_in_doubt(storage, range(20))
        storage.drop(1, 1, 31, 40, 3)
        _expect_in_doubt(storage, striped[1].entry_ids)
        for each in (batches[2], striped[0], striped[2]):
            expect_read(storage, (1, each.last_entry_id, 1), 0, [each], "drop: the rest stays")


def check_dropped_striped_entries(candidate: Candidate) -> None:
    """Batches of one gathering interleave: one that is stored again brings back no other (W1)."""
    batches = [make_batch(1, start + index, 4, stride=5) for start in (0, 20) for index in range(5)]
    with candidate.opened() as storage:
        storage.commit(puts(batches))
        storage.drop(1, 1, 0, 19)
        storage.commit(puts([batches[1], batches[3]]))
    with candidate.opened() as opened:
        for storage in _after_upkeep(opened):
            _expect_in_doubt(storage, [each for each in range(20) if each % 5 not in (1, 3)])
            for at in (1, 3, 5, 9):
                expect_read(storage, (1, batches[at].last_entry_id, 1), 0, [batches[at]], "drop: the rest stays")
            starts = [1, 3, 20, 22, 24]
            _expect_ranges(storage, 1, [StoredRange(1, at, 35 + at % 5, 5) for at in starts])


def check_dropped_rotations(candidate: Candidate) -> None:
    """Of batches that interleave, only those of a rotation that was dropped go (F5, W1)."""
    batches = [make_batch(1, start + index, 4, stride=5) for start in (0, 20) for index in range(5)]
    with candidate.opened() as storage:
        storage.commit(puts(batches))
        storage.drop(1, 1, 1, 36, 5)
        storage.drop(1, 1, 3, 18, 5)
        storage.drop(1, 1, 25, 30, 5)
    with candidate.opened() as opened:
        for storage in _after_upkeep(opened):
            _expect_in_doubt(storage, [*range(1, 40, 5), *range(3, 20, 5)])
            for at in (0, 2, 4, 5, 7, 8, 9):
                rule = "drop: other rotations stay, and a batch until all its entries were dropped"
                expect_read(storage, (1, batches[at].last_entry_id, 1), 0, [batches[at]], rule)
            starts = [(0, 35), (2, 37), (4, 39), (23, 38)]
            _expect_ranges(storage, 1, [StoredRange(1, first, last, 5) for first, last in starts])
        opened.commit(puts([batches[1]]))
        _expect_in_doubt(opened, [21, 26, 3, 8])
        expect_read(opened, (1, 6, 1), 0, [batches[1]], "drop: a batch that is stored again can be read again")


def _expect_in_doubt(storage: Storage, entry_ids: Iterable[int]) -> None:
    for entry_id in entry_ids:
        for read in (storage.read, storage.read_nowait):
            try:
                found = read(1, entry_id, 1, 0)
            except StorageUncertainError:
                continue
            except trio.WouldBlock:
                continue
            expect(False, f"drop: a dropped entry is in doubt, never absent (F5) [entry {entry_id}]", found)


CHECKS: tuple[Callable[[Candidate], None], ...] = (
    check_ranges_of_nothing,
    check_ranges,
    check_striped_ranges,
    check_many_ranges,
    check_dropped_entries,
    check_dropped_just_stored,
    check_dropped_striped_entries,
    check_dropped_rotations,
)
