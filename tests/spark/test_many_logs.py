"""The option `logs`: one query of many logs, and of those that come later."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

import replog
from replog import blocking
from replog.errors import ConfigError, LogNotFoundError, SchemaMismatchError, TrimmedError
from replog.spark import ReplogDataSource
from replog.spark.streaming import LogStreamReader
from replog.spark.values import ValueFormat
from tests.servers.bookies import Bookies
from tests.spark.logs import ask, wait_for_news
from tests.spark.queries import ENDING_S, restarted
from tests.spark.readers import numbers, rows, schema_of_text, stream_reader, wait_for, write
from tests.spark.test_auto_values import write_people

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from replog.spark.rows import LogBatchReader

pytestmark = pytest.mark.needs_spark

ALL = ReadAllAvailable()
SHOWN = "log string, position string"


@pytest.fixture
def metastore(spark_bookies: Bookies) -> str:
    return spark_bookies.metastore


def source(metastore: str, logs: str, **options: str) -> ReplogDataSource:
    return ReplogDataSource({"metastore": metastore, "logs": logs, **options})


def batch(metastore: str, logs: str, schema: str = SHOWN, **options: str) -> LogBatchReader:
    return source(metastore, logs, **options).reader(schema_of_text(schema))  # type: ignore[return-value]


def stream(metastore: str, logs: str, schema: str = SHOWN, **options: str) -> LogStreamReader:
    found = source(metastore, logs, **options).streamReader(schema_of_text(schema))
    assert isinstance(found, LogStreamReader)
    return found


def places(found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(row["log"], row["position"]) for row in found]


def drained(reader: LogStreamReader, start: dict[str, Any], limit: ReadLimit) -> tuple[list[Any], dict[str, Any]]:
    """Micro-batches until there is nothing more, and where they end."""
    batches: list[Any] = []
    while True:
        end = json.loads(json.dumps(reader.latestOffset(start, limit)))
        if end == start:
            return batches, end
        batches.append(places(rows(reader, list(reader.partitions(start, end)))))
        start = end


def test_a_batch_query_reads_many_logs(metastore: str, spark_log: str) -> None:
    one, other = f"{spark_log}-b", f"{spark_log}-a"
    ask(metastore, lambda client: write(client, one, 2, 3))
    ask(metastore, lambda client: write(client, other, 1, 2))
    expected = [(other, "1:0"), (other, "1:1"), *((one, f"{each}:{entry}") for each in (1, 2) for entry in range(3))]
    assert places(rows(batch(metastore, f"{one},{other}"))) == expected
    assert places(rows(batch(metastore, f"{spark_log}-*"))) == expected
    assert len(batch(metastore, f"{spark_log}-*").partitions()) == 1, "short ones share a task"
    bounds = {"from": json.dumps({one: "1:2"}), "to": json.dumps({one: "2:1"})}
    assert places(rows(batch(metastore, f"{spark_log}-*", **bounds))) == [*expected[:2], (one, "1:2"), (one, "2:0")]
    assert source(metastore, f"{spark_log}-*").schema().names[0] == "log"
    assert rows(batch(metastore, f"{spark_log}-none*")) == []
    with pytest.raises(LogNotFoundError, match="there is no such log"):
        batch(metastore, f"{one},{spark_log}-none")


def test_task_leaves_out_the_trimmed_part_of_one_log(
    metastore: str, spark_log: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The other logs of the task were partly given out by then: none of their rows comes twice, and none is left out."""
    names = [f"{spark_log}-{each}" for each in "abc"]
    for name in names:
        ask(metastore, lambda client, name=name: write(client, name, 12, 1))  # type: ignore[misc]
    reader = batch(metastore, ",".join(names), onTrimmed="skip")
    planned = reader.partitions()
    ask(metastore, lambda client: client.trim_log(names[1], before="9:0"))
    with caplog.at_level(logging.WARNING, "replog.spark"):
        found = places(rows(reader, planned))
    wait_for_news(caplog, "skipped: up to 8 entries of 8 segments")
    kept = {names[0]: range(1, 13), names[1]: range(9, 13), names[2]: range(1, 13)}
    assert found == [(name, f"{each}:0") for name in names for each in kept[name]]
    with pytest.raises(TrimmedError, match="1:0 was trimmed away"):
        rows(batch(metastore, ",".join(names)), planned)


