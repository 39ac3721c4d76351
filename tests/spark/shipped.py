"""A driver whose executors have a Python without replog: `python shipped.py ARCHIVE METASTORE LOG`, with `PYTHONPATH` of its own.

Says where its executors found replog, then writes in each way that there is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator


def main(archive: str, executors_path: str, metastore: str, log: str) -> None:
    from pyspark.sql import SparkSession

    import replog.spark

    builder = SparkSession.builder.master("local-cluster[1,1,512]").appName("shipped")
    settings = {
        "spark.archives": f"{archive}#environment",
        "spark.executorEnv.PYTHONPATH": f"./environment:{executors_path}",
        "spark.executor.memory": "512m",
        "spark.testing.memory": "600000000",  # else executors of less than 450 MiB above the reserve are refused
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    def look(_: Iterable[int]) -> Iterator[tuple[str, str]]:
        import replog

        yield sys.executable, str(replog.__file__)

    [(python, found)] = spark.sparkContext.parallelize([0], 1).mapPartitions(look).collect()
    print(json.dumps({"python": python, "found": found, "application": spark.sparkContext.applicationId}), flush=True)
    frame = spark.range(0, 3, 1, 1).selectExpr("cast(cast(id as string) as binary) as value")
    frame.foreachPartition(replog.spark.foreach_partition_writer(metastore, f"{log}-{{partition}}"))
    spark.dataSource.register(replog.spark.ReplogDataSource)
    writer = frame.write.format("replog").mode("append").option("metastore", metastore).option("log", log)
    writer.option("mergeBytes", "0").save()  # so that the executor needs bookies, too
    read = spark.read.format("replog").option("metastore", metastore).option("log", log).load()
    print(json.dumps([bytes(row.value).decode() for row in read.collect()]), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
