"""The doubt of a bookie's storage: the ledgers for which it cannot vouch (B8)."""

from __future__ import annotations

import trio

from replog.abc import Storage


class Doubt:
    """The doubt of one storage, as it was when the bookie last looked. `doubted_below`: all ledgers with lower ids."""

    def __init__(self, storage: Storage) -> None:
        self.doubted_below = storage.doubt().doubted_below
        self.raised = 0  # times that every ledger was doubted: a doubt may have come and ended since somebody asked
        self._storage = storage
        self._changed = trio.Event()

    def look(self) -> bool:
        """Asks the storage. Returns whether the doubt is another than before."""
        doubted_below = self._storage.doubt().doubted_below
        if doubted_below == self.doubted_below:
            return False
        self.doubted_below = doubted_below
        # Replaced right away: each waiter waits for one change, and sees the new value.
        self._changed.set()
        self._changed = trio.Event()
        return True

    async def until_unbounded(self) -> None:
        """Returns as soon as the storage is in doubt about every ledger, those to come included."""
        while not self._storage.doubt().is_unbounded:
            await self._changed.wait()
