"""The time inside a state machine, as its leader measures it (L12).

Rules:
- It begins at the highest time in the log, or at the wall clock if the log is empty. It never goes back.
- It runs with the leader's monotonic clock. Where it is behind the wall clock it runs faster, by 5 percent at most. So a wall
  clock that jumps for a moment freezes nothing, and ends no lock or lease early by more than a twentieth of its time.
- Where it is ahead of the wall clock, it goes on as the monotonic clock does.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from replog.runtime.entropy import Entropy

_FASTER = 20  # a twentieth faster than the monotonic clock, at most, while it is behind the wall clock
_NS_PER_S = 1_000_000_000


class MachineClock:
    """Times in ns since the epoch for the entries of one leader. `applied_ns` returns the highest time in the log."""

    __slots__ = ("_applied_ns", "_entropy", "_looked_s", "_time_ns")

    def __init__(self, applied_ns: Callable[[], int], entropy: Entropy) -> None:
        self._applied_ns = applied_ns
        self._entropy = entropy
        self._looked_s: float | None = None  # on the monotonic clock; None: it has not started
        self._time_ns = 0

    def start(self) -> None:
        """Begins to run, now that the leader has applied all that was written before it."""
        self._time_ns = self._applied_ns() or self._entropy.time_ns()
        self._looked_s = trio.current_time()

    def now_ns(self) -> int:
        """The machine's time now. Starts the clock if need be."""
        looked_s = self._looked_s
        if looked_s is None:
            self.start()
            return self._time_ns
        now_s = trio.current_time()
        passed_ns = int((now_s - looked_s) * _NS_PER_S)
        if passed_ns:  # less than a nanosecond is not lost: it counts at the next look
            behind_ns = self._entropy.time_ns() - self._time_ns
            self._time_ns += max(passed_ns, min(behind_ns, passed_ns + passed_ns // _FASTER))
            self._looked_s = now_s
        return self._time_ns