def test_stream_finds_later_logs(metastore: str, spark_log: str) -> None:
    one, other = f"{spark_log}-a", f"{spark_log}-b"
    ask(metastore, lambda client: write(client, one, 1, 3))
    reader = stream(metastore, f"{spark_log}-*", **{"from": "latest"})
    start = reader.initialOffset()
    assert start == {"logs": {one: {"position": "2:0", "deletions": 0}}}
    assert drained(reader, start, ALL) == ([], start)
    ask(metastore, lambda client: client.jobs.append_ledgers(other, [], transaction=("job", 1)))
    assert reader.latestOffset(start, ALL) == start, "nothing to read: no micro-batch"
    ask(metastore, lambda client: write(client, other, 2, 1))
    (found,), end = drained(reader, start, ALL)
    assert found == [(other, "1:0"), (other, "2:0")], "from its first record on, whatever `from` says"
    assert end["logs"][other] == {"position": "3:0", "deletions": 0, "begin": "1:0"}
    again = stream(metastore, f"{spark_log}-*")
    assert places(rows(again, again.partitions(start, end))) == found, "a micro-batch that is repeated"
    ask(metastore, lambda client: client.trim_log(other, before="2:0"))
    with pytest.raises(TrimmedError, match="1:0 was trimmed away"):
        again.partitions(start, end)
    assert drained(stream(metastore, f"{spark_log}-*"), end, ALL) == ([], end)


def test_new_log_trimmed_before_it_was_read_is_not_skipped(metastore: str, spark_log: str) -> None:
    ask(metastore, lambda client: write(client, f"{spark_log}-a", 1, 1))
    reader = stream(metastore, f"{spark_log}-*", minRowsPerTrigger="100")
    start = reader.latestOffset(reader.initialOffset(), ALL)
    ask(metastore, lambda client: write(client, f"{spark_log}-b", 2, 1))
    assert reader.latestOffset(start, ReadMinRows(100)) == start, "it waits"
    ask(metastore, lambda client: client.trim_log(f"{spark_log}-b", before="2:0"))
    with pytest.raises(TrimmedError, match="1:0 was trimmed away before it was read"):
        reader.latestOffset(start, ReadMinRows(100))


@pytest.mark.parametrize("limit", [ALL, ReadMaxRows(4), ReadMaxRows(1), ReadMaxBytes(40), ReadMaxBytes(1)])
def test_limits_are_shared_and_all_is_read_once(metastore: str, spark_log: str, limit: ReadLimit) -> None:
    counts = {f"{spark_log}-a": 9, f"{spark_log}-b": 1, f"{spark_log}-c": 9}
    for name, count in counts.items():
        ask(metastore, lambda client, name=name, count=count: write(client, name, 1, count))  # type: ignore[misc]
    reader = stream(metastore, f"{spark_log}-*")
    batches, end = drained(reader, reader.initialOffset(), limit)
    found = [each for some in batches for each in some]
    assert sorted(found) == [(name, f"1:{entry}") for name, count in counts.items() for entry in range(count)]
    assert {each["position"] for each in end["logs"].values()} == {"2:0"}
    lengths = [len(each) for each in batches]
    if limit == ReadMaxRows(4):
        assert lengths == [4] * 4 + [3]
    elif limit == ReadMaxBytes(40):
        assert max(lengths) <= 5  # of eight bytes each
    elif limit != ALL:
        assert lengths == [1] * 19
        assert {name for name, _ in found[:3]} == set(counts), "all take their turns"
    ends = {name: (len(batches), 0) for name in counts}
    for number, some in enumerate(batches):
        for name, _ in some:
            ends[name] = (number, ends[name][1] + 1)
    if limit != ALL:
        assert abs(ends[f"{spark_log}-a"][0] - ends[f"{spark_log}-c"][0]) <= 1, "none waits for the other"


def test_a_large_entry_is_not_held_up_by_small_ones(metastore: str, spark_log: str) -> None:
    """Its share of the limit is less than it needs; its turn comes all the same."""

    async def append(client: replog.Client) -> None:
        async with client.write_log(f"{spark_log}-a") as writer:
            await writer.append(bytes(700))
        async with client.write_log(f"{spark_log}-b") as writer:
            await writer.extend([bytes(100)] * 100)

    ask(metastore, append)
    reader = stream(metastore, f"{spark_log}-*")
    batches, _ = drained(reader, reader.initialOffset(), ReadMaxBytes(1000))
    assert f"{spark_log}-a" in {name for some in batches[:2] for name, _ in some}
    sizes = [sum(700 if name == f"{spark_log}-a" else 100 for name, _ in some) for some in batches]
    assert max(sizes) <= 1000


def test_many_logs_go_on_from_the_checkpoint_of_one(metastore: str, spark_log: str) -> None:
    one, other = f"{spark_log}-a", f"{spark_log}-b"
    ask(metastore, lambda client: write(client, one, 1, 4))
    before = stream_reader(metastore, one)
    start = before.initialOffset()
    middle = before.latestOffset(start, ReadMaxRows(3))
    ask(metastore, lambda client: write(client, other, 1, 1))
    reader = stream(metastore, f"{spark_log}-*")
    assert places(rows(reader, reader.partitions(start, middle))) == [(one, f"1:{each}") for each in range(3)]
    assert sorted(drained(reader, middle, ALL)[0][0]) == [(one, "1:3"), (other, "1:0")]


