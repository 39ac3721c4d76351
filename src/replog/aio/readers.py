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
from replog.errors import EndOfLogError, LocalProtocolError
from replog.log.cursor import Cursor as TrioCursor
from replog.log.log_reader import LogReader as TrioLogReader
from replog.protocol.model import Position


class _Receiving(Opened):
    """The source of batches. Cancelling a wait loses nothing: the next call goes on where it stood."""

    def __init__(self, host: Host, inner: Any) -> None:
        super().__init__(host, inner)
        self._is_received = False  # a task waits for the next batch
        self._fetched: deque[Any] = (
            deque()
        )  # has come, and was not given out: the task that waited for it was cancelled just then

    async def receive_batch(self) -> Any:
        self._way.check_loop()
        if self._is_received:
            raise LocalProtocolError("another task waits for this reader: it belongs to one task at a time")
        self._is_received = True
        try:
            # Others have their turn, however fast batches come; nothing is taken yet.
            await asyncio.sleep(0)
            if not self._fetched:
                try:
                    return self._inner.receive_batch_nowait()
                except (trio.WouldBlock, trio.ClosedResourceError):  # which waiting raises as it should be
                    await self._way.call(self._fetch)
            return self._fetched.popleft() if self._fetched else None
        finally:
            self._is_received = False

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


class _LogReading(_Receiving):
    """The reader of a log: its records and batches as returned, as opposed to fetched."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._records: Iterator[Any] = iter(())
        self._record: Any = None  # the last one of its batch that was given out by iterating
        # Of the last batch that was given out: trio's reader may be ahead by one that came just when its caller was cancelled.
        self._position: Position | None = self._inner.position

    @property
    def position(self) -> Position | None:
        return self._position if self._record is None else self._record.position

    @property
    def _what(self) -> str:
        raise NotImplementedError

    def batches(self) -> AsyncIterator[Any]:
        return _Batches(self.receive_batch)

    async def receive_batch(self) -> Any:
        batch = await super().receive_batch()
        if batch is not None:
            self._given_out(batch)
        return batch

    def receive_batch_nowait(self) -> Any:
        batch = super().receive_batch_nowait()
        self._given_out(batch)
        return batch

    def _given_out(self, batch: Any) -> None:
        self._records, self._record = iter(()), None
        self._position = batch.last_position

    async def receive(self) -> Any:
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise EndOfLogError(f"{self._what}: there is no further record, and this reader does not follow") from None

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


@FACES.face_of(TrioLogReader)
class LogReader(_LogReading):
    """Reads a log after a position. Made by `Client.read_log`; iterate it, or its `batches()`."""

    @property
    def _what(self) -> str:
        return f"log {self.name!r}"


@FACES.face_of(TrioCursor)
class Cursor(_LogReading):
    """Reads a log on from where its cursor is, and commits. Made by `Client.cursor`; iterate it, or its `batches()`."""

    @property
    def _what(self) -> str:
        return f"log {self.log_name!r}"

    # Trio's cursor may be ahead by a batch that was not given out here.
    async def commit(self, position: Position | str | None = None) -> None:
        covered = self.position if position is None else position
        if covered is not None:
            await self._way.call(lambda: self._inner.commit(covered))

    def commit_nowait(self, position: Position | str | None = None) -> None:
        covered = self.position if position is None else position
        if covered is not None:
            self._way.check_loop()
            self._kind.immediate(self._way, lambda: self._inner.commit_nowait(covered))
