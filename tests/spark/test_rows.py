"""`spark.read.format("replog")`: the rows of a log, each once and in its order, with a real Spark and without."""

from __future__ import annotations

import datetime
import gc
import itertools
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, In, LessThan

import replog
from replog import blocking
from replog.errors import (
    ConfigError,
    LogNotFoundError,
    MetastoreError,
    PositionError,
    SchemaMismatchError,
    TrimmedError,
    UnauthorizedError,
)
from replog.protocol.quorum import Quorum
from replog.spark.extents import Extent, Survey
from replog.spark.rows import FilteringReader, LogPartition
from replog.spark.sizes import Measured
from tests.servers.bookies import Bookies
from tests.spark.logs import ask
from tests.spark.readers import batch_reader, numbers, rows, values, wait_for, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.needs_spark

SEGMENTS = 3
PER_SEGMENT = 2000
ALL = SEGMENTS * PER_SEGMENT
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture
def written(spark_bookies: Bookies, spark_log: str) -> str:
    """A log of three closed segments."""
    ask(spark_bookies.metastore, lambda client: write(client, spark_log, SEGMENTS, PER_SEGMENT))
    return spark_log


@pytest.fixture
def metastore(spark_bookies: Bookies) -> str:
    return spark_bookies.metastore


def reading(spark: SparkSession, metastore: str, log: str, **options: str) -> DataFrame:
    return spark.read.format("replog").option("metastore", metastore).option("log", log).options(**options).load()