def test_available_now_leaves_out_later_entries(metastore: str, spark_log: str) -> None:
    one, other = f"{spark_log}-a", f"{spark_log}-b"
    with blocking.connect(metastore) as client, client.write_log(one) as writer:
        writer.extend(numbers(0, 6))
        wait_for(metastore, one, numbers(5, 1)[0])
        for limit in (ALL, ReadMaxRows(4), ReadMaxBytes(8), ReadMinRows(100)):
            reader = stream(metastore, f"{spark_log}-*", minRowsPerTrigger="4")
            start = reader.initialOffset()
            reader.prepareForTriggerAvailableNow()
            writer.extend(numbers(6, 6))
            ask(metastore, lambda client: write(client, other, 1, 5))
            batches, _ = drained(reader, start, limit)
            first = [each for some in batches for each in some]
            assert len(first) == len(set(first))
            assert (one, "1:5") in first
            ask(metastore, lambda client: client.delete_log(other))
            if limit == ALL:
                assert first == [(one, f"1:{each}") for each in range(6)]


def test_deleted_log_ends_a_query_or_is_skipped(
    metastore: str, spark_log: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = f"{spark_log}-a", f"{spark_log}-b"
    for name in (one, other):
        ask(metastore, lambda client, name=name: write(client, name, 1, 3))  # type: ignore[misc]
    reader = stream(metastore, f"{spark_log}-*")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    ask(metastore, lambda client: client.delete_log(other))
    for look in (lambda: reader.latestOffset(start, ALL), lambda: reader.partitions(start, end)):
        with pytest.raises(LogNotFoundError, match="it was deleted"):
            look()
    now = stream(metastore, f"{spark_log}-*")
    now.prepareForTriggerAvailableNow()
    with pytest.raises(LogNotFoundError, match="it was deleted"):
        now.latestOffset(start, ALL)
    skipping = stream(metastore, f"{spark_log}-*", onTrimmed="skip")
    with caplog.at_level(logging.WARNING, "replog.spark"):
        assert places(rows(skipping, skipping.partitions(start, end))) == [(one, f"1:{each}") for each in range(3)]
        assert skipping.latestOffset(start, ALL)["logs"][other] == start["logs"][other]
    wait_for_news(caplog, "skipped: what", times=2)
    ask(metastore, lambda client: write(client, other, 1, 3))
    with pytest.raises(TrimmedError, match="it was deleted and created again"):
        skipping.latestOffset(start, ALL)


def test_logs_of_other_values_are_refused(metastore: str, spark_log: str) -> None:
    people, raw = f"{spark_log}-a", f"{spark_log}-b"
    write_people(metastore, people, ValueFormat.JSON)
    reader = stream(metastore, f"{spark_log}-*", "_log string, name string")
    assert rows(batch(metastore, f"{spark_log}-*", "_log string, id long, name string")) == [
        {"_log": people, "id": 1, "name": "one"},
        {"_log": people, "id": 2, "name": None},
    ]
    assert source(metastore, f"{spark_log}-*").schema().names == ["_log", "id", "name"]
    start = reader.initialOffset()
    ask(metastore, lambda client: write(client, raw, 1, 1))
    with pytest.raises(SchemaMismatchError, match=r"one query has one schema: binary here, json \(id bigint"):
        source(metastore, f"{spark_log}-*").schema()
    with pytest.raises(SchemaMismatchError, match="holds binary, where the query reads json"):
        reader.latestOffset(start, ALL)
    assert len(rows(batch(metastore, f"{spark_log}-*", values="binary"))) == 3
    with pytest.raises(ConfigError, match="there are: log string, position string"):
        batch(metastore, f"{spark_log}-*", "no string", values="binary")


# -- with Spark ---------------------------------------------------------------------------------------------------


@pytest.mark.long(is_sampled=False)
def test_a_query_of_a_pattern(spark: SparkSession, metastore: str, spark_log: str, tmp_path: Path) -> None:
    """Begun again when there is one more log; its progress says how far it is behind."""
    options = {"metastore": metastore, "logs": f"{spark_log}-*", "maxRowsPerTrigger": "5"}

    def run() -> Any:
        frame = spark.readStream.format("replog").options(**options).schema("log string, value string").load()
        writer = frame.writeStream.format("json").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(tmp_path / "rows"))
        assert query.awaitTermination(ENDING_S)
        return query

    expected = []
    query: Any = None
    for name in "ab":
        ask(metastore, lambda client, name=name: write(client, f"{spark_log}-{name}", 1, 7))  # type: ignore[misc]
        expected += [(f"{spark_log}-{name}", each.decode()) for each in numbers(0, 7)]
        query = restarted(run)
        found = spark.read.schema("log string, value string").json(str(tmp_path / "rows")).collect()
        assert sorted((row.log, row.value) for row in found) == expected
    first, *_, last = query.recentProgress
    reported = [json.loads(progress["sources"][0]["latestOffset"]) for progress in (first, last)]
    assert [each["lag"]["entries"] for each in reported] == [2, 0]
    assert [each["lag"]["bytes"] for each in reported] == [16, 0]
    assert reported[0]["lag"]["seconds"] > 0 == reported[1]["lag"]["seconds"]
