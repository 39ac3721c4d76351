"""Connections to bookies of BookKeeper: frames out, frames in, and which answer is to which question.

Rules: what is sent and not answered is bounded, in bytes by the channel above and in number here. A frame that cannot be
read ends the connection: nothing behind it can be. All connections of a client share one count of transactions, so that an add
is encoded once for all its bookies. In version 2 answers name only operation, ledger and entry: of equal questions, one at a
time is on its way.
"""

from __future__ import annotations

import itertools
import ssl
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import attrs
import trio

from replog.abc import Authenticator, Connection, RequestHandler, ResponseReceiver, Transport
from replog.errors import BookieTooBusyError, BookieUnreachableError, ConfigError, RemoteProtocolError
from replog.protocol.messages import (
    AddRequest,
    FenceRequest,
    ReadLastAddConfirmedRequest,
    ReadRequest,
    RecoveryReadRequest,
    Request,
    Response,
    Status,
    WriteLastAddConfirmedRequest,
)
from replog.runtime.host_ports import parse_address
from replog_bookkeeper import frames, frames_v2
from replog_bookkeeper.digests import LedgerKey
from replog_bookkeeper.exchanges import (
    Adding,
    AskingConfirmed,
    AskingLastEntry,
    Exchange,
    Fencing,
    NotPublishing,
    Publishing,
    ReadAhead,
    Reading,
    RecoveryReading,
    add_question,
)
from replog_bookkeeper.frames import Answer, Code, Operation, Splitter
from replog_bookkeeper.schema import wire

FRAME_BYTES_MAX = 5 << 20  # what bookies take unless they are told otherwise
ANSWER_BYTES_MAX = 17 << 20  # an entry is refused above 16 MiB: nothing here can hold a larger one
_CHUNK_BYTES = 256 << 10
_UNANSWERED_MAX = 200_000  # questions
_LEDGERS_MAX = 256  # of which it is remembered how far reads were ahead


class BookKeeperTransport(Transport):
    """Connects to bookies by the address HOST:PORT; with `tls`, by START_TLS. Speaks the protocol's version 3, or 2."""

    def __init__(self, tls: ssl.SSLContext | None = None, wire_version: int = frames.VERSION) -> None:
        self._tls = tls
        self._is_version_2 = wire_version == frames_v2.VERSION
        self._transactions = itertools.count(1)
        self._encoded: tuple[AddRequest | None, Hashable, bytes] = (None, 0, b"")  # the last add
        self.exchanges = _EXCHANGES_OF_2 if self._is_version_2 else _EXCHANGES
        self.decode: Callable[[bytes], Answer] = frames_v2.decode if self._is_version_2 else frames.decode

    async def connect(
        self,
        address: str,
        receiver: ResponseReceiver,
        nursery: trio.Nursery,
        *,
        bookie_id: str = "",
        authenticator: Authenticator | None = None,
    ) -> Connection:
        """Connects to a bookie. Raises `BookieUnreachableError`; its id is not checked: BookKeeper has no word for that."""
        host, port = parse_address(address)
        try:
            stream: trio.abc.Stream = await trio.open_tcp_stream(host, port)
        except OSError as error:
            raise BookieUnreachableError(bookie_id, f"{address}: {error}") from error
        try:
            if self._tls is not None:
                stream = await self._start_tls(stream, host, bookie_id)
            return BookieConnection(stream, receiver, nursery, bookie_id, self)
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise

    async def _start_tls(self, stream: trio.abc.Stream, host: str, bookie_id: str) -> trio.abc.Stream:
        """Asks for TLS in clear, and goes on in TLS behind the answer."""
        assert self._tls is not None
        splitter = Splitter(ANSWER_BYTES_MAX)
        try:
            transaction = next(self._transactions)
            await stream.send_all(frames.request(Operation.START_TLS, transaction, wire["StartTLSRequest"]()))
            answers: list[bytes] = []
            while not answers:
                data = await stream.receive_some(_CHUNK_BYTES)
                if not data:
                    raise BookieUnreachableError(bookie_id, "it closed the connection when TLS was asked for")
                answers = splitter.feed(data)
            if frames.decode(answers[0]).code is not Code.OK:
                raise BookieUnreachableError(bookie_id, "it speaks no TLS: connect without tls, or configure it there")
            secured = trio.SSLStream(stream, self._tls, server_hostname=host)
            await secured.do_handshake()
        except (trio.BrokenResourceError, RemoteProtocolError, ssl.SSLError) as error:
            raise BookieUnreachableError(bookie_id, f"START_TLS failed: {error.__cause__ or error}") from error
        return secured

    def listen(
        self,
        address: str,
        handler: RequestHandler,
        *,
        bookie_id: str = "",
        authenticator: Authenticator | None = None,
    ) -> AbstractAsyncContextManager[str]:
        """Raises `ConfigError`: a bookie of replog's does not serve clients of BookKeeper."""
        raise ConfigError("replog-bookkeeper is a client: it serves no bookie")

    def encode(self, operation: Operation, body: Any, priority: int) -> tuple[Hashable, bytes]:
        """The transaction and the frame of a question: a number that no other question of any connection has; or in version 2, by
        what its answer is recognised."""
        if self._is_version_2:
            return frames_v2.key_of(operation, body), frames_v2.request(operation, body, priority=priority)
        transaction = next(self._transactions)
        return transaction, frames.request(operation, transaction, body, priority=priority)

    def encode_add(self, request: AddRequest) -> tuple[Hashable, bytes]:
        """The transaction and the frame of an add. Its bookies are sent it one after the other: for them it is made once."""
        known, transaction, frame = self._encoded
        if known is not request:
            transaction, frame = self.encode(*add_question(request))
            self._encoded = (request, transaction, frame)
        return transaction, frame