def failing(make: Callable[[], DataFrame]) -> str:
    """What the user is told."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    with pytest.raises((PySparkException, Py4JJavaError)) as caught:
        make().collect()
    return str(caught.value)


# -- in this process ----------------------------------------------------------------------------------------------


def test_ranges_of_positions_tile_the_log(metastore: str, written: str) -> None:
    whole = values(batch_reader(metastore, written))
    assert whole == numbers(0, ALL)
    cuts = ["1:0", "1:1", "1:1999", "1:2000", "2:0", "2:777", "3:0", "3:1999", "4:0"]
    for first, last in itertools.pairwise(cuts):
        options = {"from": first, "to": last}
        low, high = (PER_SEGMENT * (position.segment - 1) + position.entry for position in map(parse, (first, last)))
        assert values(batch_reader(metastore, written, **options)) == whole[low:high], options
    assert values(batch_reader(metastore, written, **{"from": "2:777"})) == whole[PER_SEGMENT + 777 :]
    assert values(batch_reader(metastore, written, **{"to": "1:1"})) == whole[:1]


def test_filters_on_positions_read_only_these(metastore: str, written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replog.spark.rows.is_pushing_filters", lambda: True)

    def read(*filters: Filter) -> list[dict[str, Any]]:
        reader = batch_reader(metastore, written, partitionBytes="1KiB")
        assert isinstance(reader, FilteringReader)
        assert list(reader.pushFilters(list(filters))) == list(filters), "Spark evaluates all of them again"
        return rows(reader)

    assert [row["position"] for row in read(EqualTo(("position",), "2:17"))] == ["2:17"]
    assert [row["position"] for row in read(In(("position",), ("2:17", "2:19")))] == ["2:17", "2:18", "2:19"]
    found = read(GreaterThanOrEqual(("segment",), 2), LessThan(("entry",), 2))
    assert [row["position"] for row in found] == ["2:0", "2:1", "3:0", "3:1"]
    assert len(read(EqualTo(("value",), b"x"))) == ALL
    assert read(EqualTo(("log",), "other")) == []
    assert read(EqualTo(("segment",), 2), EqualTo(("entry",), PER_SEGMENT)) == []


def parse(text: str) -> replog.Position:
    return replog.Position.parse(text)


def test_ranges_of_times_tile_the_log(metastore: str, spark_log: str) -> None:
    async def write_and_read(client: replog.Client) -> list[replog.Record]:
        async with client.write_log(spark_log) as writer:
            for number in range(30):
                await writer.append(b"%d" % number)
                if number % 10 == 9:
                    await writer.roll()
        async with client.read_log(spark_log) as reader:
            return [record async for record in reader]

    records = ask(metastore, write_and_read)
    assert len({record.timestamp_ns for record in records}) == 30
    for place in (0, 5, 12, 29):
        cut_us = records[place].timestamp_ns // 1000  # times are written in microseconds at most
        cut = (EPOCH + datetime.timedelta(microseconds=cut_us)).isoformat()
        before = [record.data for record in records if record.timestamp_ns < cut_us * 1000]
        after = [record.data for record in records if record.timestamp_ns >= cut_us * 1000]
        assert values(batch_reader(metastore, spark_log, to=cut)) == before
        assert values(batch_reader(metastore, spark_log, **{"from": cut})) == after
        assert len(before) + len(after) == 30
        assert after


def test_ledgers_outside_the_time_range_are_not_read(metastore: str, written: str) -> None:
    minute_ms = 60_000
    noon = datetime.datetime(2026, 11, 20, 12, tzinfo=datetime.UTC)
    noon_ms = int(noon.timestamp()) * 1000
    reader = batch_reader(metastore, written, **{"from": noon.isoformat(), "to": noon.isoformat()})

    def created(at_ms: int) -> Extent:
        return Extent(1, 100, 0, 9, True, at_ms)

    assert reader._may_be_wanted(created(noon_ms + minute_ms - 1))  # its clock may have been set back
    assert not reader._may_be_wanted(created(noon_ms + minute_ms))
    assert reader.may_be_in_time(Measured(1, (noon_ms - minute_ms) * 1_000_000))
    assert not reader.may_be_in_time(Measured(1, (noon_ms - minute_ms) * 1_000_000 - 1))


def test_long_ledgers_are_cut_and_each_part_is_read_alone(metastore: str, written: str) -> None:
    reader = batch_reader(metastore, written, partitionBytes="4KiB")
    planned = list(reader.partitions())
    assert len(planned) == SEGMENTS * 4  # of 16 000 bytes each
    assert values(reader, planned) == numbers(0, ALL)
    for number, partition in enumerate(planned):
        assert values(reader, [partition]) == numbers(500 * number, 500)
    assert repr(planned[5]) == f"LogPartition({written} 2:500-999)"
    assert len(batch_reader(metastore, written).partitions()) == 1  # small ones share a task


@pytest.mark.parametrize("ahead_bytes", [1, 2 << 20])
def test_short_ledgers_are_read_ahead(
    metastore: str, spark_log: str, monkeypatch: pytest.MonkeyPatch, ahead_bytes: int
) -> None:
    """One that is longer than its plan knew is read to its end all the same."""

    async def write_many(client: replog.Client) -> None:
        async with client.write_log(spark_log) as writer:
            for number in range(60):
                await writer.append(b"%08d" % number)
                if number % 3 == 2:
                    await writer.roll()

    ask(metastore, write_many)
    monkeypatch.setattr("replog.spark.rows._RECORD_BATCH_BYTES", ahead_bytes)
    reader = batch_reader(metastore, spark_log)
    (partition,) = reader.partitions()
    assert isinstance(partition, LogPartition)
    assert len(partition.extents) == 20
    assert values(reader, [partition]) == numbers(0, 60)


@pytest.mark.parametrize("quorum", [Quorum(3, 2, 2), Quorum(3, 1, 1)])
def test_striped_ledgers(metastore: str, spark_log: str, quorum: Quorum) -> None:
    ask(metastore, lambda client: write(client, spark_log, 2, 1000, quorum=quorum))
    reader = batch_reader(metastore, spark_log, partitionBytes="3KiB")
    assert [row["position"] for row in rows(reader)] == [f"{1 + n // 1000}:{n % 1000}" for n in range(2000)]
    assert values(reader) == numbers(0, 2000)
    assert values(batch_reader(metastore, spark_log, **{"from": "1:7", "to": "2:5"})) == numbers(7, 998)


def test_payloads_of_all_sizes(metastore: str, spark_log: str) -> None:
    payloads = [b"", b"x", b"y" * 3_000_000, b"", *[b"z" * size for size in range(300)]]

    async def append(client: replog.Client) -> None:
        async with client.write_log(spark_log) as writer:
            await writer.extend(payloads)

    ask(metastore, append)
    assert values(batch_reader(metastore, spark_log)) == payloads
    assert values(batch_reader(metastore, spark_log, **{"from": "1:2", "to": "1:4"})) == payloads[2:4]


def test_a_plan_is_read_unchanged_by_later_appends(metastore: str, spark_log: str) -> None:
    """A log whose leader lives: it is read to what is confirmed when it is planned (D1), twice the same."""
    with blocking.connect(metastore) as client, client.write_log(spark_log) as writer:
        writer.extend(numbers(0, 1000))
        reader = batch_reader(metastore, spark_log)
        wait_for(metastore, spark_log, numbers(999, 1)[0])
        planned = list(reader.partitions())
        writer.extend(numbers(1000, 10))
        writer.roll()
        writer.extend(numbers(1010, 10))
        assert values(reader, planned) == numbers(0, 1000)
    assert values(reader, planned) == numbers(0, 1000)
    assert values(reader) == numbers(0, 1020)


def test_a_trim_after_planning_raises(metastore: str, written: str) -> None:
    reader = batch_reader(metastore, written)
    planned = list(reader.partitions())
    ask(metastore, lambda client: client.trim_log(written, before="2:0"))
    with pytest.raises(TrimmedError, match="1:0 was trimmed away before it was read; the log begins at 2:0"):
        values(reader, planned)
    assert values(reader) == numbers(PER_SEGMENT, ALL - PER_SEGMENT)
    with pytest.raises(TrimmedError, match="1:5 was trimmed away"):
        batch_reader(metastore, written, **{"from": "1:5"}).partitions()


def test_trim_during_planning_does_not_matter(metastore: str, written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for what there is gets what there is; who asks for a position is told."""
    old = ask(metastore, lambda client: client.log_metadata(written))
    heads: list[replog.LogMetadata] = []

    class Late(Survey):
        async def head(self) -> replog.LogMetadata:
            return heads.pop() if heads else await super().head()

    monkeypatch.setattr("replog.spark.rows.Survey", Late)
    ask(metastore, lambda client: client.trim_log(written, before="3:0"))
    heads += [old]
    assert values(batch_reader(metastore, written)) == numbers(2 * PER_SEGMENT, PER_SEGMENT)
    assert not heads
    heads += [old]
    with pytest.raises(TrimmedError, match="2:0 was trimmed away"):
        batch_reader(metastore, written, **{"from": "2:0"}).partitions()


