"""The doubt of a bookie's storage: the ledgers for which it cannot vouch (B8)."""

from __future__ import annotations

import trio

from replog.abc import Storage


class Doubt:
    """The doubt of one storage, as it was when the bookie last looked."""

    def __init__(self, storage: Storage) -> None:
        self.raised = 0  # times that every ledger was doubted: a doubt may have come and ended since the last question
        self._storage = storage
        self._known = storage.doubt()
        self._changed = trio.Event()

    @property
    def doubted_below(self) -> int:
        """Ledgers with lower ids are doubted."""
        return self._known.doubted_below

    def takes_adds(self, ledger_id: int) -> bool:
        """True if the storage cannot have lost the ledger's fence."""
        return self._known.takes_adds(ledger_id)

    def look(self) -> bool:
        """Asks the storage. Returns whether the doubt is another than before."""
        found = self._storage.doubt()
        if found == self._known:
            return False
        self._known = found
        # Replaced right away: each waiter waits for one change, and sees the new value.
        self._changed.set()
        self._changed = trio.Event()
        return True

    async def until_unbounded(self) -> None:
        """Returns as soon as the storage is in doubt about every ledger, those to come included."""
        while not self._storage.doubt().is_unbounded:
            await self._changed.wait()
