"""The data source `replog`: hands out what reads and writes."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource

from replog.spark.options import SparkOptions


class ReplogDataSource(DataSource):
    """The format "replog" of `df.write`, `writeStream`, `spark.read` and `readStream`.

    Register it once per session: `spark.dataSource.register(replog.spark.ReplogDataSource)`. Made by Spark, in processes of
    its own. Raises `ConfigError` at planning for options that can't be, all of them at once."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._parsed = SparkOptions.parse(options)

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "replog"
