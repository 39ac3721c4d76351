"""Many small ledgers, and many small logs, in an embedded process: how fast they are made, and what each of them takes.

    python -m benchmarks --case many-logs --json     # has also what each takes in memory, on disk, in an audit and a collection

A log of a few entries is a record of its own and a ledger: five changes of the metastore, two announcements, and a commit or two
of its bookie. Logs stay in place after they were made, so that opening one of them again is measured among all.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

import replog
from benchmarks.figures import Figures, clock, percentiles
from benchmarks.footprint import resident_bytes
from benchmarks.setting import Comparison, Round, Setting
from replog.metastores.lmdb import LMDBMetastore
from replog.runtime.nursery import for_each

TASKS = 100
ENTRIES_OF_LOG = 3
LEDGERS_PER_S_MIN, LEDGER_CPU_US_MAX, LEDGER_BYTES_MAX = 2000.0, 800.0, 1024.0  # of 100 tasks; of each ledger
LOGS_PER_S_MIN, CHANGES_MAX = (
    1000.0,
    3.0,
)  # of 100 tasks; of the metastore, as long as opening a log for appending takes

_DATA = os.urandom(100)
_WARM = 100
_TIMES = 100  # that a log is opened, and the metastore changed


def small_ledgers(setting: Setting) -> Round:
    """Ledgers that are created, get one entry of 100 B, and are closed: one after the other, and by 100 tasks."""
    found = {
        f"{tasks} tasks": trio.run(_ledgers, setting.directory, setting.scale.small_ledgers, tasks)
        for tasks in (1, TASKS)
    }
    return found | {"bars": {"per_s": LEDGERS_PER_S_MIN, "cpu_us": LEDGER_CPU_US_MAX, "memory_bytes": LEDGER_BYTES_MAX}}


async def _ledgers(directory: Path, count: int, tasks: int) -> Figures:
    with tempfile.TemporaryDirectory(dir=directory) as name:
        async with replog.embed(name) as client:

            async def write(_number: int) -> None:
                async with client.create_ledger() as writer:
                    await writer.append(_DATA)

            await for_each(write, range(_WARM), tasks)
            return await _timed(write, count, tasks)


async def _timed(do: Callable[[int], Awaitable[None]], count: int, tasks: int) -> Figures:
    gc.collect()
    before_bytes = resident_bytes(field="RssAnon")  # not pages of mapped files
    began_s, cpu_s = clock(), time.process_time()
    await for_each(do, range(count), tasks)
    found = {"per_s": count / (clock() - began_s), "cpu_us": (time.process_time() - cpu_s) / count * 1e6}
    gc.collect()
    return found | {"memory_bytes": max(1.0, (resident_bytes(field="RssAnon") - before_bytes) / count)}


def many_logs(setting: Setting) -> Round:
    """Logs of three entries: made by 100 tasks, listed, and opened for appending one after the other."""
    with tempfile.TemporaryDirectory(dir=setting.directory) as name:
        found, change_us = trio.run(_logs, Path(name), setting.scale.small_logs)
    bars = {"per_s": LOGS_PER_S_MIN, "p50_us": CHANGES_MAX * change_us}
    return {"logs": found, "bars": bars}


async def _logs(directory: Path, count: int) -> tuple[Figures, float]:
    async with replog.embed(directory) as client:

        async def write(number: int) -> None:
            async with client.write_log(f"log/{number:07}") as log:
                await log.extend([_DATA] * ENTRIES_OF_LOG)

        await for_each(write, range(count, count + _WARM), TASKS)
        found = await _timed(write, count, TASKS)
        began_s = clock()
        names = await client.logs(prefix="log/")
        found["listed_per_s"] = len(names) / (clock() - began_s)
        assert len(names) == count + _WARM, f"{len(names)} of {count + _WARM} logs are listed"
        opened_s = []
        for number in range(0, count, max(1, count // _TIMES)):
            began_s = clock()
            async with client.write_log(names[number]):
                opened_s.append(clock() - began_s)
        found["audited_per_s"] = await _looked_at(client.admin.audit, count)
        for bookie in await client.admin.bookies():
            found["collected_per_s"] = await _looked_at(bookie.collect_garbage, count)
    found["p50_us"] = percentiles(opened_s)["p50_us"]
    found["metastore_bytes"] = _bytes_below(directory / "metadata") / count
    found["bookie_bytes"] = _bytes_below(directory / "bookie-0") / count
    return found, await _change_us(directory / "metadata")


async def _looked_at(look: Callable[[], Awaitable[object]], count: int) -> float:
    """Ledgers a second of what looks at all of them."""
    began_s = clock()
    await look()
    return count / (clock() - began_s)


async def _change_us(directory: Path) -> float:
    metastore = LMDBMetastore(directory)
    durations = []
    for number in range(_TIMES):
        began_s = clock()
        await metastore.create(f"benchmark/{number}", _DATA)
        durations.append(clock() - began_s)
    await metastore.aclose()
    return percentiles(durations)["p50_us"]


def _bytes_below(directory: Path) -> int:
    """What its files take on the disk."""
    return sum(each.stat().st_blocks * 512 for each in directory.rglob("*") if each.is_file())


CASES = {"small-ledgers": small_ledgers, "many-logs": many_logs}
COMPARISONS = (
    *(
        Comparison("small-ledgers", title, measured, "bars", figure, figure, unit, 1.0, at_least=at_least)
        for title, measured, figure, unit, at_least in (
            ("100 tasks that create, append once, close: 2,000/s", f"{TASKS} tasks", "per_s", "/s", True),
            ("  each of them: 0.8 ms of processor time", f"{TASKS} tasks", "cpu_us", "us", False),
            ("  one after the other: 0.8 ms", "1 tasks", "cpu_us", "us", False),
            ("  each of them keeps 1 KiB of memory", f"{TASKS} tasks", "memory_bytes", "B", False),
        )
    ),
    Comparison(
        "many-logs", "logs of 3 entries made by 100 tasks: 1,000/s", "logs", "bars", "per_s", "per_s", "/s", 1.0
    ),
    Comparison(
        "many-logs",
        "  one of them is opened in 3 changes' time",
        "logs",
        "bars",
        "p50_us",
        "p50_us",
        "us",
        1.0,
        at_least=False,
    ),
)