def test_a_plan_leaves_the_garbage_collector_on(metastore: str, written: str) -> None:
    assert gc.isenabled()
    reader = batch_reader(metastore, written)
    assert reader.partitions()
    assert gc.isenabled()
    with pytest.raises(LogNotFoundError):
        batch_reader(metastore, "missing").partitions()
    assert gc.isenabled()


def test_a_log_without_segments(metastore: str, spark_log: str) -> None:
    """A job without rows may have begun it."""
    ask(metastore, lambda client: client.jobs.append_ledgers(spark_log, [], transaction=("job", 1)))
    assert values(batch_reader(metastore, spark_log)) == []
    ask(metastore, lambda client: write(client, spark_log, 1, 10))
    assert values(batch_reader(metastore, spark_log)) == numbers(0, 10)


def test_only_requested_columns_are_made(metastore: str, written: str) -> None:
    def columns(schema: str) -> dict[str, Any]:
        return rows(batch_reader(metastore, written, schema, **{"from": "2:0", "to": "2:1"}))[0]

    assert columns("value binary") == {"value": numbers(PER_SEGMENT, 1)[0]}
    found = columns("entry long, position string, segment long")
    assert list(found.items()) == [("entry", 0), ("position", "2:0"), ("segment", 2)]
    assert columns("timestamp timestamp")["timestamp"].tzinfo is not None
    for wrong, told in (
        ("value long", "asks for value bigint, and there are: log string, position string, segment bigint"),
        ("offset long", "asks for offset bigint"),
        ("value binary, value binary", "asks for value twice"),
    ):
        with pytest.raises(ConfigError, match=told):
            columns(wrong)


def test_early_left_reader_leaves_nothing(metastore: str, written: str) -> None:
    reader = batch_reader(metastore, written)
    with ExitStack() as stack:
        read = reader.read(reader.partitions()[0])
        stack.callback(read.close)  # type: ignore[attr-defined] # a generator, as Spark closes it
        assert next(read).num_rows
    assert values(reader) == numbers(0, ALL)


def test_a_log_with_a_password(metastore: str, spark_log: str, tmp_path: Any) -> None:
    ask(metastore, lambda client: write(client, spark_log, 2, 10, password=b"secret"))
    (tmp_path / "password").write_bytes(b"secret\n")
    assert values(batch_reader(metastore, spark_log, passwordFile=str(tmp_path / "password"))) == numbers(0, 20)
    with pytest.raises(UnauthorizedError):
        values(batch_reader(metastore, spark_log))


def test_a_missing_log_store_or_position_raises(metastore: str, written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LogNotFoundError):
        batch_reader(metastore, "no-such-log").partitions()
    with monkeypatch.context() as impatient, pytest.raises(MetastoreError, match="/nowhere/at/all"):
        impatient.setenv("REPLOG_CLIENT_METASTORE_TIMEOUT_S", "0.2")
        batch_reader("lmdb:/nowhere/at/all", written).partitions()
    with pytest.raises(PositionError, match="its last segment is 3"):
        batch_reader(metastore, written, **{"from": "5:0"}).partitions()
    with pytest.raises(PositionError, match="to=4:1 is not a position"):
        batch_reader(metastore, written, to="4:1").partitions()
    with pytest.raises(PositionError, match="that segment ends at 1999"):
        batch_reader(metastore, written, **{"from": "2:2001"}).partitions()
    with pytest.raises(ConfigError, match="is for readStream"):
        batch_reader(metastore, written, **{"from": "latest"})
    assert batch_reader(metastore, written, **{"from": "4:0"}).partitions() == []


