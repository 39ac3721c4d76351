"""A driver of `spark_rounds`: `python -m tests.failures.spark_driver '{"master": "...", ...}'` does all jobs of one round.

The jobs run side by side, and all write to one log: a batch job, a job of `foreachPartition` with two writers, a streaming query,
another one by `foreachBatch`, and a job that is given up. Each has a name that a restarted driver gives it again (but for the
last, which is given up each time). What is done is said in lines of JSON; so is what fails, for the next try to repeat.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from tests.failures.actors import say
from tests.servers.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 300  # of a job, or of a writer
PARTITIONS = 3
FILES = 2  # for each of the two streaming queries, in each round
FILE_ROWS = 40
QUERY_ENDS_S = 900
_SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50",  # several batches for each task
    "spark.task.maxFailures": "6",  # an executor that is killed counts for each of its tasks
    "spark.cores.max": "4",
    "spark.speculation": "true",
}


class GivenUpError(Exception):
    """Leaves the block of a job that is to be given up."""


@attrs.frozen
class Plan:
    """One round. `attempt` counts its drivers; `merge_bytes` decides which tasks send their rows to the driver."""

    master: str
    metastore: str
    log: str
    place: str
    number: int
    attempt: int
    merge_bytes: int

    def row_counts(self) -> Mapping[str, int]:
        """The jobs that are to be in the log when the round has ended, with the rows of each."""
        files = {f"{query}-{self.number}.{file}": FILE_ROWS for query in ("stream", "each") for file in range(FILES)}
        return {f"batch-{self.number}": ROWS, f"parts-{self.number}": 2 * ROWS, **files}

    def files_of(self, query: str) -> Path:
        """The directory that a query reads."""
        return Path(self.place) / f"{query}-files"

    def put_files(self) -> None:
        """Writes what the two queries read in this round, each file at once."""
        for query in ("stream", "each"):
            self.files_of(query).mkdir(exist_ok=True)
            for file in range(FILES):
                name = f"{query}-{self.number}.{file}"
                unfinished = Path(self.place) / name
                unfinished.write_text("".join(f"{entry_of(name, row)}\n" for row in range(FILE_ROWS)))
                unfinished.rename(self.files_of(query) / f"{name}.txt")


def entry_of(job: str, row: int) -> str:
    """A row of a job."""
    return f"{job} {row}"


def encoded(job: str, row: Any) -> bytes:
    """The same as bytes, for tasks."""
    return entry_of(job, row.id).encode()


class Driver:
    """The jobs of a plan."""

    def __init__(self, plan: Plan, spark: SparkSession) -> None:
        self._plan = plan
        self._spark = spark
        self._is_failed = False

    def run(self) -> bool:
        """All jobs at once; True if all have ended well."""
        jobs = [self._batch, self._parts, self._stream, self._each, self._given_up]
        threads = [threading.Thread(target=self._tried, args=(job,)) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return not self._is_failed

    def _tried(self, job: Callable[[], None]) -> None:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from replog.errors import ReplogError

        try:
            # Spark looks for a data source in the session that is active in Java's thread, and a new one has none.
            self._spark.createDataFrame([], "nothing int")
            job()
        except (PySparkException, Py4JError, ReplogError) as error:
            self._is_failed = True
            say(failed=job.__name__, error=f"{type(error).__name__}: {error}"[:3000])

    def _batch(self) -> None:
        name = f"batch-{self._plan.number}"
        frame = self._spark.range(0, ROWS, 1, PARTITIONS).selectExpr(f"concat('{name} ', id) as value")
        writer = frame.write.format("replog").mode("append").options(metastore=self._plan.metastore, log=self._plan.log)
        writer.options(txnId=name, mergeBytes=self._plan.merge_bytes).save()
        say(committed=name)

    def _parts(self) -> None:
        name = f"parts-{self._plan.number}"
        with self._job(txn_id=name) as job:
            for first in (0, ROWS):
                self._range(first).foreachPartition(job.writer(partial(encoded, name)))
        say(committed=name, is_new=job.is_new)

    def _given_up(self) -> None:
        """Has written all of its rows."""
        name = f"given_up-{self._plan.number}.{self._plan.attempt}"
        try:
            with self._job() as job:
                self._range(0).foreachPartition(job.writer(partial(encoded, name)))
                raise GivenUpError
        except GivenUpError:
            say(given_up=name)

    def _range(self, first: int) -> DataFrame:
        return self._spark.range(first, first + ROWS, 1, PARTITIONS)

    def _job(self, **options: Any) -> Any:
        import replog.spark

        return replog.spark.job(self._spark, metastore=self._plan.metastore, log=self._plan.log, **options)

    def _stream(self) -> None:
        writer = self._lines("stream").writeStream.format("replog").option("mergeBytes", self._plan.merge_bytes)
        self._finish("stream", writer.options(metastore=self._plan.metastore, log=self._plan.log))

    def _each(self) -> None:
        def write(batch: DataFrame, batch_id: int) -> None:
            with self._job(txn_id="each", txn_version=batch_id) as job:
                batch.foreachPartition(job.writer(line_of))

        self._finish("each", self._lines("each").writeStream.foreachBatch(write))

    def _lines(self, query: str) -> DataFrame:
        files = self._spark.readStream.option("maxFilesPerTrigger", 1)
        return files.text(str(self._plan.files_of(query)))

    def _finish(self, name: str, writer: Any) -> None:
        checkpoint = Path(self._plan.place) / f"{name}-checkpoint"
        query = writer.trigger(availableNow=True).option("checkpointLocation", str(checkpoint)).start()
        try:
            is_ended = query.awaitTermination(QUERY_ENDS_S)
        finally:
            query.stop()
        if is_ended:
            say(committed=name)
        else:
            self._is_failed = True
            say(failed=name, error=f"it did not end within {QUERY_ENDS_S} s")


def line_of(row: Any) -> bytes:
    """A line of a text file as an entry."""
    return str(row.value).encode()


def main(words: Iterable[str]) -> None:
    """Says `runs` when Spark does, and `ended` when all jobs have."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.errors import PySparkException

    from replog.spark import ReplogDataSource

    [text] = words
    plan = Plan(**json.loads(text))
    is_done = False
    try:
        with spark_session(Path(plan.place), plan.master, _SETTINGS) as spark:
            gateway = SparkContext._gateway
            assert gateway is not None
            spark.sparkContext.setLogLevel("WARN")
            spark.dataSource.register(ReplogDataSource)
            say(runs=os.getpid(), java=gateway.proc.pid)
            is_done = Driver(plan, spark).run()
    except (PySparkException, Py4JError) as error:  # the cluster was not whole
        say(failed="session", error=f"{type(error).__name__}: {error}"[:3000])
    say(ended=is_done)


if __name__ == "__main__":
    main(sys.argv[1:])
