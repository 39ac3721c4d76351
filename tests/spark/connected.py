"""A client of Spark Connect: `python connected.py METASTORE LOG CHECKPOINTS`. The server is a process of its own.

Writes to LOG-saved, LOG-parts, LOG-streamed and LOG-batches, each in its own way and twice, and prints as JSON what a job reads
of LOG-saved.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.spark.queries import restarted

ROWS = 40
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}


def run_to_end(writer: Any) -> None:
    """Goes on from its checkpoint, if it has one, and ends with what the source has."""
    restarted(lambda: writer.trigger(availableNow=True).start().awaitTermination())


def main(metastore: str, log: str, checkpoints: str) -> None:
    from pyspark.sql import SparkSession

    import replog.spark

    builder = SparkSession.builder.remote("local[2]").appName("connected")
    for name, setting in SETTINGS.items():
        builder = builder.config(name, setting)
    spark = builder.getOrCreate()
    assert "connect" in type(spark).__module__, "a session with a JVM of its own shows nothing here"
    spark.dataSource.register(replog.spark.ReplogDataSource)
    frame = spark.range(0, ROWS, 1, 2).selectExpr("cast(cast(id as string) as binary) as value")

    def data_of(row: Any) -> bytes:
        return bytes(row.value)

    def source() -> Any:
        return (
            spark.readStream.format("replog")
            .option("metastore", metastore)
            .option("log", f"{log}-saved")
            .load()
            .select("value")
        )

    def write_batch(batch: Any, batch_id: int) -> None:
        for _ in range(2):
            with replog.spark.job(
                batch.sparkSession, metastore=metastore, log=f"{log}-batches", txn_id="batches", txn_version=batch_id
            ) as job:
                batch.foreachPartition(job.writer(data_of))

    for _ in range(2):
        frame.write.format("replog").mode("append").options(
            metastore=metastore, log=f"{log}-saved", txnId="saved"
        ).save()
        with replog.spark.job(spark, metastore=metastore, log=f"{log}-parts", txn_id="parts") as job:
            frame.foreachPartition(job.writer(data_of))
        sink = source().writeStream.format("replog").options(metastore=metastore, log=f"{log}-streamed")
        run_to_end(sink.option("checkpointLocation", f"{checkpoints}/streamed"))
        run_to_end(
            source().writeStream.foreachBatch(write_batch).option("checkpointLocation", f"{checkpoints}/batches")
        )
    read = spark.read.format("replog").option("metastore", metastore).option("log", f"{log}-saved").load()
    print(json.dumps(sorted(int(bytes(row.value)) for row in read.collect())), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
