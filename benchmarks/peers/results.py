"""What was measured: every attempt of every round, on which machine; and the medians and ratios that come of it."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs
import cattrs

from benchmarks.figures import Figures, medians
from benchmarks.peers.plan import REFERENCE, Task
from benchmarks.peers.quiet import Limits, Noise
from benchmarks.peers.system import Promise

Verdict = Literal["good", "not quiet", "not measured", "failed"]


@attrs.frozen
class Measurement:
    """One attempt."""

    system: str
    round: int
    task: Task
    verdict: Verdict
    figures: Figures = attrs.field(factory=dict)  # none unless it is good, or was not quiet
    noise: Noise | None = None  # None where it was not begun, or not ended
    words: str = ""  # why it isn't good


@attrs.frozen
class Candidate:
    """A system that was measured, or was to be."""

    name: str
    title: str
    is_replicated: bool
    promise: Promise
    version: str = ""
    missing: str = ""  # what it lacks here; it was skipped then


@attrs.frozen
class Machine:
    """Where it was measured."""

    processor: str
    processors: int
    memory_bytes: int
    kernel: str
    file_system: str
    disk: str
    python: str
    replog: str  # its commit, and whether there was more than was committed


@attrs.define
class Results:
    """All of it. A list for what several runs of the program have each."""

    machine: Machine
    commands: list[str]
    dates: list[str]
    rounds: int
    seconds: float
    limits: Limits
    candidates: list[Candidate] = attrs.field(factory=list)
    measurements: list[Measurement] = attrs.field(factory=list)
    failures: list[str] = attrs.field(factory=list)  # each a sentence
    is_interrupted: bool = False

    def measured(self, *, is_replicated: bool) -> list[Candidate]:
        """Those of which there is any figure."""
        names = {each.system for each in self.measurements if each.verdict == "good"}
        return [each for each in self.candidates if each.is_replicated is is_replicated and each.name in names]

    def tasks(self, case: str) -> list[Task]:
        """Those that were measured of this case, in their order."""
        return list(dict.fromkeys(each.task for each in self.measurements if each.task.case == case))

    def good(self, system: str, task: Task) -> Iterator[Measurement]:
        """What counts; at most one for each round."""
        return (each for each in self.measurements if (each.system, each.task, each.verdict) == (system, task, "good"))

    def figures(self, system: str, task: Task) -> Figures:
        """Medians over the rounds; empty if there is none."""
        return medians(each.figures for each in self.good(system, task))

    def rounds_of(self, case: str) -> int:
        """In how many rounds there is a figure of this case."""
        return len({each.round for each in self.measurements if each.task.case == case and each.verdict == "good"})

    def ratios(self, system: str, reference: str, task: Task, figure: str) -> list[float]:
        """Of the reference's figure to the system's, one for each round in which both were measured."""
        found = {each.round: each.figures[figure] for each in self.good(system, task)}
        against = {each.round: each.figures[figure] for each in self.good(reference, task)}
        return [against[number] / found[number] for number in sorted(found.keys() & against.keys())]

    def raw_p50_us(self) -> float | None:
        """Of the disk alone, beside what counts."""
        found = [each.noise.raw_us for each in self.measurements if each.verdict == "good" and each.noise]
        return statistics.median(found) if found else None

    def count(self, verdict: Verdict) -> int:
        """How many attempts ended so."""
        return sum(each.verdict == verdict for each in self.measurements)

    def why_not(self, system: str, task: Task) -> tuple[Verdict, str] | None:
        """Why there is no figure: of the last attempt. None if there is one, or if nobody asked for it."""
        if any(self.good(system, task)):
            return None
        tried = [each for each in self.measurements if (each.system, each.task) == (system, task)]
        return (tried[-1].verdict, tried[-1].words) if tried else None


def reference(candidate: Candidate) -> str:
    """Of replog's two, the one that it is compared with."""
    return REFERENCE[candidate.is_replicated]


@attrs.frozen
class Goal:
    """Of replog: to be so many times as good as another system; None for a ratio that stands beside the others for its reader."""

    system: str
    task: Task
    at_least: float | None
    figure: str = "entries_per_s"

    @property
    def is_rate(self) -> bool:
        """Whether more is better."""
        return self.figure.endswith("_per_s")

    def ratios(self, results: Results, candidate: Candidate) -> list[float]:
        """How many times as good, by round."""
        found = results.ratios(self.system, reference(candidate), self.task, self.figure)
        return found if self.is_rate else [1 / each for each in found]


def _rates(system: str, at_least: float | None, *tasks: Task) -> list[Goal]:
    return [Goal(system, task, at_least) for task in tasks]


_LARGE, _SMALL = (Task("append", entry_bytes, 1_000) for entry_bytes in (1024, 100))
_BATCHED = tuple(Task("append", entry_bytes, 1, 1_000) for entry_bytes in (1024, 100))
_LONE = tuple(Task("append", entry_bytes, 1) for entry_bytes in (1024, 100))

