"""When a client's requests are written to the socket: at once, or together with others of the same tick of the event loop.

A tick of many requests is written in several pieces, so that bookies work on the first ones while the client makes the rest.

Rules: requests leave in the order in which they were sent. Waiting bytes, here and in the stream, are bounded.
"""

from __future__ import annotations

import trio

from replog.errors import BookieTooBusyError
from replog.transports.tcp.stream import Stream

# A lone request gains nothing from waiting, and waiting costs it a turn of the event loop. Where a tick has many, one write
# of all of them saves a system call for each.
_FEW = 4
_LARGE_BYTES = 16 << 10  # such a request, or so much of a tick, is worth a system call of its own


class Outbox:
    """The requests of one connection that wait for the end of this tick: `size_bytes`.

    `unanswered` counts the requests that have no answer yet."""

    __slots__ = (
        "_bookie_id",
        "_bytes_max",
        "_gathered",
        "_is_flush_scheduled",
        "_is_gathering",
        "_pieces",
        "_stream",
        "_token",
        "size_bytes",
        "unanswered",
    )

    def __init__(self, bookie_id: str, stream: Stream, bytes_max: int) -> None:
        self.unanswered = 0
        self._bookie_id = bookie_id
        self._stream = stream
        self._bytes_max = bytes_max
        self._pieces: list[bytes] = []
        self.size_bytes = 0
        self._is_flush_scheduled = False
        self._gathered = 0  # requests since the last scheduled flush
        self._is_gathering = False  # the last tick had many requests, so this one probably has
        self._token = trio.lowlevel.current_trio_token()

    def send(self, pieces: list[bytes], size_bytes: int, requests: int) -> None:
        """Write these requests now, or with the others of this tick. Raise `BookieTooBusyError` if too much waits."""
        waiting_bytes = self._stream.waiting_bytes + self.size_bytes
        if waiting_bytes and waiting_bytes + size_bytes > self._bytes_max:
            raise BookieTooBusyError(self._bookie_id, f"{waiting_bytes} bytes wait to be sent to it")
        at_once = size_bytes >= _LARGE_BYTES or (self.unanswered < _FEW and not self._is_gathering)
        self.unanswered += requests
        if at_once and not self._pieces:
            self._stream.write(pieces)
            return
        self._pieces += pieces
        self.size_bytes += size_bytes
        self._gathered += requests
        if at_once or self.size_bytes >= _LARGE_BYTES:
            self.flush()
        elif not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._token.run_sync_soon(self._end_tick)

    def flush(self) -> None:
        """Write what waits."""
        if self._pieces:
            pieces = self._pieces
            self.clear()
            self._stream.write(pieces)

    def clear(self) -> None:
        """Drop what waits: the connection has ended."""
        self._pieces, self.size_bytes = [], 0

    def _end_tick(self) -> None:
        self._is_flush_scheduled = False
        self._is_gathering = self._gathered >= _FEW
        self._gathered = 0
        self.flush()
