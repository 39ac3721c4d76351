"""A socket as a stream of bytes both ways: what goes out is sent at once as far as the socket takes it, without a task.

Raw non-blocking sockets: on this path each await and each object of a higher layer costs more than the system call.
"""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

import trio

_RECEIVE_BYTES_MIN = 64 << 10
_RECEIVE_BYTES_MAX = 1 << 20
_SMALL_BYTES = 4096  # such pieces go together when they have to wait: else they cost several times their size
_JOINED_BYTES_MAX = 64 << 10
_UNIX_SEND_BYTES = 1 << 20  # that the system may keep of what was sent; it takes twice as much for its own purposes
_PIECES_MAX = min(512, os.sysconf("SC_IOV_MAX"))
_LEFT = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)  # where it is missing, POLLHUP says the same


def _nobody() -> None:
    pass


class Stream:
    """A connected socket, which this closes. One task may receive; anybody in the trio thread may write. `run` sends what a
    write left over: `waiting_bytes`, in objects of `held_bytes`.
    `taken_bytes` counts what the peer's system has taken: whether it grows tells whether the peer lives.
    `received_bytes` is its counterpart."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        if connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            # With the usual 208 KiB a batch goes in five pieces, each of which wakes both ends. TCP's buffers grow by themselves.
            with suppress(OSError):  # a system that refuses keeps its own size
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNIX_SEND_BYTES)
        self.waiting_bytes = 0
        self.held_bytes = 0  # pieces are kept whole until all of them is sent
        self.taken_bytes = 0
        self.received_bytes = 0
        self.features = 0  # that both ends understand, as they said when they greeted each other
        self.is_closed = False
        self.on_sent: Callable[[], None] = _nobody  # called when some waiting bytes were sent
        self._socket = connected
        self._waiting: deque[memoryview] = deque()
        self._small = bytearray()  # what waits behind these
        self._blocked = trio.Event()
        self._receive_bytes = _RECEIVE_BYTES_MIN
        self._is_drained = True
        self._is_broken = self._is_ending = False

    # -- out ------------------------------------------------------------------------------------------------------

    def write(self, pieces: Sequence[bytes]) -> None:
        """Sends these, or keeps them until the socket takes them. Never waits, never fails: the receiver learns that
        the connection is gone."""
        if self.is_closed or self._is_broken:
            return
        if not self.waiting_bytes and len(pieces) <= _PIECES_MAX:
            size = sum(map(len, pieces))
            sent = self._send(pieces)
            if sent == size or self._is_broken:
                return
            self._keep(pieces, sent)
        else:
            self._keep(pieces, 0)
            if not self._blocked.is_set():
                self._send_waiting()
        if self.waiting_bytes:
            self._blocked.set()

    def _keep(self, pieces: Sequence[bytes], sent: int) -> None:
        for piece in pieces:
            if sent >= len(piece):
                sent -= len(piece)
                continue
            rest = memoryview(piece)[sent:]
            sent = 0
            self.waiting_bytes += len(rest)
            self.held_bytes += len(rest) if len(rest) < _SMALL_BYTES else len(piece)
            if len(rest) < _SMALL_BYTES:
                self._small += rest
                if len(self._small) < _JOINED_BYTES_MAX:
                    continue
                rest = memoryview(b"")
            self._join_small()
            if rest:
                self._waiting.append(rest)

    def _join_small(self) -> None:
        if self._small:
            self._waiting.append(memoryview(bytes(self._small)))
            self._small.clear()

    def _send(self, pieces: Sequence[bytes | memoryview]) -> int:
        try:
            sent = self._socket.sendmsg(pieces)
        except BlockingIOError:
            return 0
        except OSError:
            self.break_off()
            return 0
        self.taken_bytes += sent
        return sent

    def _send_waiting(self) -> None:
        while self.waiting_bytes:
            if len(self._waiting) < _PIECES_MAX:
                self._join_small()
            pieces = [self._waiting[place] for place in range(min(len(self._waiting), _PIECES_MAX))]
            sent = self._send(pieces)
            if not sent:
                return
            self.waiting_bytes -= sent
            while sent:
                first = self._waiting[0]
                if sent < len(first):
                    self._waiting[0] = first[sent:]
                    break
                sent -= len(first)
                self.held_bytes -= len(first.obj)  # type: ignore[arg-type]  # bytes, of which it may be the end
                self._waiting.popleft()

    def break_off(self) -> None:
        """Sending failed: ends the connection, so that the receiving task wakes and sees it."""
        self._is_broken = True
        self._forget_waiting()
        self.on_sent()
        with suppress(OSError):  # it may have ended by itself
            self._socket.shutdown(socket.SHUT_RDWR)

    async def run(self) -> None:
        """Sends what had to wait, until cancelled or closed."""
        while not self.is_closed:
            await self._blocked.wait()
            while self.waiting_bytes:
                try:
                    await trio.lowlevel.wait_writable(self._socket)
                except trio.ClosedResourceError:
                    return
                self._send_waiting()
                self.on_sent()
            self._blocked = trio.Event()
            if self._is_ending:
                self._end_writing()

    # -- in -------------------------------------------------------------------------------------------------------

    async def receive(self, wanted_bytes: int = 0) -> bytes:
        """Some bytes, at most as many as are wanted if that is not 0; b"" when the peer has ended the connection, or this side
        closed it. Raises OSError if it broke. If cancelled, nothing is lost."""
        size = min(wanted_bytes, _RECEIVE_BYTES_MAX) if wanted_bytes else self._receive_bytes
        if not self._is_drained and not wanted_bytes:
            await trio.lowlevel.checkpoint()  # others get their turn, however fast this one sends
        while True:
            if self.is_closed:
                return b""
            try:
                if self._is_drained:
                    await trio.lowlevel.wait_readable(self._socket)
                data = self._socket.recv(size)
            except BlockingIOError:
                self._is_drained = True
                continue
            except trio.ClosedResourceError:
                return b""
            self.received_bytes += len(data)
            # Behind a large piece that was wanted there is seldom more. And others get their turn before the next one.
            self._is_drained = len(data) < size or wanted_bytes >= _RECEIVE_BYTES_MIN
            if not wanted_bytes:
                if not self._is_drained and size < _RECEIVE_BYTES_MAX:
                    self._receive_bytes = 2 * size
                elif size > _RECEIVE_BYTES_MIN and len(data) * 4 < size:
                    # A large buffer for little is mapped and unmapped each time, or leaves a gap in the heap.
                    self._receive_bytes = size // 2
            return data

    @property
    def unread_bytes(self) -> int:
        """The bytes that were received, and that `receive` has not returned."""
        return 0

    def has_peer_left(self) -> bool:
        """Whether the peer has ended the connection, even while there are unreceived bytes before its end."""
        if self.is_closed or self._is_broken:
            return True
        poll = select.poll()
        poll.register(self._socket, _LEFT)
        return bool(poll.poll(0))

    # -- the end --------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Nothing more will be written: tells the peer so when all is sent. Its messages can still be received."""
        self._is_ending = True
        if not self.waiting_bytes:
            self._end_writing()

    def _end_writing(self) -> None:
        if not self.is_closed:
            with suppress(OSError):  # it may have ended by itself
                self._socket.shutdown(socket.SHUT_WR)

    async def linger(self) -> None:
        """Ends it, and throws away what the peer still sends until it ends too: closed at once, the connection might
        break before the peer has read the last words. The caller sets the deadline."""
        self.end()
        with suppress(OSError):  # it is gone
            while await Stream.receive(self):
                pass

    def _forget_waiting(self) -> None:
        self._waiting.clear()
        self._small.clear()
        self.waiting_bytes = self.held_bytes = 0

    def close(self) -> None:
        """Closes the socket. Idempotent. Bytes that wait to be sent are dropped."""
        if not self.is_closed:
            self.is_closed = True
            self._forget_waiting()
            self._blocked.set()
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
