"""The client's end of a connection: requests go out as frames, answers come back, and silence ends it."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from replog.abc import Connection, ResponseReceiver
from replog.errors import BookieRefusedError, BookieTooBusyError, BookieUnreachableError, RemoteProtocolError
from replog.protocol import wire
from replog.protocol.messages import Request, Response
from replog.protocol.wire import Frame, FrameSplitter
from replog.transports.tcp.options import TcpOptions
from replog.transports.tcp.stream import Stream

_FEW = 4  # requests of one tick: where there are more, they wait for each other, and go out together
_LARGE_BYTES = 16 << 10  # such a request goes out at once: it is worth a system call of its own


class TcpConnection(Connection):
    """Made by `TcpTransport.connect`, which runs it in the client's nursery."""

    __slots__ = (
        "_bookie_id",
        "_flush_scheduled",
        "_frame_bytes_max",
        "_gathered",
        "_is_gathering",
        "_options",
        "_outbox",
        "_outbox_bytes",
        "_outstanding",
        "_problem",
        "_receiver",
        "_scope",
        "_silence_max_s",
        "_splitter",
        "_stream",
        "_token",
    )

    def __init__(
        self,
        bookie_id: str,
        stream: Stream,
        splitter: FrameSplitter,
        receiver: ResponseReceiver,
        options: TcpOptions,
        ready: wire.Ready,
    ) -> None:
        self._bookie_id = bookie_id
        self._stream = stream
        self._splitter = splitter
        self._receiver: ResponseReceiver | None = receiver
        self._options = options
        self._frame_bytes_max = ready.frame_bytes_max
        self._silence_max_s = min(options.silence_max_s, max(0.001, ready.silence_max_ms / 1000))
        self._problem = ""  # why it ended
        self._outbox: list[bytes] = []
        self._outbox_bytes = 0
        self._outstanding = 0
        self._flush_scheduled = False
        self._gathered = 0  # requests since the last scheduled flush
        self._is_gathering = False  # there were many, so probably more follow
        self._scope = trio.CancelScope()
        self._token = trio.lowlevel.current_trio_token()

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
        waiting_bytes = self._stream.waiting_bytes + self._outbox_bytes
        if waiting_bytes and waiting_bytes + size_bytes > self._options.connection_bytes_max:
            raise BookieTooBusyError(self._bookie_id, f"{waiting_bytes} bytes wait to be sent to it")
        at_once = size_bytes >= _LARGE_BYTES or (self._outstanding < _FEW and not self._is_gathering)
        self._outstanding += len(requests)
        if at_once and not self._outbox:
            self._stream.write(pieces)
            return
        self._outbox += pieces
        self._outbox_bytes += size_bytes
        self._gathered += len(requests)
        if at_once:
            self._flush()
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            self._token.run_sync_soon(self._flush_scheduled_ones)

    def _flush_scheduled_ones(self) -> None:
        self._flush_scheduled = False
        self._is_gathering = self._gathered >= _FEW
        self._gathered = 0
        if self._outbox:
            self._flush()

    def _flush(self) -> None:
        pieces, self._outbox, self._outbox_bytes = self._outbox, [], 0
        self._stream.write(pieces)

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
        for frame in frames:
            if frame.kind == wire.RESPONSE:
                responses.append(wire.decode_response(frame))
            elif frame.kind == wire.REFUSE:
                refuse = wire.decode_greeting(frame)
                assert isinstance(refuse, wire.Refuse)
                self._problem = f"it ended the connection: {refuse.reason}"
            elif frame.kind != wire.PONG:
                raise RemoteProtocolError(f"a frame of kind {frame.kind} instead of an answer")
        self._outstanding -= len(responses)
        if responses and self._receiver is not None:
            self._receiver.responses_received(responses)

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
                heard_at_s = now_s  # it receives requests that waited: it has nothing to answer before
            silence_s = now_s - heard_at_s
            if silence_s >= self._silence_max_s:
                self._problem = f"nothing was heard from it for {self._silence_max_s} s"
                self._scope.cancel()
            elif silence_s >= look_s and not stream.waiting_bytes:
                stream.write([wire.PING_FRAME])

    # -- the end --------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        self._problem = self._problem or "the connection was left"
        self._outbox, self._outbox_bytes = [], 0
        self._stream.close()
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.disconnected(BookieUnreachableError(self._bookie_id, self._problem))

    async def aclose(self) -> None:
        if self._outbox:
            self._flush()
        self._receiver = None
        self._problem = self._problem or "the connection is closed"
        self._scope.cancel()
        self._stream.close()
        await trio.lowlevel.cancel_shielded_checkpoint()
