"""Garbage: ledgers that were deleted. And what else a bookie does for its storage while it serves.

Rules (B6): a ledger's record is written before its first entry can arrive. So a ledger is dropped only if two listings, each
later than a snapshot of the ledgers here, and a reading of its very node all lack it; and if the cluster then still is the one
that the bookie knows (`Registration.check`). Any error ends a pass before anything is dropped.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial

import trio

from replog.bookie.server import BookieServer
from replog.errors import ConfigError, KeyNotFoundError, MetastoreError, StorageError
from replog.runtime.loggers import logger
from replog_bookkeeper.layouts import Layout, ledger_key
from replog_bookkeeper.nodes import LedgersRoot
from replog_bookkeeper.records import BookKeeperRecords
from replog_bookkeeper.serving.registration import Registration

_log = logger("replog.bookkeeper")

_SPACE_PAUSE_S = 30.0  # between attempts to make space
_LOOK_S = 10.0  # at damage and doubt
_AGAIN_S = 1.0


class Garbage:
    """The deleted ledgers of one bookie."""

    def __init__(self, server: BookieServer, root: LedgersRoot, layout: Layout, registration: Registration) -> None:
        self._server = server
        self._root = root
        self._layout = layout
        self._registration = registration
        self._missing: frozenset[int] = frozenset()  # at the last pass

    async def collect(self) -> list[int]:
        """One pass: drops what is missing for the second time, and returns it.

        Raises `MetastoreError` or `StorageError`: then nothing that exists was dropped."""
        # The snapshot comes first: a ledger that is created after the listing must not be taken for garbage.
        held = await self._server.call(self._server.storage.ledger_ids)
        keys = {each: key for each in held if (key := self._key(each)) is not None}
        if not keys:
            return []
        await self._registration.raise_counter()
        missing = await self._list_missing(keys)
        dropped = []
        for ledger_id in sorted(missing & self._missing):
            try:
                await self._root.get(keys[ledger_id])
            except KeyNotFoundError:
                await self._registration.check()
                await self._server.drop(ledger_id)
                dropped.append(ledger_id)
        self._missing = missing.difference(dropped)
        return dropped

    def _key(self, ledger_id: int) -> str | None:
        """The node of a ledger; None if the layout has no place for it: then some client has fenced a ledger that cannot be."""
        try:
            return ledger_key(self._layout, ledger_id)
        except ConfigError:
            return None

    async def _list_missing(self, keys: dict[int, str]) -> frozenset[int]:
        by_parent: dict[str, dict[str, int]] = defaultdict(dict)
        for ledger_id, key in keys.items():
            parent, _, name = key.rpartition("/")
            by_parent[parent][name] = ledger_id
        missing: set[int] = set()
        for parent, names in by_parent.items():
            listed = frozenset(await self._root.children(parent))
            missing.update(ledger_id for name, ledger_id in names.items() if name not in listed)
        return frozenset(missing)

    async def run(self) -> None:
        """Collects at each interval, until cancelled. A pass that fails is repeated at the next one."""
        while True:
            await trio.sleep(self._server.options.garbage_collection_interval_s)
            await self._try_to_collect()

    async def _try_to_collect(self) -> None:
        try:
            dropped = await self.collect()
        except (MetastoreError, StorageError) as error:
            _log.warning("bookie %s dropped no deleted ledgers: %s", self._server.bookie_id, error)
        else:
            if dropped:
                _log.info("bookie %s dropped %d deleted ledgers", self._server.bookie_id, len(dropped))

    async def make_space(self) -> None:
        """While there is too little space: drops deleted ledgers, and gives back their space (B5). Until cancelled."""
        server = self._server
        while server.failure is None:
            await server.mode.read_only_turned(was=False)
            await self._try_to_collect()
            await self._try_to_collect()
            try:
                await server.call(partial(server.storage.compact, is_major=True), is_long=True)
                await server.space_was_made()
            except StorageError as error:
                _log.warning("bookie %s could not make space: %s", server.bookie_id, error)
            await trio.sleep(_SPACE_PAUSE_S)


async def keep_doubt_bounded(server: BookieServer, records: BookKeeperRecords) -> None:
    """Bounds the storage's doubt to the ledgers that exist, whenever it is about all (B8). Runs until cancelled: a doubt may come
    while the bookie serves."""
    while server.failure is None:
        await server.doubt.until_unbounded()
        try:
            await bound_doubt(server, records)
        except (MetastoreError, StorageError) as error:
            _log.warning("bookie %s: its doubt could not be bounded yet: %s", server.bookie_id, error)
        await trio.sleep(_AGAIN_S)


async def bound_doubt(server: BookieServer, records: BookKeeperRecords) -> None:
    """Bounds the doubt, if it is about all ledgers: what has a higher id than all that exist was not there when the storage was
    opened, or is deleted. Raises `MetastoreError`, `StorageError`."""
    if not server.storage.doubt().is_unbounded:
        return
    highest = -1
    async for ledger_id in records.ledger_ids():
        highest = max(highest, ledger_id)
    await server.call(lambda: server.storage.bound_doubt(highest + 1))
    server.doubt.raised += 1
    server.look_at_doubt()
    _log.warning(
        "bookie %s is in doubt about ledgers below %d: it takes no adds of their writers, and denies none of their entries (%s)",
        server.bookie_id,
        highest + 1,
        "; ".join(server.storage.doubt().reasons) or "no reason given",
    )


async def report_damage(server: BookieServer) -> None:
    """Logs damage once, as the storage finds it. Until cancelled."""
    known: set[tuple[int, int]] = set()
    while server.failure is None:
        try:
            found = await server.call(server.storage.damage)
        except StorageError:
            return  # it is reported that the storage has failed
        for each in found:
            place = each.ledger_id, each.first_entry_id
            if place not in known:
                known.add(place)
                _log.error(
                    "bookie %s: entry %d of ledger %d is damaged: %s", server.bookie_id, *place[::-1], each.description
                )
        await trio.sleep(_LOOK_S)
