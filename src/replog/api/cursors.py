"""The verbs of a client about cursors: durable, named places of readers in a log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from replog.client.ledgers import Ledgers
from replog.log.cursor import Cursor
from replog.log.cursor_catalog import CursorCatalog
from replog.log.cursor_opening import CursorOptions, opened, owner_here
from replog.log.log_records import LogRecords
from replog.protocol.cursors import CursorRecord
from replog.protocol.model import Position


class CursorVerbs(ABC):
    """What a `Client` does with cursors."""

    _cursors: CursorCatalog
    _logs: LogRecords

    @property
    @abstractmethod
    def _ledgers(self) -> Ledgers:
        """The client's ledgers. Raises `trio.ClosedResourceError` once it was left."""

    @asynccontextmanager
    async def cursor(
        self,
        log_name: str,
        name: str,
        *,
        start: Position | str | None = None,
        after: Position | str | None = None,
        follow: bool = False,
        wait: bool = True,
        password: bytes = b"",
    ) -> AsyncIterator[Cursor]:
        """A reader that goes on where the last worker with this cursor has committed, as a context manager. One that does not
        exist is created, at the position `start`, or at the beginning. With `follow` it waits for more records.

        Of several workers one reads: the others wait for their turn, which is advice (M3). Without `wait`, this one takes over at
        once. Either way the worker before can't commit any more. `after` begins after this position instead of the committed
        one: for who keeps positions in transactions of a store of their own.

        Raises `LogNotFoundError` (with `follow` it waits for the log instead), `TrimmedError`, `PositionError`,
        `MetastoreError`. Leaving it without error writes what `commit_nowait` noted."""
        options = CursorOptions(
            None if start is None else Position.parse(start),
            None if after is None else Position.parse(after),
            follow,
            wait,
            password,
        )
        async with opened(log_name, name, options, self._cursors, self._ledgers, self._logs) as cursor:
            yield cursor

    async def cursors(self, log_name: str) -> list[CursorRecord]:
        """The cursors of a log, by name: where each begins, and who acquired it. Raises `LogNotFoundError`, `MetastoreError`."""
        return await self._cursors.all_of(log_name)

    async def move_cursor(self, log_name: str, name: str, *, to: Position | str) -> CursorRecord:
        """Has a cursor begin at this position, before or behind where it was. A worker that has it loses it.

        Raises `CursorNotFoundError`, `LogNotFoundError`, `TrimmedError`, `PositionError`. If it raises or is cancelled, it may be
        moved or not; moving again is harmless."""
        return await self._cursors.move(log_name, name, Position.parse(to), owner_here())

    async def delete_cursor(self, log_name: str, name: str) -> None:
        """Deletes a cursor: trims don't wait for it any more. A worker that has it loses it.

        Raises `CursorNotFoundError`, `LogNotFoundError`. If it raises or is cancelled, it may be deleted or not; deleting again
        is harmless."""
        await self._cursors.delete(log_name, name)
