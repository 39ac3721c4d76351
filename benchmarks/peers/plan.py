"""What each system is asked for in a round, and how much of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from benchmarks.figures import Figures
from benchmarks.peers.system import Load, Running, System

KIB = 1 << 10
SIZES_BYTES = (100, KIB, 64 * KIB)
IN_FLIGHT = (1, 100, 1_000, 10_000)
CASES = ("append", "sustained", "scan", "tail", "take-over", "restart")
ONCE = ("sustained",)  # in the first round only: it takes long, and no goal hangs on it
APPENDS_ONLY = ("zookeeper-session",)  # another form of the writer alone: the rest is that of `zookeeper`
ROUNDS = 3
REFERENCE = {True: "replog", False: "replog-local"}  # with which others are compared, by whether they are replicated


@attrs.frozen
class Task:
    """One measurement: the case, and those of its measures that it has; the others are 0."""

    case: str
    entry_bytes: int = 0
    in_flight: int = 0
    entries_per_call: int = 1
    entries: int = 0

    @property
    def words(self) -> str:
        """For progress and notes."""
        parts = [self.case]
        parts += [size(self.entry_bytes)] if self.entry_bytes else []
        parts += [f"{self.in_flight} in flight"] if self.in_flight else []
        parts += [f"{self.entries_per_call} per call"] if self.entries_per_call > 1 else []
        parts += [f"{self.entries} entries"] if self.entries else []
        return ", ".join(parts)


@attrs.frozen
class Scale:
    """How long an append load lasts, and how many entries the other cases take."""

    seconds: float = 1.0
    sustained_s: float = 15.0
    warm_up_s: float = 2.0  # before the first of a system's append loads, for compilers that learn while they run
    scans: tuple[tuple[int, int], ...] = ((100, 100_000), (KIB, 50_000))  # (bytes of an entry, entries)
    tail_entries: int = 500


QUICK = Scale(seconds=0.2, sustained_s=0.5, warm_up_s=0.2, scans=((100, 2_000),), tail_entries=50)
EXTEND = tuple(Task("append", size_bytes, 10_000, 1_000) for size_bytes in (100, KIB))  # replog's form for many at once
SUSTAINED = Task("sustained", KIB, 1_000)
SUSTAINED_BYTES_MAX = 18 << 30  # of entries on the disks of all three nodes; 2 GiB more are for what is there beside
WARM_UP = {True: Task("append", KIB, 100), False: Task("append", KIB, 1, 100)}  # by whether it is replicated

APPENDS = tuple(
    Task("append", entry_bytes, in_flight)
    for entry_bytes in SIZES_BYTES
    for in_flight in IN_FLIGHT
    if entry_bytes * in_flight < 100 << 20  # more than that waits for memory, not for the system
)
LOCAL_APPENDS = tuple(Task("append", entry_bytes, 1, calls) for entry_bytes in SIZES_BYTES for calls in (1, 100, 1_000))


def starts(system: System, cases: Sequence[str], scale: Scale, number: int, *, is_quick: bool) -> list[list[Task]]:
    """The tasks of the round with this number (the first one is 0), by the start from an empty directory that they share.
    What reads and what kills comes after a start of its own, so that each system then holds as much as the others, however
    fast its appends are; so does the sustained load, which is to meet no files of another one."""
    appends = [*APPENDS, *EXTEND * (system.name == REFERENCE[True])] if system.is_replicated else [*LOCAL_APPENDS]
    if is_quick:
        appends = [each for each in appends if each.entry_bytes == KIB and each.in_flight <= 1_000]
    others = [Task("scan", entry_bytes, entries=entries) for entry_bytes, entries in scale.scans]
    if system.is_replicated:
        others += [Task("tail", KIB, entries=scale.tail_entries), Task("take-over", KIB)]
    others += [Task("restart")]
    asked = [each for each in cases if not (number and each in ONCE)]
    asked = [each for each in asked if each == "append" or system.name not in APPENDS_ONLY]
    sustained = [SUSTAINED] * system.is_replicated
    found = [[each for each in tasks if each.case in asked] for tasks in (appends, sustained, others)]
    return [tasks for tasks in found if tasks]


def carry_out(running: Running, task: Task, scale: Scale) -> Figures:
    """Raises `NotMeasured` as the system does."""
    load = Load(task.entry_bytes, task.in_flight, scale.seconds, task.entries_per_call)
    entries_max = SUSTAINED_BYTES_MAX // (3 * task.entry_bytes or 1)
    doing: dict[str, Callable[[], Figures]] = {
        "append": lambda: running.append(load),
        "sustained": lambda: running.append(
            attrs.evolve(load, seconds=scale.sustained_s, entries_max=entries_max, is_sustained=True)
        ),
        "scan": lambda: running.scan(task.entry_bytes, task.entries),
        "tail": lambda: running.tail(task.entry_bytes, task.entries),
        "take-over": lambda: running.take_over(task.entry_bytes),
        "restart": running.restart,
    }
    return doing[task.case]()


def size(size_bytes: float) -> str:
    """In the largest unit of which there is one at least."""
    for unit, factor in (("GiB", KIB**3), ("MiB", KIB**2), ("KiB", KIB)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.3g} {unit}"
    return f"{size_bytes:.0f} B"
