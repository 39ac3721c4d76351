"""Where and how long to measure, what a measurement found, and how figures of one round are compared."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs

from benchmarks.against import Against
from benchmarks.figures import Figures
from benchmarks.loads import Place
from benchmarks.remote.place import RemotePlaces

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

Round = Mapping[str, Figures]  # by what was measured


@attrs.frozen
class Scale:
    """How much the cases of the storages, of shapes and of Spark write, and those of the metastores create."""

    write_bytes: int = 4 * GIB  # through each storage, for its rate
    ledgers: int = 1000  # written in turn
    turns: int = 10  # of the ledgers, each with a batch, for the cost of many ledgers
    ledger_bytes: int = 2 * MIB  # of each ledger that is read
    replay_bytes: int = GIB
    batches: int = 10_000  # of which the index is measured
    points: int = 20_000  # single reads
    scattered_bytes: int = GIB  # compacted while the rate is measured
    latency_bytes: int = 10 * GIB  # compacted while the latency is
    quiet_s: float = 10.0  # of latency without compaction
    file_bytes: int = 64 * MIB  # of a journal file: the default of the storage
    metastore_ledgers: tuple[int, ...] = (1_000, 10_000, 100_000)  # in a metastore, ascending
    metastore_segments: tuple[int, ...] = (10, 1_000, 10_000)  # of a log there, ascending
    metastore_times: int = 30  # that each thing is done there
    small_ledgers: int = 20_000  # that are created, for the cost of each
    small_logs: int = 20_000
    footprint: int = 2_000  # ledgers, readers, followers that are open at once
    shapes_ledgers: tuple[int, ...] = (1, 10, 100, 1_000, 10_000)  # open at once in one client, ascending
    shapes_remote_ledgers: tuple[int, ...] = (1, 10, 100, 1_000)
    shapes_entries: int = 20_000  # appended to them together, whatever their number
    shapes_segments: tuple[int, ...] = (10, 1_000, 10_000)  # of a log, ascending
    shapes_ledger_entries: tuple[int, ...] = (10_000, 100_000, 1_000_000, 10_000_000)  # of a ledger, ascending
    shapes_bookies: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8, 9)  # ascending, three among them
    shapes_remote_bookies: tuple[int, ...] = (1, 3, 5)
    shapes_in_flight_bytes: tuple[int, ...] = (KIB, MIB, 8 * MIB, 64 * MIB)  # when a leader is killed, ascending
    shapes_ledger_bytes: tuple[int, ...] = (MIB, 32 * MIB, 256 * MIB)  # of its ledger, ascending
    shapes_times: int = 7  # that a log is taken over
    archived_segments: int = 100_000  # of a log, and of one that is not archived
    repair_bytes: int = GIB  # of entries in a cluster that loses a bookie
    repair_ledgers: int = 10_000  # small ones, which are audited
    repair_window_s: float = 2.0  # of appends with a repair, and of as many without
    upkeep_window_s: float = 20.0  # of pushes beside each kind of upkeep, and without
    upkeep_ledgers: int = 10_000  # small ones, in each of three bookies
    idle_followers: int = 1_000
    idle_s: float = 10.0
    killed_bytes: int = 10 * GIB  # in the journal of a bookie that is killed
    trimmed_s: float = (
        120.0  # of a log that is written at full rate and trimmed, with bookie processes and with embedded ones
    )
    spark_rows: int = 2_000_000  # of a job of Spark's
    spark_job_rows: int = 10_000_000  # of a long one


QUICK = Scale(
    write_bytes=128 * MIB,
    ledgers=100,
    turns=10,
    ledger_bytes=MIB // 4,
    replay_bytes=64 * MIB,
    batches=1000,
    points=2000,
    scattered_bytes=128 * MIB,
    latency_bytes=128 * MIB,
    quiet_s=1.0,
    metastore_ledgers=(100, 1_000),
    metastore_segments=(10, 1_000),
    small_ledgers=500,
    small_logs=1_000,
    footprint=100,
    shapes_ledgers=(1, 100),
    shapes_remote_ledgers=(1, 100),
    shapes_entries=2_000,
    shapes_segments=(10, 1_000),
    shapes_ledger_entries=(1_000, 100_000),
    shapes_bookies=(1, 3, 5),
    shapes_remote_bookies=(1, 3),
    shapes_in_flight_bytes=(KIB, MIB),
    shapes_ledger_bytes=(MIB, 8 * MIB),
    shapes_times=2,
    archived_segments=1_000,
    repair_bytes=128 * MIB,
    repair_ledgers=300,
    repair_window_s=0.5,
    upkeep_window_s=1.0,
    upkeep_ledgers=300,
    idle_followers=100,
    idle_s=1.0,
    killed_bytes=256 * MIB,
    trimmed_s=5.0,
    spark_rows=100_000,
    spark_job_rows=200_000,
)


class SparkJobs(Protocol):
    """Has Spark do a job, and measures it. `process_id` is that of Spark's driver, all processes of which are its children."""

    @property
    def process_id(self) -> int:
        """Starts it, if it does not run."""

    def __call__(self, job: str, **arguments: Any) -> Figures:
        """Figures of one job. Raises `NotMeasured`."""


class NotMeasured(Exception):
    """What was to be measured did not happen, or its results are wrong: no figure is better than this one."""


@attrs.frozen
class Setting:
    """Where and how long to measure."""

    directory: Path
    seconds: float
    against: Against
    one: Place
    three: Place
    remote: RemotePlaces
    spark: SparkJobs
    memory_bytes: int
    scale: Scale = attrs.field(factory=Scale)


@attrs.frozen
class Comparison:
    """One line of the table: a figure, divided by another one of the same round. Without a goal it only informs.

    What a round could not measure, since a storage is not there, it has no figure of."""

    case: str
    title: str
    measured: str
    against: str
    figure: str
    against_figure: str
    unit: str
    goal: float | None = None
    at_least: bool = True

    def is_there(self, rounds: Sequence[Round]) -> bool:
        """Whether both figures were measured."""
        return all(self.measured in each and self.against in each for each in rounds)

    def ratios(self, rounds: Sequence[Round]) -> list[float]:
        """One for each round."""
        return [each[self.measured][self.figure] / each[self.against][self.against_figure] for each in rounds]

    def median(self, rounds: Sequence[Round]) -> float:
        """Of the ratios."""
        return statistics.median(self.ratios(rounds))

    def is_met(self, ratio: float) -> bool | None:
        """Whether the goal is; None without one."""
        if self.goal is None:
            return None
        return ratio >= self.goal if self.at_least else ratio <= self.goal
