"""Ends the doubt of a bookie's storage, ledger by ledger, where that is safe (B8). See `replog.protocol.healing`.

Lost entries are not found here: an audit finds them missing, and a repair copies them from other bookies.
"""

from __future__ import annotations

import contextlib

import trio

from replog.abc import Metastore
from replog.bookie.server import BookieServer
from replog.errors import KeyNotFoundError, MetastoreError, StorageError
from replog.protocol.healing import fence_to_vouch
from replog.protocol.model import LedgerState
from replog.records.ledgers import decode_ledger, ledger_id_pages
from replog.records.paths import ledger_key_path
from replog.runtime.loggers import logger
from replog.runtime.nursery import for_each

_log = logger("replog.bookie")

_AGAIN_S = 5.0  # after a failure, at most
_AT_ONCE = 8
_NAMED_MAX = 10  # ledgers in a message


class Healing:
    """The healing of one bookie."""

    def __init__(self, server: BookieServer, metastore: Metastore) -> None:
        self._server = server
        self._metastore = metastore
        # What is known under the doubt of `_loss`:
        self._settled: set[int] = set()  # ledgers that are decided
        self._fenced: set[int] = set()  # those of them that may have a writer
        self._seen_terms: dict[int, int] = {}  # of each other ledger the term of its last fragment, as first seen
        self._loss = self._known_loss()
        self._waited_for: list[int] = []

    def _known_loss(self) -> tuple[int, tuple[str, ...]]:
        return self._server.doubt.raised, self._server.storage.doubt().reasons

    async def run(self) -> None:
        """Heals until cancelled, or until the storage has failed. It retries after each failure."""
        while self._server.failure is None:
            pause_s = self._server.options.heal_interval_s
            try:
                await self.heal()
            except (MetastoreError, StorageError) as error:
                _log.info("bookie %s: its doubt could not be looked into: %s", self._server.bookie_id, error)
                pause_s = min(pause_s, _AGAIN_S)
            await trio.sleep(pause_s)

    async def heal(self) -> None:
        """One pass over the ledgers in doubt. Raises `MetastoreError`, `StorageError`."""
        doubt = self._server.storage.doubt()
        if not doubt.doubted_below or doubt.is_unbounded:
            return
        if (loss := self._known_loss()) != self._loss:
            # It lost something more since: fences that were settled before may be gone.
            self._settled.clear()
            self._fenced.clear()
            self._seen_terms.clear()
            self._loss = loss
        undecided = await self._undecided(doubt.doubted_below)
        below = max(undecided, default=-1) + 1
        if below < doubt.doubted_below:
            left = doubt.settled(below, self._fenced)
            # A metastore that went back lacks ledgers, or has them with older terms (B6a).
            await self._server.guard.check()
            await self._server.call(lambda: self._server.storage.settle_doubt(doubt, left))
            self._server.look_at_doubt()
            _log.info("bookie %s: it vouches again for ledgers from %d on", self._server.bookie_id, below)
        self._name(sorted(undecided))

    def _name(self, undecided: list[int]) -> None:
        if undecided and undecided != self._waited_for:
            _log.warning(
                "bookie %s: it vouches for no ledger up to %d until these are closed, recovered or taken over: %s%s",
                self._server.bookie_id,
                undecided[-1],
                ", ".join(map(str, undecided[-_NAMED_MAX:])),
                " and others" if len(undecided) > _NAMED_MAX else "",
            )
        self._waited_for = undecided

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
        """Fences the ledger, if it is decided with which term, and if it may have a writer."""
        key = ledger_key_path(ledger_id)
        try:
            metadata = decode_ledger(key, (await self._metastore.get(key)).value)
        except KeyNotFoundError:
            return True  # it was deleted
        seen_term = self._seen_terms.get(ledger_id, metadata.last_fragment.term)
        term = fence_to_vouch(metadata, self._server.bookie_id, seen_term)
        if term is None:
            self._seen_terms[ledger_id] = seen_term
            return False
        if metadata.state is LedgerState.OPEN:
            await self._server.fence(ledger_id, term)
            self._fenced.add(ledger_id)
        self._settled.add(ledger_id)
        return True
