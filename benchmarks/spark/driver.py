"""Spark's driver as a process: does the jobs that it is told by its standard input, one JSON object in a line, and answers
each with how long it took. Ends with its standard input.

A job's rows are made by the JVM, so cheaply that they don't count: without a sink it makes 18 million of them in a second.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from benchmarks.figures import Figures, clock
from benchmarks.spark.rows import JSON_COLUMNS, JSON_ROW
from benchmarks.spark.sources import TASKS, CountingSource, ReadySource
from replog.spark import ReplogDataSource, foreach_partition_writer

_GROUP = "benchmark"
_NOTED_S = 30.0  # until Spark has noted that a stage has ended, which it does in a thread of its own

_VALUES_OF_FILES = {"parquet": "binary", "json": "json"}

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.default.parallelism": str(TASKS),
    "spark.sql.shuffle.partitions": str(TASKS),
}


class Jobs:
    """What can be asked for. Each call returns figures of one job."""

    def __init__(self, session: SparkSession, directory: Path) -> None:
        self._session = session
        self._directory = directory

    def count(self, rows: int, value_bytes: int) -> Figures:
        """Writes to the sink that counts."""
        writer = self._rows(rows, value_bytes).write.format("counting").mode("append").option("rows", str(rows))
        return self._timed(rows, writer.save)

    def write(
        self, rows: int, value_bytes: int, metastore: str, log: str, quorum: str, values: str = "binary"
    ) -> Figures:
        """Writes to a log by the format."""
        writer = self._of_values(values, rows, value_bytes).write.format("replog").mode("append")
        options = {"metastore": metastore, "log": log, "quorum": quorum, "values": values}
        return self._timed(rows, writer.options(**options).save)

    def write_files(self, rows: int, value_bytes: int, kind: str) -> Figures:
        """Writes the same rows to files of this format of Spark's, instead of those that are there."""
        frame = self._of_values(_VALUES_OF_FILES[kind], rows, value_bytes)
        return self._timed(rows, frame.write.format(kind).mode("overwrite").option("path", self._files(kind)).save)

    def write_partitions(self, rows: int, value_bytes: int, metastore: str, log: str, quorum: str) -> Figures:
        """Writes to a log for each partition by `df.foreachPartition`, row by row."""
        function = foreach_partition_writer(metastore, f"{log}-{{partition}}", quorum=quorum)
        frame = self._rows(rows, value_bytes)
        return self._timed(rows, lambda: frame.foreachPartition(function))

    def ready(self, rows: int, value_bytes: int, columns: str | None) -> Figures:
        """Reads from the source that is ready."""
        return self._read(rows, columns, "ready", {"rows": str(rows), "value_bytes": str(value_bytes)})

    def read(
        self, rows: int, value_bytes: int, columns: str | None, metastore: str, log: str, values: str = "binary"
    ) -> Figures:
        """Reads a log that has so many rows of so many bytes, which `look` tells."""
        return self._read(rows, columns, "replog", {"metastore": metastore, "log": log, "values": values})

    def read_files(self, rows: int, value_bytes: int, columns: str, kind: str) -> Figures:
        """Reads the files that `write_files` has written."""
        return self._read(rows, columns, kind, {"path": self._files(kind)})

    def look(self, metastore: str, log: str) -> Figures:
        """How many rows Spark finds in a log, and how many bytes of values."""
        return self._looked(self._session.read.format("replog").options(metastore=metastore, log=log), "value binary")

    def look_files(self, kind: str) -> Figures:
        """The same of the files that `write_files` has written, with values as they are."""
        return self._looked(self._session.read.format(kind).option("path", self._files(kind)), "value binary")

    def same_json(self, rows: int, metastore: str, log: str) -> Figures:
        """How many rows with JSON a log and the files have, and how many of these are in both: there is none twice."""
        log_reader = self._session.read.format("replog").options(metastore=metastore, log=log, values="json")
        files = self._session.read.schema(JSON_COLUMNS).json(self._files("json"))
        found = log_reader.load()
        return {
            "log": float(found.count()),
            "files": float(files.count()),
            "both": float(found.intersect(files).count()),
        }

    @staticmethod
    def _looked(reader: DataFrameReader, columns: str) -> Figures:
        frame = reader.schema(columns).load()
        (found,) = frame.selectExpr("count(*) AS rows", "coalesce(sum(length(value)), 0) AS bytes").collect()
        return {"rows": float(found["rows"]), "bytes": float(found["bytes"])}

    def _files(self, kind: str) -> str:
        return str(self._directory / "files" / kind)

    def _of_values(self, values: str, rows: int, value_bytes: int) -> DataFrame:
        if values == "binary":
            return self._rows(rows, value_bytes)
        return self._session.range(0, rows, 1, TASKS).selectExpr(*JSON_ROW)

    def _rows(self, rows: int, value_bytes: int) -> DataFrame:
        value = f"CAST(rpad(CAST(id AS STRING), {value_bytes}, 'x') AS BINARY) AS value"
        return self._session.range(0, rows, 1, TASKS).selectExpr(value)

    def _read(self, rows: int, columns: str | None, source: str, options: dict[str, str]) -> Figures:
        def read() -> None:
            reader = self._session.read.format(source).options(**options)
            if columns is not None:
                reader = reader.schema(columns)
            reader.load().write.format("noop").mode("overwrite").save()

        return self._timed(rows, read)

    def _timed(self, rows: int, job: Callable[[], Any]) -> Figures:
        """How long it took: all of it, before its tasks (planning), its tasks, and after them (the commit)."""
        context = self._session.sparkContext
        group = f"{_GROUP}-{time.monotonic_ns()}"
        context.setJobGroup(group, group)
        began_ms, began_s = time.time() * 1e3, clock()
        job()
        total_s, ended_ms = clock() - began_s, time.time() * 1e3
        stages = [_stage_ms(context, stage) for stage in _stage_ids(context, group)]
        first_ms, last_ms = min(stage[0] for stage in stages), max(stage[1] for stage in stages)
        return {
            "rows_per_s": rows / total_s,
            "total_s": total_s,
            "planning_s": (first_ms - began_ms) / 1e3,
            "tasks_s": (last_ms - first_ms) / 1e3,
            "commit_s": (ended_ms - last_ms) / 1e3,
        }


