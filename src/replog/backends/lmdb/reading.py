"""Finding batches in one snapshot of the environment, each checked against damage.

The batch that holds an entry is the one that begins next before it, as a rule. Else the series says whether there is
one at all, and how far before the entry it can begin: nothing is searched from end to end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from replog.abc import Damage
from replog.backends.lmdb.records import (
    BATCH,
    BATCH_KEY_BYTES,
    CHECKSUM_BYTES,
    DamagedError,
    Series,
    batch_place,
    series_key,
    unpack_batch_key,
    unseal,
    unseal_batch,
)
from replog.errors import StorageUncertainError
from replog.protocol.batch import Batch

if TYPE_CHECKING:
    import lmdb

_ELSEWHERE = "Read it from another bookie, and re-replicate this one"

Held = tuple[int, int, int]  # first id, last id, stride


class BatchDamagedError(StorageUncertainError):
    """A `StorageUncertainError` that says which batch is damaged."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(
            f"ledger {damage.ledger_id}, entries {damage.first_entry_id} to {damage.last_entry_id} of stamp "
            f"{damage.stamp}: {damage.description}",
            _ELSEWHERE,
        )
        self.damage = damage


class Snapshot:
    """Questions to one snapshot about one ledger and stamp. Raises what LMDB raises, and `BatchDamagedError`."""

    __slots__ = ("_cursor", "_ledger_id", "_stamp", "_transaction")

    def __init__(self, transaction: lmdb.Transaction, ledger_id: int, stamp: int) -> None:
        self._transaction = transaction
        self._cursor = transaction.cursor()
        self._ledger_id = ledger_id
        self._stamp = stamp

    def read(self, entry_id: int, bytes_max: int) -> list[Batch]:
        """The batch that holds the entry, and those that start after it while they fit, up to a damaged one."""
        if not self._find(entry_id):
            return []
        cursor = self._cursor
        batches = [self._fetch(entry_id)]
        left = bytes_max - len(batches[0].data)
        if left <= 0:
            return batches
        more = cursor.set_range(batch_place(self._ledger_id, self._stamp, batches[0].first_entry_id + 1))
        while more and self._held():
            value = cursor.value()
            left -= len(value) - CHECKSUM_BYTES
            if left < 0:
                break
            try:
                batches.append(unseal_batch(cursor.key(), value))
            except DamagedError:
                break
            more = cursor.next()
        return batches

    def series(self) -> Series | None:
        """What is known of the batches under this stamp, or None if nothing is."""
        key = series_key(self._ledger_id, self._stamp)
        value = self._transaction.get(key)
        if value is None:
            return None
        try:
            return Series.unpack(unseal(key, value))
        except DamagedError as error:
            raise StorageUncertainError(
                f"ledger {self._ledger_id}: the record of what is stored under stamp {self._stamp} is damaged",
                _ELSEWHERE,
            ) from error

    def all_held(self) -> Iterator[Held]:
        """What each batch of this stamp holds, from the keys alone."""
        more = self._cursor.set_range(batch_place(self._ledger_id, self._stamp, 0))
        while more and (held := self._held()):
            yield held
            more = self._cursor.next()

    def _find(self, entry_id: int) -> bool:
        """Sets the cursor to the batch that holds the entry. False if that is proven absent."""
        cursor = self._cursor
        behind = cursor.set_range(batch_place(self._ledger_id, self._stamp, entry_id + 1))
        found = cursor.prev() if behind else cursor.last()
        held = self._held() if found else None
        if held is not None and entry_id <= held[1] and (entry_id - held[0]) % held[2] == 0:
            return True
        series = self.series()
        if series is None:
            if held is not None or (behind and self._is_before_others()):
                raise self._lost(entry_id, "the record of what is stored is missing")
            return False
        if series.is_whole and not series.holds(entry_id):
            return False
        while held is not None and held[0] >= entry_id - series.span_max:
            first, last, stride = held
            if entry_id <= last and (entry_id - first) % stride == 0:
                return True
            held = self._held() if cursor.prev() else None
        if series.holds(entry_id):
            raise self._lost(entry_id, "it was stored, and is not there")
        return False

    def _is_before_others(self) -> bool:
        return self._cursor.next() and self._held() is not None

    def _held(self) -> Held | None:
        """What the batch at the cursor holds, or None if that is none of this ledger and stamp."""
        key = self._cursor.key()
        if len(key) != BATCH_KEY_BYTES:
            return None
        kind, ledger_id, stamp, first, last, stride = unpack_batch_key(key)
        if kind != BATCH or ledger_id != self._ledger_id or stamp != self._stamp:
            return None
        return first, last, stride or 1

    def _fetch(self, entry_id: int) -> Batch:
        """The batch at the cursor, or if that is damaged another one with the entry: a flipped byte in the key of one may
        have made it claim what it does not hold."""
        key = bytes(self._cursor.key())
        try:
            return unseal_batch(key, self._cursor.value())
        except DamagedError as error:
            batch = self._other_holder(entry_id)
            if batch is None:
                raise BatchDamagedError(damage_at(key)) from error
            return batch

    def _other_holder(self, entry_id: int) -> Batch | None:
        series = self.series()
        while series is not None and self._cursor.prev():
            held = self._held()
            if held is None or held[0] < entry_id - series.span_max:
                break
            if entry_id <= held[1] and (entry_id - held[0]) % held[2] == 0:
                try:
                    return unseal_batch(self._cursor.key(), self._cursor.value())
                except DamagedError:
                    continue
        return None

    def _lost(self, entry_id: int, description: str) -> BatchDamagedError:
        return BatchDamagedError(Damage(self._ledger_id, self._stamp, entry_id, entry_id, description))


def damage_at(key: bytes | memoryview) -> Damage:
    """The damage of the batch under this key."""
    _, ledger_id, stamp, first, last, _ = unpack_batch_key(key)
    return Damage(ledger_id, stamp, first, last, "its bytes don't match their checksum")
