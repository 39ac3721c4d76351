"""Questions whose answers need a longer look at the storage, or at its disk: they are answered by tasks."""

from __future__ import annotations

import shutil
from typing import Any, Protocol

import trio

from replog.abc import StoredRange
from replog.bookie.server import BookieServer
from replog.errors import StorageError
from replog.protocol.messages import Status
from replog.runtime.loggers import logger
from replog_bookkeeper.frames import Code
from replog_bookkeeper.serving.entries import encode_availability

_log = logger("replog.bookkeeper")

_TOTAL, _FREE = 1, 2  # bits of a question for space
_GROUPS_MAX = 200_000  # of a list of entries: so many fit into a frame


class End(Protocol):
    """Answers a question."""

    def __call__(self, question: Any, code: Code, **fields: Any) -> None: ...


class Looking:
    """The longer looks of one connection."""

    def __init__(self, server: BookieServer, nursery: trio.Nursery, end: End) -> None:
        self._server = server
        self._nursery = nursery
        self._end = end

    def list(self, question: Any) -> None:
        """Answers which entries of a ledger are stored. While the storage is in doubt, the list proves nothing (B8)."""
        self._nursery.start_soon(self._list, question)

    async def _list(self, question: Any) -> None:
        ledger_id, storage = question.body.ledgerId, self._server.storage

        def look() -> bytes | None:
            ranges: list[StoredRange] = list(storage.ranges(ledger_id))
            return encode_availability(ranges, _GROUPS_MAX)

        try:
            found = await self._server.call(look)
        except StorageError as error:
            _log.warning("entries of ledger %d could not be listed: %s", ledger_id, error)
            found = None
        if found is None:
            self._end(question, Code.IO_ERROR)
        elif storage.doubt().denial(ledger_id) is not Status.NO_ENTRY:
            self._end(question, Code.UNKNOWN_LEDGER_STATE)
        else:
            self._end(question, Code.OK, availabilityOfEntriesOfLedger=found)

    def tell_space(self, question: Any) -> None:
        """Answers how much space the disk has, and how much is free."""
        self._nursery.start_soon(self._tell_space, question)

    async def _tell_space(self, question: Any) -> None:
        storage, asked = self._server.storage, question.body.requested
        fields = {}
        try:
            if asked & _FREE:
                fields["freeDiskSpace"] = await self._server.call(lambda: storage.free_bytes() or 0)
            if asked & _TOTAL:
                total = await trio.to_thread.run_sync(lambda: shutil.disk_usage(storage.place or "/").total)
                fields["totalDiskCapacity"] = total
        except (StorageError, OSError) as error:
            _log.warning("the space of bookie %s is not known: %s", storage.bookie_id, error)
            self._end(question, Code.IO_ERROR)
        else:
            self._end(question, Code.OK, **fields)
