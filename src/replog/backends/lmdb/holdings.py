"""The entries of a ledger that a storage in LMDB holds, from the keys of its batches (F3)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from replog.abc import Damage, StoredRange
from replog.backends.holdings import Holdings
from replog.backends.lmdb.damages import Damages
from replog.backends.lmdb.recent import RecentBatches
from replog.backends.lmdb.records import (
    BATCH,
    BATCH_KEY_BYTES,
    DamagedError,
    Series,
    id_key,
    unpack_batch_key,
    unseal_batch,
)
from replog.backends.lmdb.snapshot import Snapshot
from replog.backends.lmdb.writing import Changes, Known
from replog.backends.ranges import LedgerRanges
from replog.errors import StorageUncertainError

if TYPE_CHECKING:
    import lmdb


# -- contents ---------------------------------------------------------------------------------------------------------
#
# An open storage's knowledge beside its environment: deleted ledgers, garbage, recent batches, damage, and counters.


class Contents:
    """`lock` guards the garbage and the counters. Everything here follows from commits that are durable."""

    def __init__(self, deleted: LedgerRanges, garbage: list[int], ledgers: int, with_dropped: set[int]) -> None:
        self.lock = threading.Lock()
        self.known = Known()
        self.known.with_dropped = with_dropped
        self.deleted = deleted  # never changed, but replaced by another: reads take no lock
        self.garbage = garbage  # deleted ledgers of which batches are left
        self.recent = RecentBatches()
        self.damages = Damages()
        self.ledgers = ledgers
        self.commits = self.batches = self.bytes = 0

    def learn(self, changes: Changes) -> None:
        """These changes were committed, and are durable."""
        self.known.learn(changes)
        if changes.dropped:
            # Copied, because reads in other threads look at the old one without a lock.
            deleted = self.deleted.copy()
            for ledger_id in changes.dropped:
                deleted.add(ledger_id)
            self.deleted = deleted
        with self.lock:
            self.commits += 1
            self.batches += len(changes.batches)
            self.bytes += changes.batch_bytes
            self.ledgers += changes.ledgers_added
            self.garbage += changes.garbage
        assert self.ledgers >= 0, "more ledgers were deleted than there were"
        self.recent.add(changes.batches)
        self.damages.mended(changes.batches)
        for place, identities in changes.dropped_batches.items():
            self.recent.drop_batches(*place, identities)
        for each in changes.dropped_entries:
            self.damages.dropped_entries(each)
        if changes.dropped:
            self.recent.drop(changes.dropped)
            self.damages.dropped(changes.dropped)

    def found_damage(self, damage: Damage) -> None:
        """A read or a scrub found this. Remains of a deleted ledger are garbage, and not damage."""
        if damage.ledger_id not in self.deleted:
            self.damages.add(damage)


# -- holdings ---------------------------------------------------------------------------------------------------------
#
# The entries of a ledger that a storage in LMDB holds, from the keys of its batches (F3).


_KEYS_MAX = 4096  # of one snapshot: the map cannot grow while a snapshot is open

_Piece = tuple[list[tuple[int, int, int, int]], bytes | None]  # stamp, first, last and stride of each; where to go on


def stored_ranges(
    ask: Callable[[Callable[[lmdb.Transaction], _Piece]], _Piece], ledger_id: int, damage: Iterable[Damage]
) -> list[StoredRange]:
    """The stored ranges of a ledger (`Storage.ranges`). `ask` asks one snapshot."""
    holdings = Holdings()
    place: bytes | None = id_key(BATCH, ledger_id)
    while place is not None:
        start = place
        batches, place = ask(lambda transaction, start=start: _piece(transaction, ledger_id, start))  # type: ignore[misc]
        for batch in batches:
            holdings.add(*batch)
    return holdings.ranges(each for each in damage if each.ledger_id == ledger_id)


def _piece(transaction: lmdb.Transaction, ledger_id: int, start: bytes) -> _Piece:
    """The batches from this key on, and the key where the next piece begins."""
    found: list[tuple[int, int, int, int]] = []
    known: dict[int, Series | None] = {}
    prefix = id_key(BATCH, ledger_id)
    cursor = transaction.cursor()
    more = cursor.set_range(start)
    while more and bytes(cursor.key()[: len(prefix)]) == prefix:
        key = bytes(cursor.key())
        if len(found) == _KEYS_MAX:
            return found, key
        if len(key) == BATCH_KEY_BYTES:
            _, _, stamp, first, last, stride = unpack_batch_key(key)
            if stamp not in known:
                known[stamp] = _series(transaction, ledger_id, stamp)
            if _is_stored(key, cursor, known[stamp], (first, last, stride)):
                found.append((stamp, first, last, stride))
        more = cursor.next()
    return found, None


def _series(transaction: lmdb.Transaction, ledger_id: int, stamp: int) -> Series | None:
    with suppress(StorageUncertainError):
        return Snapshot(transaction, ledger_id, stamp).series()
    return None


def _is_stored(key: bytes, cursor: lmdb.Cursor, series: Series | None, held: tuple[int, int, int]) -> bool:
    """A flipped byte may make a key claim entries that were never stored. The series names the stored entries; without
    it the batch does."""
    if series is not None and (not series.is_whole or series.covers(*held)):
        return True
    try:
        unseal_batch(key, cursor.value())
    except DamagedError:
        return False
    return True
