"""Pausing all repairs of a cluster on command: a key in the metastore, which repairs look at before each fragment.

Advice, like all that repairs agree upon: what is under way when it is written is finished."""

from __future__ import annotations

import math

import trio

from replog.client.ledger_records import LedgerRecords
from replog.errors import KeyNotFoundError, MetastoreError
from replog.records.repairs import PAUSED_KEY, PAUSED_VALUE

_LOOK_S = 2.0


class RepairPause:
    """Whether repairs are paused in this metastore."""

    def __init__(self, records: LedgerRecords) -> None:
        self._records = records
        self._is_on = False
        self._looked_at_s = -math.inf

    async def is_on(self) -> bool:
        """True if repairs are paused, as of a few seconds ago at most. What cannot be read stays as it was."""
        now_s = trio.current_time()
        if now_s >= self._looked_at_s + _LOOK_S:
            self._looked_at_s = now_s
            try:
                await self._records.metastore.get(PAUSED_KEY)
                self._is_on = True
            except KeyNotFoundError:
                self._is_on = False
            except MetastoreError:
                pass
        return self._is_on

    async def begin(self) -> None:
        """Pauses repairs. Pausing again is harmless. Raises `MetastoreError`."""
        await self._records.create_key(PAUSED_KEY, PAUSED_VALUE)
        self._looked_at_s = -math.inf

    async def end(self) -> None:
        """Lets repairs go on. Raises `MetastoreError`."""
        await self._records.delete_key(PAUSED_KEY)
        self._looked_at_s = -math.inf