def _stage_ids(context: SparkContext, group: str) -> list[int]:
    tracker = context.statusTracker()
    infos = [info for job in tracker.getJobIdsForGroup(group) if (info := tracker.getJobInfo(job)) is not None]
    return [stage for info in infos for stage in info.stageIds]


def _stage_ms(context: SparkContext, stage: int) -> tuple[int, int]:
    """When its tasks were handed in, and when all had ended, in ms since the epoch."""
    store = context._jsc.sc().statusStore()
    deadline_s = clock() + _NOTED_S
    while True:
        data = store.lastStageAttempt(stage)
        if data.completionTime().isDefined():
            return data.submissionTime().get().getTime(), data.completionTime().get().getTime()
        if clock() > deadline_s:
            raise TimeoutError(f"stage {stage} has not ended {_NOTED_S} s after its job")
        time.sleep(0.01)


def _session(directory: Path) -> SparkSession:
    builder = SparkSession.builder.master(f"local[{TASKS}]").appName("replog's benchmarks")
    places = {"spark.local.dir": str(directory / "local"), "spark.sql.warehouse.dir": str(directory / "warehouse")}
    for name, value in {**_SETTINGS, **places}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    for source in (ReplogDataSource, CountingSource, ReadySource):
        session.dataSource.register(source)
    return session


def main(directory: Path) -> None:
    """Answers by what was standard output; what Spark and Java print goes to standard error."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        session = _session(directory)
        jobs = Jobs(session, directory)
        print(json.dumps({"ready": True}), file=answers, flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            try:
                answer = {"figures": getattr(jobs, request.pop("job"))(**request)}
            except Exception as error:
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers, flush=True)
        session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
