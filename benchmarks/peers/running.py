"""Measures systems in turns. One runs at a time; whatever happens to it, the others are measured."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import attrs

from benchmarks.peers.children import held_bytes
from benchmarks.peers.plan import REFERENCE, WARM_UP, Scale, Task, carry_out, starts
from benchmarks.peers.quiet import Disk, Foreign, Limits, Noise
from benchmarks.peers.results import Candidate, Measurement, Results
from benchmarks.peers.system import NotMeasured, Running, System

_ATTEMPTS = 4  # at a task that something else disturbs
_PAUSE_S = 1.0  # after one that was disturbed: what disturbs it may be over then
_DEADLINE_S = 240.0  # of a task, and of a start: longer than any adapter waits for anything
_APPENDING = ("append", "sustained")
_FAILURES_MAX = 3  # of one system in one round; then it isn't asked any more until the next one

_WORDS_MAX = 3_000  # characters
_ROOT = Path(__file__).parents[2]

Say = Callable[[str], None]


class Environment(Protocol):
    """What a measurement may be disturbed by."""

    def raw_p50_us(self) -> float:
        """Of the disk alone, now."""

    def foreign(self) -> Callable[[], float]:
        """Begins to count what others do; to be called for how many processors they used since."""


class ThisMachine:
    """The real ones."""

    def __init__(self, directory: Path) -> None:
        self.raw_p50_us = Disk(directory).raw_p50_us

    def foreign(self) -> Callable[[], float]:
        """As it says."""
        return Foreign().cpus


@attrs.frozen
class Asked:
    """What a run is to do."""

    cases: Sequence[str]
    scale: Scale
    limits: Limits
    is_quick: bool = False
    pause_s: float = _PAUSE_S


class Runner:
    """`results` has all that was measured so far, whenever one looks."""

    def __init__(self, directory: Path, asked: Asked, environment: Environment, results: Results, say: Say) -> None:
        self.results = results
        self._directory = directory
        self._asked = asked
        self._environment = environment
        self._say = say

    def round(self, number: int, systems: Sequence[System]) -> Iterator[None]:
        """One turn for each system, begun with another one in each round, and in the other direction in every second:
        what the one before leaves to the next meets all of them. Yields after each."""
        first = number % max(1, len(systems))
        turned = [*systems[first:], *systems[:first]][:: -1 if number % 2 else 1]
        for system in turned:
            self._turn(number, system)
            yield

    def _turn(self, number: int, system: System) -> None:
        failures = 0
        for tasks in starts(system, self._asked.cases, self._asked.scale, number, is_quick=self._asked.is_quick):
            left = tasks
            while left and failures < _FAILURES_MAX:
                left, is_failed = self._start(number, system, left)
                failures += is_failed
            for task in left:
                self._take(Measurement(system.name, number, task, "failed", words="it had failed too often"))

    def _start(self, number: int, system: System, tasks: list[Task]) -> tuple[list[Task], bool]:
        """Carries out these, until one fails, or was disturbed and has to be done again from an empty directory. Returns those
        that are left for a new start, and whether one failed."""
        self._say(f"round {number + 1}: {system.title}: starts")
        left = list(tasks)
        try:
            with ExitStack() as stack:
                directory = stack.enter_context(self._empty(system))
                with deadline(_DEADLINE_S):
                    running = stack.enter_context(system.running(directory))
                    if tasks[0].case in _APPENDING:
                        scale = attrs.evolve(self._asked.scale, seconds=self._asked.scale.warm_up_s)
                        carry_out(running, WARM_UP[system.is_replicated], scale)
                while left:
                    if not self._measure(number, system, running, left[0], directory):
                        return left, False
                    del left[0]
        except (
            Exception
        ) as error:  # whatever it is: the other systems can be measured. It is told in the end, with code 1
            self._failed(number, system, left[:1], error)
            return left[1:], True
        return left, False

    @contextmanager
    def _empty(self, system: System) -> Iterator[Path]:
        directory = Path(tempfile.mkdtemp(prefix=f"{system.name}-", dir=self._directory))
        try:
            yield directory
        finally:
            shutil.rmtree(directory)

    def _measure(self, number: int, system: System, running: Running, task: Task, directory: Path) -> bool:
        """Again and again, as long as something disturbs it. False if it has to be done again from a new start."""
        while True:
            found = self._attempt(number, system, running, task, directory)
            self._take(found)
            if found.verdict != "not quiet" or self._attempts(number, system, task) == _ATTEMPTS:
                return True
            time.sleep(self._asked.pause_s)
            if task.case == "sustained" and found.figures:
                return False

    def _attempts(self, number: int, system: System, task: Task) -> int:
        found = ((each.round, each.system, each.task) for each in self.results.measurements)
        return sum(each == (number, system.name, task) for each in found)

    def _attempt(self, number: int, system: System, running: Running, task: Task, directory: Path) -> Measurement:
        limits, before_us = self._asked.limits, self._environment.raw_p50_us()
        busy = Noise(before_us, before_us, 0.0).exceeds(limits)
        if busy:
            return Measurement(system.name, number, task, "not quiet", words=f"{busy}, before")
        foreign = self._environment.foreign()
        try:
            with deadline(_DEADLINE_S):
                figures = carry_out(running, task, self._asked.scale)
                if task.case == "sustained":
                    figures["held_bytes"] = float(held_bytes(directory))
        except NotMeasured as error:
            if task.case in _APPENDING or system.name in REFERENCE.values():
                raise  # all of them can append, and replog can do everything: something is wrong
            return Measurement(system.name, number, task, "not measured", words=self._words(str(error)))
        cpus = foreign()
        noise = Noise(before_us, self._environment.raw_p50_us(), cpus)
        words = noise.exceeds(limits) or ""
        return Measurement(system.name, number, task, "not quiet" if words else "good", figures, noise, words)

    def _failed(self, number: int, system: System, tasks: Sequence[Task], error: Exception) -> None:
        words = self._words(f"{type(error).__name__}: {error}")
        for task in tasks:
            self._take(Measurement(system.name, number, task, "failed", words=words))
        doing = tasks[0].words if tasks else "stopping"
        self.results.failures.append(f"{system.title}, round {number + 1}, {doing}: {words}")

    def _words(self, words: str) -> str:
        """Without places on this machine, as results are published; of long ones, which are logs, how they begin and end."""
        for place, name in ((self._directory, "DIR"), (_ROOT, "ROOT")):
            words = words.replace(str(place), name)
        return words if len(words) <= _WORDS_MAX else f"{words[: _WORDS_MAX // 2]} ... {words[-_WORDS_MAX // 2 :]}"

    def _take(self, found: Measurement) -> None:
        self.results.measurements.append(found)
        told = ", ".join(f"{name} {value:.6g}" for name, value in found.figures.items())
        words = "; ".join(
            each for each in (found.verdict, found.words.partition("\n")[0], told) if each and each != "good"
        )
        self._say(f"round {found.round + 1}: {found.system}: {found.task.words}: {words}")


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raises `TimeoutError` in the midst of what takes longer. For the main thread alone."""

    def too_long(*_: object) -> None:
        raise TimeoutError(f"it took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def candidates(systems: Sequence[System]) -> tuple[list[Candidate], list[str]]:
    """What they are, and what those lack that can't run here; and a sentence for each that could not be asked."""
    found, failures = [], []
    for each in systems:
        try:
            missing = each.missing()
            version = "" if missing else each.version()
        except (
            Exception
        ) as error:  # whatever it is: the other systems can be measured. It is told in the end, with code 1
            missing, version = f"{type(error).__name__}: {error}", ""
            failures.append(f"{each.title} can't be asked for its version: {missing}")
        found.append(Candidate(each.name, each.title, each.is_replicated, each.promise, version, missing or ""))
    return found, failures
