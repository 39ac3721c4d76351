"""What a commit, and the end of a log, cost in a large cluster: `python -m benchmarks.spark.clusters --ledgers 100000`.

The cluster is made of records in a metastore: a log of closed, empty ledgers, and what a killed driver left. Jobs commit to that
log, each with eight small ledgers, as the driver of a batch does: append, then sweep. Then batch queries of a log of as many
segments are planned, as the driver plans them: from the log's record and pages, once for short segments and once for long ones,
each of which is a task. PySpark is needed, and no Java.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

import replog
from benchmarks.metastore.filling import create_all, create_ledgers, create_log
from replog.abc import Metastore
from replog.protocol.closed_contents import Contents
from replog.records.encoding import encode
from replog.records.jobs import JobLedger
from replog.records.paths import job_key_path
from replog.runtime.collector import no_collections
from replog.spark.columns import schema_of_rows
from replog.spark.extents import Survey
from replog.spark.read_options import ReadOptions
from replog.spark.rows import LogBatchReader

_COUNTED = ("create", "get", "put", "delete", "children", "values")
_TASKS = 8
_LOG = "orders"
_PLANNED = {"short": 1 << 10, "long": 64 << 20}  # bytes of each segment of a log
_PLANS = 3
_ENTRIES = 1000
_SENT_MS = 1_700_000_000_000


class Calls:
    """Counts the calls of a metastore, while it is used as before."""

    def __init__(self, metastore: Metastore) -> None:
        self.count = 0
        for name in _COUNTED:
            setattr(metastore, name, self._counted(getattr(metastore, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            return await call(*arguments, **named)

        return counted


async def _fill(metastore: Metastore, ledgers: int, killed: int) -> None:
    first = 1_000
    await create_ledgers(metastore, range(first, first + ledgers), _LOG)
    await create_log(metastore, _LOG, range(first, first + ledgers))
    left = range(first + ledgers, first + ledgers + killed)
    await create_ledgers(metastore, left, _LOG)
    key, now_ms = job_key_path(_LOG, "killed"), int(1000 * time.time())
    records = ((f"{key}/{each}", encode(JobLedger(_LOG, "killed", each, now_ms))) for each in left)
    await create_all(metastore, records)


async def _commit(client: replog.Client, job: str) -> float:
    """Commits what eight tasks wrote; returns how long the driver took, in seconds."""
    ledger_ids = []
    for _ in range(_TASKS):
        async with client.create_ledger(custom={"log": _LOG, "job": job}) as writer:
            await writer.append(b"row")
        ledger_ids.append(writer.ledger_id)
    began_s = time.perf_counter()
    await client.jobs.append_ledgers(_LOG, ledger_ids, transaction=("query:of-the-benchmark", int(job)), job=job)
    await client.jobs.sweep(_LOG)
    return time.perf_counter() - began_s


async def measure(ledgers: int, killed: int, commits: int) -> None:
    """Prints one line for each figure."""
    with tempfile.TemporaryDirectory() as directory:
        async with replog.embed(Path(directory) / "wal", bookies=3, storage="memory") as client:
            metastore = client._opened.ledgers.records.metastore
            await _fill(metastore, ledgers, killed)
            calls = Calls(metastore)
            times, counts = [], []
            for number in range(commits):
                before = calls.count
                times.append(await _commit(client, str(number)))
                counts.append(calls.count - before)
            median = statistics.median(times)
            print(f"{ledgers} ledgers, {killed} of a killed driver: commit {median:.3f} s, at most {max(times):.3f} s;")
            print(f"calls of the metastore for a job of {_TASKS} tasks: {counts[0]} the first, {counts[-1]} the last")
            survey = Survey(client, _LOG, b"")
            before, began_s = calls.count, time.perf_counter()
            await survey.end()
            spent_ms = 1000 * (time.perf_counter() - began_s)
            print(f"latestOffset {spent_ms:.1f} ms, {calls.count - before} calls")


async def _plan(client: replog.Client, name: str, calls: Calls) -> None:
    """Prints what it costs to plan a batch query of a log, and to pickle its partitions for Spark."""
    # The driver's client is used, and no other one: so the metastore of the options is not opened.
    options = ReadOptions.parse({"metastore": "lmdb:///unused", "log": name, "values": "binary"})
    reader = LogBatchReader(options, schema_of_rows(None))
    for _ in range(_PLANS):
        before, began_s, began_cpu_s = calls.count, time.perf_counter(), time.process_time()
        with no_collections():
            partitions = await reader._plan(client)
        planned_s, planned_cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        print(f"plan of {name}: {planned_s:.2f} s, CPU {planned_cpu_s:.2f} s, {calls.count - before} calls;")
        began_cpu_s = time.process_time()
        size_bytes = sum(len(pickle.dumps(each)) for each in partitions)
        pickled_s = time.process_time() - began_cpu_s
        print(f"{len(partitions)} tasks, pickled in {pickled_s:.2f} s of CPU, {size_bytes:,} bytes")


async def measure_plans(segments: int) -> None:
    """Prints one line for each plan."""
    with tempfile.TemporaryDirectory() as directory:
        async with replog.embed(Path(directory) / "wal", bookies=3, storage="memory") as client:
            metastore = client._opened.ledgers.records.metastore
            calls = Calls(metastore)
            for name, size_bytes in _PLANNED.items():
                contents = Contents(_ENTRIES, size_bytes, _SENT_MS, _SENT_MS + 1)
                await create_log(metastore, name, range(1_000, 1_000 + segments), contents)
                await _plan(client, name, calls)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledgers", type=int, default=100_000)
    parser.add_argument("--killed", type=int, default=6_000)
    parser.add_argument("--commits", type=int, default=20)
    given = parser.parse_args()
    trio.run(measure_plans, given.ledgers)
    trio.run(measure, given.ledgers, given.killed, given.commits)


if __name__ == "__main__":
    main()
