"""Ledgers that clients say they have deleted, or archived: the bookie looks them up soon, instead of at its next garbage
collection (B6).

A hint proves nothing. Only a ledger that is stored here, and that the metastore then says is absent, is dropped, or what its
record then gives to an archive or to others (F5); and only while the bookie does not doubt its metastore (B6a). Hints are
advice: they are bounded in number, looked up at a bounded rate for all senders together, and may be lost. The next garbage
collection finds what they would have found.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import trio

from replog.abc import Metastore
from replog.bookie.garbage import DROPS_MAX, drop_absent
from replog.bookie.releasing import Releasing
from replog.bookie.server import BookieServer
from replog.errors import MetastoreError, StorageError
from replog.protocol.mutations import DELETED_TERM

WAITING_MAX = 10_000  # ledgers; a hint that finds so many waiting is lost
_ROUND_S = 0.25  # from the begin of a round to the begin of the next one


class DeletionHints:
    """The hints of one bookie. Nothing is looked up while somebody else holds `collecting`. `dropped` is called after ledgers
    were dropped."""

    def __init__(
        self,
        server: BookieServer,
        metastore: Metastore,
        collecting: trio.Lock,
        releasing: Releasing,
        dropped: Callable[[], None],
    ) -> None:
        self.heard = 0  # since the start
        self._server = server
        self._metastore = metastore
        self._collecting = collecting
        self._releasing = releasing
        self._dropped = dropped
        self._waiting: dict[int, None] = {}  # a set that keeps its order
        self._wanted = trio.Event()

    def hear(self, ledger_id: int) -> None:
        """A client says that it has deleted this ledger, or archived some of it."""
        self.heard += 1
        if len(self._waiting) < WAITING_MAX:
            self._waiting[ledger_id] = None
            self._wanted.set()

    async def run(self) -> None:
        """Looks up what clients hint at, until cancelled or until the storage has failed."""
        while self._server.failure is None:
            await self._wanted.wait()
            self._wanted = trio.Event()
            while self._waiting:
                next_round_s = trio.current_time() + _ROUND_S
                # What fails is looked up again by the next garbage collection, and the storage reports its own failures.
                with suppress(MetastoreError, StorageError):
                    async with self._collecting:
                        await self._look_up(self._take())
                await trio.sleep_until(next_round_s)

    def _take(self) -> list[int]:
        """The next ledgers that are stored here. Unknown ones cost no look-up."""
        found: list[int] = []
        while self._waiting and len(found) < DROPS_MAX:
            ledger_id = next(iter(self._waiting))
            del self._waiting[ledger_id]
            marks = self._server.storage.marks(ledger_id)
            if marks is not None and marks.fence_term != DELETED_TERM:
                found.append(ledger_id)
        return found

    async def _look_up(self, ledger_ids: list[int]) -> None:
        if ledger_ids:
            await self._server.guard.look()
            dropped = await drop_absent(ledger_ids, self._server, self._metastore)
            if dropped:
                self._dropped()
            await self._releasing.look([each for each in ledger_ids if each not in dropped])
