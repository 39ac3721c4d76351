"""The cases of the storages, and what is compared with what: issue 3's goals, and figures that inform."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from benchmarks.setting import Comparison, Round, Setting
from benchmarks.storage.latency import APPENDS, SCATTERED, during_compaction
from benchmarks.storage.reading import POINT_SHAPES, READ_SHAPES, STATES, ledgers, points
from benchmarks.storage.restarting import REPLAY_SHAPES, memory, restarts
from benchmarks.storage.stores import FILES, JOURNAL_DIR, KINDS, LMDB, Kind
from benchmarks.storage.writing import SHAPES, many_ledgers, rates

CASES: dict[str, Callable[[Setting], Round]] = {
    "storage-write": rates,
    "storage-ledgers": many_ledgers,
    "storage-read": ledgers,
    "storage-restart": restarts,
    "storage-index": memory,
    "storage-point": points,
    "storage-latency": during_compaction,
}
ONCE = {"storage-index", "storage-latency"}


def _goal(kind: Kind, goal: float) -> float | None:
    """The goals are for the default storage; the others stand beside it."""
    return goal if kind is FILES else None


def _write() -> list[Comparison]:
    found = []
    for (shape, name), kind in itertools.product(itertools.product(SHAPES, ("trimmed", "kept")), KINDS):
        title = f"{kind.name}: write batches of {shape} x 1 KiB, {name}"
        measured = f"{kind.name} {name} {shape}"
        goal = _goal(kind, 0.50)
        found.append(
            Comparison("storage-write", title, measured, measured, "mib_per_s", "raw_mib_per_s", "MiB/s", goal)
        )
    for kind in (FILES, JOURNAL_DIR):
        title = f"{kind.name}: write while it is compacted"
        measured = f"{kind.name} compacted"
        goal = _goal(kind, 0.50)
        found.append(
            Comparison("storage-write", title, measured, measured, "mib_per_s", "raw_mib_per_s", "MiB/s", goal)
        )
    return found


def _ledgers() -> list[Comparison]:
    found = []
    for shape, kind in itertools.product(SHAPES, KINDS):
        many, one = f"{kind.name} many {shape}", f"{kind.name} one {shape}"
        title = f"{kind.name}: many ledgers in turn, {shape} x 1 KiB, and one"
        goal = _goal(kind, 1.5)
        found.append(Comparison("storage-ledgers", title, many, one, "seconds", "seconds", "s", goal, at_least=False))
        title = "  its CPU for a commit"
        found.append(Comparison("storage-ledgers", title, many, one, "cpu_us", "cpu_us", "us of CPU", at_least=False))
    return found


def _read() -> list[Comparison]:
    found = []
    for shape, kind in itertools.product(READ_SHAPES, KINDS):
        if kind is not LMDB:
            title = f"{kind.name}: share of {shape} B put in order"
            order = f"{kind.name} order {shape}"
            found.append(Comparison("storage-read", title, order, order, "share", "all", "", _goal(kind, 1.0)))
        for state, words in (("cold", "first time"), ("warm", "again")):
            title = f"{kind.name}: read one of many, {shape} B, {words}"
            measured, lone = f"{kind.name} {state} {shape}", f"{kind.name} lone {shape}"
            goal = _goal(kind, 0.50)
            found.append(Comparison("storage-read", title, measured, lone, "mib_per_s", "mib_per_s", "MiB/s", goal))
    return found


def _restart() -> list[Comparison]:
    cases: list[tuple[str, str, float | None]] = [
        (f"files replay {shape}", f"files: replay {shape} B", 10.0) for shape in REPLAY_SHAPES
    ]
    cases += [
        (f"{kind.name} indexed", f"{kind.name}: restart when all is indexed", _goal(kind, 10.0)) for kind in KINDS
    ]
    return [
        Comparison("storage-restart", title, measured, measured, "open_ms", "read_ms", "ms", goal, at_least=False)
        for measured, title, goal in cases
    ]


def _index() -> list[Comparison]:
    return [
        Comparison(
            "storage-index",
            f"{kind.name}: memory for an entry, {words}, {state}",
            f"{kind.name} {count} {state}",
            f"{kind.name} {count} {state}",
            "bytes",
            "limit_bytes",
            "B",
            1.0 if kind is FILES else None,
            at_least=False,
        )
        for kind, (count, words), state in itertools.product(
            KINDS, (("one", "one ledger"), ("many", "many ledgers")), ("written", "compacted", "reopened")
        )
    ]


def _point() -> list[Comparison]:
    cases = [(FILES, state) for state in STATES] + [(LMDB, "map")]
    found = [
        Comparison(
            "storage-point",
            f"{kind.name}: one batch of {shape} B, {state}",
            f"{kind.name} {state} {shape}",
            f"{kind.name} {state} {shape}",
            "p50_us",
            "limit_us",
            "us",
            1.0 if kind is FILES else None,
            at_least=False,
        )
        for shape, (kind, state) in itertools.product(POINT_SHAPES, cases)
    ]
    for shape in POINT_SHAPES:
        measured, floor = f"files full {shape}", f"pread {shape}"
        title = f"  of {shape} B, full, beside one pread and CRC32C"
        found.append(Comparison("storage-point", title, measured, floor, "p50_us", "p50_us", "us", at_least=False))
    title = "  one entry by the public API, and an await"
    return [*found, Comparison("storage-point", title, "api", "api", "p50_us", "checkpoint_us", "us", at_least=False)]


def _latency() -> list[Comparison]:
    cases: list[tuple[str, str, float | None]] = [(name, f"files: commit of {name} x 1 KiB", 3.0) for name in APPENDS]
    cases.append(("raw", "  the disk alone, 4 KiB", None))
    return [
        Comparison(
            "storage-latency",
            f"{title}, {figure}, {scattered} B compacted and not",
            f"busy {name} {scattered}",
            f"quiet {name} {scattered}",
            f"{figure}_us",
            f"{figure}_us",
            "us",
            goal if figure == "p99" else None,
            at_least=False,
        )
        for scattered, (name, title, goal), figure in itertools.product(SCATTERED, cases, ("p50", "p99"))
    ]


COMPARISONS = (*_write(), *_ledgers(), *_read(), *_restart(), *_index(), *_point(), *_latency())
