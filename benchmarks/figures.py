"""Time and CPU time of a measurement, and what is computed from them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence

Figures = dict[str, float]
clock = time.perf_counter


class Meter:
    """Wall time, and CPU time of all threads of this process, since it was made."""

    def __init__(self) -> None:
        self._time, self._cpu = clock(), time.process_time()

    def figures(self, entries: int) -> Figures:
        """What so many entries cost."""
        elapsed, cpu = clock() - self._time, time.process_time() - self._cpu
        return {"entries_per_s": entries / elapsed, "total_cpu_us": cpu / entries * 1e6}


def percentiles(durations_s: Sequence[float]) -> Figures:
    """The middle of these durations, and the one that only each hundredth exceeds, in microseconds."""
    ordered = sorted(durations_s)
    return {"p50_us": ordered[len(ordered) // 2] * 1e6, "p99_us": ordered[len(ordered) * 99 // 100] * 1e6}


def medians(rounds: Iterable[Figures]) -> Figures:
    """The median of each figure over the rounds."""
    found = list(rounds)
    return {name: statistics.median(each[name] for each in found) for name in found[0]} if found else {}
