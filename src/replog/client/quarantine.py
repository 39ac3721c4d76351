"""Bookies that failed are left alone for a while: longer each time, and not all until the same moment."""

from __future__ import annotations

from replog.runtime.chance import current_chance

_FORGIVEN_AFTER = 4  # times its last quarantine without a failure, and a bookie begins anew
_JITTER = 0.2


class Quarantine:
    """How long to leave which bookie alone: the shortest time at first, doubled with each failure that follows, up to the
    longest. Who calls says what time it is."""

    def __init__(self, shortest_s: float, longest_s: float) -> None:
        self._shortest_s = shortest_s
        self._longest_s = longest_s
        self._held: dict[str, tuple[float, float]] = {}  # until when, and for how long, in seconds
        self._random = current_chance().random

    def failed(self, bookie_id: str, now_s: float) -> None:
        """It failed. What fails while it is held anyway is the same failure."""
        until_s, held_s = self._held.get(bookie_id, (now_s, 0.0))
        if now_s < until_s:
            return
        is_forgiven = now_s >= until_s + _FORGIVEN_AFTER * held_s
        held_s = self._shortest_s if is_forgiven else min(2 * held_s, self._longest_s)
        self._held[bookie_id] = (now_s + held_s * (1 - _JITTER * self._random.random()), held_s)

    def succeeded(self, bookie_id: str) -> None:
        """It works: when it fails again, that is the first time."""
        self._held.pop(bookie_id, None)

    def holds(self, bookie_id: str, now_s: float) -> bool:
        """Whether to leave it alone still."""
        until_s, _ = self._held.get(bookie_id, (now_s, 0.0))
        return now_s < until_s
