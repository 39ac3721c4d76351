"""A source whose tasks are killed amid their rows, the first time. Spark's workers import this by its name."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from replog.spark import ReplogDataSource
from replog.spark.read_options import ReadOptions
from replog.spark.rows import LogBatchReader


class KilledOnceSource(ReplogDataSource):
    """The format `replog-killed-once`."""

    @classmethod
    def name(cls) -> str:
        return "replog-killed-once"

    def reader(self, schema: StructType) -> DataSourceReader:
        return KilledOnceReader(ReadOptions.parse(self.options), schema)


class KilledOnceReader(LogBatchReader):
    def read(self, partition: InputPartition) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        for batch in super().read(partition):
            yield batch.slice(0, batch.num_rows // 2)
            if context.attemptNumber() == 0 and context.partitionId() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch.slice(batch.num_rows // 2)
