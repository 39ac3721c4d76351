"""The readers that Spark would make, used as it does, but in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow
import trio

import replog
from replog.spark import ReplogDataSource
from replog.spark.streaming import LogStreamReader
from tests.spark.logs import ask

if TYPE_CHECKING:
    from replog.spark.rows import LogBatchReader


def numbers(first: int, count: int) -> list[bytes]:
    """Entries of eight bytes."""
    return [b"%08d" % number for number in range(first, first + count)]


async def write(client: replog.Client, log: str, segments: int, count: int, **options: Any) -> None:
    """A log of so many segments, each with so many entries."""
    async with client.write_log(log, **options) as writer:
        for segment in range(segments):
            if segment:
                await writer.roll()
            await writer.extend(numbers(segment * count, count))


def wait_for(metastore: str, log: str, last: bytes) -> None:
    """Returns when somebody else may read this entry: a leader that is idle tells bookies what is confirmed (W5)."""

    async def follow(client: replog.Client) -> None:
        async with client.read_log(log, follow=True) as follower:
            with trio.fail_after(30):
                async for record in follower:
                    if record.data == last:
                        return

    ask(metastore, follow)


def batch_reader(metastore: str, log: str, schema: str | None = None, **options: str) -> LogBatchReader:
    source = ReplogDataSource({"metastore": metastore, "log": log, **options})
    return source.reader(_schema(source, schema))  # type: ignore[return-value]


def stream_reader(metastore: str, log: str, schema: str | None = "value binary", **options: str) -> LogStreamReader:
    source = ReplogDataSource({"metastore": metastore, "log": log, **options})
    reader = source.streamReader(_schema(source, schema))
    assert isinstance(reader, LogStreamReader)
    return reader


def _schema(source: ReplogDataSource, schema: str | None) -> Any:
    return source.schema() if schema is None else schema_of_text(schema)


def schema_of_text(schema: str) -> Any:
    """As Spark reads it, of simple types."""
    from pyspark.sql.types import StructType

    found = StructType()
    for column in schema.split(", "):
        name, of_type = column.split(" ")
        found = found.add(name, of_type)
    return found


def rows(reader: LogBatchReader | LogStreamReader, partitions: Any = None) -> list[dict[str, Any]]:
    """All rows, partition by partition."""
    planned = reader.partitions() if partitions is None else partitions  # type: ignore[call-arg]
    batches = [batch for partition in planned for batch in reader.read(partition)]
    return pyarrow.Table.from_batches(batches).to_pylist() if batches else []


def values(reader: LogBatchReader | LogStreamReader, partitions: Any = None) -> list[bytes]:
    """The column `value` of all rows."""
    return [row["value"] for row in rows(reader, partitions)]