GOALS = (
    *_rates("bookkeeper", 2.0, _LARGE),
    *_rates("bookkeeper", 5.0, _SMALL),
    *_rates("kafka-synced", None, _LARGE, _SMALL),
    *_rates("kafka", None, _LARGE, _SMALL),
    *_rates("etcd", 15.0, _LARGE),
    *_rates("redis", 5.0, _LARGE),
    *_rates("nats", 8.0, _LARGE),
    *_rates("zookeeper-session", 50.0, _SMALL),
    *_rates("zookeeper", None, _SMALL),
    *_rates("rabbitmq", 20.0, _SMALL),
    *_rates("rabbitmq", None, _LARGE),
    *_rates("pysyncobj", 12.0, _LARGE),
    *(Goal(system, task, 1.0, "p50_us") for system in ("redis", "etcd") for task in _LONE),
    *_rates("sqlite", 3.0, *_BATCHED),
    *_rates("lmdb", 1.0, *_BATCHED),
)


@attrs.frozen
class Judged:
    """A goal, and what was measured of it."""

    goal: Goal
    title: str  # of the other system
    ratio: float
    least: float
    most: float

    @property
    def is_met(self) -> bool | None:
        """By the median. None where there is nothing to meet."""
        return None if self.goal.at_least is None else self.ratio >= self.goal.at_least


def judge(results: Results, goals: Sequence[Goal] = GOALS) -> list[Judged]:
    """Those goals of which both sides were measured in one round at least."""
    candidates = {each.name: each for each in results.candidates}
    found = []
    for goal in goals:
        candidate = candidates.get(goal.system)
        ratios = goal.ratios(results, candidate) if candidate else []
        if candidate and ratios:
            found.append(Judged(goal, candidate.title, statistics.median(ratios), min(ratios), max(ratios)))
    return found


def merged(parts: Sequence[Results]) -> Results:
    """Of several runs on one machine, maybe of different loads. Ratios stay within a run."""
    first, *others = parts
    found = attrs.evolve(first, measurements=[*first.measurements], candidates=[*first.candidates])
    for each in others:
        if attrs.evolve(each.machine, replog="") != attrs.evolve(first.machine, replog=""):
            raise ValueError("results of different machines say nothing beside each other")
        found.measurements += [attrs.evolve(one, round=one.round + found.rounds) for one in each.measurements]
        newest = {one.name: one for one in each.candidates}
        found.candidates = [newest.pop(one.name, one) for one in found.candidates]
        found.candidates += newest.values()
        found = attrs.evolve(
            found,
            commands=[*found.commands, *each.commands],
            dates=[*found.dates, *each.dates],
            rounds=found.rounds + each.rounds,
            failures=[*found.failures, *each.failures],
            is_interrupted=found.is_interrupted or each.is_interrupted,
        )
    return attrs.evolve(found, rounds=_usual_rounds(found.measurements)) if others else found


def _usual_rounds(measurements: Iterable[Measurement]) -> int:
    """In how many rounds most loads were measured: runs may have had different ones."""
    rounds: defaultdict[tuple[str, Task], set[int]] = defaultdict(set)
    for each in measurements:
        rounds[each.system, each.task].add(each.round)
    return statistics.mode(map(len, rounds.values()))


def to_json(results: Results) -> str:
    """One line for each measurement, so that changes of it can be read."""
    head: dict[str, Any] = attrs.asdict(attrs.evolve(results, measurements=[]))
    del head["measurements"]
    lines = (json.dumps(attrs.asdict(_rounded(each))) for each in results.measurements)
    return json.dumps(head, indent=1)[:-2] + ',\n "measurements": [\n' + ",\n".join(lines) + "\n ]\n}\n"


def from_json(text: str) -> Results:
    """Raises `ValueError` for what isn't ours."""
    try:
        return cattrs.structure(json.loads(text), Results)
    except (cattrs.BaseValidationError, TypeError) as error:
        raise ValueError("these are no results of this program") from error


def write(path: Path, text: str) -> None:
    """All of it or what was there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _rounded(measurement: Measurement) -> Measurement:
    """To six digits, which is more than anybody can measure."""
    noise = measurement.noise
    return attrs.evolve(
        measurement,
        figures={name: _digits(value) for name, value in measurement.figures.items()},
        noise=noise and Noise(*map(_digits, attrs.astuple(noise))),
    )


def _digits(value: float) -> float:
    return float(f"{value:.6g}")


def failed(results: Results) -> Iterable[str]:
    """What a run ends with code 1 for, in sentences. A case that a system has no form of is no failure."""
    yield from results.failures
    if results.is_interrupted:
        yield "the run was interrupted"
