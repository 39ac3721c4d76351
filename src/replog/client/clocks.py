"""Whether this client's wall clock is right, as far as bookies and its monotonic clock can tell (L3a).

Rules:

- No single reading of a wall clock decides on a deletion. A majority of the bookies that are asked must tell the same
  time, within a minute. A bookie that does not answer confirms nothing.
- A wall clock has jumped if it and the monotonic clock have advanced by amounts that differ by more than a minute.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta

import attrs
import trio

from replog.client.administration import ask_bookie
from replog.client.connections import Connections
from replog.errors import BookieError, MetastoreError
from replog.protocol.messages import AdminCommand
from replog.runtime.entropy import Entropy
from replog.runtime.nursery import for_each

TOLERANCE_S = 60.0
_ANSWER_TIMEOUT_S = 3.0
_ASKED_AT_ONCE = 16


@attrs.frozen
class ClockReading:
    """The wall clock of this client, in ms since the epoch, and its monotonic clock at that moment."""

    time_ms: int
    monotonic_s: float

    def jump_s(self, earlier: ClockReading) -> float:
        """By how much the wall clock has advanced more than the monotonic clock since that reading; negative if less."""
        return (self.time_ms - earlier.time_ms) / 1000 - (self.monotonic_s - earlier.monotonic_s)

    def problem_since(self, earlier: ClockReading) -> str:
        """Says that the wall clock has jumped since that reading; "" if it has not."""
        jump_s = self.jump_s(earlier)
        if abs(jump_s) <= TOLERANCE_S:
            return ""
        passed_s = self.monotonic_s - earlier.monotonic_s
        way = "ahead" if jump_s > 0 else "back"
        return f"the wall clock of this client has jumped {told_s(abs(jump_s))} {way} within {told_s(passed_s)}"


@attrs.frozen
class ClockComparison:
    """By how much this client's clock is ahead of each bookie's, in seconds; None for a bookie that did not tell its time."""

    ahead_s: Mapping[str, float | None]

    @property
    def is_confirmed(self) -> bool:
        """True if a majority of the bookies agree with this client's clock."""
        agreeing = [each for each in self.ahead_s.values() if each is not None and abs(each) <= TOLERANCE_S]
        return 2 * len(agreeing) > len(self.ahead_s)

    @property
    def is_contradicted(self) -> bool:
        """True if a majority of the bookies that told their time disagree."""
        heard = [each for each in self.ahead_s.values() if each is not None]
        return 2 * sum(abs(each) > TOLERANCE_S for each in heard) > len(heard)

    @property
    def doubtful(self) -> tuple[str, ...]:
        """The bookies whose clocks differ from this client's, or are unknown, sorted."""
        return tuple(
            bookie_id
            for bookie_id, ahead_s in sorted(self.ahead_s.items())
            if ahead_s is None or abs(ahead_s) > TOLERANCE_S
        )

    @property
    def problem(self) -> str:
        """Names the clocks; "" if a majority of the bookies agree."""
        if self.is_confirmed:
            return ""
        told = ", ".join(_compared(bookie_id, ahead_s) for bookie_id, ahead_s in sorted(self.ahead_s.items()))
        return f"no majority of the bookies confirms the wall clock of this client: {told or 'none is known'}"


class Clocks:
    """Compares this client's wall clock with those of bookies."""

    def __init__(self, connections: Connections, entropy: Entropy) -> None:
        self._connections = connections
        self._entropy = entropy
        self._opened = self.read()
        self._passes: dict[str, ClockReading] = {}  # by what was passed over

    def read(self) -> ClockReading:
        """The clocks of this client now."""
        return ClockReading(self._entropy.time_ms(), trio.current_time())

    def pass_over(self, log_name: str) -> tuple[ClockReading, str]:
        """Begins a pass over a log: the clocks now, and how the wall clock has jumped since the last pass over that log, or since
        this client was opened; "" if it has not."""
        reading = self.read()
        problem = reading.problem_since(self._passes.get(log_name, self._opened))
        self._passes[log_name] = reading
        return reading, problem

    async def compare(self, bookie_ids: Collection[str], reading: ClockReading) -> ClockComparison:
        """Asks these bookies for their time, to compare this reading with. Takes a few seconds at most, and never raises."""
        ahead_s: dict[str, float | None] = {}

        async def ask(bookie_id: str) -> None:
            ahead_s[bookie_id] = await self._ahead_s(bookie_id, reading)

        await for_each(ask, sorted(bookie_ids), _ASKED_AT_ONCE)
        return ClockComparison(ahead_s)

    async def _ahead_s(self, bookie_id: str, reading: ClockReading) -> float | None:
        try:
            found = await ask_bookie(bookie_id, self._connections, AdminCommand.STATISTICS, _ANSWER_TIMEOUT_S)
        except (BookieError, MetastoreError):
            return None
        time_ms = found.get("time_ms")
        if type(time_ms) is not int:
            return None
        # It was read between the question and the answer. Measured by the monotonic clock: the wall clock may jump meanwhile.
        passed_s = trio.current_time() - reading.monotonic_s
        ahead_s = (reading.time_ms - time_ms) / 1000
        return ahead_s if ahead_s > 0 else min(0.0, ahead_s + passed_s)


def _compared(bookie_id: str, ahead_s: float | None) -> str:
    if ahead_s is None:
        return f"bookie {bookie_id} does not tell its time"
    if abs(ahead_s) <= TOLERANCE_S:
        return f"it agrees with that of bookie {bookie_id}"
    return f"it is {told_s(abs(ahead_s))} {'ahead of' if ahead_s > 0 else 'behind'} that of bookie {bookie_id}"


def told_s(seconds: float) -> str:
    """A duration for people."""
    return f"{timedelta(seconds=round(seconds))} h" if seconds < 86_400 else f"{seconds / 86_400:.1f} days"
