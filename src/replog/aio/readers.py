"""Readers for asyncio: a batch that is there is taken at once, and entries are cut from it here."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import trio

from replog.aio.contexts import Opened
from replog.aio.faces import FACES
from replog.aio.host import Host
from replog.client.ledger_reader import LedgerRangeReader as TrioLedgerRangeReader
from replog.client.ledger_reader import LedgerReader as TrioLedgerReader
from replog.errors import EndOfLogError
from replog.log.log_reader import LogReader as TrioLogReader
from replog.protocol.model import Position


class _Receiving(Opened):
    """What gives batches. Cancelling a wait loses nothing: the next call goes on where it stood."""

    def __init__(self, host: Host, inner: Any) -> None:
        super().__init__(host, inner)
        self._fetched: deque[Any] = (
            deque()
        )  # has come, and was not given out: whoever waited for it was cancelled just then

    async def receive_batch(self) -> Any:
        self._way.check_loop()
        # Others have their turn, however fast batches come; nothing is taken yet.
        await asyncio.sleep(0)
        if not self._fetched:
            try:
                return self._inner.receive_batch_nowait()
            except (trio.WouldBlock, trio.ClosedResourceError):  # which waiting raises as it should be
                await self._way.call(self._fetch)
        return self._fetched.popleft() if self._fetched else None

    def receive_batch_nowait(self) -> Any:
        self._way.check_loop()
        if self._fetched:
            return self._fetched.popleft()
        return self._kind.immediate(self._way, self._inner.receive_batch_nowait)

    async def _fetch(self) -> None:
        """In the trio run: an asyncio task that is cancelled drops the result of its call, even if that is there."""
        batch = await self._inner.receive_batch()
        if batch is not None:
            self._fetched.append(batch)


class _Batches:
    """Batches as they come, to the end."""

    def __init__(self, receive: Callable[[], Any]) -> None:
        self._receive = receive

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        batch = await self._receive()
        if batch is None:
            raise StopAsyncIteration
        return batch


class _Entries:
    """Entries as their batches come, to the end. After a wait that was cancelled it goes on."""

    def __init__(self, receive: Callable[[], Any]) -> None:
        self._receive = receive
        self._entries: Iterator[Any] = iter(())

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        while True:
            for entry in self._entries:
                return entry
            batch = await self._receive()
            if batch is None:
                raise StopAsyncIteration
            self._entries = iter(batch)


@FACES.face_of(TrioLedgerRangeReader)
class LedgerRangeReader(_Receiving, _Batches):
    """The entries of a ledger from the first to the last, in batches."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._receive = self.receive_batch


@FACES.face_of(TrioLedgerReader)
class LedgerReader(_Receiving):
    """Reads one ledger, and never fences it (D1). Made by `Client.open_ledger`; iterate it, or its `batches()`."""

    def batches(self) -> AsyncIterator[Any]:
        return _Batches(self.receive_batch)

    def __aiter__(self) -> AsyncIterator[Any]:
        return _Entries(self.receive_batch)


@FACES.face_of(TrioLogReader)
class LogReader(_Receiving):
    """Reads a log after a position. Made by `Client.read_log`; iterate it, or its `batches()`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._records: Iterator[Any] = iter(())
        self._record: Any = None  # the last one of its batch that was given out by iterating

    @property
    def position(self) -> Position | None:
        record: Any = self._inner if self._record is None else self._record
        return record.position  # type: ignore[no-any-return]

    def batches(self) -> AsyncIterator[Any]:
        return _Batches(self.receive_batch)

    async def receive_batch(self) -> Any:
        batch = await super().receive_batch()
        self._records, self._record = iter(()), None
        return batch

    def receive_batch_nowait(self) -> Any:
        batch = super().receive_batch_nowait()
        self._records, self._record = iter(()), None
        return batch

    async def receive(self) -> Any:
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise EndOfLogError(
                f"log {self.name!r}: there is no further record, and this reader does not follow"
            ) from None

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        while True:
            for record in self._records:
                self._record = record
                return record
            batch = await self.receive_batch()
            if batch is None:
                raise StopAsyncIteration
            self._records = iter(batch)
