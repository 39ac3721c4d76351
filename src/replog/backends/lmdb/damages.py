"""The damaged batches that a storage knows of, until they are stored again."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from attrs import evolve

from replog.abc import Damage
from replog.backends.lmdb.records import (
    BATCH,
    BATCH_KEY_BYTES,
    DELETED,
    FORMAT_KEY,
    LEDGER,
    LEDGER_KEY_BYTES,
    DamagedError,
    Series,
    format_text,
    id_key,
    pack_marks,
    seal,
    series_key,
    unpack_batch_key,
    unpack_id_key,
    unpack_number,
    unseal,
)
from replog.backends.lmdb.snapshot import SERIES_TORN
from replog.backends.ranges import LedgerRanges
from replog.protocol.batch import Batch
from replog.protocol.mutations import DropEntries, Marks

_KNOWN_MAX = 10_000  # more are not remembered: a repair asks again when it has repaired these

_Identity = tuple[int, int, int, int]


class Damages:
    """May be called by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[_Identity, Damage] = {}
        self.found = 0  # ever

    def add(self, damage: Damage) -> None:
        """Found one."""
        identity = _identity(damage)
        with self._lock:
            # Reads find the same damage again and again until it is repaired: it counts once.
            self.found += identity not in self._known
            if len(self._known) < _KNOWN_MAX:
                self._known[identity] = damage

    def known(self) -> list[Damage]:
        """All of them, by ledger and entry."""
        with self._lock:
            return [self._known[identity] for identity in sorted(self._known)]

    def mended(self, batches: Iterable[Batch]) -> None:
        """These were stored, now that they are durable."""
        # Asked without the lock, which each commit would have to take: usually nothing is damaged.
        if not self._known:
            return
        with self._lock:
            for batch in batches:
                for identity, damage in list(self._known.items()):
                    left = list(_left(damage, batch))
                    # One damage may be of several batches side by side, of which this commit stored only some.
                    if left != [damage]:
                        del self._known[identity]
                        self._known.update((_identity(each), each) for each in left)

    def dropped(self, ledger_ids: Iterable[int]) -> None:
        """These ledgers are gone."""
        if not self._known:
            return
        gone = set(ledger_ids)
        with self._lock:
            for identity in [each for each in self._known if each[0] in gone]:
                del self._known[identity]

    def dropped_entries(self, dropped: DropEntries) -> None:
        """These batches are gone."""
        if not self._known:
            return
        first, last, stride = dropped.first_entry_id, dropped.last_entry_id, dropped.stride
        with self._lock:
            for identity in [each for each in self._known if each[:2] == (dropped.ledger_id, dropped.stamp)]:
                # Where other rotations stay, only a single entry is for sure one that was dropped.
                is_dropped = stride == 1 or (identity[2] == identity[3] and (identity[2] - first) % stride == 0)
                if is_dropped and first <= identity[2] and identity[3] <= last:
                    del self._known[identity]


def _identity(damage: Damage) -> _Identity:
    return damage.ledger_id, damage.stamp, damage.first_entry_id, damage.last_entry_id


def _left(damage: Damage, batch: Batch) -> Iterator[Damage]:
    """The parts of a damage that this batch does not repair: the damage may span several adjacent batches."""
    first, last = damage.first_entry_id, damage.last_entry_id
    is_other = (damage.ledger_id, damage.stamp) != (batch.ledger_id, batch.stamp)
    if not is_other and damage.description == SERIES_TORN:
        return  # storing the batch wrote the series again
    if is_other or batch.last_entry_id < first or last < batch.first_entry_id:
        yield damage
        return
    if first <= batch.first_entry_id - batch.stride:
        yield evolve(damage, last_entry_id=batch.first_entry_id - batch.stride)
    if batch.last_entry_id + batch.stride <= last:
        yield evolve(damage, first_entry_id=batch.last_entry_id + batch.stride)


# -- salvaging --------------------------------------------------------------------------------------------------------
#
# The contents of a new data file when the old one's trees are damaged: every readable record, and some that are made again.
#
# Where batches of a ledger remain, and its series or its marks do not, these are made from the batches, so that the
# ledger can be read, fenced and recovered. Their other contents are lost: the storage is then in doubt about all its
# ledgers (B8).


Record = tuple[bytes, bytes]


def salvaged(bookie_id: str, records: Iterable[Record]) -> Iterator[Record]:
    """The records of the new file, sorted, from those of the old one. Kinds are in the order of their letters: batches come
    first, then deleted ledgers, and what is known of the others last."""
    yield FORMAT_KEY, format_text(bookie_id)
    found = _Found()
    made: list[Record] | None = None
    for key, value in records:
        if key == FORMAT_KEY:
            continue
        # Marks and series are of the last kind, so every batch has been looked at when the first of them is due.
        if key[:1] < LEDGER:
            found.look_at(key, value)
        else:
            made = found.records() if made is None else made
            while made and made[-1][0] < key:
                yield made.pop()
            if made and made[-1][0] == key:
                made.pop()
        yield key, value
    made = found.records() if made is None else made
    yield from reversed(made)


class _Found:
    """The facts found in the batches."""

    def __init__(self) -> None:
        self._series: dict[tuple[int, int], Series] = {}
        self._last_entry_ids: dict[int, int] = {}
        self._deleted = LedgerRanges()

    def look_at(self, key: bytes, value: bytes) -> None:
        """A record of a kind before those of ledgers. A damaged record says nothing."""
        is_batch = key[:1] == BATCH and len(key) == BATCH_KEY_BYTES
        if not is_batch and not (key[:1] == DELETED and len(key) == LEDGER_KEY_BYTES):
            return
        try:
            content = unseal(key, value)
        except DamagedError:
            return
        if not is_batch:
            self._deleted.add(unpack_id_key(key), unpack_number(content))
            return
        _, ledger_id, stamp, first, last, stride = unpack_batch_key(key)
        self._series.setdefault((ledger_id, stamp), Series()).add(first, last, stride or 1)
        self._last_entry_ids[ledger_id] = max(self._last_entry_ids.get(ledger_id, -1), last)

    def records(self) -> list[Record]:
        """Series and marks for all of them, the last one first."""
        made: list[Record] = []
        for (ledger_id, stamp), series in self._series.items():
            if ledger_id not in self._deleted:
                key = series_key(ledger_id, stamp)
                made.append((key, seal(key, series.pack())))
        for ledger_id, last_entry_id in self._last_entry_ids.items():
            if ledger_id not in self._deleted:
                key = id_key(LEDGER, ledger_id)
                made.append((key, seal(key, pack_marks(Marks(last_entry_id=last_entry_id)))))
        return sorted(made, reverse=True)
