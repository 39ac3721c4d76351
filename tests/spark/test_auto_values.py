"""Reading without the option `values`: the log's metadata says what its entries are."""

from __future__ import annotations

import pyarrow as arrow
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

import replog
from replog.errors import ConfigError, SchemaMismatchError
from replog.spark.committing import Job, commit_job
from replog.spark.options import SparkOptions
from replog.spark.read_options import ReadOptions
from replog.spark.values import ValueFormat, ValueSchema
from replog.spark.writing import Attempt, outputs_of, write_partition
from tests.servers.bookies import Bookies
from tests.spark.logs import ask
from tests.spark.readers import batch_reader, rows, stream_reader, values

pytestmark = pytest.mark.needs_spark

PEOPLE = StructType([StructField("id", LongType()), StructField("name", StringType())])
FOUND = [{"id": 1, "name": "one"}, {"id": 2, "name": None}]
NEEDED = {"metastore": "zookeeper://zk1/prod", "log": "orders"}


def write_people(metastore: str, log: str, value_format: ValueFormat) -> None:
    """As a job of the format writes them."""
    options = SparkOptions(metastore=metastore, log=log, values=value_format)
    people = ValueSchema.of_rows(value_format, PEOPLE)
    batch = arrow.RecordBatch.from_pydict({"id": [1, 2], "name": ["one", None]})
    sent = write_partition(options, people, Attempt(log, "job", 0, 1), iter([batch]), options.merge_bytes)
    job = Job("job", (), None, outputs=outputs_of([sent]))
    assert options.run(lambda client: commit_job(client, options, people, job))


@pytest.mark.parametrize("value_format", [ValueFormat.JSON, ValueFormat.ARROW])
def test_a_log_is_read_as_it_was_written(spark_bookies: Bookies, spark_log: str, value_format: ValueFormat) -> None:
    """Until another program appends bytes: then readers are told what to say."""
    metastore = spark_bookies.metastore
    write_people(metastore, spark_log, value_format)
    assert rows(batch_reader(metastore, spark_log)) == FOUND
    assert rows(batch_reader(metastore, spark_log, "name string, _entry long"))[0] == {"name": "one", "_entry": 0}
    stream = stream_reader(metastore, spark_log, None)
    start = stream.initialOffset()
    assert rows(stream, stream.partitions(start, stream.latestOffset(start, stream.getDefaultReadLimit()))) == FOUND
    with pytest.raises(ConfigError, match=r'there are: id bigint, name string.*option\("values", "binary"\)'):
        batch_reader(metastore, spark_log, "value binary")

    async def append(client: replog.Client) -> None:
        async with client.write_log(spark_log) as writer:
            await writer.append(b"of another program")

    ask(metastore, append)
    with pytest.raises(SchemaMismatchError, match=r'position 2:0.*option\("values", "binary"\)'):
        rows(batch_reader(metastore, spark_log))
    assert values(batch_reader(metastore, spark_log, values="binary"))[-1] == b"of another program"


def test_auto_is_for_reading() -> None:
    assert ReadOptions.parse(NEEDED).values == "auto"
    with pytest.raises(ConfigError, match="values: auto is for reading"):
        SparkOptions.parse({**NEEDED, "values": "auto"})
    with pytest.raises(ConfigError, match="'xml' is none of auto, binary, arrow, json"):
        ReadOptions.parse({**NEEDED, "values": "xml"})
