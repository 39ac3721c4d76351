"""Counts what happens in a live app while it happens: app -> log -> Spark -> another log -> any reader.

python examples/spark_pipeline.py METASTORE app                     a shop: appends each visit, and some noise, while it leads
python examples/spark_pipeline.py METASTORE pipeline CHECKPOINT     Spark: drops the noise, counts visits by page and time
python examples/spark_pipeline.py METASTORE follow                  shows the counts, as they come

Start the app first. Kill a task of Spark, or all of it, and start it again with the same CHECKPOINT, a directory: each visit is
counted once, and each count is in the log once. METASTORE is where the bookies are announced, as `replog cluster` prints it:
lmdb:/DIRECTORY, zookeeper://HOST,HOST,HOST/PATH
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from datetime import UTC, datetime

import replog.blocking

VISITS = "visits"  # the app's log: what happened, as it happened
COUNTS = "counts"  # Spark's log
PAGES = ["/", "/cart", "/search", "/thanks"]
VISITS_PER_S = 100


def app(metastore: str) -> None:
    """It does not use Spark. Start it twice: the second one leads when the first one has ended."""
    with replog.blocking.connect(metastore) as client, client.lead_log(VISITS) as log:
        while True:
            visit = {
                "at": datetime.now(UTC).isoformat(),
                "page": random.choice(PAGES),
                "took_ms": random.randrange(500),
            }
            log.append(json.dumps(visit).encode() if random.random() < 0.95 else b"what a cat types")
            time.sleep(1 / VISITS_PER_S)


def pipeline(metastore: str, checkpoint: str) -> None:
    """Each count is in its log once: if Spark is killed, it repeats the batch that it was doing, and commits it once."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    import replog.spark

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers need replog as well
    spark = SparkSession.builder.appName("visits").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    spark.dataSource.register(replog.spark.ReplogDataSource)

    source = spark.readStream.format("replog").options(metastore=metastore, log=VISITS, maxRowsPerTrigger=10_000)
    visit = f.from_json("value", "at timestamp, page string, took_ms int")  # null where the entry is something else
    entries = source.schema("value string").load()
    visits = entries.select(visit.alias("visit")).select("visit.*").where("at is not null and page is not null")

    counts = (
        visits.withWatermark("at", "1 second")  # events that come later are left out
        .groupBy(f.window("at", "2 seconds"), "page")
        .agg(f.count("*").alias("visits"), f.max("took_ms").alias("slowest_ms"))
        .select(f.col("window.start").alias("since"), "page", "visits", "slowest_ms")
    )
    sink = counts.writeStream.format("replog").options(metastore=metastore, log=COUNTS, values="json")
    sink.option("checkpointLocation", checkpoint).start().awaitTermination()


def follow(metastore: str) -> None:
    """It does not use Spark either: an entry is a count, as JSON."""
    with replog.blocking.connect(metastore) as client, client.read_log(COUNTS, follow=True) as reader:
        for record in reader:
            count = json.loads(record.data)
            print(record.position, count["since"], count["page"], count["visits"], count["slowest_ms"], flush=True)


if __name__ == "__main__":
    try:
        match sys.argv[1:]:
            case [url, "app"]:
                app(url)
            case [url, "pipeline", directory]:
                pipeline(url, directory)
            case [url, "follow"]:
                follow(url)
            case _:
                sys.exit(__doc__)
    except KeyboardInterrupt:
        sys.exit(130)
