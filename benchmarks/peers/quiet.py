"""Whether the machine had time for what was measured: the disk alone beside it, and what processes that aren't ours did."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import attrs

from benchmarks.figures import clock, percentiles
from benchmarks.raw import raw_fdatasync

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_RAW_S = 0.1


@attrs.frozen
class Limits:
    """Beyond which a measurement is thrown away."""

    raw_p50_us: float = 150.0  # of writing and syncing 4 KiB, right before and right after
    foreign_cpus: float = 0.5  # that others used meanwhile, as a number of processors


@attrs.frozen
class Noise:
    """What was there beside a measurement."""

    raw_before_us: float
    raw_after_us: float
    foreign_cpus: float

    def exceeds(self, limits: Limits) -> str | None:
        """What was too much, in words."""
        raw_us = max(self.raw_before_us, self.raw_after_us)
        if raw_us > limits.raw_p50_us:
            return f"fdatasync alone took {raw_us:.0f} us"
        if self.foreign_cpus > limits.foreign_cpus:
            return f"other processes used {self.foreign_cpus:.1f} processors"
        return None

    @property
    def raw_us(self) -> float:
        """The middle of both."""
        return statistics.mean((self.raw_before_us, self.raw_after_us))


class Disk:
    """The disk below a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def raw_p50_us(self) -> float:
        """Of fdatasync alone, now. What others left in the page cache is written first: a system that doesn't sync must not be
        told from a busy machine by what it left."""
        os.sync()
        return percentiles(raw_fdatasync(self._directory, _RAW_S))["p50_us"]


class Foreign:
    """What processes that aren't ours did since this was made. Ours are this one and all that come from it, dead ones too."""

    def __init__(self) -> None:
        self._started = clock(), machine_s(), ours_s()

    def cpus(self) -> float:
        """As a number of processors that were busy for them."""
        started, machine_before_s, ours_before_s = self._started
        others_s = (machine_s() - machine_before_s) - (ours_s() - ours_before_s)
        return max(0.0, others_s / (clock() - started))


def machine_s() -> float:
    """Of all processors since the start: of programs, of the kernel for them, and what the host kept for others. Without
    interrupts, as those of the loopback are ours."""
    user, nice, system, _idle, _iowait, _irq, _softirq, steal = _numbers(Path("/proc/stat").read_text(), 1, 8)
    return (user + nice + system + steal) / _TICKS_PER_S


def ours_s() -> float:
    """Of this process and all that come from it, since they began."""
    processes = dict(_processes())
    return sum(processes[each].ticks for each in descendants(os.getpid(), processes)) / _TICKS_PER_S


@attrs.frozen
class Process:
    """What /proc says of it."""

    parent_id: int
    ticks: int  # of CPU time: its own, and that of its children that were waited for


def _processes() -> Iterable[tuple[int, Process]]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile: its parent's figures have it
            yield int(path.parent.name), parse(path.read_text(errors="replace"))


def parse(stat: str) -> Process:
    """A line of /proc/PID/stat. The name is in brackets, and may hold anything."""
    fields = stat.rpartition(")")[2].split()
    return Process(int(fields[1]), sum(map(int, fields[11:15])))


def descendants(process_id: int, processes: Mapping[int, Process]) -> set[int]:
    """It, its children, theirs and so on."""
    found, looked_at = {process_id} & processes.keys(), 0
    while looked_at < len(found):
        looked_at = len(found)
        found |= {each for each, process in processes.items() if process.parent_id in found}
    return found


def _numbers(text: str, first: int, count: int) -> list[int]:
    return [int(each) for each in text.split(maxsplit=first + count)[first : first + count]]
