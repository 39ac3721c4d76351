"""Ledger ids, taken from a counter in the metastore by CAS: nobody else has them (M2), and those not used are lost.

Clients that take ids at the same moment make each other try again. So whoever met another one takes several at once the next
time, up to `TAKEN_MAX`, and fewer again once it is alone. Within a client one task takes them for all.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import trio

from replog.errors import (
    KeyExistsError,
    KeyNotFoundError,
    MetastoreError,
    MetastoreUncertainError,
    VersionConflictError,
)
from replog.records.paths import NEXT_LEDGER_ID_KEY, decode_next_ledger_id

if TYPE_CHECKING:
    from replog.client.records import Records

TAKEN_MAX = 64  # at once
_FIRST_ID = 1


class LedgerIds:
    """The ids that one client takes."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._taken: deque[int] = deque()  # and not given out
        self._count = 1  # to take the next time
        self._taking = trio.Lock()

    async def new(self) -> int:
        """An id that nobody else has. Raises `MetastoreError` within twice the records' timeout: then some may be lost. If
        cancelled, too."""
        with trio.move_on_after(self._records.timeout_s) as waiting:
            await self._taking.acquire()
        if waiting.cancelled_caught:
            raise MetastoreError(
                f"taking a ledger id: others of this client waited {self._records.timeout_s} s for theirs"
            )
        try:
            while not self._taken:
                self._taken.extend(await self._take_some())
            return self._taken.popleft()
        finally:
            self._taking.release()

    async def _take_some(self) -> range:
        deadline_s = trio.current_time() + self._records.timeout_s
        met_others = False
        while True:
            try:
                taken = await self._records.persist("taking a ledger id", self._take)
            except (VersionConflictError, KeyExistsError, KeyNotFoundError) as error:  # somebody else was faster
                met_others = True
                self._count = min(2 * self._count, TAKEN_MAX)
                if trio.current_time() >= deadline_s:
                    timeout_s = self._records.timeout_s
                    raise MetastoreError(f"taking a ledger id: others were faster for {timeout_s} s") from error
            except MetastoreUncertainError as error:  # these may be lost: the next ones do as well
                await self._records.pause(deadline_s, error)
            else:
                if not met_others:
                    self._count = max(1, self._count // 2)
                return taken

    async def _take(self) -> range:
        metastore, count = self._records.metastore, self._count
        try:
            found = await metastore.get(NEXT_LEDGER_ID_KEY)
        except KeyNotFoundError:
            await metastore.create(NEXT_LEDGER_ID_KEY, b"%d" % (_FIRST_ID + count))
            return range(_FIRST_ID, _FIRST_ID + count)
        first = decode_next_ledger_id(found.value)
        await metastore.put(NEXT_LEDGER_ID_KEY, b"%d" % (first + count), found.version)
        return range(first, first + count)
