"""Dropping what a bookie stores of ledgers that exist, and that are other bookies' alone since a repair or a move (F5).

The order is the safety, see `replog.protocol.releasing`. Any error of the metastore leaves everything as it is, and so does a
metastore that went back (B6a).
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from replog.abc import Metastore, StoredRange
from replog.bookie.server import BookieServer
from replog.errors import KeyNotFoundError, MetastoreUncertainError, VersionConflictError
from replog.protocol.releasing import ForeignRange, Release, foreign_ranges
from replog.records.chunks import read_whole_ledger
from replog.records.paths import ledger_key_path
from replog.runtime.nursery import for_each
from replog.runtime.resting import Rests

LEDGERS_AT_A_PASS = 1000  # by the clock: each costs one read of the metastore
_AT_ONCE = 8
_TRIES_MAX = 8  # as many bookies have most ensembles at most


class Releasing:
    """Looks at the ledgers of one bookie in turn. `released` counts the ranges that were dropped since the start."""

    def __init__(self, bookie: BookieServer, metastore: Metastore) -> None:
        self.released = 0
        self._bookie = bookie
        self._metastore = metastore
        self._after = -1  # the last ledger that was looked at
        self._rests = Rests(lambda: bookie.traffic.added_batches)
        # Of batches that straddle fragments, by ledger: dropped, and still stored with entries that this bookie should hold.
        self._kept: dict[int, list[ForeignRange]] = {}

    async def run(self, ledgers_max: int | None = None) -> None:
        """Looks at so many ledgers, or at all. Raises `MetastoreError`, `StorageError`: the rest is left to the next pass."""
        here = await self._bookie.call(self._bookie.storage.ledger_ids)
        if self._kept:
            self._kept = {ledger_id: self._kept[ledger_id] for ledger_id in here if ledger_id in self._kept}
        if ledgers_max is not None and len(here) > ledgers_max:
            following = [each for each in here if each > self._after][:ledgers_max]
            here = following or here[:ledgers_max]

        async def look(ledger_id: int) -> None:
            await self._release_and_rest(ledger_id)

        await for_each(look, here, _AT_ONCE)
        self._after = here[-1] if here else -1

    async def look(self, ledger_ids: Sequence[int]) -> None:
        """Looks at these ledgers, which are stored here. Raises as `run`. Where other bookies do the same at this moment, it
        looks again: of those that write a record at once, one succeeds."""

        async def look(ledger_id: int) -> None:
            for _ in range(_TRIES_MAX):
                if await self._release_and_rest(ledger_id):
                    return

        await for_each(look, ledger_ids, _AT_ONCE)

    async def _release_and_rest(self, ledger_id: int) -> bool:
        began_s = trio.current_time()
        is_settled = await self._release(ledger_id)
        await self._rests.after(began_s)
        return is_settled

    async def _release(self, ledger_id: int) -> bool:
        """False if another client changed the record meanwhile: then nothing was dropped."""
        key = ledger_key_path(ledger_id)
        try:
            metadata, found = await read_whole_ledger(self._metastore.get, ledger_id)
        except KeyNotFoundError:
            return True  # garbage collection drops all of it
        stamps = {each.stamp for each in await self._stored(ledger_id)} if metadata.is_unbounded else ()
        ranges = foreign_ranges(metadata, self._bookie.bookie_id, stamps)
        if not ranges or self._bookie.filling.was_filled(ledger_id):
            self._kept.pop(ledger_id, None)
            return True
        marks = await self._bookie.call(lambda: self._bookie.storage.marks(ledger_id))
        if marks is not None and marks.fence_term > metadata.term:
            return True  # the record is from an old back-up: a newer one, if it is found, may name this bookie
        if marks is not None and marks.key not in (None, metadata.stored_key):
            return True  # the record is of another creation of this id (M5)
        if marks is not None and metadata.revision < marks.revision and self._bookie.guard.knows_revisions(ledger_id):
            return True  # the record went back: one that this bookie was told of may name it
        release = Release(ranges)
        found_here = pieces(release, await self._stored(ledger_id))
        # To drop it once more would change nothing but the version of the record, at each pass.
        if not found_here or found_here == self._kept.get(ledger_id):
            return True
        with self._bookie.filling.releasing(ledger_id, release):
            try:
                # Unchanged: it proves that the record read is current, and a client that read it before can no longer
                # change it.
                await self._metastore.put(key, found.value, found.version)
                await self._bookie.guard.check()
                for each in pieces(release, await self._stored(ledger_id)):
                    if not release.may_drop():
                        return True
                    # Shielded, because the release is over only when no drop is under way.
                    with trio.CancelScope(shield=True):
                        await self._bookie.drop(ledger_id, each)
                    self.released += 1
                self._kept.pop(ledger_id, None)
                if left := pieces(release, await self._stored(ledger_id)):
                    self._kept[ledger_id] = left
            except (VersionConflictError, KeyNotFoundError, MetastoreUncertainError) as error:
                # Somebody changed the record, or may have: nothing is proven.
                return not isinstance(error, VersionConflictError)
        return True

    async def _stored(self, ledger_id: int) -> list[StoredRange]:
        return list(await self._bookie.call(lambda: self._bookie.storage.ranges(ledger_id)))


def pieces(release: Release, stored: list[StoredRange]) -> list[ForeignRange]:
    """The stored ranges that are to be dropped, in pieces."""
    found: list[ForeignRange] = []
    for stamp in sorted({each.stamp for each in stored}):
        held = [(each.first_entry_id, each.last_entry_id, each.stride) for each in stored if each.stamp == stamp]
        found += release.pieces(stamp, held)
    return found
