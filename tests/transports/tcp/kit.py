"""Both ends of the TCP transport, opened up: a listener whose counts can be looked at, and a client that does as it is told."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from typing import Any

import trio

from replog.abc import Reply
from replog.errors import ReplogError
from replog.protocol import wire
from replog.protocol.batch import Batch, build
from replog.protocol.digest import Digest, DigestType
from replog.protocol.messages import AddRequest, ReadRequest, Request, Response, Status
from replog.protocol.wire import Frame, FrameSplitter
from replog.runtime.host_ports import parse_address
from replog.runtime.nursery import open_service_nursery
from replog.transports.tcp.greeting import ClientGreeter
from replog.transports.tcp.listener import Listener
from replog.transports.tcp.options import TcpTuning
from replog.transports.tcp.stream import Stream

KEY = bytes(32)
_CUSHION_S = 0.005  # of real time: what one socket sends may take a moment to another one
FRAME_BYTES_MAX = wire.HEADER.size + (2 << 20)  # enough for one large entry


def batch_of(payload_bytes: int, digest_type: DigestType = DigestType.CRC32C) -> Batch:
    """A batch with one payload."""
    return build(
        Digest(digest_type, 7, b""),
        ledger_id=7,
        first_entry_id=0,
        stride=1,
        payloads=[bytes(payload_bytes)],
        last_add_confirmed=-1,
        stamp=1,
        timestamp_ns=0,
        cumulative_length=payload_bytes,
    )


def add(request_id: int, batch: Batch) -> AddRequest:
    """An add of this batch."""
    return AddRequest(request_id, 7, KEY, 1, batch)


def read(request_id: int, bytes_max: int = 1) -> ReadRequest:
    """A read of at most so many bytes."""
    return ReadRequest(request_id, 7, KEY, 0, 1, bytes_max)


def encoded(*requests: Request) -> bytes:
    """These, one behind the other."""
    pieces: list[bytes] = []
    for request in requests:
        wire.encode_request(request, pieces)
    return b"".join(pieces)


class Handler:
    """A bookie that keeps what it is asked, and answers at once as `answer` says, or when told to."""

    def __init__(self, answer: Callable[[Request], Response] | None = None, *, holds: bool = False) -> None:
        self.holds = holds
        self.requests: list[Request] = []
        self.held: list[tuple[Request, Reply]] = []
        self._answer = answer or (lambda request: Response(request.request_id, Status.OK))

    def handle(self, requests: Sequence[Request], reply: Reply) -> None:
        self.requests += requests
        if self.holds:
            self.held += [(request, reply) for request in requests]
        else:
            for request in requests:
                reply([self._answer(request)])

    def release(self) -> None:
        """Answers what is held, each by itself."""
        held, self.held = self.held, []
        for request, reply in held:
            reply([self._answer(request)])


class Receiver:
    """A client's receiver that keeps what it is told."""

    def __init__(self) -> None:
        self.responses: list[Response] = []
        self.errors: list[ReplogError] = []
        self.disconnection = trio.Event()

    def responses_received(self, responses: Sequence[Response]) -> None:
        assert not self.errors
        self.responses += responses

    def disconnected(self, error: ReplogError) -> None:
        self.errors.append(error)
        self.disconnection.set()


@asynccontextmanager
async def listening(handler: Handler, **options: Any) -> AsyncIterator[Listener]:
    """A listener at a free port."""
    options.setdefault("frame_bytes_max", FRAME_BYTES_MAX)
    listener = Listener(handler, "bookie-1", None, TcpTuning(**options))
    await listener.bind("127.0.0.1", 0)
    async with open_service_nursery() as nursery:
        nursery.start_soon(listener.run)
        try:
            yield listener
        finally:
            await listener.close("the test is over")
    assert listener._budget.used_bytes == 0
    assert listener._connections == listener._hosts.under_way == 0
    assert not listener._sessions


class RawClient:
    """A client that sends bytes as they are, and reads only when asked to."""

    def __init__(self, stream: Stream, splitter: FrameSplitter, frames: list[Frame]) -> None:
        self.stream = stream
        self._splitter = splitter
        self._frames = frames

    def say(self, *requests: Request) -> None:
        """Sends requests."""
        self.stream.write([encoded(*requests)])

    async def hear(self) -> Frame | None:
        """The next frame; None at the end."""
        while not self._frames:
            data = await self.stream.receive()
            if not data:
                return None
            self._frames = self._splitter.feed(data)
        return self._frames.pop(0)

    async def answers(self, count: int) -> list[Response]:
        """So many answers."""
        found: list[Response] = []
        while len(found) < count:
            frame = await self.hear()
            assert frame is not None
            if frame.kind != wire.PONG:
                found.append(wire.decode_response(frame))
        return found

    async def farewell(self) -> str:
        """Why the connection ended, as it was told; answers before that are passed over."""
        reason = ""
        while (frame := await self.hear()) is not None:
            if frame.kind == wire.REFUSE:
                greeting = wire.decode_greeting(frame)
                assert isinstance(greeting, wire.Refuse)
                reason = greeting.reason
        return reason


def connected(address: str) -> socket.socket:
    """A socket that is connected there, and has said nothing."""
    host, port = parse_address(address)
    return socket.create_connection((host, port), timeout=5)


@asynccontextmanager
async def raw_client(address: str, *, receive_buffer_bytes: int = 0) -> AsyncIterator[RawClient]:
    """A client that has introduced itself."""
    with closing(socket.socket()) as connecting:
        if receive_buffer_bytes:
            connecting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        connecting.connect(parse_address(address))
        stream, splitter = Stream(connecting), FrameSplitter(wire.FRAME_BYTES_MAX)
        async with open_service_nursery() as nursery:
            nursery.start_soon(stream.run)
            greeter = ClientGreeter(stream, splitter)
            await greeter.greet("", None, b"")
            try:
                yield RawClient(stream, splitter, greeter.early)
            finally:
                stream.close()


async def settled(seconds: float = 0.0) -> None:
    """Lets everything that can run do so; then virtual time passes."""
    await trio.testing.wait_all_tasks_blocked(_CUSHION_S)
    if seconds:
        await trio.sleep(seconds)
        await trio.testing.wait_all_tasks_blocked(_CUSHION_S)
