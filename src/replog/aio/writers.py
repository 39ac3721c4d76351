"""Writers for asyncio: an append is a push, and a future that ends when the entry is confirmed.

No task of trio's takes part, which would cost changes of thread: what confirms the entries tells the futures, in the thread of
both loops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from replog.aio.contexts import Opened
from replog.aio.faces import FACES
from replog.client.ledger_writer import LedgerWriter as TrioLedgerWriter
from replog.errors import WouldBlockError
from replog.log.log_writer import LogWriter as TrioLogWriter
from replog.protocol.batch import Payloads
from replog.protocol.envelope import pack, pack_each
from replog.runtime.faces import without_trio


class _Writer(Opened):
    """The common part of the writers of ledgers and of logs: the waits that have a shorter way than a trio task for each."""

    async def append(self, data: bytes) -> Any:
        ended = self._way.loop.create_future()
        try:
            place = self._at_once(self._inner._entries.append_nowait, data, partial(_end, ended))
        except WouldBlockError:
            return await self._way.call(lambda: self._inner.append(data))
        await self._confirmed(ended, place)
        return place

    async def push(self, data: bytes) -> Any:
        try:
            return self.push_nowait(data)
        except WouldBlockError:
            return await self._way.call(lambda: self._inner.push(data))

    def push_nowait(self, data: bytes) -> Any:
        return self._at_once(self._inner.push_nowait, data)

    async def extend(self, data: Iterable[bytes]) -> Sequence[Any]:
        payloads = Payloads(data)
        ended = self._way.loop.create_future()
        try:
            places: Sequence[Any] = self._at_once(self._inner._entries.extend_nowait, payloads, partial(_end, ended))
        except WouldBlockError:
            return await self._way.call(lambda: self._inner.extend(payloads))  # type: ignore[no-any-return]
        if places:
            await self._confirmed(ended, places[-1])
        return places

    async def flush(self) -> None:
        ended = self._way.loop.create_future()
        last = self._at_once(self._inner._entries.flush_nowait, partial(_end, ended))
        await self._confirmed(ended, last)

    def _at_once(self, verb: Callable[..., Any], *args: Any) -> Any:
        self._way.check_loop()
        try:
            return verb(*args)
        except Exception as error:
            raise without_trio(error)  # noqa: B904 - it has its cause

    async def _confirmed(self, ended: asyncio.Future[bool], place: Any) -> None:
        """Waits until the entry at this place is confirmed. Raises why it is not."""
        if ended.done():
            await asyncio.sleep(0)  # others have their turn
        if not await ended:
            self._at_once(self._inner._entries.check_confirmed, place)


def _end(ended: asyncio.Future[bool], is_confirmed: bool) -> None:
    if not ended.done():  # its caller may have been cancelled
        try:
            ended.set_result(is_confirmed)
        except RuntimeError:
            # Who waits for it is a task of a closed event loop.
            if not ended.get_loop().is_closed():
                raise


@FACES.face_of(TrioLedgerWriter)
class LedgerWriter(_Writer):
    """The one writer of a ledger, for any number of tasks. Made by `Client.create_ledger`; places are entry ids."""


@FACES.face_of(TrioLogWriter)
class LogWriter(_Writer):
    """The one writer of a log, until another client takes over, for any number of tasks. Made by `Client.write_log`."""

    async def append(
        self,
        data: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        id: tuple[str, int] | None = None,
    ) -> Any:
        if id is not None:
            return await self._way.call(lambda: self._inner.append(data, key=key, headers=headers, id=id))
        return await super().append(pack(data, key=key, headers=headers))

    async def push(
        self,
        data: bytes | None,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        id: tuple[str, int] | None = None,
    ) -> Any:
        if id is not None:
            return await self._way.call(lambda: self._inner.push(data, key=key, headers=headers, id=id))
        return await super().push(pack(data, key=key, headers=headers))

    def push_nowait(
        self, data: bytes | None, *, key: bytes | None = None, headers: Mapping[str, bytes] | None = None
    ) -> Any:
        return super().push_nowait(pack(data, key=key, headers=headers))

    async def extend(
        self,
        data: Iterable[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Mapping[str, bytes] | None] | None = None,
    ) -> Sequence[Any]:
        return await super().extend(pack_each(data, keys, headers))
