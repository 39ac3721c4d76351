"""The damaged batches that a storage knows of, until they are stored again."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from replog.abc import Damage
from replog.protocol.batch import Batch

_KNOWN_MAX = 10_000  # more are not remembered: who repairs asks again after them

_Identity = tuple[int, int, int, int]


class Damages:
    """May be called by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[_Identity, Damage] = {}
        self.found = 0  # ever

    def add(self, damage: Damage) -> None:
        """Found one."""
        identity = (damage.ledger_id, damage.stamp, damage.first_entry_id, damage.last_entry_id)
        with self._lock:
            self.found += identity not in self._known
            if len(self._known) < _KNOWN_MAX:
                self._known[identity] = damage

    def known(self) -> list[Damage]:
        """All of them, by ledger and entry."""
        with self._lock:
            return [self._known[identity] for identity in sorted(self._known)]

    def mended(self, batches: Iterable[Batch]) -> None:
        """These were stored, now that they are durable."""
        if not self._known:
            return
        with self._lock:
            for batch in batches:
                for identity in [each for each in self._known if _is_mended(each, batch)]:
                    del self._known[identity]

    def dropped(self, ledger_ids: Iterable[int]) -> None:
        """These ledgers are gone."""
        if not self._known:
            return
        gone = set(ledger_ids)
        with self._lock:
            for identity in [each for each in self._known if each[0] in gone]:
                del self._known[identity]


def _is_mended(identity: _Identity, batch: Batch) -> bool:
    ledger_id, stamp, first, last = identity
    is_same = (ledger_id, stamp) == (batch.ledger_id, batch.stamp)
    return is_same and batch.first_entry_id <= first and last <= batch.last_entry_id and batch.holds(first)
