"""What is measured in one round of each case, and what is compared with what."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from functools import partial

from benchmarks import archived, bursts, compression, faces, footprint, loads, many, memory, raw, repair, threads, users
from benchmarks.figures import Figures, percentiles
from benchmarks.metastore import cases as metastore
from benchmarks.remote import cases as remote
from benchmarks.setting import Comparison, Round, Setting
from benchmarks.shapes import cases as shapes
from benchmarks.spark import cases as spark
from benchmarks.storage import cases as storage

KIB = 1 << 10
QUIET_RAW_P50_US = 150.0  # a machine that takes longer says nothing about latency


def latency(setting: Setting) -> Round:
    """One append of 1 KiB in flight, next to the disk alone. Empty if the machine was not quiet."""
    found: dict[str, Figures] = {}
    for name, place, case in (("one", setting.one, "local-append-1"), ("three", setting.three, "append-1")):
        raw_for = partial(raw.raw_fdatasync, setting.directory)
        slices = loads.append_beside(place, setting.seconds, [os.urandom(KIB)], raw_for)
        quiet = _quiet(slices)
        if not quiet:
            return {}
        found[f"{name} raw"] = percentiles([each for durations, _ in quiet for each in durations])
        found[name] = percentiles([each for _, durations in quiet for each in durations])
        found[f"{name} against"] = setting.against.measure(case, setting.seconds)
    return found


def _quiet(slices: loads.Slices) -> loads.Slices:
    """Those before and after which the disk alone took as long as it should."""
    raw_us = [percentiles(durations)["p50_us"] for durations, _ in slices]
    neighbours = zip(slices, itertools.pairwise(raw_us), strict=False)
    return [each for each, (before, after) in neighbours if max(before, after) <= QUIET_RAW_P50_US]


def push(setting: Setting) -> Round:
    """1 KiB entries by push_nowait, 1000 in flight."""
    return {
        "against": setting.against.measure("append-1000-1k", setting.seconds),
        "three": loads.push(setting.three, setting.seconds, KIB, in_flight=1000),
    }


def extend(setting: Setting) -> Round:
    """100 B entries by extend of 1000, 10 000 in flight."""
    return {
        "against": setting.against.measure("extend-10000-100", setting.seconds),
        "three": loads.extend(setting.three, setting.seconds, 100, entries_per_call=1000, calls=10),
    }


def tasks(setting: Setting) -> Round:
    """1000 tasks that await appends of 100 B."""
    return {
        "against": setting.against.measure("append-1000-100", setting.seconds),
        "three": loads.append_from_tasks(setting.three, setting.seconds, 100, tasks=1000),
    }


def scan(setting: Setting) -> Round:
    """A closed log of 100 B entries, in batches of as many as those that it is compared with."""
    against = setting.against.measure("scan-100", setting.seconds)
    even = loads.scan(setting.three, setting.seconds, [100] * 2000)
    uneven = loads.scan(setting.three, setting.seconds, [50 + number % 101 for number in range(2000)])
    return {"against": against, **even, **{f"uneven {name}": figures for name, figures in uneven.items()}}


def sqlite(setting: Setting) -> Round:
    """One bookie, and SQLite on the same disk."""
    found: dict[str, Figures] = {}
    for size, rows in ((KIB, 1), (100, 1000), (KIB, 1000)):
        entries = [os.urandom(size) for _ in range(rows)]
        with raw.sqlite_inserts(setting.directory, size, rows) as insert:
            slices = loads.append_beside(setting.one, setting.seconds, entries, insert)
        for name, durations in zip(("SQLite", "replog"), zip(*slices[:-1], strict=True), strict=True):
            calls = [each for part in durations for each in part]
            found[f"{name} {rows} {size}"] = {"entries_per_s": rows * len(calls) / sum(calls)}
    return found


def memory_use(setting: Setting) -> Round:
    """Much through a log that is trimmed, with one bookie and with three."""
    return {
        f"{bookies}": memory.measure(setting.directory / f"memory-{bookies}", bookies, setting.memory_bytes)
        | {"limit_mib": 200.0}
        for bookies in (1, 3)
    }


CASES: dict[str, Callable[[Setting], Round]] = {
    "latency": latency,
    "push": push,
    "extend": extend,
    "tasks": tasks,
    "scan": scan,
    "sqlite": sqlite,
    "memory": memory_use,
    "footprint": footprint.footprint,
    **faces.CASES,
    **threads.CASES,
    **many.CASES,
    **storage.CASES,
    **remote.CASES,
    **metastore.CASES,
    **shapes.CASES,
    **bursts.CASES,
    **users.CASES,
    **repair.CASES,
    **archived.CASES,
    **compression.CASES,
    **spark.CASES,
}
ONCE = {
    "memory",
    "footprint",
    *storage.ONCE,
    *metastore.CASES,
    *users.ONCE,
    *repair.CASES,
    *archived.CASES,
    *spark.ONCE,
}  # long, and not noisy, or in rounds of their own
# They have directories of their own, and need no bookies.
ALONE = {
    "memory",
    "footprint",
    *faces.CASES,
    *threads.CASES,
    *many.CASES,
    *storage.CASES,
    *remote.CASES,
    *metastore.CASES,
    *shapes.CASES,
    "remote-bursts",
    *users.ALONE,
    *repair.CASES,
    *archived.CASES,
    *compression.CASES,
    *spark.CASES,
}
# Cases to ask for by one name.
GROUPS = {
    "storage": list(storage.CASES),
    "remote": [*remote.CASES, "remote-bursts"],
    "users": [*bursts.CASES, *users.CASES],
    "metastore": list(metastore.CASES),
    "shapes": list(shapes.CASES),
    "spark": list(spark.CASES),
}


def _rate(case: str, title: str, measured: str, against: str, goal: float | None) -> Comparison:
    return Comparison(case, title, measured, against, "entries_per_s", "entries_per_s", "entries/s", goal)


def _latency(title: str, measured: str, figure: str, goal: float | None) -> Comparison:
    return Comparison("latency", title, measured, f"{measured} raw", figure, "p50_us", "us", goal, at_least=False)


def _against_latency(measured: str) -> Comparison:
    title = "  its p50 against the other's"
    return Comparison("latency", title, measured, f"{measured} against", "p50_us", "p50_us", "us", at_least=False)


def _cpu(case: str, title: str) -> Comparison:
    return Comparison(case, title, "three", "against", "total_cpu_us", "total_cpu_us", "us of CPU", at_least=False)


COMPARISONS = (
    _latency("1 bookie, append of 1 KiB, p50", "one", "p50_us", 1.8),
    _latency("1 bookie, append of 1 KiB, p99", "one", "p99_us", None),
    _against_latency("one"),
    _latency("3 bookies, append of 1 KiB, p50", "three", "p50_us", 4.0),
    _latency("3 bookies, append of 1 KiB, p99", "three", "p99_us", None),
    _against_latency("three"),
    _rate("push", "3 bookies, 1 KiB, push_nowait", "three", "against", 0.60),
    _cpu("push", "  its CPU for an entry"),
    _rate("extend", "3 bookies, 100 B, extend of 1000", "three", "against", 0.40),
    _cpu("extend", "  its CPU for an entry"),
    _rate("tasks", "3 bookies, 100 B, 1000 tasks append", "three", "against", 0.20),
    _cpu("tasks", "  its CPU for an entry"),
    _rate("scan", "scan, 100 B, batches to bytes", "bytes", "against", 0.50),
    _rate("scan", "scan, 100 B, batches to Arrow", "arrow", "against", 1.50),
    _rate("scan", "  the same against bytes", "arrow", "bytes", 3.0),
    _rate("scan", "scan, 100 B, record by record", "records", "against", 0.15),
    _rate("scan", "scan, 50 to 150 B, batches to bytes", "uneven bytes", "against", 0.50),
    _rate("scan", "scan, 50 to 150 B, batches to Arrow", "uneven arrow", "against", 1.50),
    _rate("scan", "  the same against bytes", "uneven arrow", "uneven bytes", 3.0),
    _rate("sqlite", "1 bookie, 1 KiB, append one by one", "replog 1 1024", "SQLite 1 1024", 1.1),
    _rate("sqlite", "1 bookie, 100 B, extend of 1000", "replog 1000 100", "SQLite 1000 100", 3.0),
    _rate("sqlite", "1 bookie, 1 KiB, extend of 1000", "replog 1000 1024", "SQLite 1000 1024", 3.0),
    Comparison("memory", "1 bookie, peak memory", "1", "1", "peak_mib", "limit_mib", "MiB", 1.0, at_least=False),
    Comparison("memory", "  its growth", "1", "1", "growth_mib", "limit_mib", "MiB", 1.0, at_least=False),
    Comparison("memory", "3 bookies, peak memory", "3", "3", "peak_mib", "limit_mib", "MiB", 1.0, at_least=False),
    Comparison("memory", "  its growth", "3", "3", "growth_mib", "limit_mib", "MiB", 1.0, at_least=False),
    *faces.COMPARISONS,
    *threads.COMPARISONS,
    *many.COMPARISONS,
    *footprint.COMPARISONS,
    *storage.COMPARISONS,
    *remote.COMPARISONS,
    *metastore.COMPARISONS,
    *shapes.COMPARISONS,
    *bursts.COMPARISONS,
    *users.COMPARISONS,
    *repair.COMPARISONS,
    *archived.COMPARISONS,
    *compression.COMPARISONS,
    *spark.COMPARISONS,
)
