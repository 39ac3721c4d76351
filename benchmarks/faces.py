"""The same appends under trio and under asyncio (`replog.aio`), in turns: many tasks, a lone one, and the event loop's lateness.

A loop is late by how much longer than asked for a short sleep takes, less what the system gave to other programs meanwhile; the
same is measured right before, while nothing appends.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import trio

import replog
from benchmarks.figures import Figures, clock, percentiles
from benchmarks.setting import Comparison, Round, Setting
from replog import aio

TASKS, APPENDS, ENTRY_BYTES = 200, 20, 100
LOG = "benchmark"
LATE_MAX_MS, LONE_EXTRA_MAX_US = 5.0, 150.0
_TICK_S = 0.001
_TURNS = 3  # of trio and asyncio, in each round

_DATA = os.urandom(ENTRY_BYTES)


def faces(setting: Setting) -> Round:
    """200 tasks x 20 appends of 100 B, and lone ones, with one bookie in the process."""
    seconds = setting.seconds / _TURNS
    with tempfile.TemporaryDirectory(dir=setting.directory) as name:
        place = Path(name)
        turns = [(trio.run(_trio, place, seconds), asyncio.run(_asyncio(place, seconds))) for _ in range(_TURNS)]
    trios, asyncios = ([turn[which] for turn in turns] for which in (0, 1))
    lone_us = _median(trios, "lone_us")
    return {
        "trio": {"entries_per_s": _median(trios, "entries_per_s"), "p50_us": lone_us},
        "asyncio": {"entries_per_s": _median(asyncios, "entries_per_s"), "p50_us": _median(asyncios, "lone_us")},
        "lone allowed": {"p50_us": lone_us + LONE_EXTRA_MAX_US},
        "loop": {
            "late_ms": max(turn["late_ms"] for turn in asyncios),
            "frozen_late_ms": max(turn["frozen_late_ms"] for turn in asyncios),
        },
        "loop allowed": {"late_ms": max(turn["idle_late_ms"] for turn in asyncios) + LATE_MAX_MS},
    }


def _median(turns: Sequence[Figures], name: str) -> float:
    return statistics.median(turn[name] for turn in turns)


async def _measured(log: Any, append_in_tasks: Callable[[Any], Awaitable[object]], seconds: float) -> Figures:
    """The rate of many tasks, then the latency of lone appends: the same code for both loops."""
    await append_in_tasks(log)
    count, began_s = 0, clock()
    while not count or clock() < began_s + seconds:
        await append_in_tasks(log)
        count += TASKS * APPENDS
    rate, began_s = count / (clock() - began_s), clock()
    durations: list[float] = []
    while len(durations) < 10 or clock() < began_s + seconds:
        asked_s = clock()
        await log.append(_DATA)
        durations.append(clock() - asked_s)
    return {"entries_per_s": rate, "lone_us": percentiles(durations)["p50_us"]}


async def _append_often(log: Any) -> None:
    for _ in range(APPENDS):
        await log.append(_DATA)


async def _trio(directory: Path, seconds: float) -> Figures:
    async with replog.embed(directory) as client, client.write_log(LOG) as log:
        return await _measured(log, _trio_tasks, seconds)


async def _trio_tasks(log: replog.LogWriter) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(TASKS):
            nursery.start_soon(_append_often, log)


async def _asyncio(directory: Path, seconds: float) -> Figures:
    async with aio.embed(directory) as client, client.write_log(LOG) as log:
        await _asyncio_tasks(log)
        async with _lateness() as idle:
            await asyncio.sleep(seconds)
        # Apart from the rate, which waking up for each tick would lower, and before it: as a program that has just started.
        async with _lateness() as busy:
            await _asyncio_tasks(log)
        figures = await _measured(log, _asyncio_tasks, seconds)
        with _frozen():
            ends_s = clock() + seconds
            async with _lateness() as frozen:
                while clock() < ends_s:
                    await _asyncio_tasks(log)
    return {**figures, "late_ms": max(busy) * 1e3, "frozen_late_ms": max(frozen) * 1e3, "idle_late_ms": max(idle) * 1e3}


async def _asyncio_tasks(log: aio.LogWriter) -> None:
    await asyncio.gather(*(_append_often(log) for _ in range(TASKS)))


@contextmanager
def _frozen() -> Iterator[None]:
    """Without full collections of all that is imported, 20 ms each: 200 tasks that append nothing cause as many."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@asynccontextmanager
async def _lateness() -> AsyncIterator[list[float]]:
    """By how much each short sleep was too long, in s, while this is open; of one at least."""
    found: list[float] = []
    ticked = asyncio.Event()

    async def tick(waited_s: Callable[[], float]) -> None:
        waited_before_s = waited_s()
        while True:
            due_s = clock() + _TICK_S
            await asyncio.sleep(_TICK_S)
            late_s, waited_now_s = clock() - due_s, waited_s()
            found.append(max(0.0, late_s - (waited_now_s - waited_before_s)))
            waited_before_s = waited_now_s
            ticked.set()

    with _waits_for_a_processor() as waited_s:
        ticking = asyncio.ensure_future(tick(waited_s))
        try:
            yield found
            await ticked.wait()
        finally:
            ticking.cancel()


@contextmanager
def _waits_for_a_processor() -> Iterator[Callable[[], float]]:
    """For how long this thread was ready to run, and others ran: on a busy machine that is most of what a loop is late. Where the
    system does not say, 0."""
    try:
        statistics_of_thread = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    except OSError:
        yield lambda: 0.0
        return
    try:
        yield lambda: int(os.pread(statistics_of_thread, 100, 0).split()[1]) / 1e9
    finally:
        os.close(statistics_of_thread)


CASES = {"asyncio": faces}
_TITLE = "asyncio, 1 bookie, 100 B, 200 tasks append"
COMPARISONS = (
    Comparison("asyncio", _TITLE, "asyncio", "trio", "entries_per_s", "entries_per_s", "entries/s", 0.5),
    Comparison("asyncio", "  a lone append", "asyncio", "trio", "p50_us", "p50_us", "us", None, at_least=False),
    Comparison(
        "asyncio",
        "  the same against 150 us more",
        "asyncio",
        "lone allowed",
        "p50_us",
        "p50_us",
        "us",
        1.0,
        at_least=False,
    ),
    Comparison(
        "asyncio",
        "  its loop's lateness, idle + 5 ms",
        "loop",
        "loop allowed",
        "late_ms",
        "late_ms",
        "ms",
        1.0,
        at_least=False,
    ),
    Comparison(
        "asyncio",
        "  the same for long, imports frozen",
        "loop",
        "loop allowed",
        "frozen_late_ms",
        "late_ms",
        "ms",
        1.0,
        at_least=False,
    ),
)
