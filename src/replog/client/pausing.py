"""Pausing all repairs of a cluster on command: a key in the metastore, which repairs look at before each fragment.

Advice, like all that repairs agree upon: what is under way when it is written is finished."""

from __future__ import annotations

import math

import trio

from replog.abc import Metastore
from replog.errors import KeyExistsError, KeyNotFoundError, MetastoreError, MetastoreUncertainError
from replog.records.repairs import PAUSED_KEY, PAUSED_VALUE

_LOOK_S = 2.0
_TRIES = 3


class RepairPause:
    """Whether repairs are paused in this metastore."""

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore
        self._is_on = False
        self._looked_at_s = -math.inf

    async def is_on(self) -> bool:
        """True if repairs are paused, as of a few seconds ago at most. What cannot be read stays as it was."""
        now_s = trio.current_time()
        if now_s >= self._looked_at_s + _LOOK_S:
            self._looked_at_s = now_s
            try:
                await self._metastore.get(PAUSED_KEY)
                self._is_on = True
            except KeyNotFoundError:
                self._is_on = False
            except MetastoreError:
                pass
        return self._is_on

    async def begin(self) -> None:
        """Pauses repairs. Pausing again is harmless. Raises `MetastoreError`."""
        for is_last in (False,) * (_TRIES - 1) + (True,):
            try:
                await self._metastore.create(PAUSED_KEY, PAUSED_VALUE)
            except KeyExistsError:
                pass
            except MetastoreUncertainError:
                if is_last:
                    raise
                continue
            self._looked_at_s = -math.inf
            return

    async def end(self) -> None:
        """Lets repairs go on. Raises `MetastoreError`."""
        for is_last in (False,) * (_TRIES - 1) + (True,):
            try:
                await self._metastore.delete(PAUSED_KEY)
            except KeyNotFoundError:
                pass
            except MetastoreUncertainError:
                if is_last:
                    raise
                continue
            self._looked_at_s = -math.inf
            return