# -- with Spark ---------------------------------------------------------------------------------------------------


def test_all_rows_in_order(spark: SparkSession, metastore: str, written: str) -> None:
    frame = reading(spark, metastore, written, partitionBytes="4KiB")
    assert frame.schema.simpleString() == (
        "struct<position:string,segment:bigint,entry:bigint,timestamp:timestamp,value:binary>"
    )
    found = frame.collect()
    assert frame.rdd.getNumPartitions() == SEGMENTS * 4
    assert [bytes(row.value) for row in found] == numbers(0, ALL)
    wanted = [(segment, entry) for segment in range(1, SEGMENTS + 1) for entry in range(PER_SEGMENT)]
    assert [(row.segment, row.entry) for row in found] == wanted
    assert [row.position for row in found] == [f"{segment}:{entry}" for segment, entry in wanted]
    minutes = datetime.timedelta(minutes=10)
    now = datetime.datetime.now()
    assert all(now - minutes < row.timestamp <= now for row in found)
    assert frame.orderBy("segment", "entry").limit(3).count() == 3
    assert reading(spark, metastore, written, **{"from": "4:0"}).collect() == []


def test_fewer_columns_by_a_schema(spark: SparkSession, metastore: str, written: str) -> None:
    reader = spark.read.format("replog").option("metastore", metastore).option("log", written).schema("value binary")
    found = reader.load().selectExpr("cast(value as string) as text").where("text like '%77'").collect()
    assert [row.text.encode() for row in found] == [each for each in numbers(0, ALL) if each.endswith(b"77")]


def test_rows_of_any_schema_come_back(spark: SparkSession, metastore: str, spark_log: str) -> None:
    frame = spark.range(0, 300, 1, 3).selectExpr(
        "id", "concat('n', id) as name", "timestamp_micros(id) as timestamp", "array(id, null) as pair"
    )
    options = {"metastore": metastore, "log": spark_log, "values": "arrow"}
    frame.write.format("replog").mode("append").options(**options).save()
    found = spark.read.format("replog").option("metastore", metastore).option("log", spark_log).load()
    assert found.schema.simpleString() == frame.schema.simpleString()
    assert found.collect() == frame.collect()
    placed = spark.read.format("replog").options(**options).schema("_segment bigint, _entry bigint, id bigint").load()
    assert [row.id for row in placed.orderBy("_segment", "_entry", "id").collect()] == list(range(300))
    with pytest.raises(SchemaMismatchError, match="its values are arrow, and were to be read as json"):
        batch_reader(metastore, spark_log, values="json")
    assert (
        len(values(batch_reader(metastore, spark_log, values="binary"))) == 3
    )  # entries as they are, of many rows each


def test_filters_narrow_the_read_ranges(spark: SparkSession, metastore: str, written: str) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = reading(spark, metastore, written, partitionBytes="16000")
        assert frame.rdd.getNumPartitions() == SEGMENTS
        part = frame.where("segment >= 2 and segment < 3 and entry > 1990")
        assert part.rdd.getNumPartitions() == 1
        assert [row.position for row in part.collect()] == [f"2:{entry}" for entry in range(1991, 2000)]
        (row,) = frame.where("position = '3:17'").collect()
        assert bytes(row.value) == numbers(2 * PER_SEGMENT + 17, 1)[0]
        assert frame.where(frame.timestamp == row.timestamp).where("segment = 3").count() >= 1
        future = frame.where(frame.timestamp > datetime.datetime.now() + datetime.timedelta(hours=2))
        assert future.collect() == []
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert reading(spark, metastore, written).where("segment = 2").count() == PER_SEGMENT, (
        "a session that has stopped it"
    )


def test_killed_task_is_tried_again(spark: SparkSession, metastore: str, written: str) -> None:
    from tests.spark.faulty_reading import KilledOnceSource

    spark.dataSource.register(KilledOnceSource)
    killed = spark.read.format("replog-killed-once").option("metastore", metastore).option("log", written)
    found = killed.option("partitionBytes", "16000").load().collect()
    assert sorted(bytes(row.value) for row in found) == numbers(0, ALL)


def test_errors_reach_users_of_spark(spark: SparkSession, metastore: str, written: str) -> None:
    value = spark.read.format("replog").option("metastore", metastore).option("log", written).schema("value long")
    for make, told in (
        (lambda: reading(spark, metastore, written, form="1:0"), "no such option: form"),
        (value.load, "asks for value bigint, and there are: log string, position string"),
    ):
        assert told in failing(make)


def test_a_partition_can_be_pickled() -> None:
    import pickle

    partition = LogPartition((Extent(1, 100, 0, 9, True, 5),))
    assert pickle.loads(pickle.dumps(partition)).extents == partition.extents
