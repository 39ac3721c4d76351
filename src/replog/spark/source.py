"""The data source `replog`: makes Spark's readers and writers. A driver that only registers it imports neither."""

from __future__ import annotations

from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from replog.errors import ConfigError

if TYPE_CHECKING:
    from replog.spark.options import SparkOptions
    from replog.spark.read_options import ReadOptions


def _need_streams() -> None:
    """Raises `ConfigError` where Spark has no streams that this format could serve: they need limits for sources (4.2)."""
    if find_spec("pyspark.sql.streaming.datasource") is None:
        raise ConfigError(
            f"streams of format replog need PySpark 4.2 or newer, and this is {pyspark.__version__}; spark.read, df.write and "
            "replog.spark.job work with it"
        )


class ReplogDataSource(DataSource):
    """The format "replog" of `df.write`, `writeStream`, `spark.read` and `readStream`.

    Register it once per session: `spark.dataSource.register(replog.spark.ReplogDataSource)`. Made by Spark, in processes of
    its own. Raises `ConfigError` at planning for options that can't be, all of them at once."""

    @classmethod
    def name(cls) -> str:
        """The name that `format` takes."""
        return "replog"

    @cached_property
    def _parsed(self) -> SparkOptions:
        """The options of writing; reading has more."""
        # Imported here, as all below: a driver that registers this needs no options, and a session that writes no readers.
        from replog.spark.options import SparkOptions

        return SparkOptions.parse(self.options)

    @property
    def _read_options(self) -> ReadOptions:
        from replog.spark.read_options import ReadOptions

        return ReadOptions.parse(self.options)

    def schema(self) -> StructType:
        """The columns of a query that names none. Raises `ConfigError`; `SchemaMismatchError` if the log holds other values
        than the option says."""
        from replog.spark.rows import schema_of

        return schema_of(self._read_options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Of one query. Raises `ConfigError` for options and columns that can't be."""
        from replog.spark.rows import FilteringReader, LogBatchReader, is_pushing_filters

        options = self._read_options
        return FilteringReader(options, schema) if is_pushing_filters() else LogBatchReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Of a streaming query. Raises as `reader` does."""
        _need_streams()
        from replog.spark.streaming import LogStreamReader

        return LogStreamReader(self._read_options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Of one batch job. Raises `ConfigError` for the mode "overwrite" and for a schema that the log doesn't take."""
        from replog.spark.writing import JobWriter

        if overwrite:
            raise ConfigError(
                'a log is only appended to: write .mode("append"), not .mode("overwrite"). To begin again, delete the log '
                "(replog log delete NAME) or trim it first"
            )
        writer = JobWriter(self._parsed, schema)
        writer.check()
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Of a streaming query; Spark makes one for each of its batches. Raises `ConfigError` as `writer` does."""
        _need_streams()
        from replog.spark.stream_writing import BatchWriter

        if overwrite:
            raise ConfigError(
                'a log is only appended to, and outputMode("complete") would replace its rows with each batch: write '
                '.outputMode("append"), or in foreachBatch what each batch is to add'
            )
        return BatchWriter(self._parsed, schema)
