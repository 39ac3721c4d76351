"""Writers for asyncio: an append is a push, and a future that is given its place when the entry is confirmed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import trio

from replog.aio.contexts import Opened
from replog.aio.faces import FACES
from replog.aio.host import Host
from replog.client.endings import copy_for_raise
from replog.client.ledger_writer import LedgerWriter as TrioLedgerWriter
from replog.errors import ReplogError, WouldBlockError
from replog.log.log_writer import LogWriter as TrioLogWriter
from replog.protocol.batch import Payloads
from replog.runtime.faces import closed, without_trio

_Waiting = list[tuple[Any, asyncio.Future[Any]]]  # places of entries, and who waits for them to be confirmed


class _Writer(Opened):
    """What the writers of ledgers and of logs have in common: the waits that have a shorter way than a trio task for each."""

    def __init__(self, host: Host, inner: Any) -> None:
        super().__init__(host, inner)
        self._waiting: _Waiting | None = None  # those whose trio task has not begun: more may join them

    async def append(self, data: bytes) -> Any:
        try:
            place = self.push_nowait(data)
        except WouldBlockError:
            return await self._way.call(lambda: self._inner.append(data))
        confirmed: asyncio.Future[Any] = self._way.loop.create_future()
        if self._waiting is None:
            # If that raises, nobody waits for a task that never begins.
            self._way.start(self._confirm)
            self._waiting = []
        self._waiting.append((place, confirmed))
        return await confirmed

    async def push(self, data: bytes) -> Any:
        try:
            return self.push_nowait(data)
        except WouldBlockError:
            return await self._way.call(lambda: self._inner.push(data))

    def push_nowait(self, data: bytes) -> Any:
        self._way.check_loop()
        try:
            return self._inner.push_nowait(data)
        except Exception as error:
            raise without_trio(error)  # noqa: B904 - it has its cause

    async def extend(self, data: Iterable[bytes]) -> Sequence[Any]:
        payloads = Payloads(data)
        return await self._way.call(lambda: self._inner.extend(payloads))  # type: ignore[no-any-return]

    async def _confirm(self) -> None:
        """A trio task: waits until everything pushed by now is confirmed, for all who wait."""
        waiting, self._waiting = self._waiting or [], None
        error: ReplogError | None = closed()
        try:
            await self._inner.flush()
            error = None
        except (ReplogError, trio.ClosedResourceError) as problem:
            error = without_trio(problem)  # type: ignore[assignment]
        finally:
            self._tell(waiting, error)

    def _tell(self, waiting: _Waiting, error: ReplogError | None) -> None:
        last = None if error is None else self._inner.last_add_confirmed
        for place, confirmed in waiting:
            if confirmed.done():
                continue  # cancelled
            if error is None or (last is not None and place <= last):
                confirmed.set_result(place)
            else:
                confirmed.set_exception(copy_for_raise(error))


@FACES.face_of(TrioLedgerWriter)
class LedgerWriter(_Writer):
    """The one writer of a ledger, for any number of tasks. Made by `Client.create_ledger`; places are entry ids."""


@FACES.face_of(TrioLogWriter)
class LogWriter(_Writer):
    """The one writer of a log, until somebody else takes over, for any number of tasks. Made by `Client.write_log`."""
