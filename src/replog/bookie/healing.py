"""Ends the doubt of a bookie's storage, ledger by ledger, where that is safe (B8). See `replog.protocol.healing`.

Entries that were lost are no matter of this: an audit finds them missing, and a repair copies them from other bookies.
"""

from __future__ import annotations

import contextlib
import logging

import attrs
import trio

from replog.abc import Metastore
from replog.bookie.garbage import collect_garbage
from replog.bookie.server import BookieServer
from replog.errors import KeyNotFoundError, MetastoreError, StorageError
from replog.protocol.healing import fence_to_vouch
from replog.protocol.model import WRITER_TERM
from replog.records.ledgers import decode_ledger, ledger_id_pages
from replog.records.paths import ledger_key_path
from replog.runtime.nursery import for_each

_log = logging.getLogger("replog.bookie")

_EVERY_S = 60.0
_AT_ONCE = 8


class Healing:
    """The healing of one bookie."""

    def __init__(self, server: BookieServer, metastore: Metastore) -> None:
        self._server = server
        self._metastore = metastore
        self._settled: set[int] = set()  # ledgers that are fenced, under the doubt of `_doubt`
        self._doubt = server.storage.doubt()

    async def run(self) -> None:
        """Heals until cancelled, or until the storage has failed. What fails is tried again."""
        while self._server.failure is None:
            # First, too: after a power cut many bookies start at once, and takeovers come first.
            await trio.sleep(_EVERY_S)
            try:
                await self.heal()
            except (MetastoreError, StorageError) as error:
                _log.info("bookie %s: its doubt could not be looked into: %s", self._server.bookie_id, error)

    async def heal(self) -> None:
        """One pass over the ledgers in doubt. Raises `MetastoreError`, `StorageError`."""
        doubt = self._server.storage.doubt()
        if not doubt.doubted_below or doubt.is_unbounded:
            return
        if attrs.evolve(doubt, doubted_below=0, lost_below=0) != attrs.evolve(
            self._doubt, doubted_below=0, lost_below=0
        ):
            # It lost something more since: fences that were settled before may be gone.
            self._settled.clear()
        self._doubt = doubt
        undecided = await self._undecided(doubt.doubted_below)
        below = max(undecided, default=-1) + 1
        if below < doubt.doubted_below:
            # Behind the listing: a ledger that it lacks was deleted, and is known here without the fence that may be lost. What
            # is dropped is fenced permanently (L5).
            await collect_garbage(self._server, self._metastore)
            await self._server.call(lambda: self._server.storage.settle_doubt(doubt, below))
            self._server.look_at_doubt()
            _log.info("bookie %s: it vouches again for ledgers from %d on", self._server.bookie_id, below)

    async def _undecided(self, below: int) -> list[int]:
        undecided: list[int] = []

        async def look(ledger_id: int) -> None:
            if not await self._settle(ledger_id):
                undecided.append(ledger_id)

        async with contextlib.aclosing(ledger_id_pages(self._metastore)) as pages:
            async for page in pages:
                concerned = [each for each in page if each < below]
                await for_each(look, [each for each in concerned if each not in self._settled], _AT_ONCE)
                if len(concerned) < len(page):
                    break
        return undecided

    async def _settle(self, ledger_id: int) -> bool:
        """Fences the ledger, if it is decided with which term."""
        key = ledger_key_path(ledger_id)
        try:
            metadata = decode_ledger(key, (await self._metastore.get(key)).value)
        except KeyNotFoundError:
            return True  # it was deleted
        term = fence_to_vouch(metadata, self._server.bookie_id)
        if term is None:
            return False
        # A bounded ledger that its writer closed was never fenced by anybody.
        if term > WRITER_TERM:
            await self._server.fence(ledger_id, term)
        self._settled.add(ledger_id)
        return True
