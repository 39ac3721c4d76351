"""What is compared with: a sink that counts batches, and a source that has its batches ready; and a sink of replog's whose
commits are timed. They run in Spark's workers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from replog.spark import ReplogDataSource
from replog.spark.options import SparkOptions
from replog.spark.stream_writing import BatchWriter

if TYPE_CHECKING:
    from pyarrow import RecordBatch

TASKS = 2
COMMITS_FILE = "BENCHMARK_COMMITS_FILE"  # of the environment: where "timed" notes how many seconds each commit took
_BATCH_ROWS = 20_000  # two megabytes of values, as replog's reader hands on


class CountingSource(DataSource):
    """The format "counting": takes rows, and keeps their number."""

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "counting"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Of one job. The option `rows` says how many there must be."""
        return _CountingWriter(int(self.options["rows"]))


class _Counted(WriterCommitMessage):
    def __init__(self, rows: int) -> None:
        self.rows = rows


class _CountingWriter(DataSourceArrowWriter):
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def write(self, iterator: Iterator[RecordBatch]) -> WriterCommitMessage:
        return _Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        counted = sum(message.rows for message in messages if isinstance(message, _Counted))
        if counted != self._rows:
            raise ValueError(f"{counted} rows came, and not {self._rows}")


class ReadySource(DataSource):
    """The format "ready": so many rows with a log's columns, of which the reader wants some; a task makes one batch and
    hands it on again and again."""

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "ready"

    def schema(self) -> str:
        """The columns that a log has."""
        return "position string, segment bigint, entry bigint, timestamp timestamp, value binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Of one job. The options: `rows`, and `value_bytes` of each."""
        return _ReadyReader(schema.names, int(self.options["rows"]), int(self.options["value_bytes"]))


class _ReadyReader(DataSourceReader):
    def __init__(self, names: list[str], rows: int, value_bytes: int) -> None:
        self._names = names
        self._rows = rows
        self._value_bytes = value_bytes

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        batch = self._batch()
        remaining = self._rows * (partition.value + 1) // TASKS - self._rows * partition.value // TASKS
        while remaining:
            yield batch.slice(0, min(remaining, len(batch)))
            remaining -= min(remaining, len(batch))

    def _batch(self) -> RecordBatch:
        import pyarrow

        entries = range(_BATCH_ROWS)
        now = datetime.now(UTC)
        columns = {
            "position": pyarrow.array([f"1:{entry}" for entry in entries], pyarrow.string()),
            "segment": pyarrow.array([1] * _BATCH_ROWS, pyarrow.int64()),
            "entry": pyarrow.array(entries, pyarrow.int64()),
            "timestamp": pyarrow.array([now] * _BATCH_ROWS, pyarrow.timestamp("us", tz="UTC")),
            "value": pyarrow.array([b"x" * self._value_bytes] * _BATCH_ROWS, pyarrow.binary()),
        }
        return pyarrow.RecordBatch.from_arrays([columns[name] for name in self._names], names=self._names)


class TimedSource(ReplogDataSource):
    """The format "timed": writes streams as "replog" does, and notes how long commits take."""

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "timed"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Of a streaming query."""
        return _TimedWriter(SparkOptions.parse(self.options), schema)


class _TimedWriter(BatchWriter):
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        started = time.perf_counter()
        super().commit(messages, batchId)
        with Path(os.environ[COMMITS_FILE]).open("a") as file:
            print(time.perf_counter() - started, file=file)
