"""A TCP proxy that disturbs connections as networks do: delay, loss, silence in one or both directions, resets, half-closing.

It forwards bytes between clients and one bookie, which advertises the proxy's address (the option `advertise` of the TCP
transport). A program above the kernel cannot cause these, so they are modelled:

- *Packet loss* shows in a TCP stream only as delay. So each segment of 1448 bytes is "lost" with a probability; then it and
  everything behind it wait for its retransmission: 0.2 s, which is the minimum on Linux, and twice as long if it is lost again.
  A kernel often recovers sooner (fast retransmission): this models the bad case.
- *A black hole* lets neither bytes nor the end of a connection through; both sides think that they are connected. When it
  ends, held bytes go through, as if they were sent again. A client that connects meanwhile gets a connection and then
  silence; a real network would give it no connection. In both cases only a deadline helps.
"""

from __future__ import annotations

import enum
import math
import random
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import attrs
import trio

from replog.runtime.nursery import open_service_nursery

_CHUNK_BYTES = 16 << 10
_HELD_BYTES_MAX = 1 << 20  # per direction of a connection; a sender that is further ahead must wait
_SEGMENT_BYTES = 1448
_RETRANSMIT_S = 0.2
_RETRANSMITS_MAX = 5
_LINGER_NOT = struct.pack("ii", 1, 0)  # with this option, closing a socket sends a reset


@attrs.frozen(kw_only=True)
class NetworkConditions:
    """Network conditions in one direction.

    Each chunk is delayed by `delay_s` and up to `jitter_s` more, never out of order. `bytes_per_s` limits the bandwidth, unless
    it is None. `loss` is the probability that a segment is lost, each time that it is sent."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float | None = None
    loss: float = 0.0

    def __attrs_post_init__(self) -> None:
        if not (self.delay_s >= 0 and self.jitter_s >= 0 and 0 <= self.loss < 1):
            raise ValueError(f"{self}: delay_s and jitter_s are at least 0, loss is at least 0 and less than 1")
        if self.bytes_per_s is not None and not self.bytes_per_s > 0:
            raise ValueError(f"{self}: bytes_per_s is above 0, or None")

    def wait_s(self, size_bytes: int, chance: random.Random) -> float:
        """Draw the delay of a chunk of this size, in seconds, without what the bandwidth adds."""
        wait_s = self.delay_s + (self.jitter_s * chance.random() if self.jitter_s else 0.0)
        if self.loss:
            for _ in range(math.ceil(size_bytes / _SEGMENT_BYTES)):
                lost = 0
                while lost < _RETRANSMITS_MAX and chance.random() < self.loss:
                    wait_s += _RETRANSMIT_S * 2**lost
                    lost += 1
        return wait_s


CALM = NetworkConditions()


class Direction:
    """One direction of all connections: to the bookie, or to its clients. `conditions` may be changed at any time."""

    def __init__(self) -> None:
        self.conditions = CALM
        self.forwarded_bytes = 0
        self._opened = trio.Event()
        self._opened.set()

    @property
    def is_open(self) -> bool:
        """False while this direction is a black hole."""
        return self._opened.is_set()

    def swallow(self) -> None:
        """Make this direction a black hole, until `let_through`."""
        if self._opened.is_set():
            self._opened = trio.Event()

    def let_through(self) -> None:
        """End the black hole, and forward the held bytes."""
        self._opened.set()

    async def wait_open(self) -> None:
        """Wait until this direction is not a black hole."""
        while not self._opened.is_set():
            await self._opened.wait()


class TcpProxy:
    """Forwards connections to `target`, "HOST:PORT". Made by `serve_proxy`; belongs to the trio run that made it.

    A change of `target` affects new connections only. All random draws follow from `seed`. `connections` counts those accepted
    so far."""

    def __init__(self, target: str, seed: int | str) -> None:
        self.target = target
        self.address = ""
        self.to_bookie = Direction()
        self.to_client = Direction()
        self.connections = 0
        self._seed = seed
        self._is_cut = False
        self._open: set[_Forwarded] = set()

    @property
    def open_connections(self) -> int:
        """The number of connections that are open now."""
        return len(self._open)

    def cut(self) -> None:
        """Reset all connections, and every new one, until `mend`: as a host does on a port without a listener."""
        self._is_cut = True
        self.reset()

    def reset(self) -> None:
        """Reset all open connections, at both ends. New ones are accepted."""
        for each in list(self._open):
            each.reset()

    def swallow(self) -> None:
        """Make both directions a black hole, until `mend`. For one direction: `to_bookie.swallow()`, `to_client.swallow()`."""
        self.to_bookie.swallow()
        self.to_client.swallow()

    def set_conditions(self, conditions: NetworkConditions) -> None:
        """Set the network conditions of both directions."""
        self.to_bookie.conditions = self.to_client.conditions = conditions

    def half_close(self) -> None:
        """Send clients the end of the stream, and still accept what they send. The connections end when the clients end them."""
        for each in list(self._open):
            each.half_close()

    def mend(self) -> None:
        """End everything that was set, cut or swallowed."""
        self._is_cut = False
        self.set_conditions(CALM)
        self.to_bookie.let_through()
        self.to_client.let_through()

    def _refuses(self) -> bool:
        return self._is_cut

    async def _serve(self, client: trio.SocketStream) -> None:
        if self._refuses():
            _reset(client)
            return
        self.connections += 1
        number = self.connections
        host, _, port = self.target.rpartition(":")
        try:
            bookie = await trio.open_tcp_stream(host.strip("[]"), int(port))
        except OSError:
            _reset(client)  # no bookie listens there
            return
        if self._refuses():
            _reset(client)
            _reset(bookie)
            return
        forwarded = _Forwarded(self, client, bookie, f"{self._seed}/{number}")
        self._open.add(forwarded)
        try:
            await forwarded.run()
        finally:
            self._open.discard(forwarded)


class _Ending(enum.Enum):
    PEACE = enum.auto()
    SOURCE_RESET = enum.auto()
    SINK_RESET = enum.auto()


class _Forwarded:
    """One client's connection."""

    def __init__(self, proxy: TcpProxy, client: trio.SocketStream, bookie: trio.SocketStream, seed: str) -> None:
        self._client = client
        self._bookie = bookie
        self._scope = trio.CancelScope()
        self._to_bookie = _Pump(client, bookie, proxy.to_bookie, random.Random(f"{seed}/to bookie"))
        self._to_client = _Pump(bookie, client, proxy.to_client, random.Random(f"{seed}/to client"))

    async def run(self) -> None:
        """Forward until both ends have finished, or one was reset; then the other one is reset, too."""
        is_peaceful = False
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._forward, self._to_bookie, self._to_client)
                    nursery.start_soon(self._forward, self._to_client, self._to_bookie)
                is_peaceful = True
        finally:
            for stream in (self._client, self._bookie):
                if is_peaceful:
                    stream.socket.close()
                else:
                    _reset(stream)

    async def _forward(self, pump: _Pump, opposite: _Pump) -> None:
        ending = await pump.run()
        if ending is _Ending.SINK_RESET:
            # The reset comes from that end, so a black hole holds it up, too.
            await opposite.direction.wait_open()
        if ending is not _Ending.PEACE:
            self._scope.cancel()

    def reset(self) -> None:
        self._scope.cancel()

    def half_close(self) -> None:
        self._to_client.finish_early()


