"""Keys and headers: columns beside the value, in both directions; a value that is null is a tombstone."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as arrow
import pytest
from pyspark.sql.types import ArrayType, BinaryType, LongType, MapType, StringType, StructType

import replog
from replog.errors import ConfigError, SchemaMismatchError
from replog.protocol.envelope import pack
from replog.spark.committing import Job, commit_job
from replog.spark.options import SparkOptions
from replog.spark.values import ValueEncoder, ValueFormat, ValueSchema
from replog.spark.writing import Attempt, outputs_of, write_partition
from tests.servers.bookies import Bookies
from tests.spark.logs import ask, payloads_of
from tests.spark.readers import batch_reader, rows

pytestmark = pytest.mark.needs_spark

HEADERS = MapType(StringType(), BinaryType())
LISTED = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
SCHEMA = StructType().add("key", BinaryType()).add("value", StringType()).add("headers", HEADERS)
ARROW = arrow.schema(
    [("key", arrow.binary()), ("value", arrow.string()), ("headers", arrow.map_(arrow.string(), arrow.binary()))]
)
ROWS: list[dict[str, Any]] = [
    {"key": b"k1", "value": "one", "headers": [("from", b"spark"), ("empty", b"")]},
    {"key": None, "value": "plain", "headers": None},
    {"key": b"", "value": "", "headers": []},
    {"key": b"k1", "value": None, "headers": None},
]


def read_plainly(metastore: str, log: str) -> list[tuple[bytes | None, bytes, dict[str, bytes], bool]]:
    async def read(client: replog.Client) -> list[Any]:
        async with client.read_log(log) as reader:
            return [(each.key, each.data, dict(each.headers), each.is_tombstone) async for each in reader]

    return ask(metastore, read)


@pytest.mark.parametrize("merge_bytes", [0, 256 << 10])
def test_rows_with_keys_come_back(spark_bookies: Bookies, spark_log: str, merge_bytes: int) -> None:
    """Written by the task, or sent to the driver, as a message that Spark pickles."""
    metastore = spark_bookies.metastore
    options = SparkOptions(metastore=metastore, log=spark_log, merge_bytes=merge_bytes)
    values = ValueSchema.of_rows(ValueFormat.BINARY, SCHEMA)
    batch = arrow.RecordBatch.from_pylist(ROWS, ARROW)
    sent = write_partition(options, values, Attempt(spark_log, "job", 0, 1), iter([batch]), merge_bytes)
    assert (sent.ledger_id is None) == (merge_bytes > 0)
    sent = pickle.loads(pickle.dumps(sent))
    job = Job("job", (), None, outputs=outputs_of([sent]))
    assert options.run(lambda client: commit_job(client, options, values, job))
    assert read_plainly(metastore, spark_log) == [
        (b"k1", b"one", {"from": b"spark", "empty": b""}, False),
        (None, b"plain", {}, False),
        (b"", b"", {}, False),
        (b"k1", b"", {}, True),
    ]
    expected = [{**row, "headers": row["headers"] or None} for row in ROWS]
    columns = "key binary, value string"
    reader = batch_reader(metastore, spark_log, columns)
    assert rows(reader) == [{"key": row["key"], "value": row["value"]} for row in ROWS]
    assert [row["value"] for row in rows(batch_reader(metastore, spark_log))] == [b"one", b"plain", b"", None]
    assert "key" not in rows(batch_reader(metastore, spark_log))[0], "on demand"
    from replog.spark import ReplogDataSource

    source = ReplogDataSource({"metastore": metastore, "log": spark_log})
    assert rows(source.reader(SCHEMA)) == expected  # type: ignore[arg-type]


def test_keys_beside_the_rows_of_a_json_log(spark_bookies: Bookies, spark_log: str) -> None:
    """A program without Spark may append them; a tombstone has no row, and is one of nulls."""
    metastore = spark_bookies.metastore
    for value_format in (ValueFormat.JSON, ValueFormat.ARROW):
        log = f"{spark_log}-{value_format}"
        people = ValueSchema.of_rows(value_format, StructType().add("id", LongType()))
        [payload] = payloads_of(ValueEncoder(people, log), arrow.RecordBatch.from_pydict({"id": [1]}))

        async def append(
            client: replog.Client, log: str = log, payload: bytes = payload, values: ValueSchema = people
        ) -> None:
            await client.jobs.append_ledgers(log, [], transaction=("begin", 1), custom=values.custom())
            async with client.write_log(log) as writer:
                await writer.append(payload, key=b"one")
                await writer.append(None, key=b"one")
                await writer.append(payload)

        ask(metastore, append)
        found = rows(batch_reader(metastore, log, "id long, _key string, _position string"))
        assert [(row["id"], row["_key"]) for row in found] == [(1, "one"), (None, "one"), (1, None)]
        assert [row["_position"] for row in found] == ["1:0", "1:1", "1:2"]


@pytest.mark.parametrize(
    ("schema", "is_written"),
    [
        (StructType().add("value", BinaryType()).add("key", StringType()), True),
        (StructType().add("headers", HEADERS).add("value", StringType()), True),
        (StructType().add("headers", LISTED).add("value", StringType()), True),
        (StructType().add("value", BinaryType()).add("headers", ArrayType(StringType())), False),
        (StructType().add("value", BinaryType()).add("key", LongType()), False),
        (StructType().add("value", BinaryType()).add("headers", MapType(StringType(), StringType())), False),
        (StructType().add("value", BinaryType()).add("topic", StringType()), False),
        (StructType().add("key", BinaryType()).add("headers", HEADERS), False),
        (StructType().add("value", BinaryType()).add("value", BinaryType()), False),
    ],
)
def test_writable_columns_are_accepted(schema: StructType, is_written: bool) -> None:
    if is_written:
        ValueSchema.of_rows(ValueFormat.BINARY, schema)
        return
    with pytest.raises(ConfigError, match=r"or value with key .* and headers"):
        ValueSchema.of_rows(ValueFormat.BINARY, schema)


def test_unwritable_rows_are_refused() -> None:
    encoder = ValueEncoder(ValueSchema.of_rows(ValueFormat.BINARY, SCHEMA), "log")
    refused = [
        ({"key": None, "value": None, "headers": None}, "column 'value' is null .row 0 of a batch.*give them a key"),
        ({"key": b"k", "value": "v", "headers": [("h", None)]}, "headers must be a mapping of texts to bytes"),
        ({"key": b"k", "value": "v", "headers": [("h" * 70_000, b"")]}, "the name of a header has 70000 bytes"),
    ]
    for row, told in refused:
        with pytest.raises(SchemaMismatchError, match=told):
            payloads_of(encoder, arrow.RecordBatch.from_pylist([row], ARROW))


def test_headers_come_as_kafka_has_them() -> None:
    """Pairs in a list, which may name one header twice: an entry can't."""
    schema = StructType().add("value", BinaryType()).add("headers", LISTED)
    pair = arrow.struct([("key", arrow.string()), ("value", arrow.binary())])
    of_arrow = arrow.schema([("value", arrow.binary()), ("headers", arrow.list_(pair))])
    encoder = ValueEncoder(ValueSchema.of_rows(ValueFormat.BINARY, schema), "log")

    def payloads(*headers: list[dict[str, Any]] | None) -> list[bytes]:
        return payloads_of(
            encoder, arrow.RecordBatch.from_pylist([{"value": b"v", "headers": each} for each in headers], of_arrow)
        )

    one, two = {"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}
    assert payloads([one, two], [], None) == [pack(b"v", headers={"a": b"1", "b": b"2"}), b"v", b"v"]
    for refused, told in (
        ([one, one], "headers 'a' are there twice"),
        ([{"key": "a", "value": None}], "texts to bytes"),
    ):
        with pytest.raises(SchemaMismatchError, match=f"{told}.*nothing of this task was committed"):
            payloads(refused)
