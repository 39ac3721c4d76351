"""`client.cursors`: durable, named positions of readers in logs."""

from __future__ import annotations

from collections.abc import Sequence

from replog.api.opened import OpenClient
from replog.log.cursor_opening import owner_here
from replog.protocol.cursors import CursorRecord
from replog.protocol.model import Position


class Cursors:
    """Lists, moves and deletes the cursors of logs. `client.cursors` is one; `client.cursor` opens a cursor."""

    def __init__(self, opened: OpenClient) -> None:
        self._opened = opened

    async def list(self, log_name: str) -> Sequence[CursorRecord]:
        """The cursors of a log, by name: the beginning, the term and the owner of each, and when it was committed.

        Raises `LogNotFoundError`, `MetastoreError`."""
        return await self._opened.cursors.all_of(log_name)

    async def move(self, log_name: str, name: str, *, to: Position | str) -> CursorRecord:
        """Has a cursor begin at this position, before or behind where it was. A worker that has it loses it.

        Raises `CursorNotFoundError`, `LogNotFoundError`, `TrimmedError`, `PositionError`. If it raises or is cancelled, it may be
        moved or not; moving again is harmless."""
        return await self._opened.cursors.move(log_name, name, Position.parse(to), owner_here())

    async def delete(self, log_name: str, name: str) -> None:
        """Deletes a cursor: trims don't wait for it any more. A worker that has it loses it.

        Raises `CursorNotFoundError`, `LogNotFoundError`. If it raises or is cancelled, it may be deleted or not; deleting again
        is harmless."""
        await self._opened.cursors.delete(log_name, name)
