"""What goes on beside commits and reads: removing the batches of deleted ledgers, and looking for damage.

Removing goes in pieces, each a transaction of its own, so that a large ledger's end stalls nobody: commits wait for one
piece at most. The ledger itself was deleted durably before, and a crash between two pieces costs nothing: the rest is
removed after the next opening.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from replog.abc import Damage
from replog.backends.lmdb.reading import SERIES_TORN, Snapshot
from replog.backends.lmdb.records import (
    BATCH,
    BATCH_KEY_BYTES,
    GARBAGE,
    LEDGER,
    SERIES_KEY_BYTES,
    DamagedError,
    Series,
    id_key,
    unpack_batch_key,
    unpack_series_key,
    unseal_batch,
)
from replog.errors import StorageUncertainError

if TYPE_CHECKING:
    import lmdb

Check = Callable[["lmdb.Transaction", bytes, "bytes | memoryview"], None]

_PIECE_RECORDS_MAX = 256
_PIECE_S = 0.002
_REST_FACTOR = 4  # so long, times what a piece took, others have the disk to themselves
_SCRUB_BYTES = 4 << 20  # in one transaction: a long one would keep old pages from being used again
_SCRUB_RECORDS_MAX = 1024


def touch_piece(transaction: lmdb.Transaction, ledger_id: int) -> None:
    """Brings what the next piece needs into memory, so that no commit has to wait for a disk's reads meanwhile."""
    deadline = time.monotonic() + 10 * _PIECE_S
    with transaction.cursor() as cursor:
        more = cursor.set_range(id_key(BATCH, ledger_id))
        for _ in range(_PIECE_RECORDS_MAX):
            if not more or bytes(cursor.key()[:9]) != id_key(BATCH, ledger_id) or time.monotonic() > deadline:
                return
            more = cursor.next()


def remove_piece(transaction: lmdb.Transaction, ledger_id: int) -> bool:
    """Removes some of what a deleted ledger left. True if that was all: then its garbage mark is removed too."""
    deadline = time.monotonic() + _PIECE_S
    left = _PIECE_RECORDS_MAX
    with transaction.cursor() as cursor:
        for prefix in (id_key(BATCH, ledger_id), id_key(LEDGER, ledger_id)):
            more = cursor.set_range(prefix)
            while more and bytes(cursor.key()[: len(prefix)]) == prefix:
                if not left or time.monotonic() > deadline:
                    return False
                more = cursor.delete() and bool(cursor.key())
                left -= 1
    transaction.delete(id_key(GARBAGE, ledger_id))
    return True


class Upkeep:
    """The thread that removes garbage and scrubs. `remove_some` removes a piece, and says whether there is more; `scrub_some`
    looks at the next few megabytes, and says how long to rest then, or None when all were looked at. Neither raises."""

    def __init__(
        self,
        name: str,
        remove_some: Callable[[], bool],
        scrub_some: Callable[[], float | None],
        scrub_interval_s: float,
    ) -> None:
        self._remove_some = remove_some
        self._scrub_some = scrub_some
        self._scrub_interval_s = scrub_interval_s
        self._wake = threading.Event()
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def wake(self) -> None:
        """There is something to remove."""
        self._wake.set()

    def stop(self) -> None:
        """Ends the thread after the piece that it is at, and joins it."""
        self._is_stopping.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        scrub_at = time.monotonic() + self._scrub_interval_s if self._scrub_interval_s else math.inf
        while not self._is_stopping.is_set():
            self._wake.wait(min(threading.TIMEOUT_MAX, max(0.0, scrub_at - time.monotonic())))
            self._wake.clear()
            more = True
            while more and not self._is_stopping.is_set():
                started = time.monotonic()
                more = self._remove_some()
                self._is_stopping.wait(_REST_FACTOR * (time.monotonic() - started))
            if time.monotonic() >= scrub_at and not self._is_stopping.is_set():
                rest_s = self._scrub_some()
                scrub_at = time.monotonic() + (self._scrub_interval_s if rest_s is None else rest_s)


class Scrub:
    """One look at all that is stored, a few megabytes at a time. `found` is told of each damage."""

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
        """LMDB can't go on from here: its own pages are damaged. What is behind that isn't known, so nothing is listed if it
        is so from the beginning; reads tell."""
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
                return  # what it held before its key was damaged is missing, and found as that
            self._found(damage)
        self._seen.add(first, last, stride or 1)

    def _check_series(self, transaction: lmdb.Transaction, key: bytes, value: bytes | memoryview) -> None:
        """Batches may have gone with all that tells of them, but for this."""
        del value
        _, ledger_id, stamp = unpack_series_key(key)
        if next(Snapshot(transaction, ledger_id, stamp).all_held(), None) is None:
            self._place = (ledger_id, stamp)
            with suppress(StorageUncertainError):
                self._expected = Snapshot(transaction, ledger_id, stamp).series()
            self._end_series(transaction)

    def _end_series(self, transaction: lmdb.Transaction) -> None:
        """Compares what was seen with what should be there. What came meanwhile was not expected, and does no harm."""
        place, expected, seen = self._place, self._expected, self._seen
        self._place, self._expected, self._seen = None, None, Series()
        if place is None:
            return
        snapshot, is_known = Snapshot(transaction, *place), False
        with suppress(StorageUncertainError):
            is_known = snapshot.series() is not None
        if not is_known:
            behind = 1 + max((last for _, last, _ in seen.ranges), default=-1)
            if snapshot.first_lost(behind, behind, 1) is not None:  # else the key that led here was damaged
                self._found(Damage(*place, behind, behind, SERIES_TORN))
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
