"""The mutations of one commit, done in one write transaction."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from replog.backends.dropped import DroppedEntries
from replog.backends.fences import raised
from replog.backends.lmdb.records import (
    BATCH,
    BATCH_KEY_BYTES,
    DELETED,
    DROPPED,
    GARBAGE,
    LEDGER,
    DamagedError,
    Series,
    batch_key,
    batch_place,
    id_key,
    pack_dropped,
    pack_marks,
    pack_number,
    seal,
    series_key,
    unpack_batch_key,
    unpack_dropped,
    unpack_id_key,
    unpack_marks,
    unpack_number,
    unseal,
)
from replog.backends.lmdb.snapshot import Snapshot
from replog.backends.ranges import LedgerRanges
from replog.errors import StorageUncertainError
from replog.protocol.batch import ENTRY_ID_MAX, Batch
from replog.protocol.mutations import DropEntries, Marks, Mutation, PutBatch, SetMarks

if TYPE_CHECKING:
    import lmdb

_NOTHING = Marks()
_KNOWN_MAX = 4096


class Known:
    """Marks and series as the last commit that touched them left them: so that a commit need not look them up."""

    def __init__(self) -> None:
        self.marks: dict[int, Marks] = {}
        self.series: dict[tuple[int, int], Series] = {}
        # Ledgers of which entries were dropped, or are being dropped by a commit that is not durable yet: a read must not
        # deny such an entry in between.
        self.with_dropped: set[int] = set()

    def learn(self, changes: Changes) -> None:
        """These changes are durable."""
        # All at once: keeping an order of use would cost each commit more than reading some marks again.
        if len(self.marks) > _KNOWN_MAX or len(self.series) > _KNOWN_MAX:
            self.marks.clear()
            self.series.clear()
        for ledger_id in changes.dropped:
            self.marks.pop(ledger_id, None)
        self.with_dropped -= changes.dropped
        if changes.dropped:
            self.series = {key: series for key, series in self.series.items() if key[0] not in changes.dropped}
        self.marks.update(changes.marks)
        self.series.update(changes.series)


def read_marks(transaction: lmdb.Transaction, ledger_id: int) -> Marks | None:
    """The marks of a ledger, or None. Raises `StorageUncertainError` if they are damaged, or missing though entries of
    it are stored: the key may be the damaged part."""
    key = id_key(LEDGER, ledger_id)
    value = transaction.get(key)
    if value is None and (
        not has_series(transaction, ledger_id) or transaction.get(id_key(GARBAGE, ledger_id)) is not None
    ):
        return None
    with suppress(DamagedError):
        if value is not None:
            return unpack_marks(unseal(key, value))
    raise StorageUncertainError(
        f"ledger {ledger_id}: its marks are damaged, so it is unknown whether it is fenced",
        "Ask another bookie, and recover this bookie's copies from the others",
    )


def has_series(transaction: lmdb.Transaction, ledger_id: int) -> bool:
    """Whether batches of this ledger were stored, and not all of them removed."""
    key = id_key(LEDGER, ledger_id)
    with transaction.cursor() as cursor:
        return cursor.set_range(key + b"\0") and bytes(cursor.key()[: len(key)]) == key


def read_dropped(transaction: lmdb.Transaction, ledger_id: int) -> DroppedEntries:
    """The entries of a ledger that were dropped. Raises `DamagedError`."""
    key = id_key(DROPPED, ledger_id)
    value = transaction.get(key)
    return DroppedEntries() if value is None else unpack_dropped(unseal(key, value))


def check_not_dropped(transaction: lmdb.Transaction, ledger_id: int, entry_id: int, stamp: int) -> None:
    """Raises `StorageUncertainError` if an entry that was not found may have been dropped (F5)."""
    try:
        read_dropped(transaction, ledger_id).check(ledger_id, entry_id, stamp)
    except DamagedError as error:
        raise StorageUncertainError(
            f"ledger {ledger_id}: the record of what was dropped is damaged, so entry {entry_id} may have been",
            "Ask another bookie",
        ) from error


class Changes:
    """The mutations of a commit, and its results. Mutations of deleted ledgers do nothing: they are gone permanently (L5)."""

    def __init__(self, transaction: lmdb.Transaction, deleted: LedgerRanges, known: Known) -> None:
        self.batches: list[Batch] = []
        self.dropped_entries: list[DropEntries] = []
        # By ledger and stamp the batches that went with the last of their entries: first and last id, stride
        self.dropped_batches: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        self.dropped: set[int] = set()
        self.garbage: list[int] = []  # those of them that left batches behind
        self.batch_bytes = 0
        self.ledgers_added = 0
        self._transaction = transaction
        self._deleted = deleted
        self._known = known
        self._marks_before: dict[int, Marks | None] = {}
        self.marks: dict[int, Marks] = {}
        self.series: dict[tuple[int, int], Series] = {}

    def apply(self, mutations: Sequence[Mutation]) -> None:
        """Does them in this order. Raises what LMDB raises, and `StorageUncertainError`."""
        for mutation in mutations:
            ledger_id = mutation.batch.ledger_id if isinstance(mutation, PutBatch) else mutation.ledger_id
            if ledger_id in self._deleted or ledger_id in self.dropped:
                continue
            if isinstance(mutation, PutBatch):
                self._put(mutation.batch)
            elif isinstance(mutation, SetMarks):
                self._raise_marks(mutation)
            elif isinstance(mutation, DropEntries):
                self._drop_entries(mutation)
            else:
                self._drop(ledger_id)
        self._finish()

    def _put(self, batch: Batch) -> None:
        key = batch_key(batch)
        self._transaction.put(key, seal(key, batch.data))
        self._series_of(batch.ledger_id, batch.stamp).add(batch.first_entry_id, batch.last_entry_id, batch.stride)
        if batch.ledger_id in self._known.with_dropped:
            dropped = self._dropped_of(batch.ledger_id, batch.stamp)
            dropped.stored(batch.stamp, batch.first_entry_id, batch.last_entry_id, batch.stride)
            self._put_dropped(batch.ledger_id, dropped)
        marks = self._marks_of(batch.ledger_id)
        self.marks[batch.ledger_id] = Marks(
            marks.key,
            marks.fence_term,
            max(marks.last_add_confirmed, batch.last_add_confirmed),
            max(marks.last_entry_id, batch.last_entry_id),
            marks.proof,
            marks.revision,
        )
        self.batches.append(batch)
        self.batch_bytes += len(batch.data)

    def _raise_marks(self, wanted: SetMarks) -> None:
        self.marks[wanted.ledger_id] = raised(self._marks_of(wanted.ledger_id), wanted)

    def _marks_of(self, ledger_id: int) -> Marks:
        known = self.marks.get(ledger_id)
        if known is not None:
            return known
        before = self._known.marks.get(ledger_id) or read_marks(self._transaction, ledger_id)
        self._marks_before[ledger_id] = before
        return before or _NOTHING

    def _series_of(self, ledger_id: int, stamp: int) -> Series:
        found = self.series.get((ledger_id, stamp))
        if found is None:
            known = self._known.series.get((ledger_id, stamp))
            found = known.copy() if known is not None else self._load_series(ledger_id, stamp)
            self.series[ledger_id, stamp] = found
        return found

    def _load_series(self, ledger_id: int, stamp: int) -> Series:
        snapshot = Snapshot(self._transaction, ledger_id, stamp)
        with suppress(StorageUncertainError):
            found = snapshot.series()
            if found is not None:
                return found
        series = Series()
        # A new series holds nothing. A series whose record is damaged or lost is made again from the batches' keys.
        for held in snapshot.all_held():
            series.add(*held)
        return series

    def _drop_entries(self, wanted: DropEntries) -> None:
        """Deletes batches whose entries were all dropped, and records the dropped entries (F5)."""
        ledger_id, stamp, first, last = wanted.ledger_id, wanted.stamp, wanted.first_entry_id, wanted.last_entry_id
        if ledger_id not in self.marks and self._transaction.get(id_key(LEDGER, ledger_id)) is None:
            return
        self._known.with_dropped.add(ledger_id)
        dropped = self._dropped_of(ledger_id, stamp)
        dropped.add(stamp, first, last, wanted.stride)
        self._put_dropped(ledger_id, dropped)
        series = self._series_of(ledger_id, stamp)
        kept: list[tuple[int, int, int]] = []
        gone: list[tuple[int, int, int]] = []  # one of them may begin or end in a range dropped before
        with self._transaction.cursor() as cursor:
            more = cursor.set_range(batch_place(ledger_id, stamp, max(0, first - series.span_max)))
            while more and len(key := bytes(cursor.key())) == BATCH_KEY_BYTES:
                held = unpack_batch_key(key)
                if held[:3] != (BATCH, ledger_id, stamp) or held[3] > last:
                    break
                batch = held[3], held[4], held[5] or 1
                if dropped.covers(stamp, *batch):
                    more = cursor.delete() and bool(cursor.key())
                    gone.append(batch)
                else:
                    kept.append(batch)
                    more = cursor.next()
        for batch in [(first, last, wanted.stride), *gone]:
            series.remove(*batch)
        for batch in kept:
            series.add(*batch)
        self.dropped_entries.append(wanted)
        self.dropped_batches.setdefault((ledger_id, stamp), []).extend(gone)

    def _dropped_of(self, ledger_id: int, stamp: int) -> DroppedEntries:
        try:
            return read_dropped(self._transaction, ledger_id)
        except DamagedError:
            # The damaged record is ignored: no entry of this stamp may be denied.
            return DroppedEntries([(stamp, 0, ENTRY_ID_MAX, 1)])

    def _put_dropped(self, ledger_id: int, dropped: DroppedEntries) -> None:
        key = id_key(DROPPED, ledger_id)
        self._transaction.put(key, seal(key, pack_dropped(dropped)))

    def _drop(self, ledger_id: int) -> None:
        """Deletes the marks now; the batches are left to be removed in pieces, since they may be very many."""
        transaction = self._transaction
        was_known = transaction.delete(id_key(LEDGER, ledger_id))
        # The garbage mark is written in the same transaction: a crash leaves no batches that nothing removes.
        if was_known or ledger_id in self.marks or has_series(transaction, ledger_id):
            transaction.put(id_key(GARBAGE, ledger_id), b"")
            self.garbage.append(ledger_id)
        transaction.delete(id_key(DROPPED, ledger_id))
        self.ledgers_added -= was_known
        self.marks.pop(ledger_id, None)
        for key in [key for key in self.series if key[0] == ledger_id]:
            del self.series[key]
        self._delete_for_ever(ledger_id)
        self.dropped.add(ledger_id)

    def _delete_for_ever(self, ledger_id: int) -> None:
        """Joins the id to the ranges of deleted ledgers beside it."""
        first = last = ledger_id
        place = id_key(DELETED, ledger_id)
        with self._transaction.cursor() as cursor:
            # Ids are deleted in nearly ascending order: joined, millions of them are a few records.
            behind = cursor.set_range(place)
            if behind and cursor.key() == id_key(DELETED, ledger_id + 1) and (end := _end_of(cursor)) is not None:
                last = end
                cursor.delete()
                behind = cursor.set_range(place)
            is_behind_one = (cursor.prev() if behind else cursor.last()) and cursor.key()[:1] == DELETED
            if is_behind_one and _end_of(cursor) == ledger_id - 1:
                first = unpack_id_key(cursor.key())
        key = id_key(DELETED, first)
        self._transaction.put(key, seal(key, pack_number(last)))

    def _finish(self) -> None:
        for (ledger_id, stamp), series in self.series.items():
            key = series_key(ledger_id, stamp)
            self._transaction.put(key, seal(key, series.pack()))
        for ledger_id, marks in self.marks.items():
            before = self._marks_before[ledger_id]
            if marks != before:
                key = id_key(LEDGER, ledger_id)
                self._transaction.put(key, seal(key, pack_marks(marks)))
                self.ledgers_added += before is None


def _end_of(cursor: lmdb.Cursor) -> int | None:
    """The last ledger of the range of deleted ones at the cursor; None if its record is damaged."""
    try:
        return unpack_number(unseal(bytes(cursor.key()), cursor.value()))
    except DamagedError:
        return None
