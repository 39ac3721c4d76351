"""Whether a client keeps up: it sends something now and then, ends messages that it begins, and takes its answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from replog.transports.tcp.taking import Taking

if TYPE_CHECKING:
    from replog.transports.tcp.stream import Stream

_SCARCE_SHARE = 4  # this fraction of the time that a client has to go on, if others wait for room


class Pace:
    """When a client was last heard. Times are in seconds, by trio's clock."""

    def __init__(self, stream: Stream, transfer_timeout_s: float, silence_max_s: float) -> None:
        now_s = trio.current_time()
        self.begun_at_s: float | None = None  # when the message that is arriving began
        self.is_waiting = False  # for room: until then nothing is expected of the client
        self.transfer_timeout_s = transfer_timeout_s
        self._silence_max_s = silence_max_s
        self._stream = stream
        self._heard_at_s = now_s  # as the last look saw it
        self._heard_bytes = stream.received_bytes
        self._taking = Taking(stream, now_s)

    def waited(self, waited_s: float) -> None:
        """The client could not send for this long, because nothing was received: it has so much more time."""
        self._heard_at_s += waited_s
        # The message that was arriving could not end meanwhile either.
        if self.begun_at_s is not None:
            self.begun_at_s += waited_s

    def taking_problem(self, now_s: float, *, is_room_scarce: bool) -> str:
        """Why the client takes its answers too slowly, or "". With room scarce, it must take all of them in time."""
        timeout_s = self.transfer_timeout_s
        return self._taking.problem(now_s, timeout_s, self._standstill_s(is_room_scarce), is_room_scarce=is_room_scarce)

    def heard(self, now_s: float) -> None:
        """Notes whether something was received since the last look."""
        if self._stream.received_bytes != self._heard_bytes:
            self._heard_bytes, self._heard_at_s = self._stream.received_bytes, now_s

    def sending_problem(self, now_s: float, *, is_room_scarce: bool) -> str:
        """Why the client sends too slowly, or ""."""
        if self.begun_at_s is not None and self._begins_too_slowly(self.begun_at_s, now_s, is_room_scarce):
            return "a message that it began does not end"
        if now_s - self._heard_at_s > self._silence_max_s:
            return f"nothing was heard from it for {self._silence_max_s} s"
        return ""

    def _begins_too_slowly(self, begun_at_s: float, now_s: float, is_room_scarce: bool) -> bool:
        """Whether a message does not end in time, or, if room is scarce, does not go on."""
        moved_at_s = max(begun_at_s, self._heard_at_s)
        return now_s - begun_at_s > self.transfer_timeout_s or now_s - moved_at_s > self._standstill_s(is_room_scarce)

    def _standstill_s(self, is_room_scarce: bool) -> float:
        return self.transfer_timeout_s / _SCARCE_SHARE if is_room_scarce else self.transfer_timeout_s
