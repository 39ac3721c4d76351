"""Spark reads archived segments through the scan that every reader has: its workers go to the archive themselves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import replog
from tests.servers.bookies import Bookies
from tests.spark.logs import ask
from tests.spark.readers import numbers, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.needs_spark


def test_archived_segments_are_rows_like_others(
    spark: SparkSession, spark_bookies: Bookies, spark_log: str, tmp_path: Path
) -> None:
    ask(spark_bookies.metastore, lambda client: write(client, spark_log, 3, 500))

    async def archive(client: replog.Client) -> list[int]:
        await client.admin.add_archive(f"file:{tmp_path}")
        await client.admin.archive_log(spark_log, archive=f"file:{tmp_path}")
        for bookie in await client.admin.bookies():
            await bookie.collect_garbage()
        first = (await client.log_segments(spark_log))[0].ledger_id
        (fragment,) = (await client.ledger_metadata(first)).fragments
        assert fragment.archive
        return [each.ledger_id for each in await client.log_segments(spark_log)]

    assert len(ask(spark_bookies.metastore, archive)) == 3
    frame = spark.read.format("replog").option("metastore", spark_bookies.metastore).option("log", spark_log).load()
    # The bookies have nothing of it any more: without the objects there are no rows.
    objects = (tmp_path / "ledgers").rename(tmp_path / "elsewhere")
    with pytest.raises(Exception, match="no object of copy"):
        frame.collect()
    objects.rename(tmp_path / "ledgers")
    assert sorted(bytes(row.value) for row in frame.collect()) == numbers(0, 1500)
