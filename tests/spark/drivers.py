"""A driver of a Spark cluster: `python -m tests.spark.drivers MASTER METASTORE PLACE FAULT=LOG...` writes one job for each fault.

Each job has rows 0, 1, 2, ... and its fault as its `txnId`. A driver that is to be killed never returns.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.spark import spark_session
from tests.spark.slow import DRIVER_KILLED, Gates, SlowSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 1200
PARTITIONS = 3
_SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",  # several batches for each task
    "spark.speculation.quantile": "0.7",  # when two of three have ended: so only of the faulty partition there are two
    "spark.speculation.multiplier": "1.1",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # both hosts have an executor when the first task begins
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "150s",
    "spark.cores.max": "4",
    "spark.python.task.killTimeout": "300s",  # attempts that lost are told so, and not killed by Spark
}


def numbers(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, 1, PARTITIONS).selectExpr("cast(cast(id as string) as binary) as value")


def expected() -> list[bytes]:
    """What `numbers` writes, in the log's order."""
    return [str(number).encode() for number in range(ROWS)]


def main(master: str, metastore: str, place: str, jobs: list[str]) -> None:
    from pyspark import SparkContext

    faults = dict(job.split("=") for job in jobs)
    speculates = DRIVER_KILLED not in faults  # its test counts ledgers
    settings = {**_SETTINGS, "spark.speculation": str(speculates).lower()}
    with spark_session(Path(place), master, settings) as spark:
        gateway = SparkContext._gateway
        assert gateway is not None
        spark.sparkContext.setLogLevel("INFO")  # nobody sees it, unless the test fails
        spark.dataSource.register(SlowSource)
        for fault, log in faults.items():
            writer = numbers(spark).write.format("replog-slow").mode("append")
            writer = writer.option("metastore", metastore).option("log", log).option("txnId", fault)
            writer = writer.option("fault", fault).option("place", place).option("mergeBytes", "0")
            writer.option("victims", f"{gateway.proc.pid} {os.getpid()}").save()
            Gates(place, fault).wait_for("lost")  # an attempt that lost ends with its executor, when this leaves


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
