"""Whether a client receives the bytes that wait for it, judged by how many its system has acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from replog.transports.tcp.stream import Stream


class Taking:
    """The state between two looks at a stream. Times are in seconds, by trio's clock."""

    __slots__ = ("_mark_bytes", "_marked_at_s", "_stream", "_taken_at_s", "_taken_bytes")

    def __init__(self, stream: Stream, now_s: float) -> None:
        self._stream = stream
        self._taken_bytes = 0
        self._taken_at_s = now_s
        # The bytes to be taken, and since when, if room is scarce.
        self._mark_bytes, self._marked_at_s = 0, now_s

    def problem(self, now_s: float, timeout_s: float, standstill_s: float, *, is_room_scarce: bool) -> str:
        """Why the client is too slow, or "".

        It must take some bytes within `standstill_s`; if room is scarce, also all waiting bytes within `timeout_s`."""
        stream = self._stream
        if stream.taken_bytes >= self._mark_bytes or not is_room_scarce:
            self._mark_bytes = stream.taken_bytes + stream.waiting_bytes
            self._marked_at_s = now_s
        if now_s - self._marked_at_s > timeout_s:
            return f"it is slow to take the {stream.waiting_bytes} bytes that wait for it, and room is scarce"
        if stream.taken_bytes != self._taken_bytes or not stream.waiting_bytes:
            self._taken_bytes, self._taken_at_s = stream.taken_bytes, now_s
        if now_s - self._taken_at_s > standstill_s:
            return f"it takes none of the {stream.waiting_bytes} bytes that wait for it"
        return ""
