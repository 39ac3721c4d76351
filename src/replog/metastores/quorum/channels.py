"""Connections to members, each made when it is needed: for messages that may get lost, and for questions that wait for answers.

A question ends in an answer, in `NotSentError`: then the member never had it; or in `LostError`: then it may have. Messages are
dropped while too many wait. A connection on which nothing is answered for long is given up for a new one, since its system may
not notice for minutes that the other machine has gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import trio

from replog.abc import Authenticator, Connection, Transport
from replog.errors import RemoteProtocolError, ReplogError
from replog.metastores.quorum.addresses import scheme_of
from replog.protocol.answers import check_answer
from replog.protocol.messages import MetastorePurpose, MetastoreRequest, Response

_IN_FLIGHT_BYTES_MAX = 16 << 20  # of messages: beyond it they are dropped
ANSWER_S = 3.0  # in which a message or a question has to be answered; another member may answer sooner
CHANGE_OF_MEMBERS_S = 40.0  # in which an administrator's has to be: the leader waits for a newcomer
_CONNECT_S = 5.0
_REFUSED_S = 0.5  # a try that fails sooner was refused: nobody listens there, or there is no way
_PAUSE_S, _PAUSE_MAX_S = 0.05, 1.0  # between two tries to connect

OpenTransport = Callable[[str], Transport]


class NotSentError(Exception):
    """The member can't be reached: it has not got the question. Never leaves this package."""


class LostError(Exception):
    """The question was sent, and not answered. Never leaves this package."""


@attrs.define(eq=False)
class _Asked:
    """A request under way. Messages have nobody who waits: `ended` is None."""

    request: MetastoreRequest
    at_s: float
    ended: trio.Event | None = None
    response: Response | None = None


