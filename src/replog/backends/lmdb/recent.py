"""The batches that were committed last, in memory: what followers of a ledger's end ask for."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterable, Sequence

from replog.protocol.batch import Batch

_BYTES_MAX = 8 << 20
_LOOKED_AT_MAX = 32  # when no batch begins with the entry: the event loop must not search


class RecentBatches:
    """Batches that are durable, in the order of their commits. May be called by any thread."""

    def __init__(self, bytes_max: int = _BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._order: deque[Batch] = deque()
        self._of: dict[tuple[int, int], dict[int, Batch]] = {}  # by ledger and stamp, by first id, in order of arrival
        self._bytes = 0

    def add(self, batches: Sequence[Batch]) -> None:
        """These are durable now."""
        with self._lock:
            for batch in batches:
                if len(batch.data) > self._bytes_max:
                    continue
                self._order.append(batch)
                self._bytes += len(batch.data)
                self._of.setdefault((batch.ledger_id, batch.stamp), {})[batch.first_entry_id] = batch
            while self._bytes > self._bytes_max:
                # By age alone, not by reads: followers ask for the newest.
                self._forget(self._order.popleft())

    def drop(self, ledger_ids: Iterable[int]) -> None:
        """These ledgers were deleted."""
        gone = set(ledger_ids)
        with self._lock:
            for place in [place for place in self._of if place[0] in gone]:
                del self._of[place]

    def drop_batches(self, ledger_id: int, stamp: int, identities: Iterable[tuple[int, int, int]]) -> None:
        """The batches with these first and last entries and strides were dropped."""
        place = ledger_id, stamp
        with self._lock:
            batches = self._of.get(place, {})
            for first, last, stride in identities:
                batch = batches.get(first)
                # Another one may begin with that entry, and stay.
                if batch is not None and (batch.last_entry_id, batch.stride) == (last, stride):
                    del batches[first]
            if not batches:
                self._of.pop(place, None)

    def read(self, ledger_id: int, entry_id: int, stamp: int, bytes_max: int) -> list[Batch]:
        """The batch that holds the entry, and those right behind it, without a gap, while they fit; [] if it is not here."""
        with self._lock:
            batches = self._of.get((ledger_id, stamp))
            if not batches:
                return []
            batch = batches.get(entry_id)
            if batch is None:
                latest = itertools.islice(reversed(batches.values()), _LOOKED_AT_MAX)
                batch = next((each for each in latest if each.holds(entry_id)), None)
            found: list[Batch] = []
            while batch is not None:
                bytes_max -= len(batch.data)
                if found and bytes_max < 0:
                    break
                found.append(batch)
                batch = batches.get(batch.last_entry_id + 1) if batch.stride == 1 else None
            return found

    def _forget(self, batch: Batch) -> None:
        self._bytes -= len(batch.data)
        place = (batch.ledger_id, batch.stamp)
        batches = self._of.get(place)
        # It may have been dropped already, or stored again under the same first id: the
        # newer one stays, and goes by its own age.
        if batches is not None and batches.get(batch.first_entry_id) is batch:
            del batches[batch.first_entry_id]
            if not batches:
                del self._of[place]
