"""The client's end of a connection: requests go out as frames, answers come back, and silence ends it."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from replog.abc import Connection, ResponseReceiver
from replog.errors import BookieRefusedError, BookieUnreachableError, RemoteProtocolError
from replog.protocol import wire
from replog.protocol.messages import Request, Response
from replog.protocol.unasked import decode_awaited
from replog.protocol.wire import Frame, FrameSplitter
from replog.transports.tcp.options import StreamTuning
from replog.transports.tcp.outbox import Outbox
from replog.transports.tcp.stream import Stream


class TcpConnection(Connection):
    """Made by `TcpTransport.connect`, which runs it in the client's nursery."""

    __slots__ = (
        "_bookie_id",
        "_frame_bytes_max",
        "_outbox",
        "_problem",
        "_receiver",
        "_scope",
        "_silence_max_s",
        "_splitter",
        "_stream",
    )

    def __init__(
        self,
        bookie_id: str,
        stream: Stream,
        splitter: FrameSplitter,
        receiver: ResponseReceiver,
        options: StreamTuning,
        ready: wire.Ready,
    ) -> None:
        self._bookie_id = bookie_id
        self._stream = stream
        self._splitter = splitter
        self._receiver: ResponseReceiver | None = receiver
        self._outbox = Outbox(bookie_id, stream, options.connection_bytes_max)
        self._frame_bytes_max = ready.frame_bytes_max
        self._silence_max_s = min(options.silence_max_s, max(0.001, ready.silence_max_ms / 1000))
        self._problem = ""  # why it ended
        self._scope = trio.CancelScope()

    # -- requests -------------------------------------------------------------------------------------------------

    def send(self, requests: Sequence[Request]) -> None:
        if self._problem:
            raise BookieUnreachableError(self._bookie_id, self._problem)
        pieces: list[bytes] = []
        size_bytes = 0
        for request in requests:
            frame_bytes = wire.encode_request(request, pieces)
            size_bytes += frame_bytes
            if frame_bytes > self._frame_bytes_max:
                problem = f"it takes messages of at most {self._frame_bytes_max} bytes, and this one has {frame_bytes}"
                raise BookieRefusedError(self._bookie_id, problem)
        self._outbox.send(pieces, size_bytes, len(requests))

    # -- answers --------------------------------------------------------------------------------------------------

    async def run(self, early: Sequence[Frame]) -> None:
        """Receives until the connection ends; then calls the receiver's `disconnected`."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._stream.run)
                    nursery.start_soon(self._watch)
                    problem = await self._receive(early)
                    self._problem = self._problem or problem
                    nursery.cancel_scope.cancel()
        finally:
            self._end()

    async def _receive(self, early: Sequence[Frame]) -> str:
        """Hands answers on until the connection ends; returns the reason."""
        try:
            self._handle(early)
            while True:
                data = await self._stream.receive(self._splitter.wanted_bytes)
                if not data:
                    return "it closed the connection"
                self._handle(self._splitter.feed(data))
                if self._problem:
                    return self._problem
        except RemoteProtocolError as error:
            return f"it broke the protocol: {error}"
        except OSError as error:
            return f"the connection broke: {error}"

    def _handle(self, frames: Sequence[Frame]) -> None:
        responses: list[Response] = []
        awaited: list[Response] = []
        for frame in frames:
            if frame.kind == wire.RESPONSE:
                responses.append(wire.decode_response(frame))
            elif frame.kind == wire.AWAITED:
                awaited.append(decode_awaited(frame))
            elif frame.kind == wire.REFUSE:
                refuse = wire.decode_greeting(frame)
                assert isinstance(refuse, wire.Refuse)
                self._problem = f"it ended the connection: {refuse.reason}"
            elif frame.kind != wire.PONG:
                raise RemoteProtocolError(f"a frame of kind {frame.kind} instead of an answer")
        self._outbox.unanswered -= len(responses)
        if responses and self._receiver is not None:
            self._receiver.responses_received(responses)
        if awaited and self._receiver is not None:
            self._receiver.responses_received(awaited)

    async def _watch(self) -> None:
        """Pings a silent bookie, and ends the connection if it stays silent (W6)."""
        look_s = self._silence_max_s / 4
        stream, heard_at_s = self._stream, trio.current_time()
        while True:
            waiting_bytes, taken_bytes, received_bytes = stream.waiting_bytes, stream.taken_bytes, stream.received_bytes
            await trio.sleep(look_s)
            now_s = trio.current_time()
            if stream.received_bytes != received_bytes:
                heard_at_s = now_s
            elif waiting_bytes and stream.taken_bytes > taken_bytes:
                # It receives requests that waited: it has nothing to answer before.
                heard_at_s = now_s
            silence_s = now_s - heard_at_s
            if silence_s >= self._silence_max_s:
                self._problem = f"nothing was heard from it for {self._silence_max_s} s"
                self._scope.cancel()
            elif silence_s >= look_s and not stream.waiting_bytes:
                stream.write([wire.PING_FRAME])

    # -- the end --------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        self._problem = self._problem or "the connection was left"
        self._outbox.clear()
        self._stream.close()
        self._splitter.forget()
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.disconnected(BookieUnreachableError(self._bookie_id, self._problem))

    async def aclose(self) -> None:
        self._outbox.flush()
        self._receiver = None
        self._problem = self._problem or "the connection is closed"
        self._scope.cancel()
        self._stream.close()
        await trio.lowlevel.cancel_shielded_checkpoint()
