"""The answers of one connection: expected from the bookie, and waiting to be sent, both charged (B9)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from replog.errors import RemoteProtocolError
from replog.protocol import wire
from replog.protocol.messages import (
    AddRequest,
    AdminRequest,
    LedgerAwaited,
    MetastoreRequest,
    RangesRequest,
    ReadLastAddConfirmedRequest,
    ReadRequest,
    RecoveryReadRequest,
    Request,
    Response,
    Status,
)
from replog.protocol.unasked import encode_awaited

if TYPE_CHECKING:
    from replog.transports.tcp.account import Account
    from replog.transports.tcp.stream import Stream
    from replog.transports.tcp.waking import Wakeup

_REQUEST_BYTES = 1024  # what a request costs beside its bytes: objects, and its place in queues
UNTAKEN_BYTES_MAX = 256 << 10  # waiting to be sent: above it, the client must receive before more is read for it
# What a listener that leaves need not answer first. A member's answers may take long, and its clients ask another one.
_NOT_CHANGING = AdminRequest | ReadRequest | RecoveryReadRequest | RangesRequest | MetastoreRequest


class Answers:
    """Sends what the bookie answers to one connection. `changing` are the unanswered requests that change something."""

    def __init__(self, stream: Stream, account: Account, sent_or_answered: Wakeup) -> None:
        self.changing: set[int] = set()
        self.reads: dict[int, int] = {}  # reads that are being made: bytes set aside for the answer
        self.waiting_reads: deque[tuple[ReadRequest | RecoveryReadRequest, float]] = deque()  # and since when
        self.wake_reads: Callable[[], None] = sent_or_answered.wake  # called when waiting reads may have room
        self.largest_batch_bytes = 0  # that began an answer: the next one may be as large, however little is asked for
        self.held_bytes = 0  # by the stream, as charged
        self.outbox: list[bytes] = []
        self.is_handling = False
        self.reply = self._answered  # one object: the bookie groups answers to one connection by it
        self._stream = stream
        self._account = account
        self._sent_or_answered = sent_or_answered
        self._polls: set[int] = set()  # long polls: their answers may bring batches along
        self._outbox_bytes = 0
        self._freed_bytes = 0  # still charged: what is answered while requests are handled is given back at their end

    def expect(self, request: Request, body_bytes: int) -> None:
        """Charges a request until it is answered. Raises `RemoteProtocolError` if its id is in use."""
        request_id = request.request_id
        account = self._account
        if request_id in account.requests:
            raise RemoteProtocolError(f"request id {request_id} is used again before its answer")
        size_bytes = _REQUEST_BYTES + body_bytes
        if isinstance(request, AddRequest):
            self.changing.add(request_id)
        elif isinstance(request, ReadLastAddConfirmedRequest):
            # Nothing is set aside for the batches that it may bring: if there is no room then, it brings none.
            if request.bytes_max > 0:
                self._polls.add(request_id)
        elif not isinstance(request, _NOT_CHANGING):
            self.changing.add(request_id)
        account.requests[request_id] = size_bytes
        account.charge(size_bytes)

    def handled(self) -> None:
        """All requests of one call were given to the bookie: sends what it answered at once."""
        self.is_handling = False
        pieces = self.outbox
        if pieces:
            self.outbox = []
            self._freed_bytes += self._outbox_bytes
            self._outbox_bytes = 0
        if self._freed_bytes:
            self._give_back()
        if pieces:
            self._write(pieces)
        if self.waiting_reads:
            self.wake_reads()

    def _answered(self, responses: Sequence[Response]) -> None:
        # The storage may answer long after the client has left.
        if self._stream.is_closed:
            return
        charges = self._account.requests
        pieces = self.outbox if self.is_handling else []
        for response in responses:
            request_id = response.request_id
            freed_bytes = charges.pop(request_id, None)
            if freed_bytes is None:
                # Told unasked, or answered twice: the client does not expect a second answer.
                if isinstance(response, LedgerAwaited) and self._stream.features & wire.FEATURE_AWAITED:
                    pieces.append(encode_awaited(response.ledger_id))
                continue
            self.changing.discard(request_id)
            if request_id in self._polls:
                self._polls.discard(request_id)
                response = self._bringing(response)
            elif request_id in self.reads:
                response = self._fitting(response, self.reads.pop(request_id))
            answer_bytes = wire.encode_response(response, pieces)
            if self.is_handling:
                self._outbox_bytes += answer_bytes
                freed_bytes -= answer_bytes
            self._freed_bytes += freed_bytes
            if self._freed_bytes < 0:  # an answer that is larger than its request is charged at once
                self._give_back()
        if not self.is_handling:
            self._give_back()
            self._write(pieces)
            if self.waiting_reads:
                self.wake_reads()
        self._sent_or_answered.wake()

    def _fitting(self, response: Response, set_aside_bytes: int) -> Response:
        """The answer to a read, or a refusal if it is larger than expected and there is no room for it.

        From here on, its bytes are charged where they are."""
        self._account.charge_answers(-set_aside_bytes)
        if not response.batches:
            return response
        answer_bytes = sum(len(batch.data) for batch in response.batches)
        self.largest_batch_bytes = max(self.largest_batch_bytes, len(response.batches[0].data))
        if answer_bytes <= set_aside_bytes or self._has_room(answer_bytes):
            return response
        problem = f"no room for an answer of {answer_bytes} bytes: the client has asked for too much at once"
        return Response(response.request_id, Status.TOO_BUSY, detail=problem)

    def _bringing(self, response: Response) -> Response:
        """The answer to a long poll, without its batches if there is no room for them."""
        if response.batches and not self._has_room(sum(len(batch.data) for batch in response.batches)):
            response.batches = ()
        return response

    def _has_room(self, size_bytes: int) -> bool:
        """Whether an answer may be sent for which nothing was set aside."""
        account = self._account
        own_bytes = account.answer_bytes + self._outbox_bytes
        if own_bytes and account.charged_bytes + size_bytes > account.bytes_max:
            return False
        return own_bytes <= UNTAKEN_BYTES_MAX or account.budget.takes_answer(own_bytes, size_bytes)

    def _give_back(self) -> None:
        freed_bytes, self._freed_bytes = self._freed_bytes, 0
        self._account.charge(-freed_bytes)

    def _write(self, pieces: list[bytes]) -> None:
        self._stream.write(pieces)
        if self._stream.held_bytes != self.held_bytes:
            self.sent()

    def sent(self) -> None:
        """The stream holds more bytes than before, or fewer: charges the difference."""
        change_bytes = self._stream.held_bytes - self.held_bytes
        self.held_bytes += change_bytes
        self._account.charge_answers(change_bytes)
        if self.waiting_reads:
            self.wake_reads()
        self._sent_or_answered.wake()

    def close(self) -> None:
        """Forgets unanswered requests: the connection is gone."""
        self.waiting_reads.clear()
        self.reads.clear()
        self.changing.clear()
        self._polls.clear()
        # A ledger's machine remembers the way to its writer: it must not keep the session with its received bytes.
        self.wake_reads = self._sent_or_answered.wake
