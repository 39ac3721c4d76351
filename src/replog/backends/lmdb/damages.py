"""The damaged batches that a storage knows of, until they are stored again."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from attrs import evolve

from replog.abc import Damage
from replog.backends.lmdb.snapshot import SERIES_TORN
from replog.protocol.batch import Batch
from replog.protocol.mutations import DropEntries

_KNOWN_MAX = 10_000  # more are not remembered: a repair asks again when it has mended these

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
            # Reads find the same damage again and again until it is mended: it counts once.
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
    """What of a damage is not mended by this batch: it may be of several that stood side by side."""
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
