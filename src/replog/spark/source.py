"""The data source `replog`: hands out what reads and writes."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource


class ReplogDataSource(DataSource):
    """The format "replog" of `df.write`, `writeStream`, `spark.read` and `readStream`.

    Register it once per session: `spark.dataSource.register(replog.spark.ReplogDataSource)`."""

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "replog"
