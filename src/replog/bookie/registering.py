"""Keeps a bookie's cookie current, and learns from it whether the bookie is to be left. Advice, never safety (M3).

The cookie has what others want to know of a bookie even while it is away: its labels, and about how much space it has. An
administrator's wish to drain it stands there too, so that it outlives a restart of the bookie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress

import attrs
import trio

from replog.abc import Metastore
from replog.bookie.server import BookieServer
from replog.errors import MetastoreError, StorageError
from replog.records.bookies import Cookie, change_cookie

_LOOK_S = 4.0  # at the cookie: members of `quorum:` exchange eight messages for each read
_REPORT_S = 60.0  # between two reports of free space
_NOTABLE = 1 / 8  # of the free space that was last reported: a smaller change is not worth a write


class Registration:
    """The entry of one bookie in the metastore."""

    def __init__(self, server: BookieServer, metastore: Metastore, labels: Mapping[str, str]) -> None:
        self._server = server
        self._metastore = metastore
        self._labels = dict(labels)
        self._reported_at_s = -math.inf

    async def begin(self, cookie: Cookie) -> None:
        """Writes what the metastore does not know yet. Raises `MetastoreError`."""
        if not self._server.guard.problem and (cookie.labels != self._labels or self._is_notable(cookie)):
            cookie = await self._report()
        self._server.mode.turn(is_draining=cookie.is_draining)

    async def run(self) -> None:
        """Looks at the cookie, and keeps it current, until cancelled. It retries after each failure; the guard reports
        a metastore that went back (B6a)."""
        while True:
            await trio.sleep(_LOOK_S)
            with suppress(MetastoreError, StorageError):
                await self._look()

    async def _look(self) -> None:
        cookie = await self._server.guard.look()
        self._server.mode.turn(is_draining=cookie.is_draining)
        if trio.current_time() >= self._reported_at_s + _REPORT_S and self._is_notable(cookie):
            await self._report()

    def _is_notable(self, cookie: Cookie) -> bool:
        free_bytes, known_bytes = self._server.space.free_bytes, cookie.free_bytes
        if free_bytes is None or known_bytes is None:
            return free_bytes is not known_bytes
        return abs(free_bytes - known_bytes) > known_bytes * _NOTABLE

    async def _report(self) -> Cookie:
        # Set before the write: a metastore that fails is not asked again at each look.
        self._reported_at_s = trio.current_time()
        free_bytes = self._server.space.free_bytes

        def changed(cookie: Cookie) -> Cookie:
            return attrs.evolve(cookie, labels=self._labels, free_bytes=free_bytes)

        return await change_cookie(self._metastore, self._server.bookie_id, changed)
