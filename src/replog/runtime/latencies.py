"""A latency histogram with fixed buckets: observing costs a bisection, and two histograms can be subtracted.

Pure, and without a lock: one thread observes, any other may copy at any time; what it sees then may lack the last
observation in one of its sums. All histograms have the same bounds, so they can be added, subtracted and sent as numbers.
For Prometheus: `cumulative()` gives the buckets as `le` wants them, `count` and `total_s` the rest.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

BOUNDS_S: tuple[float, ...] = tuple(
    round(step * 10.0**power, 7) for power in range(-5, 2) for step in (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
)
"""Upper ends of the buckets, in s: from 10 us to 70 s, a third to a half apart. One more bucket has what took longer."""


class LatencyHistogram:
    """The number of observations in each bucket, and the sum of all in s."""

    __slots__ = ("counts", "total_s")

    def __init__(self, counts: Sequence[int] = (), total_s: float = 0.0) -> None:
        self.counts = list(counts) or [0] * (len(BOUNDS_S) + 1)
        self.total_s = total_s
        assert len(self.counts) == len(BOUNDS_S) + 1, f"{len(self.counts)} buckets"

    def observe(self, latency_s: float) -> None:
        """Counts one observation, in seconds."""
        self.counts[bisect_left(BOUNDS_S, latency_s)] += 1
        self.total_s += latency_s

    @property
    def count(self) -> int:
        """The number of observations."""
        return sum(self.counts)

    def copy(self) -> LatencyHistogram:
        """A copy that later observations don't change."""
        return LatencyHistogram(self.counts, self.total_s)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LatencyHistogram):
            return NotImplemented
        return self.counts == other.counts and self.total_s == other.total_s

    def since(self, earlier: LatencyHistogram) -> LatencyHistogram:
        """The values observed after that copy was made; all of them, if this one was reset meanwhile."""
        counts = [now - then for now, then in zip(self.counts, earlier.counts, strict=True)]
        # A bucket that sank says that the process was restarted, and its counters with it.
        return self.copy() if min(counts) < 0 else LatencyHistogram(counts, max(0.0, self.total_s - earlier.total_s))

    @classmethod
    def merged(cls, histograms: Iterable[LatencyHistogram]) -> LatencyHistogram:
        """The observations of all of them."""
        merged = cls()
        for each in histograms:
            merged.counts = [one + other for one, other in zip(merged.counts, each.counts, strict=True)]
            merged.total_s += each.total_s
        return merged

    def quantile(self, share: float) -> float | None:
        """The latency in s that this share of all observations (0.99: 99 %) did not exceed, between the bounds of its
        bucket by interpolation; values beyond the last bound count as that bound. None if there were no observations."""
        wanted = share * self.count
        if not self.count:
            return None
        seen = 0
        for place, (count, below_s) in enumerate(zip(self.counts, (*BOUNDS_S, BOUNDS_S[-1]), strict=True)):
            if count and seen + count >= wanted:
                above_s = BOUNDS_S[place - 1] if place else 0.0
                return above_s + (below_s - above_s) * max(0.0, wanted - seen) / count
            seen += count
        return BOUNDS_S[-1]

    def cumulative(self) -> list[tuple[float, int]]:
        """For each bound, in s, how many observations did not exceed it; the last bound is infinite."""
        return list(zip((*BOUNDS_S, float("inf")), itertools.accumulate(self.counts), strict=True))

    def to_json(self) -> dict[str, Any]:
        """As numbers: only the buckets that hold something, by their place."""
        buckets = {str(place): count for place, count in enumerate(self.counts) if count}
        return {"total_s": self.total_s, "buckets": buckets}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LatencyHistogram:
        """Reads what `to_json` gave. Raises `ValueError` for anything else."""
        found = cls()
        try:
            for place, count in value["buckets"].items():
                if not 0 <= int(place) < len(found.counts) or int(count) < 0:
                    raise ValueError(f"{count} in bucket {place}")
                found.counts[int(place)] = int(count)
            found.total_s = float(value["total_s"])
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise ValueError(f"no histogram of latencies: {error}") from error
        return found