@attrs.frozen
class _Question:
    """A frame on its way: of what exchange, and which of its questions."""

    exchange: Exchange
    place: int
    operation: Operation


class BookieConnection(Connection):
    """One connection. Its tasks run in the nursery until it ends."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        receiver: ResponseReceiver,
        nursery: trio.Nursery,
        bookie_id: str,
        transport: BookKeeperTransport,
    ) -> None:
        self._stream = stream
        self._receiver = receiver
        self._nursery = nursery
        self._bookie_id = bookie_id
        self._transport = transport
        self._unsent: deque[bytes] = deque()
        self._arrived = trio.Event()
        self._questions: dict[Hashable, _Question] = {}
        self._held: dict[
            Hashable, deque[tuple[bytes, _Question]]
        ] = {}  # until another of the same transaction is answered
        self._ahead: OrderedDict[tuple[int, int], ReadAhead] = OrderedDict()  # by ledger and rotation
        self._is_over = False
        self._scope = trio.CancelScope()
        nursery.start_soon(self._run)

    def send(self, requests: Sequence[Request]) -> None:
        """Queues requests. Raises `BookieUnreachableError`, `BookieTooBusyError`."""
        if self._is_over:
            raise BookieUnreachableError(self._bookie_id, "the connection is gone")
        if len(self._questions) > _UNANSWERED_MAX:
            problem = f"{len(self._questions)} questions wait for its answers: it is too slow"
            raise BookieTooBusyError(self._bookie_id, problem)
        for request in requests:
            if isinstance(request, AddRequest):
                transaction, frame = self._transport.encode_add(request)
                self._queue(transaction, frame, _Question(Adding(request), 0, Operation.ADD_ENTRY))
            else:
                self._ask(self._exchange(request))
        self._arrived.set()

    def _exchange(self, request: Request) -> Exchange:
        if isinstance(request, ReadRequest):
            return Reading(request, self._ahead_of(request))
        for kind, exchange in self._transport.exchanges.items():
            if isinstance(request, kind):
                return exchange(request)
        raise AssertionError(f"nothing of this client asks bookies for {request!r}")

    def _ahead_of(self, request: ReadRequest) -> ReadAhead:
        assert isinstance(request.key, LedgerKey)
        place = request.ledger_id, request.entry_id % request.key.quorum.stride
        found = self._ahead.pop(place, None) or ReadAhead()
        self._ahead[place] = found
        if len(self._ahead) > _LEDGERS_MAX:
            self._ahead.popitem(last=False)
        return found

    def _ask(self, exchange: Exchange) -> None:
        if isinstance(exchange, NotPublishing):
            self._nursery.start_soon(self._tell_later, Response(exchange.request_id, Status.OK), 0.0)
        for place, (operation, body, priority) in enumerate(exchange.questions()):
            transaction, frame = self._transport.encode(operation, body, priority)
            self._queue(transaction, frame, _Question(exchange, place, operation))

    def _queue(self, transaction: Hashable, frame: bytes, question: _Question) -> None:
        # Of version 2: the answer to a plain read must not be taken for that to a read of the same entry that fences.
        if transaction in self._questions:
            self._held.setdefault(transaction, deque()).append((frame, question))
            return
        self._questions[transaction] = question
        self._unsent.append(frame)

    def _answered(self, transaction: Hashable) -> _Question | None:
        """The question of this transaction, which is answered; the next one that was held for it is sent."""
        question = self._questions.pop(transaction, None)
        if self._held and (waiting := self._held.get(transaction)):
            self._queue(transaction, *waiting.popleft())
            if not waiting:
                del self._held[transaction]
            self._arrived.set()
        return question

    # -- tasks ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Sends and receives until the connection ends, and says so."""
        problem = "the connection was closed"
        try:
            with self._scope:
                try:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._send)
                        await self._receive(nursery)
                        problem = "it closed the connection"
                        nursery.cancel_scope.cancel()
                except* (trio.BrokenResourceError, trio.ClosedResourceError, RemoteProtocolError) as errors:
                    problem = "; ".join(str(error.__cause__ or error) for error in errors.exceptions)
        finally:
            self._is_over = True
            self._questions.clear()
            self._held.clear()
            self._unsent.clear()
            self._receiver.disconnected(BookieUnreachableError(self._bookie_id, problem))
            await trio.aclose_forcefully(self._stream)

    async def _send(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived = trio.Event()
            while self._unsent:
                data = b"".join(self._unsent)
                self._unsent.clear()
                await self._stream.send_all(data)

    async def _receive(self, nursery: trio.Nursery) -> None:
        splitter = Splitter(ANSWER_BYTES_MAX)
        while data := await self._stream.receive_some(_CHUNK_BYTES):
            ready = []
            for message in splitter.feed(data):
                answer = self._transport.decode(message)
                # An answer to nothing that was asked, or a second one, is ignored: it can't be told what it is.
                question = self._answered(answer.transaction)
                if question is not None and question.operation is not answer.operation:
                    raise RemoteProtocolError(f"{answer.operation.name} in answer to {question.operation.name}")
                if question is not None and (response := self._hear(question, answer)) is not None:
                    waits_s = question.exchange.waits_s
                    if waits_s:
                        nursery.start_soon(self._tell_later, response, waits_s)
                    else:
                        ready.append(response)
            if ready:
                self._receiver.responses_received(ready)

    def _hear(self, question: _Question, answer: Answer) -> Response | None:
        exchange = question.exchange
        response = exchange.answered(question.place, answer)
        if response is None and exchange.asks_again:
            exchange.asks_again = False
            self._ask(exchange)
            self._arrived.set()
        return response

    async def _tell_later(self, response: Response, waits_s: float) -> None:
        await trio.sleep(waits_s)
        self._receiver.responses_received([response])

    async def aclose(self) -> None:
        """Ends the connection. Idempotent."""
        self._scope.cancel()
        await trio.lowlevel.checkpoint()


_EXCHANGES: dict[type, Callable[..., Exchange]] = {
    FenceRequest: Fencing,
    RecoveryReadRequest: RecoveryReading,
    ReadLastAddConfirmedRequest: AskingConfirmed,
    WriteLastAddConfirmedRequest: Publishing,
}
_EXCHANGES_OF_2: dict[type, Callable[..., Exchange]] = {
    **_EXCHANGES,
    ReadLastAddConfirmedRequest: AskingLastEntry,
    WriteLastAddConfirmedRequest: NotPublishing,
}
