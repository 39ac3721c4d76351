"""The options of reading: positions and times, and what a batch query or a stream has not."""

from __future__ import annotations

import pytest

from replog.errors import ConfigError
from replog.protocol.model import Position
from replog.spark.read_options import Bound, ReadOptions

NEEDED = {"metastore": "zookeeper://zk1/prod", "log": "orders"}


def parse(**options: str) -> ReadOptions:
    return ReadOptions.parse({**NEEDED, **options})


def test_nothing_is_needed() -> None:
    options = parse()
    assert (options.begin, options.end) == (Bound(), Bound())
    options.check_batch()
    options.check_stream()


def test_positions_times_and_words() -> None:
    options = ReadOptions.parse({**NEEDED, "from": "17:42", "to": "2026-11-20T12:00:00.000001+01:00"})
    assert options.begin == Bound(position=Position(17, 42))
    assert options.end == Bound(time_ns=1_795_172_400_000_001_000)
    assert ReadOptions.parse({**NEEDED, "FROM": "Latest"}).begin.is_latest
    assert Bound.parse("1970-01-01T00:00:00Z").time_ns == 0


def test_sizes_and_spellings() -> None:
    options = ReadOptions.parse({**NEEDED, "partitionBytes": "64MiB", "maxRowsPerTrigger": "10", "from": "1:0"})
    assert (options.partition_bytes, options.max_rows_per_trigger) == (64 << 20, 10)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"from": "yesterday"}, r"from: 'yesterday' is neither a position \(17:42\) nor a time"),
        ({"to": "2026-11-20T12:00:00"}, "to: .* has no time zone"),
        ({"from": "3:0", "to": "2:9"}, "from 3:0 lies after to 2:9"),
        ({"from": "2026-11-20T12:00:00Z", "to": "2026-11-20T11:00:00Z"}, "lies after"),
        ({"to": "latest"}, "leave it out"),
        ({"maxRowsPerTrigger": "1", "maxBytesPerTrigger": "1"}, "give one"),
        ({"maxRowsPerTrigger": "0"}, "max_rows_per_trigger: 0"),
        ({"partitionBytes": "1"}, "partition_bytes: 1"),
        ({"logs": "a,b"}, "log: it must be given, or logs for many: one of both"),
        ({"log": ""}, "log: it must be given, or logs for many"),
        ({"log": "", "logs": "a, a"}, "names a log twice"),
        ({"log": "", "logs": "a,"}, "logs: .*'' cannot be the name of a log"),
        (
            {"log": "", "logs": "a,b", "from": "1:0"},
            r'from 1:0 is of one log: with logs, write it as \{"orders": "17:42"\}',
        ),
        (
            {"log": "", "logs": "a,b*", "from": '{"c": "1:0"}'},
            "from has a position of log 'c', which the query does not",
        ),
        ({"log": "", "logs": "a,b*", "to": '{"a": 5}'}, "is not a JSON object of positions"),
        ({"log": "", "logs": "a", "from": '{"a": "3:0"}', "to": '{"a": "2:9"}'}, "lies after to"),
        ({"minRowsPerTrigger": "2", "maxRowsPerTrigger": "1"}, "min_rows_per_trigger=2 is more than max_rows"),
        ({"maxTriggerDelayS": "0"}, "max_trigger_delay_s: 0.0"),
        ({"form": "1:0"}, r"no such option: form \(there are: .*from, to"),
    ],
)
def test_impossible_options_are_refused(wrong: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        ReadOptions.parse({**NEEDED, **wrong})


@pytest.mark.parametrize(
    "option", [{"from": "latest"}, {"maxRowsPerTrigger": "5"}, {"maxBytesPerTrigger": "5"}, {"minRowsPerTrigger": "5"}]
)
def test_options_for_streams_only_are_refused(option: dict[str, str]) -> None:
    options = ReadOptions.parse({**NEEDED, **option})
    options.check_stream()
    with pytest.raises(ConfigError, match="is for readStream"):
        options.check_batch()


def test_options_for_batch_queries_only_are_refused() -> None:
    options = ReadOptions.parse({**NEEDED, "to": "1:0"})
    options.check_batch()
    with pytest.raises(ConfigError, match=r"is for spark\.read"):
        options.check_stream()


def test_many_logs_have_bounds_of_their_own() -> None:
    options = ReadOptions.parse({"metastore": NEEDED["metastore"], "logs": "a, b-*", "from": '{"b-1": "3:4"}'})
    assert options.begin.of("b-1").position == Position(3, 4)
    assert options.begin.of("a") == Bound()
    selection = options.selection
    assert (selection.names, selection.patterns) == (("a",), ("b-*",))
    assert [name for name in ("a", "A", "b-", "b-2", "bb") if selection.selects(name)] == ["a", "b-", "b-2"]
