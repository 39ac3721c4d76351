"""What an open storage knows beside its environment: deleted ledgers, garbage, recent batches, damage, and counters."""

from __future__ import annotations

import threading

from replog.abc import Damage
from replog.backends.lmdb.damages import Damages
from replog.backends.lmdb.recent import RecentBatches
from replog.backends.lmdb.writing import Changes, Known
from replog.backends.ranges import LedgerRanges


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
        for each in changes.dropped_entries:
            self.recent.drop_entries(each)
            self.damages.dropped_entries(each)
        if changes.dropped:
            self.recent.drop(changes.dropped)
            self.damages.dropped(changes.dropped)

    def found_damage(self, damage: Damage) -> None:
        """A read or a scrub found this. What is left of a deleted ledger is garbage, and no damage."""
        if damage.ledger_id not in self.deleted:
            self.damages.add(damage)