class Channel:
    """The way to one address."""

    def __init__(
        self, address: str, open_transport: OpenTransport, authenticator: Authenticator | None, nursery: trio.Nursery
    ) -> None:
        self.address = address
        self.problem = ""  # why it is not connected
        self._open_transport = open_transport
        self._authenticator = authenticator
        self._nursery = nursery
        self._connection: Connection | None = None
        self._connected: trio.Event | None = None  # while it is being connected
        self._unanswered: dict[int, _Asked] = {}
        self._in_flight_bytes = 0
        self._waiting: list[bytes] = []  # messages, while it is being connected
        self._pause_s = 0.0
        self._is_refused = False  # the last try to connect
        self._failed_at_s = -_PAUSE_MAX_S
        self._number = 0
        self._answered = 0  # how many answers have come

    # -- messages and questions ---------------------------------------------------------------------------------------

    def post(self, body: bytes) -> None:
        """Sends a message of a member, or drops it: never waits."""
        now_s = trio.current_time()
        oldest = next(iter(self._unanswered.values()), None)
        if oldest is not None and now_s - oldest.at_s > ANSWER_S:
            self._give_up(f"it has answered nothing for {ANSWER_S:g} s")
        if self._in_flight_bytes + len(body) > _IN_FLIGHT_BYTES_MAX:
            return
        if self._connection is not None:
            self._send(MetastorePurpose.MEMBER, body, None)
        elif self._may_try():
            self._in_flight_bytes += len(body)
            self._waiting.append(body)
            self._begin_to_connect()

    def _may_try(self) -> bool:
        return self._connected is not None or trio.current_time() - self._failed_at_s >= self._pause_s

    def is_gone(self) -> bool:
        """True if nobody listens there any more, as far as is known; begins to find out where it is not."""
        if self._connection is None and self._may_try():
            self._begin_to_connect()
        return self._connection is None and self._is_refused

    async def deliver(self, body: bytes) -> None:
        """Sends a message, and waits until the member has it. Raises `NotSentError`, `LostError`."""
        await self.ask(MetastorePurpose.MEMBER, body, _nobody)

    async def ask(self, purpose: MetastorePurpose, body: bytes, sent: Callable[[], None]) -> Response:
        """Sends a question, calls `sent`, and waits for its answer, up to `ANSWER_S`, or `CHANGE_OF_MEMBERS_S` for an
        administrator's. Raises `NotSentError`, `LostError`. If cancelled, it may be carried out."""
        if self._connection is None:
            event = self._begin_to_connect()
            await event.wait()
        if self._connection is None:
            raise NotSentError(self.problem)
        asked, answered = self._send(purpose, body, trio.Event()), self._answered
        if asked is None or asked.ended is None:
            await trio.lowlevel.checkpoint()
            raise NotSentError(self.problem)
        sent()
        answer_s = CHANGE_OF_MEMBERS_S if purpose is MetastorePurpose.ADMIN else ANSWER_S
        with trio.move_on_after(answer_s) as waiting:
            await asked.ended.wait()
        if waiting.cancelled_caught and self._answered == answered:
            self._give_up(f"it has answered nothing for {answer_s:g} s")
        if asked.response is None:
            raise LostError(self.problem or f"it has not answered within {answer_s:g} s")
        return asked.response

    def _send(self, purpose: MetastorePurpose, body: bytes, ended: trio.Event | None) -> _Asked | None:
        assert self._connection is not None, "what is sent has a connection"
        self._number += 1
        request = MetastoreRequest(self._number, purpose, body)
        asked = _Asked(request, trio.current_time(), ended)
        self._unanswered[request.request_id] = asked
        self._in_flight_bytes += len(body)
        try:
            self._connection.send((request,))
        except ReplogError as error:
            self._end(request.request_id, None)
            self.problem = str(error)
            return None
        return asked

    def _end(self, request_id: int, response: Response | None) -> None:
        asked = self._unanswered.pop(request_id, None)
        if asked is not None:
            self._in_flight_bytes -= len(asked.request.body)
            asked.response = response
            if asked.ended is not None:
                asked.ended.set()

    # -- the connection -----------------------------------------------------------------------------------------------

    def responses_received(self, responses: Sequence[Response]) -> None:
        """Answers arrived. One that can't be an answer is as good as lost."""
        self._answered += len(responses)
        for response in responses:
            asked = self._unanswered.get(response.request_id)
            try:
                if asked is not None:
                    check_answer(asked.request, response)
            except RemoteProtocolError as error:
                self.problem = str(error)
                self._end(response.request_id, None)
            else:
                self._end(response.request_id, response)

    def disconnected(self, error: ReplogError) -> None:
        """The connection has ended: what was not answered has an unknown outcome."""
        self._connection = None
        self.problem = str(error)
        for request_id in list(self._unanswered):
            self._end(request_id, None)

    def _begin_to_connect(self) -> trio.Event:
        if self._connected is None:
            self._connected = trio.Event()
            self._nursery.start_soon(self._connect)
        return self._connected

    async def _connect(self) -> None:
        scheme, rest = scheme_of(self.address)
        # A question may come right after a failure: it waits as messages do.
        pause_s = max(0.0, self._failed_at_s + self._pause_s - trio.current_time())
        began_at_s = trio.current_time() + pause_s
        try:
            await trio.sleep(pause_s)
            with trio.fail_after(_CONNECT_S):
                transport = self._open_transport(scheme)
                self._connection = await transport.connect(rest, self, self._nursery, authenticator=self._authenticator)
            self._pause_s, self._is_refused = 0.0, False
        except (ReplogError, trio.TooSlowError) as error:
            self.problem = str(error) or f"no connection within {_CONNECT_S:g} s"
            self._failed_at_s = trio.current_time()
            self._is_refused = self._failed_at_s - began_at_s < _REFUSED_S
            self._pause_s = min(_PAUSE_MAX_S, max(_PAUSE_S, 2 * self._pause_s))
        finally:
            waiting, self._waiting = self._waiting, []
            self._in_flight_bytes -= sum(map(len, waiting))
            connected, self._connected = self._connected, None
            if self._connection is not None:
                for body in waiting:
                    if self._connection is not None:
                        self._send(MetastorePurpose.MEMBER, body, None)
            if connected is not None:
                connected.set()

    def _give_up(self, problem: str) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._nursery.start_soon(connection.aclose)
        self.problem = problem
        for request_id in list(self._unanswered):
            self._end(request_id, None)

    async def aclose(self) -> None:
        """Ends the connection."""
        self._give_up("it was closed")
        await trio.lowlevel.cancel_shielded_checkpoint()


def _nobody() -> None:
    """Nobody must know when it was sent."""


class Channels:
    """The ways to all members of one process or client, by address."""

    def __init__(
        self, open_transport: OpenTransport, authenticator: Authenticator | None, nursery: trio.Nursery
    ) -> None:
        self._open_transport = open_transport
        self._authenticator = authenticator
        self._nursery = nursery
        self._channels: dict[str, Channel] = {}

    def to(self, address: str) -> Channel:
        """The way to this address."""
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = Channel(
                address, self._open_transport, self._authenticator, self._nursery
            )
        return channel
