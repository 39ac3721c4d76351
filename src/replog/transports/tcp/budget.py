"""How many bytes the clients of a listener may keep in this process: all together, and each of them (B9).

All memory held for a client is charged: requests without an answer, arriving messages, room reserved for answers to
reads, answers that wait to be sent. Two rules leave room for everybody, however many clients never give theirs back: a
client may have a share of what is *free*, which shrinks with each one that takes its share, so that the last bit is
never taken; and answers to reads get one half at most, so that the other one is there for adds. Small things need
little, and find it in any share.

Theory: a fixed share for each client would waste memory while few are connected, and a common pool goes to the clients
that never give it back. A share of the free bytes needs no count of clients: each that takes its share leaves a fraction
of the rest, so the rest never ends. Lost: the common pool. Eight clients that asked for large reads and never received
the answers took all of it, and a healthy writer got 2 appends in 8 s. With shares and 64 such clients, the writer keeps
0.9 of its rate, and the bookie grows by 265 MiB (`python -m benchmarks.overload`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

from replog.transports.tcp.flood_end import FloodEnd

SMALL_BYTES = 64 << 10  # of a message or an answer: so much is found in any share
_REQUESTS_SHARE = 4  # a client that has less than this fraction of what is free may ask for more
_MESSAGE_SHARE = 2  # a message may arrive if its client has less than this fraction of what is free, including it
_ANSWERS_SHARE = 8  # the same for an answer, and for what is free for answers
_RESERVE = 16  # this fraction is for small messages only

Wake = Callable[[], None]


class Gate:
    """Sessions that wait for free bytes. Each is woken once, and then asks again."""

    __slots__ = ("_is_scheduled", "_token", "_waiting", "least_bytes")

    def __init__(self) -> None:
        self.least_bytes: float = math.inf  # the least that a waiting session needs
        self._waiting: dict[Wake, int] = {}
        self._is_scheduled = False
        self._token: trio.lowlevel.TrioToken | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, wake: Wake, needed_bytes: int) -> None:
        """Calls `wake` from the event loop when so many bytes are free; others may have taken them by then."""
        self._token = self._token or trio.lowlevel.current_trio_token()
        self._waiting[wake] = needed_bytes
        self.least_bytes = min(self.least_bytes, needed_bytes)

    def leave(self, wake: Wake) -> None:
        """Ends the wait of this session."""
        if self._waiting.pop(wake, None) is not None and not self._waiting:
            self.least_bytes = math.inf

    def open(self, free_bytes: int) -> None:
        """Wakes sessions: this many bytes are free now, at least `least_bytes`."""
        if not self._is_scheduled:
            assert self._token is not None
            self._is_scheduled = True
            self._token.run_sync_soon(self._wake, free_bytes)

    def _wake(self, free_bytes: int) -> None:
        self._is_scheduled = False
        # They are taken out first: a session that is woken may wait here again at once.
        ready = [wake for wake, needed_bytes in self._waiting.items() if needed_bytes <= free_bytes]
        for wake in ready:
            del self._waiting[wake]
        self.least_bytes = min(self._waiting.values(), default=math.inf)
        for wake in ready:
            wake()


class Budget:
    """The bytes that all sessions of a listener use together. Pure arithmetic: sessions charge, ask and wait at gates."""

    __slots__ = (
        "_flood_end",
        "_peak_bytes",
        "answer_bytes",
        "answer_bytes_max",
        "for_answers",
        "for_requests",
        "total_bytes_max",
        "used_bytes",
    )

    def __init__(self, total_bytes_max: int) -> None:
        self.total_bytes_max = total_bytes_max
        self.answer_bytes_max = total_bytes_max // 2
        self.used_bytes = 0
        self._peak_bytes = 0
        self._flood_end = FloodEnd()
        self.answer_bytes = 0  # of these: for answers, set aside or waiting to be sent
        self.for_requests = Gate()
        self.for_answers = Gate()

    @property
    def is_scarce(self) -> bool:
        """True while a session waits for others to give bytes back."""
        return bool(self.for_requests or self.for_answers)

    def charge(self, change_bytes: int) -> None:
        """Charges these bytes, or gives them back if negative."""
        self.used_bytes += change_bytes
        if change_bytes < 0 and self.total_bytes_max - self.used_bytes >= self.for_requests.least_bytes:
            self.for_requests.open(self.total_bytes_max - self.used_bytes)

    def charge_answers(self, change_bytes: int) -> None:
        """Charges bytes that are set aside for answers, or wait to be sent."""
        self.answer_bytes += change_bytes
        if change_bytes < 0 and self.answer_bytes_max - self.answer_bytes >= self.for_answers.least_bytes:
            self.for_answers.open(self.answer_bytes_max - self.answer_bytes)
        self.charge(change_bytes)

    def note_peak(self) -> None:
        """Much is charged now. Not for each charge: that would cost every request something."""
        self._peak_bytes = max(self._peak_bytes, self.used_bytes)

    def has_flood_ended(self, now_s: float) -> bool:
        """Whether to return memory now: much was charged, as far as it was noted, and little has been for a while."""
        peak_bytes, self._peak_bytes = max(self._peak_bytes, self.used_bytes), 0
        return self._flood_end.look(peak_bytes, now_s)

    # -- requests -------------------------------------------------------------------------------------------------

    def takes_requests(self, own_bytes: int) -> bool:
        """Whether to receive more from a client that uses this much."""
        # The second condition: a client that is alone may use everything, since no other client waits for it.
        return own_bytes * _REQUESTS_SHARE <= self.total_bytes_max - self.used_bytes or own_bytes >= self.used_bytes

    def takes_message(self, own_bytes: int, size_bytes: int) -> bool:
        """Whether to receive a message of this size from a client that uses this much, parts of the message included."""
        free_bytes = self.total_bytes_max - self.used_bytes
        return free_bytes >= self.needed_for_message(own_bytes, size_bytes) or own_bytes >= self.used_bytes

    def needed_for_requests(self, own_bytes: int) -> int:
        """How many bytes must be free to receive more."""
        return own_bytes * _REQUESTS_SHARE

    def needed_for_message(self, own_bytes: int, size_bytes: int) -> int:
        """How many bytes must be free to receive such a message."""
        needed_bytes = (own_bytes + size_bytes) * _MESSAGE_SHARE
        if own_bytes <= SMALL_BYTES:
            needed_bytes = min(needed_bytes, size_bytes + self.total_bytes_max // _RESERVE)
        return needed_bytes

    # -- answers --------------------------------------------------------------------------------------------------

    @property
    def answer_share_bytes(self) -> int:
        """How many bytes one client may have for answers now."""
        return max(0, self.answer_bytes_max - self.answer_bytes) // _ANSWERS_SHARE

    def takes_answer(self, own_bytes: int, size_bytes: int) -> bool:
        """Whether to make an answer of this size for a client that has this much for answers already."""
        if not self.answer_bytes:
            return True  # one answer at a time is always possible
        if self.used_bytes + size_bytes > self.total_bytes_max:
            return False
        if own_bytes + size_bytes <= SMALL_BYTES:
            return True  # from the reserve for adds, if necessary
        return self.needed_for_answer(own_bytes, size_bytes) <= self.answer_bytes_max - self.answer_bytes

    def wait_for_answer(self, wake: Wake, own_bytes: int, size_bytes: int) -> None:
        """Calls `wake` when there may be room for such an answer."""
        if self.used_bytes + size_bytes > self.total_bytes_max:
            self.for_requests.wait(wake, size_bytes)
        else:
            self.for_answers.wait(wake, self.needed_for_answer(own_bytes, size_bytes))

    def needed_for_answer(self, own_bytes: int, size_bytes: int) -> int:
        """How many bytes must be free for such an answer. A client's only answer needs no share."""
        return (own_bytes + size_bytes) * _ANSWERS_SHARE if own_bytes else size_bytes
