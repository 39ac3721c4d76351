"""Elections: candidates form a queue, and each waits for the one before it; so a leader's end wakes one, not all.

In the queue, `KEY/WORD` with a random word, the first one leads (by `create_revision`). The leader also announces KEY itself,
under the same lease: there others see who leads. A place that was lost with its lease is made again at the end of the queue.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from replog.errors import KeyExistsError
from replog_etcd.gateway import Gateway
from replog_etcd.leases import Held, Leases
from replog_etcd.records import Layout, Record
from replog_etcd.watches import Watches

_WORD_BYTES = 8


class Elections:
    """The elections in which one client takes part."""

    def __init__(self, gateway: Gateway, layout: Layout, leases: Leases, watches: Watches, lease_s: float) -> None:
        self._gateway = gateway
        self._layout = layout
        self._leases = leases
        self._watches = watches
        self._lease_s = lease_s

    @asynccontextmanager
    async def elect(self, key: str, candidate: bytes) -> AsyncIterator[None]:
        """Waits until nobody else leads, and leads while the context is open. Raises `MetastoreError`."""
        place = f"{key}/{secrets.token_hex(_WORD_BYTES)}"
        async with self._leases.hold(place, candidate) as held:
            while not await self._lead(held, key, place, candidate):
                pass
            yield

    async def _lead(self, held: Held, key: str, place: str, candidate: bytes) -> bool:
        """Whether this one leads now; if not, it has waited for the one before."""
        mine = await self._first(key, {"key": self._layout.encode(place)})
        if mine is None:
            await self._wait(place, None)  # it was lost, and is made again soon
            return False
        before = await self._before(key, mine)
        if before is not None:
            await self._wait(before.key, before.version)
            return False
        try:
            await self._leases.add(held, key, candidate)
        except KeyExistsError:  # by one who lost its place, and does not know
            leader = await self._first(key, {"key": self._layout.encode(key)})
            if leader is not None:
                await self._wait(key, leader.version)
            return False
        return True

    async def _wait(self, key: str, version: int | None) -> None:
        # Looks again after a lease in any case: this candidate's own place may have been
        # lost, and made again at the end of the queue.
        with trio.move_on_after(self._lease_s):
            await self._watches.wait_changed(key, version)

    async def _before(self, key: str, mine: Record) -> Record | None:
        """The candidate right before this one."""
        everybody = {"key": self._layout.encode(key, "/"), "range_end": self._layout.encode(key, "0")}
        # Only the neighbour is asked for: a watch on the whole queue would wake every candidate at each change.
        order = {"sort_order": "DESCEND", "sort_target": "CREATE", "limit": 1}
        return await self._first(key, {**everybody, **order, "max_create_revision": str(mine.created - 1)})

    async def _first(self, key: str, message: dict[str, object]) -> Record | None:
        asked = {**message, "keys_only": True}
        answer = await self._gateway.call("/v3/kv/range", asked, what=f"the election {key!r}")
        found = answer.get("kvs", ())
        return self._layout.record(found[0]) if found else None
