"""`merge_schema`: a job adds columns to a log, beside jobs and readers that do not know of them."""

from __future__ import annotations

from typing import Any

import pyarrow as arrow
import pytest
import trio
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StringType, StructType

import replog
from replog.errors import SchemaMismatchError
from replog.spark import committing
from replog.spark.committing import Job, commit_job
from replog.spark.options import SparkOptions
from replog.spark.values import ValueFormat, ValueSchema
from replog.spark.writing import Attempt, outputs_of, write_partition
from tests.servers.bookies import Bookies
from tests.spark.logs import ask
from tests.spark.readers import batch_reader, rows, stream_reader

pytestmark = pytest.mark.needs_spark

OLD = StructType().add("id", LongType())
ALL = ReadAllAvailable()


class Writing:
    """Jobs that write one row each, as the format does."""

    def __init__(self, bookies: Bookies, log: str, value_format: ValueFormat) -> None:
        self._metastore = bookies.metastore
        self._log = log
        self._format = value_format

    def job(self, job: str, merges: bool = True, **row: Any) -> bool:
        schema = StructType([*OLD])
        for column in list(row)[1:]:
            schema = schema.add(column, StringType(), nullable=False)
        options = SparkOptions(metastore=self._metastore, log=self._log, values=self._format, merge_schema=merges)
        values = ValueSchema.of_rows(self._format, schema)
        batch = arrow.RecordBatch.from_pylist([row])
        sent = write_partition(options, values, Attempt(self._log, job, 0, 1), iter([batch]), options.merge_bytes)
        merged = Job(job, (), None, outputs=outputs_of([sent]))
        return options.run(lambda client: commit_job(client, options, values, merged))

    def columns(self) -> list[str]:
        async def look(client: replog.Client) -> list[str]:
            return ValueSchema.of_log(await client.log_metadata(self._log)).schema.names

        return ask(self._metastore, look)


@pytest.mark.parametrize("value_format", [ValueFormat.JSON, ValueFormat.ARROW])
def test_older_jobs_and_streams_go_on(spark_bookies: Bookies, spark_log: str, value_format: ValueFormat) -> None:
    metastore = spark_bookies.metastore
    writing = Writing(spark_bookies, spark_log, value_format)
    assert writing.job("first", id=1)
    stream = stream_reader(metastore, spark_log, None)
    start = stream.initialOffset()
    with pytest.raises(SchemaMismatchError, match="column 'name' is not in the log; nothing was written"):
        writing.job("refused", merges=False, id=2, name="two")
    assert writing.job("second", id=2, name="two")
    assert writing.job("third", merges=False, id=3)
    assert writing.columns() == ["id", "name"]
    assert rows(stream, stream.partitions(start, stream.latestOffset(start, ALL))) == [{"id": 1}, {"id": 2}, {"id": 3}]
    found = [{"id": 1, "name": None}, {"id": 2, "name": "two"}, {"id": 3, "name": None}]
    assert rows(batch_reader(metastore, spark_log)) == found
    assert rows(batch_reader(metastore, spark_log, "name string, _position string"))[1]["name"] == "two"


@pytest.mark.parametrize("other", ["name", "other"])
def test_one_of_two_jobs_adding_columns_at_once_is_first(
    spark_bookies: Bookies, spark_log: str, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """The second one has looked at the schema before the first one's commit: the same columns agree, others do not."""
    writing = Writing(spark_bookies, spark_log, ValueFormat.JSON)
    assert writing.job("first", id=1)
    check, looks = committing.check_log, []

    async def look(client: replog.Client, options: SparkOptions, values: ValueSchema) -> ValueSchema:
        agreed = await check(client, options, values)
        looks.append(len(agreed.schema))
        if len(looks) == 1:
            await trio.to_thread.run_sync(lambda: writing.job("faster", id=2, name="two"))
        return agreed

    monkeypatch.setattr(committing, "check_log", look)
    if other == "name":
        assert writing.job("slower", id=3, name="three")
    else:
        with pytest.raises(SchemaMismatchError, match=r"column 'name' \(string\) is missing; column 'other' is not in"):
            writing.job("slower", id=3, other="three")
    assert writing.columns() == ["id", "name"]
    found = rows(batch_reader(spark_bookies.metastore, spark_log))
    assert [row["id"] for row in found] == ([1, 2, 3] if other == "name" else [1, 2])
