"""The bookie's end of a connection: requests come in as frames, answers go out, and both are bounded in bytes.

Requests without an answer, frames that are arriving and bytes that wait to be sent are charged to the session, and to
the budget of all sessions (`replog.transports.tcp.budget`). So a client that sends and does not read, or asks for more
than it takes, stops only itself (B9):

- A read waits until there is room for its answer (`reads`). Adds, fences, last adds confirmed and pings never wait for reads.
- Nothing more is received from a client that uses its share. The session still notices if that client leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import trio

from replog.errors import RemoteProtocolError
from replog.protocol import wire
from replog.protocol.messages import ReadRequest, RecoveryReadRequest, Request, Response, Status
from replog.protocol.wire import Frame, FrameSplitter
from replog.runtime.lent_thread import lent_thread
from replog.transports.tcp.account import Account
from replog.transports.tcp.answers import Answers
from replog.transports.tcp.budget import SMALL_BYTES
from replog.transports.tcp.pace import Pace
from replog.transports.tcp.read_queue import ReadQueue
from replog.transports.tcp.roles import Permissions
from replog.transports.tcp.waking import Wakeup

if TYPE_CHECKING:
    from replog.abc import Identity, RequestHandler
    from replog.transports.tcp.budget import Budget
    from replog.transports.tcp.options import StreamTuning
    from replog.transports.tcp.stream import Stream


class Session:
    """One client's connection, after the greeting."""

    def __init__(
        self,
        stream: Stream,
        splitter: FrameSplitter,
        handler: RequestHandler,
        identity: Identity | None,
        options: StreamTuning,
        budget: Budget,
    ) -> None:
        self.problem = ""  # why it ended
        self._lent_thread = lent_thread()
        self._stream = stream
        self._splitter = splitter
        self._handler = handler
        self._permissions = Permissions(identity)
        self._changed = Wakeup()  # something was answered or sent
        self._account = Account(budget, options.connection_bytes_max)
        self._answers = Answers(stream, self._account, self._changed)
        self._reads = ReadQueue(stream, self._account, self._answers, self._hand_on, self._changed)
        self._pace = Pace(stream, options.transfer_timeout_s, options.silence_max_s)
        self._begun_bytes = 0  # of a frame that is arriving: charged
        self._kept_bytes = 0  # received, and not handled yet: charged while that has to wait
        self._is_draining = False
        self._scope, self._ended = trio.CancelScope(), trio.Event()
        stream.on_sent = self._answers.sent

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
            # From here on nothing is charged: the account is closed below.
            self._stream.on_sent = self._changed.wake
            self._stream.close()
            # The handler's machines may refer to this session for long, in a cycle: what it received must not stay with it.
            self._splitter.forget()
            self._reads.leave_gates()
            self._account.budget.for_requests.leave(self._changed.wake)
            self._answers.close()
            self._account.close()
            self._changed.wake()
            self._ended.set()

    # -- requests -----------------------------------------------------------------------------------------------------

    async def _receive(self, early: Sequence[Frame]) -> None:
        await self._take(early, 0)
        while not self._is_draining:
            if self._splitter.begun_bytes != self._begun_bytes:
                await self._begin()
            # A frame that is arriving has its room already: to wait here would hold what others wait for.
            elif not self._begun_bytes and self._is_full():  # the room reserved for a frame stays its own
                await self._wait_for_room()
            data = await self._stream.receive(self._quantum_bytes() or self._splitter.wanted_bytes)
            if not data:
                return
            frames = self._splitter.feed(data)
            # The waits below may take long, and must not keep it in memory.
            del data
            if self._splitter.is_empty:
                self._pace.begun_at_s = None
            elif frames or self._pace.begun_at_s is None:
                self._pace.begun_at_s = trio.current_time()
            if frames:
                if self._begun_bytes:
                    # It has ended: from here on its request is charged.
                    self._account.charge(-self._begun_bytes)
                    self._begun_bytes = 0
                if not self._is_draining and (done := self._handle(frames, 0)) < len(frames):
                    await self._take(frames, done)
        await self._discard()

    def _quantum_bytes(self) -> int:
        """How much to receive at most, 0 for everything: where little is free, little is received at a time."""
        budget = self._account.budget
        return SMALL_BYTES if budget.used_bytes * 2 > budget.total_bytes_max else 0

    async def _begin(self) -> None:
        """Sets aside room for the frame that is arriving. The part that has arrived is in memory already."""
        size_bytes, arrived_bytes = self._splitter.begun_bytes, self._splitter.arrived_bytes
        self._account.charge(arrived_bytes - self._begun_bytes)
        self._begun_bytes = arrived_bytes
        # Small messages find room in any share, so fences and explicit LACs never wait behind large adds.
        if size_bytes > SMALL_BYTES:
            await self._wait_for_room(size_bytes - arrived_bytes)
        self._account.charge(size_bytes - arrived_bytes)
        self._account.budget.note_peak()
        self._begun_bytes = size_bytes

    async def _take(self, frames: Sequence[Frame], done: int) -> None:
        """Handles frames from this one on, as many at a time as there is room for."""
        while done < len(frames) and not self._is_draining:
            if self._is_full():
                kept_bytes = sum(wire.HEADER.size + len(frame.fields) + len(frame.body) for frame in frames[done:])
                self._account.charge(kept_bytes)
                self._kept_bytes += kept_bytes
                await self._wait_for_room()
                self._account.charge(-kept_bytes)
                self._kept_bytes -= kept_bytes
            done = self._handle(frames, done)

    async def _discard(self) -> None:
        # Until `drain` ends the session or the client leaves: closing a socket with unread bytes cuts off those being sent.
        while await self._stream.receive():
            pass

    def _handle(self, frames: Sequence[Frame], first: int) -> int:
        """Handles frames from this one on, at least one. Returns the place of the first one without room."""
        requests: list[Request] = []
        answers, checked_from = self._answers, self._permissions.checked_from
        place = first
        # The first one has its room: the caller has waited for it.
        while place < len(frames) and (place == first or not self._is_full()):
            frame = frames[place]
            place += 1
            if frame.kind == wire.PING:
                answers.outbox.append(wire.PONG_FRAME)
                continue
            request = wire.decode_request(frame)
            answers.expect(request, len(frame.body))
            if frame.kind >= checked_from and (problem := self._permissions.lack(request)):
                answers.reply([Response(request.request_id, Status.UNAUTHORIZED, detail=problem)])
            elif not isinstance(request, ReadRequest | RecoveryReadRequest) or self._reads.begins(request):
                requests.append(request)
        # If nothing else has arrived, no other request waits while the bookie has this thread.
        self._hand_on(requests, lends_thread=place == len(frames) and self._splitter.is_empty)
        return place

    def _hand_on(self, requests: Sequence[Request], *, lends_thread: bool = False) -> None:
        """Gives requests to the bookie, and what it answers at once to the stream."""
        self._answers.is_handling = True
        try:
            if requests and lends_thread:
                self._lent_thread.lend(partial(self._handler.handle, requests, self._answers.reply))
            elif requests:
                self._handler.handle(requests, self._answers.reply)
        finally:
            self._answers.handled()

    # -- bounds -------------------------------------------------------------------------------------------------------

    def _is_full(self) -> bool:
        """Whether the client uses its share: then nothing more is received from it."""
        account = self._account
        own_bytes = account.charged_bytes
        return own_bytes > account.bytes_max or not account.budget.takes_requests(own_bytes) or self._reads.are_too_many

    async def _wait_for_room(self, size_bytes: int = 0) -> None:
        """Returns when more may be received; with a size, when so much more of a message may.

        Bytes that were set aside are never waited for twice: so sessions that wait never wait for each other."""
        started_s = trio.current_time()
        unread_bytes = self._stream.unread_bytes
        self._account.charge(unread_bytes)
        self._pace.is_waiting = True
        try:
            while not self._has_room(size_bytes):
                await self._changed.wait()
        finally:
            self._pace.is_waiting = False
            self._account.budget.for_requests.leave(self._changed.wake)
        self._account.charge(-unread_bytes)
        self._pace.waited(trio.current_time() - started_s)

    def _has_room(self, size_bytes: int) -> bool:
        """Whether to go on. If too few bytes are free, tells the gate how many are needed."""
        account = self._account
        budget, own_bytes = account.budget, account.charged_bytes
        if not size_bytes:
            if not self._is_full():
                return True
            if budget.takes_requests(own_bytes):
                return False  # for a reason of its own
            budget.for_requests.wait(self._changed.wake, budget.needed_for_requests(own_bytes))
            return False
        if own_bytes > SMALL_BYTES and own_bytes + size_bytes > account.bytes_max:
            return False
        if budget.takes_message(own_bytes, size_bytes):
            return True
        budget.for_requests.wait(self._changed.wake, budget.needed_for_message(own_bytes, size_bytes))
        return False

    def look(self, now_s: float, *, is_room_scarce: bool = False) -> None:
        """Ends the session if its client is too slow, or gone. The listener calls this now and then.

        If others wait for room, the client must take all of its answers in time, and may not stand still for long; otherwise some
        answers are enough."""
        pace = self._pace
        if pace.is_waiting and self._stream.has_peer_left():  # nothing is received now, which would show it
            self.end("")
            return
        if problem := pace.taking_problem(now_s, is_room_scarce=is_room_scarce):
            self.end(problem)
            return
        pace.heard(now_s)
        self._reads.refuse_old(now_s - pace.transfer_timeout_s)
        if pace.is_waiting or self._is_draining:
            return
        if problem := pace.sending_problem(now_s, is_room_scarce=is_room_scarce):
            self.end(problem)

    # -- the end ------------------------------------------------------------------------------------------------------

    def end(self, problem: str) -> None:
        """Ends the session at once."""
        self.problem = self.problem or problem
        self._scope.cancel()

    async def drain(self, reason: str) -> None:
        """Takes nothing more, waits until all requests that change something are answered and sent, and ends the session.

        The caller sets the deadline."""
        self._is_draining = True
        self._reads.close()
        while (self._answers.changing or self._stream.waiting_bytes) and not self._stream.is_closed:
            await self._changed.wait()
        # The farewell tells the client that the connection ends on purpose: it changes its ensembles, and waits for no
        # timeout.
        self._stream.write([wire.encode_greeting(wire.Refuse(reason, retry=True))])
        self.problem = self.problem or reason
        self._stream.end()
        await self._ended.wait()
