"""Durations of many calls, in bounded memory."""

from __future__ import annotations

import math

_KEPT_MAX = 200_000


class Samples:
    """Durations in seconds: all of them while they are few, then every second one, every fourth, and so on.

    The longest one is always known."""

    def __init__(self) -> None:
        self.count = 0
        self.longest_s = 0.0
        self._kept: list[float] = []
        self._every = 1

    def add(self, duration_s: float) -> None:
        """Add a duration, in seconds."""
        if self.count % self._every == 0:
            self._kept.append(duration_s)
            if len(self._kept) >= _KEPT_MAX:
                # Thinned evenly over the whole run, so that quantiles stay those of all of it and not of its end.
                self._kept = self._kept[::2]
                self._every *= 2
        self.count += 1
        self.longest_s = max(self.longest_s, duration_s)

    def quantile(self, share: float) -> float | None:
        """The duration that this share of the calls did not exceed, in seconds; None if there were no calls."""
        if not self._kept:
            return None
        return sorted(self._kept)[max(0, math.ceil(share * len(self._kept)) - 1)]

    def to_json(self) -> dict[str, float | int | None]:
        """The count and the usual quantiles."""
        named = {"p50_s": 0.5, "p90_s": 0.9, "p99_s": 0.99, "p999_s": 0.999}
        quantiles = {name: self.quantile(share) for name, share in named.items()}
        return {"count": self.count, **quantiles, "longest_s": self.longest_s if self.count else None}
