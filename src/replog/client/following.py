"""How a following reader waits at the end of the known entries: for more at the bookies, and for another record (D1)."""

from __future__ import annotations

import trio

from replog.client.ledger_records import LedgerRecords
from replog.client.scan import LedgerScan
from replog.protocol.model import LedgerState
from replog.runtime.nursery import open_service_nursery

# While entries come faster than this, a follower does not look at the ledger's record in the metastore: that would cost more than
# the entries. So it may learn this much later that the ledger was closed.
_BUSY_S = 0.01
# As long as nothing comes, questions stay open for twice as long each time, up to so many times as at first: a thousand
# followers of quiet logs took a whole processor with a question a second each. What comes ends any question at once.
_LENGTHENED_MAX = 16
# While nothing comes, one watch of the record stays open for so many looks of a metastore that polls: a new one would begin with
# reads of its own.
_POLLS_A_WATCH = 20


class Following:
    """The waits of one reader. `wait_s` is how long a bookie may keep its first question open."""

    def __init__(self, records: LedgerRecords, wait_s: float) -> None:
        self._records = records
        self._first_wait_s = wait_s
        self._wait_s = wait_s
        self._waiting = trio.CancelScope()  # the wait that is under way, or was the last one
        self._is_ended = False

    async def wait_for_news(self, scan: LedgerScan) -> None:
        """Returns when more is confirmed in this ledger or its record changes; and after a while without either. Raises
        `MetastoreError`, `LedgerNotFoundError`, and what `LedgerScan.wait_for_news` does. If cancelled, nothing is lost."""
        with self._until_end():
            await self._wait_for_news(scan)

    async def wait_changed(self, key: str, version: int | None) -> None:
        """Returns when the metastore has another version of this key. Raises `MetastoreError`."""
        with self._until_end():
            await self._records.metastore.wait_changed(key, version)

    def end(self) -> None:
        """Has a wait that is under way return, and later ones at once: its reader was closed."""
        self._is_ended = True
        self._waiting.cancel()

    def _until_end(self) -> trio.CancelScope:
        self._waiting = trio.CancelScope()
        if self._is_ended:  # between two steps of the reader
            self._waiting.cancel()
        return self._waiting

    async def _wait_for_news(self, scan: LedgerScan) -> None:
        if self._wait_s == self._first_wait_s:  # there was news the last time
            await scan.wait_for_news(min(_BUSY_S, self._first_wait_s), self._wait_s)
        if not scan.has_news:
            before, version = await self._records.get_head(scan.ledger_id)
            if before.state is LedgerState.CLOSED:
                await scan.refresh()
                return
            scan.record_read(before)
            if not scan.has_news:
                await self._wait_for_change(scan, version)
        if scan.has_news:
            self._wait_s = self._first_wait_s
        else:
            self._lengthen()

    async def _wait_for_change(self, scan: LedgerScan, version: int) -> None:
        async def wait_changed(scope: trio.CancelScope) -> None:
            await self._records.wait_changed(scan.ledger_id, version)
            scope.cancel()

        # A closed ledger, or one with other bookies after a takeover, has no news at these: its record is watched beside them.
        quiet_until_s = trio.current_time() + _POLLS_A_WATCH * self._records.metastore.poll_s
        async with open_service_nursery() as nursery:
            nursery.start_soon(wait_changed, nursery.cancel_scope)
            while True:
                await scan.wait_for_news(self._wait_s, self._wait_s)
                if scan.has_news or trio.current_time() >= quiet_until_s:
                    break
                self._lengthen()

    def _lengthen(self) -> None:
        self._wait_s = min(2 * self._wait_s, _LENGTHENED_MAX * self._first_wait_s)
