"""Systems that are none, a machine that is as quiet as a test wants it, and results of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from benchmarks.figures import Figures
from benchmarks.peers.plan import KIB, Scale, Task
from benchmarks.peers.quiet import Limits, Noise
from benchmarks.peers.results import Candidate, Machine, Measurement, Results
from benchmarks.peers.running import Asked, Runner
from benchmarks.peers.system import Load, NotMeasured, Promise

MACHINE = Machine("a processor", 2, 8 * KIB**3, "Linux 6", "ext4", "a disk", "CPython 3.11", "abc1234")
QUIET = Noise(100.0, 110.0, 0.1)
TINY = Scale(seconds=0.25, sustained_s=0.75, warm_up_s=0.5, scans=((100, 20),), tail_entries=5)


_PROMISE = Promise(3, 2, True, "all of it | and more")


@attrs.define
class FakeSystem:
    """Tells what it was asked for in `asked`: "start", "stop", and the words of tasks. `doing` is called before each of these."""

    name: str
    is_replicated: bool = True
    entries_per_s: float = 1000.0
    lacks: str | None = None
    promise: Promise = _PROMISE
    asked: list[str] = attrs.field(factory=list)
    directories: list[Path] = attrs.field(factory=list)
    doing: Callable[[str], None] = lambda words: None
    title: str = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.title = self.name.capitalize()

    def missing(self) -> str | None:
        return self.lacks

    def version(self) -> str:
        return "1.2.3"

    @contextmanager
    def running(self, directory: Path) -> Iterator[FakeRunning]:
        assert list(directory.iterdir()) == []
        (directory / "file").write_text("something")
        self.directories.append(directory)
        self.tell("start")
        yield FakeRunning(self)
        self.tell("stop")

    def tell(self, words: str) -> None:
        self.asked.append(words)
        self.doing(words)


class FakeRunning:
    """Figures without doing anything."""

    def __init__(self, system: FakeSystem) -> None:
        self._system = system
        self.process_ids: Sequence[int] = ()

    def append(self, load: Load) -> Figures:
        self._system.tell(
            f"{Task('append', load.entry_bytes, load.in_flight, load.entries_per_call).words}, {load.seconds} s"
        )
        return append_figures(self._system.entries_per_s)

    def scan(self, entry_bytes: int, entries: int) -> Figures:
        self._system.tell(Task("scan", entry_bytes, entries=entries).words)
        return {"entries_per_s": 1e6, "client_cpu_us": 1.0, "server_cpu_us": 2.0}

    def tail(self, entry_bytes: int, entries: int) -> Figures:
        self._system.tell(Task("tail", entry_bytes, entries=entries).words)
        raise NotMeasured("nobody can follow")

    def take_over(self, entry_bytes: int) -> Figures:
        self._system.tell(Task("take-over", entry_bytes).words)
        return {"takeover_s": 1.5}

    def restart(self) -> Figures:
        self._system.tell("restart")
        return {"restart_s": 0.25, "held_bytes": 3.5 * KIB**2}


def append_figures(entries_per_s: float) -> Figures:
    """As `Running.append` tells them."""
    p50_us = 1e6 / entries_per_s
    latencies = {"p50_us": p50_us, "p99_us": 2 * p50_us, "p999_us": 4 * p50_us}
    return {"entries": 10.0, "entries_per_s": entries_per_s, **latencies, "client_cpu_us": 1.0, "server_cpu_us": 3.0}


@attrs.define
class FakeEnvironment:
    """What is told of the disk and of others, in turns; quiet when nothing is left."""

    raw_us: list[float] = attrs.field(factory=list)
    cpus: list[float] = attrs.field(factory=list)

    def raw_p50_us(self) -> float:
        return self.raw_us.pop(0) if self.raw_us else 100.0

    def foreign(self) -> Callable[[], float]:
        return lambda: self.cpus.pop(0) if self.cpus else 0.0


def empty_results(rounds: int = 1) -> Results:
    return Results(MACHINE, ["make bench-peers"], ["2026-11-20T20:00+00:00"], rounds, 1.0, Limits())


def runner(
    directory: Path, *cases: str, environment: FakeEnvironment | None = None, is_quick: bool = True
) -> tuple[Runner, list[str]]:
    """And what it says."""
    said: list[str] = []
    asked = Asked(cases, TINY, Limits(), is_quick=is_quick, pause_s=0.0)
    return Runner(directory, asked, environment or FakeEnvironment(), empty_results(), said.append), said


def candidate(name: str, *, is_replicated: bool = True, is_synced: bool = True, missing: str = "") -> Candidate:
    return Candidate(name, name.capitalize(), is_replicated, Promise(3, 2, is_synced, "all | of it"), "1.2.3", missing)


def good(system: str, number: int, task: Task, **figures: float) -> Measurement:
    return Measurement(system, number, task, "good", figures, QUIET)
