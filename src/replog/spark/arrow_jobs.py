"""The function for `mapInArrow`, and its commit: a job's rows in one log, visible all at once, without a data source.

Rules: those of the data source (`replog.spark.writing`). Spark's answer to `collect` has one row for each partition,
that of the attempt that counts; the process that has it commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from uuid import uuid4

import attrs
import pyarrow as arrow
from pyspark.sql.types import Row, StructType

from replog.errors import ConfigError
from replog.spark.committing import Job, abort_job, check_log, commit_job, has_committed
from replog.spark.options import SparkOptions
from replog.spark.values import ValueFormat, ValueSchema
from replog.spark.writing import Attempt, WrittenPartition, ledger_ids_of, write_partition


def write_arrow(
    schema: StructType,
    metastore: str,
    log: str,
    *,
    values: str = "binary",
    txn_id: str | None = None,
    txn_version: int = 0,
    password_file: str | None = None,
    config_file: str | None = None,
    quorum: str = "3,3,2",
) -> ArrowJob:
    """A function for `df.mapInArrow`, whose results `commit_arrow` makes visible, all rows at once:

        job = replog.spark.write_arrow(df.schema, metastore=URL, log="orders")
        replog.spark.commit_arrow(job, df.mapInArrow(job, job.schema).collect())

    `schema` is that of the rows; the other options are those of the format `replog`. One job is one write: make another one
    for the next. Blocks while it looks at the log. Raises `ConfigError`, `SchemaMismatchError`, and what `replog.connect` raises.
    """
    options = SparkOptions(
        metastore=metastore,
        log=log,
        values=values,
        txn_id=txn_id,
        txn_version=txn_version,
        password_file=password_file,
        config_file=config_file,
        quorum=quorum,
    )
    # Before any task: a schema that does not fit is refused on the driver, and not a thousand times by executors.
    value_schema = ValueSchema.of_rows(ValueFormat(values), schema)
    options.run(lambda client: check_log(client, options, value_schema))
    return ArrowJob(options, value_schema, str(uuid4()))


@attrs.frozen
class ArrowJob:
    """A function for `mapInArrow`, made by `write_arrow`. Can be pickled, as Spark does."""

    _options: SparkOptions
    _values: ValueSchema
    _job: str
    _tried: list[tuple[int, ...]] = attrs.field(
        factory=list, eq=False, repr=False
    )  # ledgers of a commit, in the driver

    schema = "job string, partition int, ledger_id bigint, rows bigint"  # of what it gives to Spark

    def __call__(self, batches: Iterable[arrow.RecordBatch]) -> Iterator[arrow.RecordBatch]:
        """In a task: writes these rows to a ledger of this attempt, closes it, and gives one row that says so. Nothing is visible
        before `commit_arrow`. Raises as tasks of the format `replog` do."""
        attempt = Attempt.current(self._options.log, self._job)
        # The rows are written while Spark asks for the first result: nothing is read ahead of that.
        written = write_partition(self._options, self._values, attempt, iter(batches))
        yield arrow.RecordBatch.from_pydict(
            {
                "job": arrow.array([self._job], arrow.string()),
                "partition": arrow.array([written.partition], arrow.int32()),
                "ledger_id": arrow.array([written.ledger_id], arrow.int64()),
                "rows": arrow.array([written.rows], arrow.int64()),
            }
        )

    def commit(self, written: Sequence[WrittenPartition]) -> bool:
        """Commits the job (`commit_arrow`)."""
        transaction = self._options.transaction()
        ledger_ids = ledger_ids_of(written)
        if transaction is None and self._tried not in ([], [ledger_ids]):
            return self._commit_again(self._tried[0])
        self._tried[:] = [ledger_ids]
        job = Job(self._job, ledger_ids, transaction, counts_empty=transaction is not None)
        return self._options.run(lambda client: commit_job(client, self._options, self._values, job))

    def _commit_again(self, ledger_ids: tuple[int, ...]) -> bool:
        """False if the ledgers of an earlier call are in the log. Nothing else remembers a job without a `txn_id`."""
        job = Job(self._job, ledger_ids, None)
        if not self._options.run(lambda client: has_committed(client, self._options, job)):
            raise ConfigError(
                f"job {self._job} has no txn_id, and an earlier commit of other results failed: call commit_arrow with those "
                "results again, or abort_arrow and write_arrow for a new job; nothing was committed"
            )
        return False

    def parse(self, results: Sequence[Row]) -> list[WrittenPartition]:
        """The results of the tasks, in the order of the partitions. Raises `ConfigError` if they are not of this job."""
        faults = sorted({each["job"] for each in results} - {self._job})
        # A partition that is there twice would make its rows visible twice.
        partitions = [each["partition"] for each in results]
        if faults or len(set(partitions)) < len(partitions):
            problem = f"some are of job {faults[0]}" if faults else "a partition is there twice"
            raise ConfigError(
                f"these are not the results of mapInArrow with job {self._job}: {problem}; nothing was committed"
            )
        written = [WrittenPartition(self._job, each["partition"], each["ledger_id"], each["rows"]) for each in results]
        return sorted(written, key=lambda each: each.partition)

    def abort(self) -> list[int]:
        """Aborts the job (`abort_arrow`)."""
        return self._options.run(lambda client: abort_job(client, self._options, self._job))


def commit_arrow(job: ArrowJob, results: Sequence[Row]) -> int:
    """Makes all rows of a job visible with one change of the log, in the order of the partitions; returns how many. 0 if its
    transaction was committed before: then nothing is changed. `results` are all rows that `mapInArrow` gave, collected.

    Blocks. Raises `ConfigError` for other results, and `ReplogError` as the commit of the format `replog` does: then all rows are
    visible or none, and calling this again is safe."""
    written = job.parse(results)
    return sum(each.rows for each in written) if job.commit(written) else 0


def abort_arrow(job: ArrowJob) -> list[int]:
    """Gives up a job whose tasks or commit failed, and deletes its ledgers; returns which. One that was committed stays.

    Optional: a sweep deletes old ledgers that no log names. Blocks. Raises `ReplogError`: then a sweep does it later."""
    return job.abort()
