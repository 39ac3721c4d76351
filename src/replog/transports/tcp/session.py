"""The bookie's end of a connection: requests come in as frames, answers go out, and both are bounded in bytes.

What was asked and is not answered, what is being received and what waits to be sent is charged to the session; while that
is too much, nothing more is read from it, nor handed on of what was read. So a client that sends and does not read, or
asks for more than it takes, stops itself, and nobody else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import trio

from replog.abc import Identity, Role
from replog.errors import RemoteProtocolError
from replog.protocol import wire
from replog.protocol.messages import (
    AddRequest,
    AdminCommand,
    AdminRequest,
    ReadLastAddConfirmedRequest,
    ReadRequest,
    Request,
    Response,
    Status,
)
from replog.protocol.wire import Frame, FrameSplitter

if TYPE_CHECKING:
    from replog.abc import RequestHandler
    from replog.transports.tcp.options import TcpOptions
    from replog.transports.tcp.stream import Stream

_REQUEST_BYTES = 1024  # what a request costs beside its bytes: objects, and its place in queues
_ANSWER_BYTES_MAX = 4 << 20  # what is set aside for an answer, until it is known


class Budget:
    """The bytes that all sessions of a listener use together."""

    def __init__(self, total_bytes_max: int) -> None:
        self.total_bytes_max = total_bytes_max
        self.used_bytes = 0
        self.waiting = 0  # sessions that wait for room
        self._freed = trio.Event()  # asked for only while somebody waits

    def charge(self, change_bytes: int) -> None:
        """Counts these, or gives them back if negative."""
        self.used_bytes += change_bytes
        if change_bytes < 0 and self.waiting:
            self._freed.set()

    def has_room(self, size_bytes: int) -> bool:
        """Whether so many more may be used. One alone always may."""
        return self.used_bytes + size_bytes <= self.total_bytes_max or not self.used_bytes

    async def wait_for_room(self, size_bytes: int) -> None:
        """Returns when there is room."""
        self.waiting += 1
        try:
            while not self.has_room(size_bytes):
                if self._freed.is_set():
                    self._freed = trio.Event()
                await self._freed.wait()
        finally:
            self.waiting -= 1


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
        self._charges: dict[int, int] = {}  # by request: bytes set aside for it
        self._charged_bytes = 0
        self._freed_bytes = 0  # still charged: what is answered while requests are handled is given back at their end
        self._changing: set[int] = set()  # requests that change something, and are not answered
        self._polls: set[int] = set()  # requests whose answers may bring batches along, or not
        self._begun_bytes = 0  # of a frame that is arriving: set aside for it
        self._begun_at_s: float | None = None
        self._waiting_bytes = 0  # of the stream, as charged
        self._is_waiting = False  # for room: until then nothing is expected of the client
        self._outbox: list[bytes] = []
        self._outbox_bytes = 0
        self._largest_answer_bytes = 0  # to a read, so far: the next one may be as large, however little it asks for
        self._is_handling = False
        self._is_draining = False
        self._told: trio.Event | None = None  # something was answered or sent; only while somebody waits for it
        self._ended = trio.Event()
        self._scope = trio.CancelScope()
        now_s = trio.current_time()
        self._heard_at_s = self._taken_at_s = now_s  # as `look` saw it
        self._heard_bytes = stream.received_bytes
        self._taken_bytes = 0
        self._mark_bytes, self._marked_at_s = 0, now_s  # what has to be taken, since when, if room is scarce
        self._reply = self._answered  # one object: answers to one session are recognized by it
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
            self._charges.clear()
            self._changing.clear()
            self._polls.clear()
            self._charge(-self._charged_bytes)
            self._tell()
            self._ended.set()

    # -- requests -------------------------------------------------------------------------------------------------

    async def _receive(self, early: Sequence[Frame]) -> None:
        await self._take(early)
        while not self._is_draining:
            begun_bytes = self._splitter.begun_bytes
            if begun_bytes != self._begun_bytes:
                await self._wait_for_room(begun_bytes)
                self._charge(begun_bytes)
                self._begun_bytes = begun_bytes
            elif not begun_bytes and self._budget.used_bytes and not self._has_room(0):  # where nothing is used is room
                await self._wait_for_room(0)
            data = await self._stream.receive(self._splitter.wanted_bytes)
            if not data:
                return
            frames = self._splitter.feed(data)
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

    async def _take(self, frames: Sequence[Frame], done: int = 0) -> None:
        """Handles frames from this one on, as many at a time as there is room for what they ask."""
        while done < len(frames) and not self._is_draining:
            if done:
                await self._wait_for_room(0)
            done = self._handle(frames, done)

    async def _discard(self) -> None:
        """Until `drain` ends it, or the client goes: what is left unread would cut off what is being sent."""
        while await self._stream.receive():
            pass

    def _handle(self, frames: Sequence[Frame], first: int) -> int:
        """Handles frames from this one on, at least one; returns the place of the first one that there is no room for."""
        requests: list[Request] = []
        place = first
        while place < len(frames) and (place == first or self._has_room(0)):
            frame = frames[place]
            place += 1
            if frame.kind == wire.PING:
                self._outbox.append(wire.PONG_FRAME)
                continue
            request = wire.decode_request(frame)
            self._set_aside(request, len(frame.body))
            if not self._may_all and (problem := self._lacking_role(request)):
                self._reply([Response(request.request_id, Status.UNAUTHORIZED, detail=problem)])
            else:
                requests.append(request)
        if (
            requests
            and place == len(frames)
            and self._splitter.is_empty
            and isinstance(last := requests[-1], AddRequest)
        ):
            last.alone = True  # nothing else has arrived: whoever waits in this thread, waits for this
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
        return place

    def _set_aside(self, request: Request, body_bytes: int) -> None:
        request_id = request.request_id
        if request_id in self._charges:
            raise RemoteProtocolError(f"request id {request_id} is used again before its answer")
        size_bytes = _REQUEST_BYTES + body_bytes
        if isinstance(request, AddRequest):
            self._changing.add(request_id)
        elif isinstance(request, ReadRequest):
            size_bytes += max(0, min(request.bytes_max, _ANSWER_BYTES_MAX), self._largest_answer_bytes)
        elif isinstance(request, ReadLastAddConfirmedRequest):
            # Nothing is set aside for what it may bring while it waits: if there is no room then, nothing is brought.
            if request.bytes_max > 0:
                self._polls.add(request_id)
        elif not isinstance(request, AdminRequest):
            self._changing.add(request_id)
        self._charges[request_id] = size_bytes
        self._charge(size_bytes)

    def _lacking_role(self, request: Request) -> str:
        if not isinstance(request, AdminRequest):
            return "" if Role.CLIENT in self._roles else "only a client may ask that: the identity has no such role"
        is_allowed = request.command is AdminCommand.STATISTICS or Role.ADMIN in self._roles
        return "" if is_allowed else "only an administrator may ask that: the identity has no such role"

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
            elif response.batches:
                self._freed_bytes += freed_bytes
                response = self._fitting(response, freed_bytes)
                freed_bytes = 0
            answer_bytes = wire.encode_response(response, pieces)
            if self._is_handling:
                self._outbox_bytes += answer_bytes
                freed_bytes -= answer_bytes
            self._freed_bytes += freed_bytes
            if self._freed_bytes < 0:  # an answer that is larger than expected is charged at once
                self._give_back()
        if not self._is_handling:
            self._give_back()
            self._write(pieces)
        if self._told is not None:
            self._tell()

    def _fitting(self, response: Response, set_aside_bytes: int) -> Response:
        """The answer, or if it is larger than expected and there is no room for it, that there is none."""
        answer_bytes = sum(len(batch.data) for batch in response.batches)
        self._largest_answer_bytes = max(self._largest_answer_bytes, answer_bytes)
        if answer_bytes <= set_aside_bytes or self._has_room(answer_bytes):
            return response
        problem = f"no room for an answer of {answer_bytes} bytes: the client has asked for too much at once"
        return Response(response.request_id, Status.TOO_BUSY, detail=problem)

    def _bringing(self, response: Response) -> Response:
        """The answer to a long poll, without what it brings along if there is no room for that."""
        if response.batches and not self._has_room(sum(len(batch.data) for batch in response.batches)):
            response.batches = ()
        return response

    def _write(self, pieces: list[bytes]) -> None:
        self._stream.write(pieces)
        if self._stream.waiting_bytes != self._waiting_bytes:
            self._sent()

    def _sent(self) -> None:
        """What waits to be sent has become more, or less."""
        change_bytes = self._stream.waiting_bytes - self._waiting_bytes
        self._waiting_bytes += change_bytes
        self._charge(change_bytes)
        self._tell()

    def _charge(self, change_bytes: int) -> None:
        self._charged_bytes += change_bytes
        self._budget.charge(change_bytes)

    def _give_back(self) -> None:
        freed_bytes, self._freed_bytes = self._freed_bytes, 0
        self._charge(-freed_bytes)

    # -- bounds ---------------------------------------------------------------------------------------------------

    def _has_room(self, size_bytes: int) -> bool:
        if self._freed_bytes:
            self._give_back()
        return self._has_room_here(size_bytes) and self._budget.has_room(size_bytes)

    def _has_room_here(self, size_bytes: int) -> bool:
        used_bytes = self._charged_bytes
        return used_bytes + size_bytes <= self._options.connection_bytes_max or not used_bytes

    async def _wait_for_room(self, size_bytes: int) -> None:
        """Returns when so many bytes more may be set aside. What was set aside is never waited for twice: so those who wait
        never wait for each other."""
        started_s = trio.current_time()
        self._is_waiting = True
        while not self._has_room(size_bytes):
            if self._has_room_here(size_bytes):
                await self._budget.wait_for_room(size_bytes)
            else:
                await self._wait_until_told()
        self._is_waiting = False
        waited_s = trio.current_time() - started_s
        self._heard_at_s += waited_s
        if self._begun_at_s is not None:
            self._begun_at_s += waited_s

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
        client has to take all that waits for it in that time; else some is enough."""
        limits = self._options
        if self._stream.taken_bytes >= self._mark_bytes or not is_room_scarce:
            self._mark_bytes = self._stream.taken_bytes + self._stream.waiting_bytes
            self._marked_at_s = now_s
        if now_s - self._marked_at_s > limits.transfer_timeout_s:
            self.end(f"it is slow to take the {self._stream.waiting_bytes} bytes that wait for it, and room is scarce")
            return
        if self._stream.received_bytes != self._heard_bytes:
            self._heard_bytes, self._heard_at_s = self._stream.received_bytes, now_s
        if self._stream.taken_bytes != self._taken_bytes or not self._stream.waiting_bytes:
            self._taken_bytes, self._taken_at_s = self._stream.taken_bytes, now_s
        if now_s - self._taken_at_s > limits.transfer_timeout_s:
            self.end(f"it takes none of the {self._stream.waiting_bytes} bytes that wait for it")
        elif self._is_waiting or self._is_draining:
            return
        elif self._begun_at_s is not None and now_s - self._begun_at_s > limits.transfer_timeout_s:
            self.end("a message that it began does not end")
        elif now_s - self._heard_at_s > limits.silence_max_s:
            self.end(f"nothing was heard from it for {limits.silence_max_s} s")

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
