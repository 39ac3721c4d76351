"""What a storage in LMDB holds of a ledger, from the keys of its batches (F3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from replog.abc import Damage, StoredRange
from replog.backends.holdings import Holdings
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
from replog.errors import StorageUncertainError

if TYPE_CHECKING:
    import lmdb

_KEYS_MAX = 4096  # of one snapshot: the map cannot grow while a snapshot is open

_Piece = tuple[list[tuple[int, int, int, int]], bytes | None]  # stamp, first, last and stride of each; where to go on


def stored_ranges(
    ask: Callable[[Callable[[lmdb.Transaction], _Piece]], _Piece], ledger_id: int, damage: Iterable[Damage]
) -> list[StoredRange]:
    """As `Storage.ranges`. `ask` asks one snapshot."""
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
    """A flipped byte may have made a key claim what was never stored. The series says what was; without it the batch does."""
    if series is not None and (not series.is_whole or series.covers(*held)):
        return True
    try:
        unseal_batch(key, cursor.value())
    except DamagedError:
        return False
    return True
