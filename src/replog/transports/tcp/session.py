"""The bookie's end of a connection: requests come in as frames, answers go out, and both are bounded in bytes.

What was asked and is not answered, what is being received and what waits to be sent is charged to the session, and to the
budget of all sessions (`replog.transports.tcp.budget`). So a client that sends and does not read, or asks for more than it
takes, stops itself, and nobody else (B9):

- A read is made when there is room for its answer, and when the client has taken the answers before it. Until then it waits
  here as a request, and what comes behind it overtakes it. Adds, fences, last adds confirmed and pings never wait for reads.
- Nothing more is received from a client that uses its share. Whether it has left is looked for all the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from replog.abc import Identity, Role
from replog.errors import RemoteProtocolError
from replog.protocol import wire
from replog.protocol.messages import (
    AddRequest,
    AdminRequest,
    ReadLastAddConfirmedRequest,
    ReadRequest,
    RecoveryReadRequest,
    Request,
    Response,
    Status,
)
from replog.protocol.wire import Frame, FrameSplitter
from replog.transports.tcp.budget import SMALL_BYTES
from replog.transports.tcp.roles import lacking_role
from replog.transports.tcp.taking import Taking

if TYPE_CHECKING:
    from replog.abc import RequestHandler
    from replog.transports.tcp.budget import Budget
    from replog.transports.tcp.options import TcpOptions
    from replog.transports.tcp.stream import Stream

_REQUEST_BYTES = 1024  # what a request costs beside its bytes: objects, and its place in queues
_ANSWER_BYTES_MAX = 4 << 20  # what is set aside for an answer, until it is known
_UNTAKEN_BYTES_MAX = 256 << 10  # that wait to be sent: above it the client has to receive before more is read for it
_READS_MAX = 32  # of one client that are being made: the others wait for their turn among all clients
_WAITING_READS_MAX = 256  # then nothing more is received
_SCARCE_SHARE = 4  # this fraction of the time that a client has to go on, if others wait for room


class Session:
    """One client's connection, after the greeting."""

    def __init__(
        self,
        stream: Stream,
        splitter: FrameSplitter,
        handler: RequestHandler,
        identity: Identity | None,
        options: TcpOptions,
        budget: Budget,
    ) -> None:
        self.problem = ""  # why it ended
        self._stream = stream
        self._splitter = splitter
        self._handler = handler
        self._roles = frozenset(Role) if identity is None else identity.roles
        self._may_all = self._roles == frozenset(Role)
        self._options = options
        self._budget = budget
        self._charges: dict[int, int] = {}  # by request: what it takes itself
        self._charged_bytes = 0
        self._answer_bytes = 0  # of these: for answers, set aside or waiting to be sent
        self._reads: dict[int, int] = {}  # reads that are being made: bytes set aside for the answer
        self._waiting_reads: deque[tuple[ReadRequest | RecoveryReadRequest, float]] = deque()  # and since when
        self._is_pump_scheduled = False
        self._token = trio.lowlevel.current_trio_token()
        self._freed_bytes = 0  # still charged: what is answered while requests are handled is given back at their end
        self._changing: set[int] = set()  # requests that change something, and are not answered
        self._polls: set[int] = set()  # requests whose answers may bring batches along, or not
        self._begun_bytes = 0  # of a frame that is arriving: charged
        self._kept_bytes = 0  # received, and not handled yet: charged while that has to wait
        self._begun_at_s: float | None = None
        self._held_bytes = 0  # by the stream, as charged
        self._is_waiting = False  # for room: until then nothing is expected of the client
        self._outbox: list[bytes] = []
        self._outbox_bytes = 0
        self._largest_batch_bytes = 0  # that began an answer: the next one may be as large, however little is asked for
        self._is_handling = False
        self._is_draining = False
        self._told: trio.Event | None = None  # something was answered or sent; only while somebody waits for it
        self._ended = trio.Event()
        self._scope = trio.CancelScope()
        now_s = trio.current_time()
        self._heard_at_s = now_s  # as `look` saw it
        self._heard_bytes = stream.received_bytes
        self._taking = Taking(stream, now_s)
        self._reply = self._answered  # one object: answers to one session are recognized by it
        self._wake_reads = self._schedule_pump  # the same, at the gates
        self._wake_task = self._tell
        stream.on_sent = self._sent

    async def run(self, early: Sequence[Frame]) -> None:
        """Serves until the connection ends. `problem` says then why, "" if the client left it."""
        try:
            with self._scope:
                await self._receive(early)
        except RemoteProtocolError as error:
            self.problem = f"it broke the protocol: {error}"
            self._stream.write([wire.encode_greeting(wire.Refuse(str(error), retry=False))])
        except OSError as error:
            self.problem = f"the connection broke: {error}"
        finally:
            self._stream.on_sent = self._tell
            self._stream.close()
            self._leave_gates()
            self._waiting_reads.clear()
            self._reads.clear()
            self._charges.clear()
            self._changing.clear()
            self._polls.clear()
            self._charge_answers(-self._answer_bytes)
            self._charge(-self._charged_bytes)
            self._tell()
            self._ended.set()

    # -- requests -------------------------------------------------------------------------------------------------

    async def _receive(self, early: Sequence[Frame]) -> None:
        await self._take(early, 0)
        while not self._is_draining:
            if self._splitter.begun_bytes != self._begun_bytes:
                await self._begin()
            elif not self._begun_bytes and self._is_full():  # what was set aside for a frame stays its own
                await self._wait_for_room()
            data = await self._stream.receive(self._splitter.wanted_bytes or self._quantum_bytes())
            if not data:
                return
            frames = self._splitter.feed(data)
            del data  # what is waited for below may take long
            if self._splitter.is_empty:
                self._begun_at_s = None
            elif frames or self._begun_at_s is None:
                self._begun_at_s = trio.current_time()
            if frames:
                if self._begun_bytes:
                    self._charge(-self._begun_bytes)  # it has ended: from here on its request is charged
                    self._begun_bytes = 0
                if not self._is_draining and (done := self._handle(frames, 0)) < len(frames):
                    await self._take(frames, done)
        await self._discard()

    def _quantum_bytes(self) -> int:
        """How much to receive at most, 0 for as much as there is: where little is free, little is taken at a time."""
        budget = self._budget
        return SMALL_BYTES if budget.used_bytes * 2 > budget.total_bytes_max else 0

    async def _begin(self) -> None:
        """Sets aside room for the frame that is arriving. What has arrived of it is in memory already."""
        size_bytes, arrived_bytes = self._splitter.begun_bytes, self._splitter.arrived_bytes
        self._charge(arrived_bytes - self._begun_bytes)
        self._begun_bytes = arrived_bytes
        if size_bytes > SMALL_BYTES:
            await self._wait_for_room(size_bytes - arrived_bytes)
        self._charge(size_bytes - arrived_bytes)
        self._begun_bytes = size_bytes

    async def _take(self, frames: Sequence[Frame], done: int) -> None:
        """Handles frames from this one on, as many at a time as there is room for what they ask."""
        while done < len(frames) and not self._is_draining:
            if self._is_full():
                kept_bytes = sum(wire.HEADER.size + len(frame.fields) + len(frame.body) for frame in frames[done:])
                self._charge(kept_bytes)
                self._kept_bytes += kept_bytes
                await self._wait_for_room()
                self._charge(-kept_bytes)
                self._kept_bytes -= kept_bytes
            done = self._handle(frames, done)

    async def _discard(self) -> None:
        """Until `drain` ends it, or the client goes: what is left unread would cut off what is being sent."""
        while await self._stream.receive():
            pass

    def _handle(self, frames: Sequence[Frame], first: int) -> int:
        """Handles frames from this one on, at least one; returns the place of the first one that there is no room for."""
        requests: list[Request] = []
        place = first
        while place < len(frames) and (place == first or not self._is_full()):
            frame = frames[place]
            place += 1
            if frame.kind == wire.PING:
                self._outbox.append(wire.PONG_FRAME)
                continue
            request = wire.decode_request(frame)
            self._set_aside(request, len(frame.body))
            if not self._may_all and (problem := lacking_role(self._roles, request)):
                self._reply([Response(request.request_id, Status.UNAUTHORIZED, detail=problem)])
            elif not isinstance(request, ReadRequest | RecoveryReadRequest) or self._may_read(request):
                requests.append(request)
        if (
            requests
            and place == len(frames)
            and self._splitter.is_empty
            and isinstance(last := requests[-1], AddRequest)
        ):
            last.alone = True  # nothing else has arrived: whoever waits in this thread, waits for this
        self._hand_on(requests)
        return place

    def _hand_on(self, requests: Sequence[Request]) -> None:
        """Gives requests to the bookie, and what it answers at once to the stream."""
        self._is_handling = True
        try:
            if requests:
                self._handler.handle(requests, self._reply)
        finally:
            self._is_handling = False
            pieces = self._outbox
            if pieces:
                self._outbox = []
                self._freed_bytes += self._outbox_bytes
                self._outbox_bytes = 0
            if self._freed_bytes:
                self._give_back()
            if pieces:
                self._write(pieces)
            if self._waiting_reads:
                self._schedule_pump()

    def _set_aside(self, request: Request, body_bytes: int) -> None:
        request_id = request.request_id
        if request_id in self._charges:
            raise RemoteProtocolError(f"request id {request_id} is used again before its answer")
        size_bytes = _REQUEST_BYTES + body_bytes
        if isinstance(request, AddRequest):
            self._changing.add(request_id)
        elif isinstance(request, ReadLastAddConfirmedRequest):
            # Nothing is set aside for what it may bring while it waits: if there is no room then, nothing is brought.
            if request.bytes_max > 0:
                self._polls.add(request_id)
        elif not isinstance(request, AdminRequest | ReadRequest | RecoveryReadRequest):
            self._changing.add(request_id)
        self._charges[request_id] = size_bytes
        self._charge(size_bytes)

    # -- reads ----------------------------------------------------------------------------------------------------

    def _may_read(self, request: ReadRequest | RecoveryReadRequest) -> bool:
        """Whether this one is made now; else it waits for its turn, behind those that wait already."""
        if not self._waiting_reads and self._begin_read(request):
            return True
        self._waiting_reads.append((request, trio.current_time()))
        return False

    def _begin_read(self, request: ReadRequest | RecoveryReadRequest) -> bool:
        """Sets aside room for the answer to a read, and returns whether that could be done."""
        if len(self._reads) >= _READS_MAX or self._stream.held_bytes > _UNTAKEN_BYTES_MAX:
            return False
        budget, own_bytes, size_bytes = self._budget, self._answer_bytes, SMALL_BYTES
        if isinstance(request, ReadRequest):
            size_bytes = max(0, min(request.bytes_max, _ANSWER_BYTES_MAX))
            if size_bytes > SMALL_BYTES and not own_bytes:  # its only one must not need more than its share
                size_bytes = min(size_bytes, max(budget.answer_share_bytes, SMALL_BYTES, self._largest_batch_bytes))
                request.bytes_max = min(request.bytes_max, max(size_bytes, budget.answer_share_bytes))
        size_bytes = max(size_bytes, self._largest_batch_bytes)
        if own_bytes and self._charged_bytes + size_bytes > self._options.connection_bytes_max:
            return False
        if not budget.takes_answer(own_bytes, size_bytes):
            budget.wait_for_answer(self._wake_reads, own_bytes, size_bytes)
            return False
        self._reads[request.request_id] = size_bytes
        if isinstance(request, RecoveryReadRequest):
            self._changing.add(request.request_id)
        self._charge_answers(size_bytes)
        return True

    def _schedule_pump(self) -> None:
        """A turn of the event loop later: so the reads of all clients take turns."""
        if not self._is_pump_scheduled:
            self._is_pump_scheduled = True
            self._token.run_sync_soon(self._pump)

    def _pump(self) -> None:
        """Makes the reads that wait, as far as there is room."""
        self._is_pump_scheduled = False
        waiting = self._waiting_reads
        self._budget.for_requests.leave(self._wake_reads)
        self._budget.for_answers.leave(self._wake_reads)
        if self._stream.is_closed or self._is_draining:
            return
        requests: list[Request] = []
        while waiting and self._begin_read(waiting[0][0]):
            requests.append(waiting.popleft()[0])
        if requests:
            self._hand_on(requests)
            self._tell()

    # -- answers --------------------------------------------------------------------------------------------------

    def _answered(self, responses: Sequence[Response]) -> None:
        if self._stream.is_closed:
            return
        pieces = self._outbox if self._is_handling else []
        for response in responses:
            request_id = response.request_id
            freed_bytes = self._charges.pop(request_id, None)
            if freed_bytes is None:
                continue  # answered twice: the client would not know what to make of it
            self._changing.discard(request_id)
            if request_id in self._polls:
                self._polls.discard(request_id)
                response = self._bringing(response)
            elif request_id in self._reads:
                response = self._fitting(response, self._reads.pop(request_id))
            answer_bytes = wire.encode_response(response, pieces)
            if self._is_handling:
                self._outbox_bytes += answer_bytes
                freed_bytes -= answer_bytes
            self._freed_bytes += freed_bytes
            if self._freed_bytes < 0:  # an answer that is larger than its request is charged at once
                self._give_back()
        if not self._is_handling:
            self._give_back()
            self._write(pieces)
            if self._waiting_reads:
                self._schedule_pump()
        if self._told is not None:
            self._tell()

    def _fitting(self, response: Response, set_aside_bytes: int) -> Response:
        """The answer to a read; if it is larger than expected and there is no room for it: that there is none. From here on
        its bytes are charged where they are."""
        self._charge_answers(-set_aside_bytes)
        if not response.batches:
            return response
        answer_bytes = sum(len(batch.data) for batch in response.batches)
        self._largest_batch_bytes = max(self._largest_batch_bytes, len(response.batches[0].data))
        if answer_bytes <= set_aside_bytes or self._has_room_for_answer(answer_bytes):
            return response
        problem = f"no room for an answer of {answer_bytes} bytes: the client has asked for too much at once"
        return Response(response.request_id, Status.TOO_BUSY, detail=problem)

    def _bringing(self, response: Response) -> Response:
        """The answer to a long poll, without what it brings along if there is no room for that."""
        if response.batches and not self._has_room_for_answer(sum(len(batch.data) for batch in response.batches)):
            response.batches = ()
        return response

    def _has_room_for_answer(self, size_bytes: int) -> bool:
        """Whether an answer may go out for which nothing was set aside."""
        own_bytes = self._answer_bytes + self._outbox_bytes
        if own_bytes and self._charged_bytes + size_bytes > self._options.connection_bytes_max:
            return False
        return own_bytes <= _UNTAKEN_BYTES_MAX or self._budget.takes_answer(own_bytes, size_bytes)

    def _write(self, pieces: list[bytes]) -> None:
        self._stream.write(pieces)
        if self._stream.held_bytes != self._held_bytes:
            self._sent()

    def _sent(self) -> None:
        """What waits to be sent has become more, or less."""
        change_bytes = self._stream.held_bytes - self._held_bytes
        self._held_bytes += change_bytes
        self._charge_answers(change_bytes)
        if self._waiting_reads:
            self._schedule_pump()
        self._tell()

    def _charge(self, change_bytes: int) -> None:
        self._charged_bytes += change_bytes
        self._budget.charge(change_bytes)

    def _charge_answers(self, change_bytes: int) -> None:
        self._charged_bytes += change_bytes
        self._answer_bytes += change_bytes
        self._budget.charge_answers(change_bytes)

    def _give_back(self) -> None:
        freed_bytes, self._freed_bytes = self._freed_bytes, 0
        self._charge(-freed_bytes)

    # -- bounds ---------------------------------------------------------------------------------------------------

    def _is_full(self) -> bool:
        """Whether the client uses its share: then nothing more is taken of what it says."""
        own_bytes = self._charged_bytes
        return (
            own_bytes > self._options.connection_bytes_max
            or not self._budget.takes_requests(own_bytes)
            or len(self._waiting_reads) >= _WAITING_READS_MAX
        )

    async def _wait_for_room(self, size_bytes: int = 0) -> None:
        """Returns when more may be received; for a message, when so much more of it may.

        What was set aside is never waited for twice: so those who wait never wait for each other."""
        started_s = trio.current_time()
        unread_bytes = self._stream.unread_bytes
        self._charge(unread_bytes)
        self._is_waiting = True
        try:
            while not self._has_room(size_bytes):
                await self._wait_until_told()
        finally:
            self._is_waiting = False
            self._budget.for_requests.leave(self._wake_task)
        self._charge(-unread_bytes)
        waited_s = trio.current_time() - started_s
        self._heard_at_s += waited_s
        if self._begun_at_s is not None:
            self._begun_at_s += waited_s

    def _has_room(self, size_bytes: int) -> bool:
        """Whether to go on; if not for want of free bytes, the gate is told how many."""
        budget, own_bytes = self._budget, self._charged_bytes
        if not size_bytes:
            if not self._is_full():
                return True
            if budget.takes_requests(own_bytes):
                return False  # for a reason of its own
            budget.for_requests.wait(self._wake_task, budget.needed_for_requests(own_bytes))
            return False
        if own_bytes > SMALL_BYTES and own_bytes + size_bytes > self._options.connection_bytes_max:
            return False
        if budget.takes_message(own_bytes, size_bytes):
            return True
        budget.for_requests.wait(self._wake_task, budget.needed_for_message(own_bytes, size_bytes))
        return False

    def _leave_gates(self) -> None:
        for gate in (self._budget.for_requests, self._budget.for_answers):
            gate.leave(self._wake_task)
            gate.leave(self._wake_reads)

    async def _wait_until_told(self) -> None:
        """Returns after the next answer, or when something was sent. Several may wait."""
        if self._told is None:
            self._told = trio.Event()
        await self._told.wait()

    def _tell(self) -> None:
        told, self._told = self._told, None
        if told is not None:
            told.set()

    def look(self, now_s: float, *, is_room_scarce: bool = False) -> None:
        """Ends the session if its client is too slow, or gone: called now and then. If others have to wait for room, the
        client has to take all that waits for it in that time; else some is enough. And then it may not stand still for long."""
        if self._is_waiting and self._stream.has_peer_left():  # nobody receives from it now, who would notice
            self.end("")
            return
        timeout_s = self._options.transfer_timeout_s
        standstill_s = timeout_s / _SCARCE_SHARE if is_room_scarce else timeout_s
        if problem := self._taking.problem(now_s, timeout_s, standstill_s, is_room_scarce=is_room_scarce):
            self.end(problem)
            return
        if self._stream.received_bytes != self._heard_bytes:
            self._heard_bytes, self._heard_at_s = self._stream.received_bytes, now_s
        self._refuse_old_reads(now_s - timeout_s)
        if self._is_waiting or self._is_draining:
            return
        if self._begun_at_s is not None and self._begins_too_slowly(now_s, standstill_s):
            self.end("a message that it began does not end")
        elif now_s - self._heard_at_s > self._options.silence_max_s:
            self.end(f"nothing was heard from it for {self._options.silence_max_s} s")

    def _begins_too_slowly(self, now_s: float, standstill_s: float) -> bool:
        """Whether a message does not end in time; or, if room is scarce, does not go on."""
        assert self._begun_at_s is not None
        begun_at_s = max(self._begun_at_s, self._heard_at_s)
        return now_s - self._begun_at_s > self._options.transfer_timeout_s or now_s - begun_at_s > standstill_s

    def _refuse_old_reads(self, before_s: float) -> None:
        """Reads that have waited since then, because others keep all the room, are refused: their client may ask elsewhere."""
        while self._waiting_reads and self._waiting_reads[0][1] < before_s:
            request, _ = self._waiting_reads.popleft()
            problem = "no room for the answer: clients that take nothing keep it"
            self._reply([Response(request.request_id, Status.TOO_BUSY, detail=problem)])

    # -- the end --------------------------------------------------------------------------------------------------

    def end(self, problem: str) -> None:
        """Ends the session at once."""
        self.problem = self.problem or problem
        self._scope.cancel()

    async def drain(self, reason: str) -> None:
        """Takes nothing more, waits until what changes something is answered and sent, and says farewell. Whoever waits for
        it sets the deadline."""
        self._is_draining = True
        while (self._changing or self._stream.waiting_bytes) and not self._stream.is_closed:
            await self._wait_until_told()
        self._stream.write([wire.encode_greeting(wire.Refuse(reason, retry=True))])
        self.problem = self.problem or reason
        self._stream.end()
        await self._ended.wait()
