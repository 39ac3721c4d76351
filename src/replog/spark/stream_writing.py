"""Writing streams to logs: one job for each batch, whose transaction is the query's id with the batch's number.

It is written, and made visible, as other jobs are (`replog.spark.writing`). PySpark has such writers from 4.1 on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from replog.errors import ConfigError
from replog.spark.committing import Job, abort_job, commit_job, streamed_transaction
from replog.spark.options import SparkOptions
from replog.spark.values import ValueFormat, ValueSchema
from replog.spark.writing import Attempt, WrittenPartition, outputs_of, write_partition, written_in_order

if TYPE_CHECKING:
    from pyarrow import RecordBatch


class BatchWriter(DataSourceStreamArrowWriter):
    """Writes one batch of a streaming query. Spark makes one for the tasks of a batch, and others to commit or abort it."""

    def __init__(self, options: SparkOptions, schema: StructType) -> None:
        # Each batch would have the same transaction, and only the first one would ever be written.
        if options.txn_id is not None:
            raise ConfigError(
                "txn_id is for batch jobs: a streaming query is distinguished from others by its checkpoint"
            )
        self._options = options
        self._values = ValueSchema.of_rows(ValueFormat(options.values), schema)
        self._run = str(uuid4())

    def write(self, iterator: Iterator[RecordBatch]) -> WrittenPartition:
        """In a task: writes a ledger. Raises as `JobWriter.write` does."""
        attempt = Attempt.current(self._options.log, self._run)
        return write_partition(self._options, self._values, attempt, iterator, self._options.merge_bytes)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: makes the batch's rows visible, if this query has not written this batch or a later one before."""
        written = written_in_order(messages)
        if written:
            first = written[0]
            transaction = streamed_transaction(first.query_id, batchId)
            job = Job(first.job, (), transaction, outputs=outputs_of(written))
            self._options.call(lambda client: commit_job(client, self._options, self._values, job))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: gives up this try at the batch, unless its rows are visible after all. If no task has sent a
        message, the name of the try is unknown: then a later sweep deletes its ledgers."""
        for job in {each.job for each in messages if isinstance(each, WrittenPartition)}:
            self._options.call(partial(abort_job, options=self._options, job=job))
