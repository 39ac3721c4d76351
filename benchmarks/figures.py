"""Time and CPU time of a measurement, and what is computed from them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence

Figures = dict[str, float]
clock = time.perf_counter


class Meter:
    """Wall time, and CPU time of all threads of this process and of these others, since it was made."""

    def __init__(self, *process_ids: int) -> None:
        self._clocks = [~process_id << 3 | 2 for process_id in process_ids]  # as clock_getcpuclockid(3) has it on Linux
        self._started = self._read()

    def _read(self) -> tuple[float, float, float]:
        return clock(), time.process_time(), sum(map(time.clock_gettime, self._clocks))

    def figures(self, entries: int) -> Figures:
        """What so many entries cost."""
        elapsed, here, others = (now - then for now, then in zip(self._read(), self._started, strict=True))
        return {
            "entries_per_s": entries / elapsed,
            "total_cpu_us": (here + others) / entries * 1e6,
            "client_cpu_us": here / entries * 1e6,
        }


def percentiles(durations_s: Sequence[float]) -> Figures:
    """The middle of these durations, and those that each hundredth and each thousandth exceeds, in microseconds."""
    ordered = sorted(durations_s)
    return {
        "p50_us": ordered[len(ordered) // 2] * 1e6,
        "p99_us": ordered[len(ordered) * 99 // 100] * 1e6,
        "p999_us": ordered[len(ordered) * 999 // 1000] * 1e6,
    }


def medians(rounds: Iterable[Figures]) -> Figures:
    """The median of each figure over the rounds that have it: a short load has no worst second."""
    found: dict[str, list[float]] = {}
    for each in rounds:
        for name, value in each.items():
            found.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in found.items()}
