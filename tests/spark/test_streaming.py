"""`readStream.format("replog")`: each entry in one micro-batch, whatever happens to the log, the query and its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
)

import replog
from replog import blocking
from replog.errors import ConfigError, LogNotFoundError, PositionError, TrimmedError
from tests.servers.bookies import Bookies
from tests.spark.logs import ask
from tests.spark.queries import ENDING_S, restarted
from tests.spark.readers import numbers, stream_reader, values, wait_for, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from replog.spark.streaming import LogStreamReader

pytestmark = pytest.mark.needs_spark

ALL = ReadAllAvailable()
Offset = dict[str, Any]


@pytest.fixture
def metastore(spark_bookies: Bookies) -> str:
    return spark_bookies.metastore


def stored(offset: Offset) -> Offset:
    """As it comes back from a checkpoint."""
    found = json.loads(json.dumps(offset))
    assert isinstance(found, dict)
    return found


def drained(reader: LogStreamReader, start: Offset, limit: ReadLimit) -> tuple[list[list[bytes]], Offset]:
    """Micro-batches until there is nothing more: what each has, and where they end."""
    batches: list[list[bytes]] = []
    while True:
        end = stored(reader.latestOffset(start, limit))
        if end == start:
            return batches, end
        planned = list(reader.partitions(start, end))
        batches.append(values(reader, planned))
        start = end


def position(offset: Offset) -> str:
    text = offset["position"]
    assert isinstance(text, str)
    return text


# -- in this process ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [ALL, ReadMaxRows(700), ReadMaxRows(1000), ReadMaxRows(1), ReadMaxBytes(5600)])
def test_each_entry_is_in_one_micro_batch(metastore: str, spark_log: str, limit: ReadLimit) -> None:
    count = 1000 if limit != ReadMaxRows(1) else 5
    ask(metastore, lambda client: write(client, spark_log, 3, count))
    reader = stream_reader(metastore, spark_log)
    batches, end = drained(reader, stored(reader.initialOffset()), limit)
    assert [each for batch in batches for each in batch] == numbers(0, 3 * count)
    assert position(end) == "4:0"
    lengths = [len(batch) for batch in batches]
    if limit == ALL:
        assert lengths == [3000]
    elif limit == ReadMaxRows(1):
        assert lengths == [1] * 15
    elif limit == ReadMaxRows(1000):
        assert lengths == [1000] * 3
    else:
        assert lengths == [700, 700, 700, 700, 200]  # of eight bytes each


def test_limits_of_bytes_with_entries_of_many_sizes(metastore: str, spark_log: str) -> None:
    payloads = [bytes(size * 37 % 1000) for size in range(60)]

    async def append(client: replog.Client) -> None:
        async with client.write_log(spark_log) as writer:
            for start in range(0, 60, 20):
                await writer.extend(payloads[start : start + 20])

    ask(metastore, append)
    reader = stream_reader(metastore, spark_log)
    batches, _ = drained(reader, reader.initialOffset(), ReadMaxBytes(2500))
    assert [each for batch in batches for each in batch] == payloads
    sizes = [sum(map(len, batch)) for batch in batches]
    assert max(sizes) <= 2500
    for batch, size, following in zip(batches, sizes, [*batches[1:], [b""]], strict=True):
        assert batch
        assert size + len(following[0]) > 2500 or batch is batches[-1], "no batch is smaller than need be"
    batches, _ = drained(reader, reader.initialOffset(), ReadMaxBytes(1))
    assert [each for batch in batches for each in batch] == payloads
    assert max(sum(1 for each in batch if each) for batch in batches) == 1  # one entry at least


def test_it_goes_on_over_rolls_and_takeovers(metastore: str, spark_log: str) -> None:
    ask(metastore, lambda client: write(client, spark_log, 1, 10))
    reader = stream_reader(metastore, spark_log)
    found: list[bytes] = []
    offset = stored(reader.initialOffset())

    def read_on() -> None:
        nonlocal offset
        batches, offset = drained(reader, offset, ALL)
        found.extend(each for batch in batches for each in batch)

    read_on()
    assert position(offset) == "2:0"
    with blocking.connect(metastore) as client, client.write_log(spark_log) as writer:
        writer.extend(numbers(10, 10))
        wait_for(metastore, spark_log, numbers(19, 1)[0])
        read_on()
        assert position(offset) == "2:10"  # of an open ledger
        writer.roll()
        writer.roll()  # an empty segment
        writer.extend(numbers(20, 10))
        wait_for(metastore, spark_log, numbers(29, 1)[0])
        read_on()
        assert position(offset) == "4:10"
        with blocking.connect(metastore) as other, other.write_log(spark_log) as deposing:
            deposing.extend(numbers(30, 10))
            with pytest.raises(replog.FencedError):
                writer.append(b"deposed")
            wait_for(metastore, spark_log, numbers(39, 1)[0])
            read_on()
    read_on()
    assert found == numbers(0, 40)
    assert position(offset) == "6:0"


def test_a_micro_batch_is_repeated_to_the_letter(metastore: str, spark_log: str) -> None:
    """A query that is begun anew plans the batch again that was under way, from the offsets in its checkpoint."""
    with blocking.connect(metastore) as client, client.write_log(spark_log) as writer:
        writer.extend(numbers(0, 10))
        wait_for(metastore, spark_log, numbers(9, 1)[0])
        first = stream_reader(metastore, spark_log)
        start = stored(first.initialOffset())
        end = stored(first.latestOffset(start, ALL))
        assert position(end) == "1:10"
        writer.extend(numbers(10, 10))
        writer.roll()
        writer.extend(numbers(20, 10))
        again = stream_reader(metastore, spark_log)
        assert values(again, again.partitions(start, end)) == numbers(0, 10)
    again = stream_reader(metastore, spark_log)
    assert values(again, again.partitions(start, end)) == numbers(0, 10)
    batches, _ = drained(again, end, ReadMaxRows(15))
    assert [each for batch in batches for each in batch] == numbers(10, 20)
    assert again.partitions(end, end) == []


def test_a_trim_of_unread_entries_raises_of_read_ones_not(metastore: str, spark_log: str) -> None:
    ask(metastore, lambda client: write(client, spark_log, 3, 10))
    reader = stream_reader(metastore, spark_log)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(20))
    assert position(end) == "3:0"
    middle = reader.latestOffset(start, ReadMaxRows(15))
    ask(metastore, lambda client: client.trim_log(spark_log, before="3:0"))
    assert values(reader, reader.partitions(end, reader.latestOffset(end, ALL))) == numbers(20, 10)
    for limit in (ALL, ReadMaxRows(5), ReadMaxBytes(5)):
        with pytest.raises(TrimmedError, match="2:5 was trimmed away before it was read; the log begins at 3:0"):
            reader.latestOffset(middle, limit)
    with pytest.raises(TrimmedError, match="1:0 was trimmed away"):
        reader.partitions(start, end)
    assert position(stream_reader(metastore, spark_log).initialOffset()) == "3:0"
    with pytest.raises(TrimmedError, match="1:5 was trimmed away"):
        stream_reader(metastore, spark_log, **{"from": "1:5"}).initialOffset()


@pytest.mark.parametrize("on_trimmed", ["fail", "skip"])
def test_stream_continues_when_it_read_all_before_the_trim(metastore: str, spark_log: str, on_trimmed: str) -> None:
    """Its checkpoint is behind the last entry of a ledger that was open then."""
    ask(metastore, lambda client: write(client, spark_log, 1, 10))
    reader = stream_reader(metastore, spark_log, onTrimmed=on_trimmed)
    start = {**reader.initialOffset(), "position": "1:10"}
    ask(metastore, lambda client: write(client, spark_log, 1, 5))
    ask(metastore, lambda client: client.trim_log(spark_log, before="2:0"))
    end = reader.latestOffset(start, ALL)
    assert (position(end), "lost" in end) == ("3:0", False)
    assert values(reader, reader.partitions(start, end)) == numbers(0, 5)
    begun = stream_reader(metastore, spark_log, onTrimmed=on_trimmed, **{"from": "1:10"}).initialOffset()
    assert (position(begun), "lost" in begun) == ("2:0", False)


def test_recreated_log_is_another_one(metastore: str, spark_log: str) -> None:
    ask(metastore, lambda client: write(client, spark_log, 1, 10))
    reader = stream_reader(metastore, spark_log)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    ask(metastore, lambda client: client.delete_log(spark_log))
    with pytest.raises(LogNotFoundError, match="it was deleted"):
        reader.latestOffset(end, ALL)
    ask(metastore, lambda client: write(client, spark_log, 1, 10))
    for look in (lambda: reader.latestOffset(end, ALL), lambda: reader.partitions(start, end)):
        with pytest.raises(TrimmedError, match="it was deleted and created again since the checkpoint was written"):
            look()
    assert position(reader.initialOffset()) == "2:0"


def test_a_log_without_segments(metastore: str, spark_log: str) -> None:
    """A job without rows may have begun it."""
    ask(metastore, lambda client: client.jobs.append_ledgers(spark_log, [], transaction=("job", 1)))
    reader = stream_reader(metastore, spark_log)
    start = stored(reader.initialOffset())
    assert position(start) == "1:0"
    for limit in (ALL, ReadMaxRows(4), ReadMaxBytes(4)):
        assert reader.latestOffset(start, limit) == start
    ask(metastore, lambda client: write(client, spark_log, 1, 10))
    assert drained(reader, start, ALL)[0] == [numbers(0, 10)]


def test_where_it_begins(metastore: str, spark_log: str) -> None:
    ask(metastore, lambda client: write(client, spark_log, 3, 10))

    def begins(text: str) -> str:
        return position(stream_reader(metastore, spark_log, **{"from": text}).initialOffset())

    assert begins("2:5") == "2:5"
    assert begins("latest") == "4:0"
    assert begins("2020-01-01T00:00:00Z") == "1:0"
    assert begins("2999-01-01T00:00:00Z") == "4:0"
    with pytest.raises(PositionError, match="4:1 is not a position"):
        begins("4:1")
    with pytest.raises(LogNotFoundError, match="there is no such log"):
        stream_reader(metastore, "no-such-log").initialOffset()


def test_from_a_time_on(metastore: str, spark_log: str) -> None:
    """The ledger where that time is stands at the beginning of the first micro-batch; what is older in it is left out."""

    async def write_and_read(client: replog.Client) -> list[replog.Record]:
        async with client.write_log(spark_log) as writer:
            for number in range(20):
                await writer.append(b"%d" % number)
        async with client.read_log(spark_log) as reader:
            return [record async for record in reader]

    records = ask(metastore, write_and_read)
    cut = records[12].timestamp.isoformat()
    reader = stream_reader(metastore, spark_log, **{"from": cut})
    batches, _ = drained(reader, reader.initialOffset(), ReadMaxRows(6))
    found = [each for batch in batches for each in batch]
    assert found in ([b"%d" % number for number in range(first, 20)] for first in (12, 13))  # a time is rounded
    assert [len(batch) for batch in batches][:2] == [0, 0]


def test_available_now_ends(metastore: str, spark_log: str) -> None:
    with blocking.connect(metastore) as client, client.write_log(spark_log) as writer:
        writer.extend(numbers(0, 10))
        wait_for(metastore, spark_log, numbers(9, 1)[0])
        reader = stream_reader(metastore, spark_log)
        start = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        writer.extend(numbers(10, 10))
        writer.roll()
        writer.extend(numbers(20, 10))
        for limit in (ALL, ReadMaxRows(4), ReadMaxBytes(4)):
            batches, end = drained(reader, start, limit)
            assert [each for batch in batches for each in batch] == numbers(0, 10)
            assert position(end) == "1:10"
        later = dict(start, position="2:3")  # a checkpoint that knew more than bookies tell now
        assert reader.latestOffset(later, ALL) == later


def test_progress_says_how_far_the_query_is_behind(metastore: str, spark_log: str) -> None:
    ask(metastore, lambda client: write(client, spark_log, 3, 10))
    reader = stream_reader(metastore, spark_log)
    start = reader.initialOffset()
    found = reader.reportLatestOffset()
    assert found is not None
    assert (position(found), "lag" in found) == ("4:0", False)
    end = reader.latestOffset(start, ReadMaxRows(12))
    found = reader.reportLatestOffset()
    assert found is not None
    assert position(found) == "4:0"
    assert (found["lag"]["entries"], found["lag"]["bytes"]) == (18, 144)
    assert found["lag"]["seconds"] > 0
    again = stream_reader(metastore, spark_log)
    again.partitions(start, end)
    repeated = again.reportLatestOffset()
    assert repeated is not None
    assert repeated["lag"]["entries"] == 18, "a micro-batch that is repeated, before Spark asks for the next one"
    reader.latestOffset(end, ALL)
    found = reader.reportLatestOffset()
    assert found is not None
    assert found["lag"] == {"entries": 0, "bytes": 0, "seconds": 0.0}


def test_micro_batch_waits_for_rows_only_for_a_time(metastore: str, spark_log: str) -> None:
    ask(metastore, lambda client: write(client, spark_log, 1, 10))
    options = {"minRowsPerTrigger": "12", "maxTriggerDelayS": "600"}
    reader = stream_reader(metastore, spark_log, **options)
    start = reader.initialOffset()
    limits = (ReadMinRows(12), ReadMaxRows(20), ReadMaxBytes(1000))
    assert all(reader.latestOffset(start, limit) == start for limit in limits)
    assert position(reader.latestOffset(start, ALL)) == "2:0", "a query that runs once does not wait"
    hasty = stream_reader(metastore, spark_log, **{**options, "maxTriggerDelayS": "0.000001"})
    assert [position(hasty.latestOffset(start, limits[0])) for _ in range(3)] == ["1:0", "2:0", "1:0"]
    ask(metastore, lambda client: write(client, spark_log, 1, 2))
    assert [position(reader.latestOffset(start, limit)) for limit in limits] == ["3:0"] * 3
    assert position(reader.latestOffset(start, ReadMaxRows(11))) == "2:1", "there are enough, and it takes the most"
    assert reader.latestOffset({**start, "position": "2:1"}, limits[0])["position"] == "2:1"


def test_limits_come_from_options(metastore: str, spark_log: str) -> None:
    ask(metastore, lambda client: write(client, spark_log, 1, 1))
    assert stream_reader(metastore, spark_log).getDefaultReadLimit() == ALL
    assert stream_reader(metastore, spark_log, maxRowsPerTrigger="5").getDefaultReadLimit() == ReadMaxRows(5)
    assert stream_reader(metastore, spark_log, maxBytesPerTrigger="1kB").getDefaultReadLimit() == ReadMaxBytes(1000)
    assert stream_reader(metastore, spark_log, minRowsPerTrigger="5").getDefaultReadLimit() == ReadMinRows(5)
    reader = stream_reader(metastore, spark_log)
    with pytest.raises(ConfigError, match="ReadMaxFiles"):
        reader.latestOffset(reader.initialOffset(), ReadMaxFiles(1))


def test_a_checkpoint_of_something_else_is_refused(metastore: str, spark_log: str) -> None:
    ask(metastore, lambda client: write(client, spark_log, 1, 1))
    reader = stream_reader(metastore, spark_log)
    offset = reader.initialOffset()
    with pytest.raises(ConfigError, match="the checkpoint is of log 'other'"):
        reader.latestOffset(dict(offset, log="other"), ALL)
    with pytest.raises(ConfigError, match="none of this format"):
        reader.latestOffset({"0": 17}, ALL)
    with pytest.raises(ConfigError, match=r"is for spark\.read"):
        stream_reader(metastore, spark_log, to="1:1")


# -- with Spark ---------------------------------------------------------------------------------------------------


class Sink:
    """A query from a log into files, each time from its checkpoint."""

    def __init__(self, spark: SparkSession, metastore: str, log: str, directory: Path, **options: str) -> None:
        self._spark = spark
        self._options = {"metastore": metastore, "log": log, **options}
        self._directory = directory

    def begin(self, fails_at: str = "", **trigger: Any) -> StreamingQuery:
        """Begins it, or goes on with it. Its tasks fail at a position, if one is given."""
        frame = self._spark.readStream.format("replog").options(**self._options).load()
        texts = frame.selectExpr(
            f"if(position = '{fails_at}', raise_error('injected'), position) as position",
            "cast(value as string) as text",
        )
        writer = texts.writeStream.format("json").option("checkpointLocation", str(self._directory / "checkpoint"))
        return writer.trigger(**trigger).start(str(self._directory / "rows"))

    def run(self, fails_at: str = "") -> StreamingQuery:
        """Reads to the end of the log."""

        def run() -> StreamingQuery:
            query = self.begin(fails_at, availableNow=True)
            assert query.awaitTermination(ENDING_S)
            return query

        return restarted(run)

    @contextmanager
    def following(self) -> Iterator[Callable[[], None]]:
        """A query that runs until the context is left; yields what waits until it has read all that the log has."""
        query: StreamingQuery | None = None

        def catch_up() -> None:
            nonlocal query
            if query is None or not query.isActive:
                query = self.begin(processingTime="100 milliseconds")
            query.processAllAvailable()

        try:
            yield lambda: restarted(catch_up)
        finally:
            if query is not None:
                query.stop()

    def rows(self) -> list[bytes]:
        """What the committed micro-batches have, sorted."""
        found = self._spark.read.schema("position string, text string").json(str(self._directory / "rows")).collect()
        assert len({row.position for row in found}) == len(found)
        return sorted(row.text.encode() for row in found)


@pytest.mark.long(is_sampled=False)
def test_failed_query_is_begun_again(spark: SparkSession, metastore: str, spark_log: str, tmp_path: Path) -> None:
    ask(metastore, lambda client: write(client, spark_log, 2, 100))
    sink = Sink(spark, metastore, spark_log, tmp_path, maxRowsPerTrigger="150")
    assert "injected" in failing(lambda: sink.run(fails_at="2:70"))
    assert sink.rows() == numbers(0, 150)  # and what was under way is repeated:

    async def append(client: replog.Client) -> None:
        async with client.write_log(spark_log) as writer:
            for first in (200, 250):
                await writer.extend(numbers(first, 50))
                await writer.roll()

    ask(metastore, append)
    query = sink.run()
    assert [progress["numInputRows"] for progress in query.recentProgress] == [50, 100]
    assert sink.rows() == numbers(0, 300)
    ask(metastore, append)
    ask(metastore, lambda client: client.trim_log(spark_log, before="7:0"))
    told = failing(sink.run)
    assert "6:0 was trimmed away before it was read; the log begins at 7:0" in told


def failing(run: Callable[[], object]) -> str:
    """What the user is told."""
    from pyspark.errors import StreamingQueryException

    with pytest.raises(StreamingQueryException) as caught:
        run()
    return str(caught.value)


def test_a_query_follows_a_leader(spark: SparkSession, metastore: str, spark_log: str, tmp_path: Path) -> None:
    ask(metastore, lambda client: write(client, spark_log, 1, 10))
    sink = Sink(spark, metastore, spark_log, tmp_path)
    with (
        blocking.connect(metastore) as client,
        client.write_log(spark_log) as writer,
        sink.following() as catch_up,
    ):
        for first in (10, 20):
            writer.extend(numbers(first, 10))
            writer.roll()
            catch_up()
    assert sink.rows() == numbers(0, 30)
    ask(metastore, lambda client: write(client, spark_log, 1, 0))
    sink.run()
    assert sink.rows() == numbers(0, 30)
