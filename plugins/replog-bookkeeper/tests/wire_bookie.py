"""A bookie without a cluster, and clients that speak to it frame by frame."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from replog.abc import Storage
from replog.backends.memory import MemoryStorage
from replog.bookie.server import BookieServer
from replog.config import BookieOptions
from replog.protocol import batch as batches
from replog.protocol.quorum import Quorum
from replog_bookkeeper import frames, frames_v2
from replog_bookkeeper.digests import LedgerDigest, LedgerKey, process_digest
from replog_bookkeeper.frames import HIGH_PRIORITY, RECOVERY_ADD, Answer, Code, Operation, ReadFlag, Splitter
from replog_bookkeeper.schema import wire
from replog_bookkeeper.serving.entries import is_same_entry
from replog_bookkeeper.serving.listener import Listener
from replog_bookkeeper.transport import ANSWER_BYTES_MAX

LEDGER = 7
LAST = -1
KEY = LedgerKey(b"secret", LedgerDigest.CRC32C, Quorum(3, 3, 2))
KEYS = {digest: LedgerKey(b"secret", digest, Quorum(3, 3, 2)) for digest in LedgerDigest}
ANSWER_S = 10.0


def entry(
    entry_id: int,
    payload: bytes = b"x",
    confirmed: int | None = None,
    key: LedgerKey = KEY,
    length: int | None = None,
    ledger_id: int = LEDGER,
) -> bytes:
    """The bytes of an entry; without `length`, that of a ledger whose entries are all like this one."""
    batch = batches.build(
        process_digest(ledger_id),
        ledger_id=ledger_id,
        first_entry_id=entry_id,
        stride=1,
        payloads=(payload,),
        last_add_confirmed=-1,
        stamp=1,
        timestamp_ns=0,
        cumulative_length=len(payload) * (entry_id + 1) if length is None else length,
    )
    return key.seal_entry(batch, entry_id - 1 if confirmed is None else confirmed)


class Caller:
    """A connection of a client."""

    def __init__(self, stream: trio.SocketStream, version: int) -> None:
        self.stream = stream
        self.version = version
        self._transactions = itertools.count(1)
        self._splitter = Splitter(ANSWER_BYTES_MAX)
        self._received: list[bytes] = []

    def frame(self, operation: Operation, body: Any, priority: int = 0) -> bytes:
        if self.version == 2:
            return frames_v2.request(operation, body, priority=priority)
        return frames.request(operation, next(self._transactions), body, priority=priority)

    async def answer(self) -> Answer:
        """The next answer, whatever it is to."""
        data = await self._next()
        return frames_v2.decode(data) if self.version == 2 else frames.decode(data)

    async def answer_any(self) -> Any:
        """The message of the next answer of version 3, whatever is missing in it."""
        return wire["Response"].FromString(await self._next())

    async def _next(self) -> bytes:
        while not self._received:
            with trio.fail_after(ANSWER_S):
                data = await self.stream.receive_some()
            if not data:
                raise trio.EndOfChannel
            self._received += self._splitter.feed(data)
        return self._received.pop(0)

    async def ask(self, operation: Operation, body: Any, priority: int = 0) -> Answer:
        await self.stream.send_all(self.frame(operation, body, priority))
        return await self.answer()

    async def add(
        self,
        entry_id: int,
        body: bytes | None = None,
        *,
        key: bytes = KEY,
        is_recovery: bool = False,
        ledger_id: int = LEDGER,
    ) -> Code:
        answer = await self.ask(*add_of(entry_id, body, key=key, is_recovery=is_recovery, ledger_id=ledger_id))
        assert (answer.body.ledgerId, answer.body.entryId) == (ledger_id, entry_id)
        return answer.code

    async def read(self, entry_id: int, *, ledger_id: int = LEDGER) -> Answer:
        return await self.ask(Operation.READ_ENTRY, wire["ReadRequest"](ledgerId=ledger_id, entryId=entry_id))

    async def fence(self, entry_id: int = LAST, *, key: bytes = KEY, ledger_id: int = LEDGER) -> Answer:
        return await self.ask(*fence_of(entry_id, key=key, ledger_id=ledger_id))

    async def about(self, operation: Operation, name: str, **fields: Any) -> Answer:
        """Asks with the message of this name, about the ledger unless fields are given."""
        given: Mapping[str, Any] = fields or {"ledgerId": LEDGER}
        return await self.ask(operation, wire[name](**given))


def add_of(
    entry_id: int,
    body: bytes | None = None,
    *,
    key: bytes = KEY,
    is_recovery: bool = False,
    ledger_id: int = LEDGER,
) -> tuple[Operation, Any, int]:
    fields = {"flag": RECOVERY_ADD} if is_recovery else {}
    data = entry(entry_id) if body is None else body
    message = wire["AddRequest"](ledgerId=ledger_id, entryId=entry_id, masterKey=bytes(key), body=data, **fields)
    return Operation.ADD_ENTRY, message, HIGH_PRIORITY if is_recovery else 0


def fence_of(entry_id: int = LAST, *, key: bytes = KEY, ledger_id: int = LEDGER) -> tuple[Operation, Any, int]:
    flag = ReadFlag.FENCE_LEDGER
    message = wire["ReadRequest"](ledgerId=ledger_id, entryId=entry_id, masterKey=bytes(key), flag=flag)
    return Operation.READ_ENTRY, message, HIGH_PRIORITY


@attrs.define
class Served:
    server: BookieServer
    address: str
    callers: list[Caller] = attrs.field(factory=list)

    async def call(self, version: int = 3) -> Caller:
        host, _, port = self.address.rpartition(":")
        caller = Caller(await trio.open_tcp_stream(host, int(port)), version)
        self.callers.append(caller)
        return caller


@asynccontextmanager
async def a_bookie(storage: Storage | None = None) -> AsyncIterator[Served]:
    server = BookieServer(storage or MemoryStorage(), BookieOptions(), lambda _event: None, is_same_entry)
    async with server.running(), Listener(server).listen("127.0.0.1:0") as address:
        served = Served(server, address)
        try:
            yield served
        finally:
            for each in served.callers:
                await trio.aclose_forcefully(each.stream)
