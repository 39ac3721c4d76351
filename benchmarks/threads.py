"""The same appends under trio and from threads (`replog.blocking`), in turns; and what a bare queue to one thread would do, whose
callers sleep on a lock each: no face for threads can be faster."""

from __future__ import annotations

import os
import queue
import statistics
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import trio

import replog
from benchmarks.figures import Figures, clock, percentiles
from benchmarks.setting import Comparison, Round, Setting
from replog import blocking

TASKS, THREADS, ENTRY_BYTES = 1000, 64, 100
LOG = "benchmark"
LONE_EXTRA_MAX_US, SHARE_MIN = 100.0, 0.1
_TURNS = 3  # of trio and threads, in each round
_LONE = 300  # appends

_DATA = os.urandom(ENTRY_BYTES)


def threads(setting: Setting) -> Round:
    """1,000 tasks and 64 threads that append 100 B each, and lone appends, with one bookie in the process."""
    seconds = setting.seconds / _TURNS
    found: dict[str, list[Figures]] = {"trio": [], "threads": [], "bare queue": []}
    with tempfile.TemporaryDirectory(dir=setting.directory) as name:
        for _ in range(_TURNS):
            found["trio"].append(trio.run(_trio, Path(name), seconds))
            found["threads"].append(_threads(Path(name), seconds))
            found["bare queue"].append({"entries_per_s": _bare_queue(seconds)})
    medians = {
        each: {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
        for each, turns in found.items()
    }
    of_trio = medians["trio"]
    return medians | {
        "allowed": {
            "entries_per_s": of_trio["entries_per_s"] * SHARE_MIN,
            "p50_us": of_trio["p50_us"] + LONE_EXTRA_MAX_US,
        }
    }


async def _trio(directory: Path, seconds: float) -> Figures:
    async with replog.embed(directory) as client, client.write_log(LOG) as log:
        count, began_s = 0, clock()

        async def append() -> None:
            nonlocal count
            while count < TASKS or clock() < began_s + seconds:
                await log.append(_DATA)
                count += 1

        async with trio.open_nursery() as nursery:
            for _ in range(TASKS):
                nursery.start_soon(append)
        rate = count / (clock() - began_s)
        durations = []
        for _ in range(_LONE):
            asked_s = clock()
            await log.append(_DATA)
            durations.append(clock() - asked_s)
    return {"entries_per_s": rate, "p50_us": percentiles(durations)["p50_us"]}


def _threads(directory: Path, seconds: float) -> Figures:
    with blocking.embed(directory) as client, client.write_log(LOG) as log:
        rate = _in_threads(seconds, lambda: lambda: log.append(_DATA))
        durations = []
        for _ in range(_LONE):
            began_s = clock()
            log.append(_DATA)
            durations.append(clock() - began_s)
    return {"entries_per_s": rate, "p50_us": percentiles(durations)["p50_us"]}


def _bare_queue(seconds: float) -> float:
    asked: queue.SimpleQueue[threading.Lock | None] = queue.SimpleQueue()

    def answer() -> None:
        while (lock := asked.get()) is not None:
            lock.release()

    def make_call() -> Callable[[], object]:
        lock = threading.Lock()
        lock.acquire()

        def call() -> None:
            asked.put(lock)
            lock.acquire()

        return call

    answering = threading.Thread(target=answer)
    answering.start()
    try:
        return _in_threads(seconds, make_call)
    finally:
        asked.put(None)
        answering.join()


def _in_threads(seconds: float, make_call: Callable[[], Callable[[], object]]) -> float:
    """How often a second the threads together come back from their calls."""
    counts = [0] * THREADS
    began_s = clock()

    def run(number: int) -> None:
        call = make_call()
        while not counts[number] or clock() < began_s + seconds:
            call()
            counts[number] += 1

    started = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for each in started:
        each.start()
    for each in started:
        each.join()
    return sum(counts) / (clock() - began_s)


CASES = {"threads": threads}
COMPARISONS = (
    Comparison(
        "threads",
        "64 threads against 0.1 of 1,000 trio tasks",
        "threads",
        "allowed",
        "entries_per_s",
        "entries_per_s",
        "/s",
        1.0,
    ),
    Comparison(
        "threads",
        "  a lone append against trio's + 100 us",
        "threads",
        "allowed",
        "p50_us",
        "p50_us",
        "us",
        1.0,
        at_least=False,
    ),
)
