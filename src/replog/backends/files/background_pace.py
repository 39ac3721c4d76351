"""Bounds the rate of background work, and ends it early when the storage is closed.

Theory: commits and background work share a disk and one interpreter. The rate bounds the disk. The interpreter needs
rests: a thread that copies many small batches takes it back before the thread of a commit wakes up.

- Short rests: p99 of a lone commit during the compaction of 1 KB batches was 3.0 times that without, and is 1.5.
- Long rests: beside the compaction of 9,000 batches in each of three embedded bookies, appends at half the maximal rate
  were late by a second, because client, commits and compaction wanted more than one interpreter. With rests of eight
  times the work, p99.9 fell from 1.30 s to 0.35 s.
- Lost: long rests without an end, with which garbage comes faster than it goes; they end after ten minutes. Long rests
  for flushes and indexes, which appends wait for. Making up for a delay at once, which is a burst.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# So much is done before something else is looked after: a thousand batches may take a second, however short they are.
_STRETCH_BYTES = 8 << 20
_STRETCH_BATCHES = 1000
_PATIENCE_S = 0.002  # shorter pauses are put together: each costs a change of thread
_CREDIT_S = 0.1  # so much of a delay is made up for; more would be a burst
# Other threads get the interpreter at once only from a thread that sleeps. A thread that just reads takes it back before
# they wake, and a commit would wait for many such reads.
_BURST_S = 0.0001
_REST_S = 0.0001
_REST_MAX_S = 0.005
_LONG_RESTS_FOR_S = 600.0  # a compaction that isn't done by then has more work than the pauses allow


def no_rest() -> None:
    """For work that nobody commits beside: at a start, and in inspections."""


class Closing(Exception):
    """The storage is being closed: stop, and leave a state that a crash could leave, too."""


class Pace:
    """So many bytes per second at most; 0 means no limit. And never the interpreter for long while there are commits: `traffic`
    counts them. They are left `rests` times as long as the work took, for the first ten minutes, and a moment at least."""

    def __init__(
        self, bytes_per_s: int, closing: threading.Event, traffic: Callable[[], int], rests: float = 0.0
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._closing = closing
        self._traffic = traffic
        self._rests = rests
        self._long_rests_until_s = time.monotonic() + _LONG_RESTS_FOR_S
        self._seen_traffic = traffic()
        self._spent_bytes = 0
        self._stretch_bytes = self._stretch_batches = 0
        self._began_s = self._rested_s = time.monotonic()

    def spend(self, size_bytes: int) -> bool:
        """Waits until a batch of this size is due; returns whether it is time to look after something else. Raises `Closing`."""
        if self._closing.is_set():
            raise Closing
        self._spent_bytes += size_bytes
        self._stretch_bytes += size_bytes
        self._stretch_batches += 1
        now_s = time.monotonic()
        ahead_s = self._ahead_s(now_s) if self._bytes_per_s else 0.0
        if ahead_s > _PATIENCE_S:
            if self._closing.wait(ahead_s):
                raise Closing
            self._rested_s = time.monotonic()
        else:
            self._rest_if_due(now_s)
        if self._stretch_bytes < _STRETCH_BYTES and self._stretch_batches < _STRETCH_BATCHES:
            return False
        self._stretch_bytes = self._stretch_batches = 0
        return True

    def rest(self) -> None:
        """Lets commits have the interpreter, if this thread has had it for a while. For work that costs no disk."""
        self._rest_if_due(time.monotonic())

    def _rest_if_due(self, now_s: float) -> None:
        if now_s - self._rested_s <= _BURST_S:
            return
        traffic = self._traffic()
        if traffic != self._seen_traffic:
            self._seen_traffic = traffic
            rests = self._rests if now_s < self._long_rests_until_s else 0.0
            rest_s = min(_REST_MAX_S, rests * (now_s - self._rested_s))
            self._closing.wait(max(_REST_S, rest_s))  # the thread that closes the storage waits for no rest
        self._rested_s = time.monotonic()

    def _ahead_s(self, now_s: float) -> float:
        """How long these bytes are early."""
        ahead_s = self._began_s + self._spent_bytes / self._bytes_per_s - now_s
        if ahead_s < -_CREDIT_S:
            self._began_s -= ahead_s + _CREDIT_S
        return ahead_s
