"""Finding batches in one snapshot of the environment, each checked against damage.

The batch that holds an entry is the one that begins next before it, as a rule. Else the series says whether there is
one at all, and how far before the entry it can begin: nothing is searched from end to end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
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

SERIES_TORN = "the record of what is stored is damaged or missing, until more is stored"
_TORN = "its bytes don't match their checksum"
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
        if not self._find(entry_id) or (batch := self._fetch(entry_id)) is None:
            return []
        cursor, batches = self._cursor, [batch]
        left = bytes_max - len(batch.data)
        if left <= 0:
            return batches
        more = cursor.set_range(batch_place(self._ledger_id, self._stamp, batch.first_entry_id + 1))
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
        """The series of batches under this stamp, or None if there are none."""
        key = series_key(self._ledger_id, self._stamp)
        value = self._transaction.get(key)
        if value is None:
            return None
        try:
            return Series.unpack(unseal(key, value))
        except DamagedError as error:
            raise StorageUncertainError(
                f"ledger {self._ledger_id}, stamp {self._stamp}: {SERIES_TORN}",
                _ELSEWHERE,
            ) from error

    def damage_of(self, key: bytes) -> Damage | None:
        """The entries that cannot be read because the batch under this key is damaged: its claimed entries, without
        those that other batches hold and those that were never stored, for the key itself may be damaged. None if there
        are no such entries, or if no batch here ever reached as far: then its entries are missing elsewhere."""
        _, ledger_id, stamp, first, last, stride = unpack_batch_key(key)
        try:
            series = self.series()
        except StorageUncertainError:
            series = None
        if first > last or (series is not None and last - first > series.span_max):
            return None
        if series is None:
            return Damage(ledger_id, stamp, first, last, _TORN)
        # Bounded by `span_max`, which was checked above: a damaged key may claim any number of entries.
        lost = set(range(first, last + 1, stride or 1))
        for batch in self._intact(first, last, series):
            lost.difference_update(batch.entry_ids)
        lost = {entry_id for entry_id in lost if series.may_hold(entry_id)}
        return Damage(ledger_id, stamp, min(lost), max(lost), _TORN) if lost else None

    def first_lost(self, first: int, last: int, stride: int) -> int | None:
        """The first of these entries, of which all were stored, that can't be read."""
        entry_id = first
        while entry_id <= last:
            try:
                found = self.read(entry_id, 0)
            except StorageUncertainError:
                return entry_id
            if not found:
                return None  # forgotten meanwhile
            entry_id = (found[0].last_entry_id if found[0].stride == stride else entry_id) + stride
        return None

    def all_held(self) -> Iterator[Held]:
        """The entries that each batch of this stamp holds, from the keys alone."""
        more = self._cursor.set_range(batch_place(self._ledger_id, self._stamp, 0))
        while more and (held := self._held()):
            yield held
            more = self._cursor.next()

    def _find(self, entry_id: int) -> bool:
        """Sets the cursor to the batch that holds the entry. False if that is proven absent."""
        cursor = self._cursor
        behind = cursor.set_range(batch_place(self._ledger_id, self._stamp, entry_id + 1))
        # The batch that begins next before the entry: nearly always it is the one, or there is none.
        found = cursor.prev() if behind else cursor.last()
        held = self._held() if found else None
        if held is not None and entry_id <= held[1] and (entry_id - held[0]) % held[2] == 0:
            return True
        series = self.series()
        if series is None:
            # Batches without a series: its record was lost, so absence can't be proven (R4).
            if held is not None or (behind and self._is_before_others()):
                raise self._lost(entry_id, SERIES_TORN)
            return False
        if not series.may_hold(entry_id):
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
        """The entries of the batch at the cursor, or None if it belongs to another ledger or stamp."""
        key = self._cursor.key()
        if len(key) != BATCH_KEY_BYTES:
            return None
        kind, ledger_id, stamp, first, last, stride = unpack_batch_key(key)
        if kind != BATCH or ledger_id != self._ledger_id or stamp != self._stamp:
            return None
        return first, last, stride or 1

    def _fetch(self, entry_id: int) -> Batch | None:
        """The batch at the cursor, or if that is damaged another one with the entry: a flipped byte in the key of one may
        have made it claim what it does not hold. None if there never was one with the entry."""
        key = bytes(self._cursor.key())
        try:
            return unseal_batch(key, self._cursor.value())
        except DamagedError as error:
            series = self.series()
            # The key may be what is damaged: then this batch claims an entry that another one holds, or that never was.
            if series is not None:
                holders = [each for each in self._intact(entry_id, entry_id, series) if each.holds(entry_id)]
                if holders:
                    return holders[-1]
                if not series.may_hold(entry_id):
                    return None
            damage = self.damage_of(key) or Damage(self._ledger_id, self._stamp, entry_id, entry_id, _TORN)
            raise BatchDamagedError(damage) from error

    def _intact(self, first: int, last: int, series: Series) -> Iterator[Batch]:
        """The batches that reach into this range, without the damaged ones."""
        cursor = self._cursor
        more = cursor.set_range(batch_place(self._ledger_id, self._stamp, max(0, first - series.span_max)))
        while more and (held := self._held()) and held[0] <= last:
            if held[1] >= first:
                with suppress(DamagedError):
                    yield unseal_batch(cursor.key(), cursor.value())
            more = cursor.next()

    def _lost(self, entry_id: int, description: str) -> BatchDamagedError:
        return BatchDamagedError(Damage(self._ledger_id, self._stamp, entry_id, entry_id, description))