class _Pump:
    """One direction of one connection. Up to `_HELD_BYTES_MAX` received bytes wait until they are due."""

    def __init__(
        self, source: trio.SocketStream, sink: trio.SocketStream, direction: Direction, chance: random.Random
    ) -> None:
        self.direction = direction
        self._source = source
        self._sink = sink
        self._chance = chance
        self._held: deque[tuple[float, bytes]] = deque()  # time and bytes; b"" is the end of the stream
        self._held_bytes = 0
        self._changed = trio.Event()
        self._last_due_s = 0.0
        self._is_source_reset = False
        self._reading = trio.CancelScope()

    async def run(self) -> _Ending:
        """Forward until the source ends, or one of the ends was reset."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read)
            try:
                await self._write()
            except trio.BrokenResourceError:
                nursery.cancel_scope.cancel()
                return _Ending.SINK_RESET
        return _Ending.SOURCE_RESET if self._is_source_reset else _Ending.PEACE

    def finish_early(self) -> None:
        """Read nothing more; received bytes still arrive, and then the end of the stream."""
        self._reading.cancel()

    async def _read(self) -> None:
        with self._reading:
            await self._read_to_the_end()
        self._hold(b"")

    async def _read_to_the_end(self) -> None:
        while True:
            await self.direction.wait_open()
            while self._held_bytes >= _HELD_BYTES_MAX:
                await self._wait_for_change()
            try:
                data = await self._source.receive_some(_CHUNK_BYTES)
            except trio.BrokenResourceError:
                self._is_source_reset = True
                return
            if not data:
                return
            self._hold(bytes(data))

    def _hold(self, data: bytes) -> None:
        conditions = self.direction.conditions
        # Never before the chunk ahead: TCP delivers in order despite jitter.
        due_s = max(self._last_due_s, trio.current_time() + conditions.wait_s(len(data), self._chance))
        if conditions.bytes_per_s is not None:
            due_s += len(data) / conditions.bytes_per_s
        self._last_due_s = due_s
        self._held.append((due_s, data))
        self._held_bytes += len(data)
        self._changed.set()

    async def _write(self) -> None:
        while True:
            while not self._held:
                await self._wait_for_change()
            due_s, data = self._held[0]
            if due_s > trio.current_time():
                await trio.sleep_until(due_s)
            await self.direction.wait_open()
            self._held.popleft()
            self._held_bytes -= len(data)
            self._changed.set()
            if not data:
                if not self._is_source_reset:
                    await self._sink.send_eof()
                return
            await self._sink.send_all(data)
            self.direction.forwarded_bytes += len(data)

    async def _wait_for_change(self) -> None:
        self._changed = trio.Event()
        await self._changed.wait()


def _reset(stream: trio.SocketStream) -> None:
    if stream.socket.fileno() >= 0:
        # A plain close sends the end of the stream, which peers take for a farewell.
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        stream.socket.close()


@asynccontextmanager
async def serve_proxy(target: str = "127.0.0.1:0", *, seed: int | str = 0) -> AsyncIterator[TcpProxy]:
    """A proxy in front of `target`, as a context manager; it listens at `proxy.address`, on the loopback interface.

    Leaving the context resets all connections. `target` may be set later, once the bookie has started: the bookie must
    advertise the proxy's address."""
    proxy = TcpProxy(target, seed)
    async with AsyncExitStack() as stack:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        stack.push_async_callback(trio.aclose_forcefully, listener)
        host, port = listener.socket.getsockname()[:2]
        proxy.address = f"{host}:{port}"
        nursery = await stack.enter_async_context(open_service_nursery())
        nursery.start_soon(trio.serve_listeners, proxy._serve, [listener])
        yield proxy
