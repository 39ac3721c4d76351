"""Which of several repair services works on which ledger. Advice: two that work on the same one harm nothing (M3, F6).

Each service announces itself in the metastore. Every ledger belongs to one of the announced services, found by
rendezvous hashing: when a service comes or goes, only its own ledgers change hands. So several services audit and
repair a cluster together, one at a time on a ledger, without a message between them.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from replog.abc import Metastore
from replog.records.paths import REPAIRERS_KEY

_WORD = (1 << 64) - 1


def _mixed(number: int) -> int:
    """A number of 64 bits, each of which depends on all of this one's: the last steps of the generator SplitMix64."""
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _WORD
    return number ^ number >> 31


class Share:
    """The ledgers that belong to one of these services."""

    def __init__(self, own_id: str, all_ids: Iterable[str]) -> None:
        # This one counts even if its announcement has ended meanwhile: better two on a ledger than none.
        self.ids = tuple(sorted({own_id, *all_ids}))
        self._seeds = [int.from_bytes(hashlib.sha256(each.encode()).digest()[:8], "big") for each in self.ids]
        self._own = self.ids.index(own_id)

    def has(self, ledger_id: int) -> bool:
        """True if the ledger belongs to this service."""
        if len(self._seeds) == 1:
            return True
        weights = [_mixed(ledger_id ^ seed) for seed in self._seeds]
        return weights.index(max(weights)) == self._own


class Shares:
    """One service's part among all that are announced in this metastore."""

    def __init__(self, metastore: Metastore, own_id: str) -> None:
        self.own_id = own_id
        self._metastore = metastore

    @asynccontextmanager
    async def announced(self) -> AsyncIterator[None]:
        """Has ledgers given to this service while the context is open. Raises `MetastoreError`."""
        async with self._metastore.announce(f"{REPAIRERS_KEY}/{self.own_id}", b""):
            yield

    async def current(self) -> Share:
        """The share as it is now. Raises `MetastoreError`."""
        return Share(self.own_id, await self._metastore.announced(REPAIRERS_KEY))
