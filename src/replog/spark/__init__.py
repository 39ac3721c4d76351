"""Spark: dataframes and streams written to logs and read from them. Needs the extra `spark`.

spark.dataSource.register(replog.spark.ReplogDataSource)
df.write.format("replog").mode("append").option("metastore", URL).option("log", "orders").save()
"""

from typing import TYPE_CHECKING

from replog.errors import ConfigError
from replog.runtime.on_demand import on_demand

try:
    import pyspark.sql.datasource  # noqa: F401 - this package needs it
except ImportError as error:
    raise ConfigError(
        "replog.spark needs pyspark 4.0 or newer, 4.2 for streams: pip install 'replog[spark]'"
    ) from error

if TYPE_CHECKING:
    from replog.spark.arrow_jobs import abort_arrow, commit_arrow, write_arrow
    from replog.spark.jobs import job
    from replog.spark.partitions import foreach_partition_writer
    from replog.spark.source import ReplogDataSource
else:
    __getattr__, __dir__ = on_demand(
        __name__,
        {
            "replog.spark.arrow_jobs": ["abort_arrow", "commit_arrow", "write_arrow"],
            "replog.spark.jobs": ["job"],
            "replog.spark.partitions": ["foreach_partition_writer"],
            "replog.spark.source": ["ReplogDataSource"],
        },
    )

__all__ = ["ReplogDataSource", "abort_arrow", "commit_arrow", "foreach_partition_writer", "job", "write_arrow"]
