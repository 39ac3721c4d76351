"""Scrubbing: every batch is compared with its checksum, and what a ledger should have with what it has.

A scrub goes in pieces, each a snapshot of its own: a long one would keep LMDB from using old pages again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from replog.abc import Damage
from replog.backends.lmdb.records import (
    BATCH,
    BATCH_KEY_BYTES,
    LEDGER,
    SERIES_KEY_BYTES,
    DamagedError,
    Series,
    unpack_batch_key,
    unpack_series_key,
    unseal_batch,
)
from replog.backends.lmdb.snapshot import SERIES_TORN, Snapshot
from replog.errors import StorageUncertainError

if TYPE_CHECKING:
    import lmdb

Check = Callable[["lmdb.Transaction", bytes, "bytes | memoryview"], None]

_SCRUB_BYTES = 4 << 20  # in one transaction: a long one would keep old pages from being used again
_SCRUB_RECORDS_MAX = 1024


class Scrub:
    """One check of all that is stored, a few megabytes at a time. Calls `found` with each damage."""

    def __init__(self, found: Callable[[Damage], None]) -> None:
        self._found = found
        self._after = BATCH
        self._place: tuple[int, int] | None = None  # ledger and stamp under way
        self._expected: Series | None = None  # what its record said before; None if that is damaged, or missing
        self._seen = Series()
        self.bytes = 0

    def go_on(self, transaction: lmdb.Transaction) -> bool:
        """Checks the next few batches of this snapshot, and when all are checked the series of which there are none. False when
        all is done."""
        if self._after[:1] == BATCH:
            if not self._go_through(transaction, BATCH_KEY_BYTES, self._check):
                self._end_series(transaction)
                self._after = LEDGER
            return True
        return self._go_through(transaction, SERIES_KEY_BYTES, self._check_series)

    def _go_through(self, transaction: lmdb.Transaction, key_bytes: int, check: Check) -> bool:
        """The next few keys of this kind and length. Whether there are more."""
        size_bytes = records = 0
        kind = self._after[:1]
        with transaction.cursor() as cursor:
            more = cursor.set_range(self._after)
            while more and bytes(cursor.key()[:1]) == kind:
                key, value = bytes(cursor.key()), cursor.value()
                if size_bytes >= _SCRUB_BYTES or records >= _SCRUB_RECORDS_MAX:
                    self._after = key
                    return True
                if len(key) == key_bytes:
                    check(transaction, key, value)
                size_bytes += len(value)
                self.bytes += len(value)
                records += 1
                more = cursor.next()
        return False

    def give_up(self, description: str) -> None:
        """Ends the scrub where LMDB's own pages are damaged.

        The state of the pages behind that place is unknown. If it is the first place, nothing is listed; reads still
        find the damage."""
        if len(self._after) == BATCH_KEY_BYTES:
            _, ledger_id, stamp, first, last, _ = unpack_batch_key(self._after)
            self._found(Damage(ledger_id, stamp, first, last, f"from here on nothing can be scrubbed: {description}"))

    def _check(self, transaction: lmdb.Transaction, key: bytes, value: bytes | memoryview) -> None:
        _, ledger_id, stamp, first, last, stride = unpack_batch_key(key)
        if (ledger_id, stamp) != self._place:
            self._end_series(transaction)
            self._place = (ledger_id, stamp)
            with suppress(StorageUncertainError):
                self._expected = Snapshot(transaction, ledger_id, stamp).series()
        try:
            unseal_batch(key, value)
        except DamagedError:
            snapshot = Snapshot(transaction, ledger_id, stamp)
            damage = snapshot.damage_of(key)
            if damage is None or snapshot.first_lost(damage.first_entry_id, damage.last_entry_id, stride or 1) is None:
                # Its key is damaged, so what the key claims is wrong. What it really held is missing, and found as that.
                return
            self._found(damage)
        self._seen.add(first, last, stride or 1)

    def _check_series(self, transaction: lmdb.Transaction, key: bytes, value: bytes | memoryview) -> None:
        """Checks a series without any batch: all batches may be gone, and then only the series shows that they existed."""
        del value
        _, ledger_id, stamp = unpack_series_key(key)
        if next(Snapshot(transaction, ledger_id, stamp).all_held(), None) is None:
            self._place = (ledger_id, stamp)
            with suppress(StorageUncertainError):
                self._expected = Snapshot(transaction, ledger_id, stamp).series()
            self._end_series(transaction)

    def _end_series(self, transaction: lmdb.Transaction) -> None:
        """Compares the batches that were seen with those of the series. Batches that came meanwhile do no harm."""
        place, expected, seen = self._place, self._expected, self._seen
        self._place, self._expected, self._seen = None, None, Series()
        if place is None:
            return
        snapshot, is_known = Snapshot(transaction, *place), False
        with suppress(StorageUncertainError):
            is_known = snapshot.series() is not None
        if not is_known:
            behind = 1 + max((last for _, last, _ in seen.ranges), default=-1)
            # An entry behind the last one must be provably absent. If it is, the key that led here was damaged.
            if snapshot.first_lost(behind, behind, 1) is not None:
                self._found(Damage(*place, behind, behind, SERIES_TORN))
        # Without all ranges, a hole in what was seen may only be forgotten: nothing can be said.
        if expected is None or not seen.is_whole:
            return
        for first, last, stride in expected.ranges:
            if not seen.covers(first, last, stride):
                for gap_first, gap_last in _gaps(first, last, stride, seen.ranges):
                    lost = snapshot.first_lost(gap_first, gap_last, stride)
                    if lost is not None:
                        self._found(Damage(*place, lost, gap_last, "entries were stored, and are not there"))


def _gaps(first: int, last: int, stride: int, ranges: Iterable[tuple[int, int, int]]) -> Iterable[tuple[int, int]]:
    """The parts of a range that none of these holds."""
    for start, end, step in sorted(ranges):
        if step != stride or (start - first) % stride or end < first or start > last:
            continue
        if start > first:
            yield first, start - stride
        first = end + stride
    if first <= last:
        yield first, last
